#include "vivace/program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace vivace {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr int64_t kStatChunk = 16384;

int32_t round_up(int32_t n, int32_t step) { return (n + step - 1) / step * step; }

}  // namespace

Program::Program(Pool& pool, const Kernels& kernels, Model model, int32_t max_rows)
    : pool_(pool), k_(kernels), model_(std::move(model)), max_rows_(max_rows), memory_(nullptr, std::free) {
  if (max_rows < 1) throw std::invalid_argument("max_rows must be at least 1");
  build();
}

void Program::add(const char* name, OpFn fn, int32_t layer) {
  ops_.push_back({name, fn, layer, static_cast<int32_t>(ops_.size())});
}

void Program::build() {
  int32_t lists = 0, group = 1;
  widest_ = model_.hidden;
  add("embed", &Program::embed, 0);
  for (int32_t i = 0; i < static_cast<int32_t>(model_.layers.size()); ++i) {
    const Layer& layer = model_.layers[i];
    layer_begin_.push_back(static_cast<int32_t>(ops_.size()));
    list_begin_.push_back(lists);
    lists += layer.kv_heads;
    if (layer.kv_heads < 1 || layer.heads % layer.kv_heads || layer.heads / layer.kv_heads > kMaxGroup)
      throw std::invalid_argument("query heads must be 1 to 256 times the KV heads");
    if (layer.head_dim < 16 || layer.head_dim % 16)
      throw std::invalid_argument("heads of " + std::to_string(layer.head_dim) +
                                  " values are not supported; a multiple of 16 is needed");
    group = std::max(group, layer.heads / layer.kv_heads);
    dim_ = std::max(dim_, layer.head_dim);
    qkv_width_ = std::max(qkv_width_, (layer.heads + 2 * layer.kv_heads) * layer.head_dim);
    attended_width_ = std::max(attended_width_, layer.heads * layer.head_dim);
    gated_width_ = std::max(gated_width_, layer.feed_forward);
    add("norm", &Program::mix_attention, i);
    add("qkv", &Program::project, i);
    add("rotate", &Program::rotate, i);
    add("attend", &Program::attend, i);
    add("fold", &Program::fold, i);
    add("quantise", &Program::quantise_attended, i);
    add("output", &Program::output, i);
    add("norm", &Program::mix_feed_forward, i);
    add("gate_up", &Program::gate_up, i);
    add("quantise", &Program::quantise_gated, i);
    add("down", &Program::down, i);
  }
  list_begin_.push_back(lists);
  layer_begin_.push_back(static_cast<int32_t>(ops_.size()));
  const auto last = static_cast<int32_t>(model_.layers.size());
  add("norm", &Program::absorb_last, last);
  add("norm", &Program::norm_wanted, last);
  add("head", &Program::head, last);
  add("logits", &Program::logit_stats, last);
  widest_ = round_up(std::max({widest_, attended_width_, gated_width_}), 64);
  qkv_width_ = round_up(qkv_width_, 16);
  block_rows_ = std::clamp(48 / group, 1, 16);
  block_queries_ = block_rows_ * group;
  claims_ = std::make_unique<Claim[]>(ops_.size());
  op_ns.assign(ops_.size(), 0);
  taps_.resize(last + 1);

  // Twice over the same list: first to count, then to place.
  for (int pass = 0; pass < 2; ++pass) {
    used_ = 0;
    hidden_ = allocate(int64_t{max_rows_} * model_.hidden);
    normed_ = allocate(int64_t{max_rows_} * widest_);
    y_ = allocate(int64_t{max_rows_} * model_.hidden);
    qkv_ = allocate(int64_t{max_rows_} * qkv_width_);
    attended_ = allocate(int64_t{max_rows_} * attended_width_);
    gate_ = allocate(int64_t{max_rows_} * gated_width_);
    up_ = allocate(int64_t{max_rows_} * gated_width_);
    const auto quantised = [&](int64_t rows) {
      Quantised into;
      into.q = reinterpret_cast<int8_t*>(allocate(rows * widest_ / 4));
      into.d = allocate(rows * widest_ / kQuantBlock);
      into.z = reinterpret_cast<int32_t*>(allocate(rows * widest_ / kQuantBlock));
      into.s = reinterpret_cast<int32_t*>(allocate(rows * widest_ / kSumBlock));
      return into;
    };
    quantised_ = quantised(max_rows_);
    private_.resize(pool_.threads());
    for (Private& own : private_) {
      own.hidden = allocate(model_.hidden);
      own.normed = allocate(widest_);
      own.query = allocate(qkv_width_);
      own.attended = allocate(attended_width_);
      own.quantised = quantised(1);
      own.q = allocate(int64_t{block_queries_} * dim_);
      own.chunk = allocate(int64_t{block_queries_} * (dim_ + 2));
      own.running = allocate(int64_t{block_queries_} * (dim_ + 2));
      own.prob = allocate(int64_t{block_queries_} * kChunk);
      own.bias = allocate(int64_t{block_queries_} * kChunk);
      own.cells = reinterpret_cast<uint8_t*>(allocate(int64_t{kChunk} * dim_));  // 2 arrays of half floats
      own.scratch = reinterpret_cast<uint8_t*>(allocate(kMatmulScratch / 4));
    }
    if (pass == 0) {
      capacity_ = used_;
      memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(4096, (capacity_ + 4095) / 4096 * 4096)));
      if (!memory_) throw std::bad_alloc();
      std::memset(memory_.get(), 0, capacity_);
    }
  }
}

float* Program::allocate(int64_t floats) {
  uint8_t* at = memory_ ? memory_.get() + used_ : nullptr;
  used_ += (floats * 4 + 127) / 128 * 128;
  return reinterpret_cast<float*>(at);
}

void Program::begin(Rows rows) {
  if (rows.rows < 1 || rows.rows > max_rows_) throw std::invalid_argument("a step takes between 1 and max_rows rows");
  if (static_cast<int>(private_.size()) < pool_.threads())
    throw std::logic_error("rebuild the program for more threads");
  if (rows.top < 0) throw std::invalid_argument("top cannot be negative");
  rows_ = std::move(rows);
  width_ = pool_.width();
  fresh_op_ = layer_begin_[0];
  next_op_ = 0;
  stream_set_ = false;
  stats_.resize(rows_.wanted.size());
  waited_.assign(width_, 0);
  const size_t stat_chunks = rows_.wanted.size() * ((model_.vocab + kStatChunk - 1) / kStatChunk);
  if (chunk_stats_.size() < stat_chunks) chunk_stats_.resize(stat_chunks);
  if (rows_.top && chunk_top_.size() < stat_chunks) chunk_top_.resize(stat_chunks);
  top_.assign(rows_.wanted.size() * rows_.top, -1);
  choose_rows();
}

void Program::clear_taps() { std::fill(taps_.begin(), taps_.end(), LayerTaps{}); }

void Program::run(int32_t first, int32_t last) {
  if (first < 0 || first > last || last > op_count()) throw std::invalid_argument("no such range of operations");
  if (stream_set_) fresh_op_ = first;
  stream_set_ = false;
  for (int32_t i = first; i < last; ++i) claims_[i].value.store(0, std::memory_order_relaxed);
  std::fill(waited_.begin(), waited_.end(), 0);
  struct Job {
    Program* program;
    int32_t first, last;
  } job{this, first, last};
  const int64_t start = now_ns();
  pool_.run(
      width_,
      [](void* context, int thread, int) {
        auto& [program, from, to] = *static_cast<Job*>(context);
        int64_t waited = 0, then = program->timing && thread == 0 ? now_ns() : 0;
        for (int32_t i = from; i < to; ++i) {
          const Op& op = program->ops_[i];
          if (program->idle(op)) continue;
          if ((program->*op.fn)(op, thread)) waited += program->barrier_.arrive_and_wait(program->width_);
          if (program->timing && thread == 0) {
            const int64_t now = now_ns();
            program->op_ns[i] += now - then;
            then = now;
          }
        }
        program->waited_[thread] = waited;
      },
      &job);
  next_op_ = last;
  if (last == op_count()) combine_stats();
  pool_.report(width_, now_ns() - start, *std::max_element(waited_.begin(), waited_.end()));
}

const float* Program::branch_norm(const Op& op) const {
  const Layer& layer = model_.layers[branch_layer(op)];
  return op.fn == &Program::mix_feed_forward ? layer.post_attention_norm : layer.post_feed_forward_norm;
}

void Program::read_hidden(float* out) {
  const OpFn fn = next_op_ < op_count() ? ops_[next_op_].fn : nullptr;
  if (fn != &Program::mix_attention && fn != &Program::mix_feed_forward && fn != &Program::absorb_last)
    throw std::invalid_argument("the residual stream can be read only before a norm");
  if (!stream_set_ && next_op_ != fresh_op_) {
    pool_.run(
        width_,
        [](void* context, int thread, int) {
          auto& program = *static_cast<Program*>(context);
          const Op& op = program.ops_[program.next_op_];
          program.each_row(thread, [&](int32_t row) { program.absorb(op, row, thread); });
        },
        this);
  }
  for (int32_t row = 0; row < rows_.rows; ++row)
    std::memcpy(out + int64_t{row} * model_.hidden, hidden_row(row, 0), model_.hidden * sizeof(float));
  stream_set_ = true;
}

void Program::write_hidden(const float* in) {
  const size_t bytes = model_.hidden * sizeof(float);
  if (single()) {
    for (Private& own : private_) std::memcpy(own.hidden, in, bytes);
  } else {
    std::memcpy(hidden_, in, bytes * rows_.rows);
  }
  stream_set_ = true;
}

int32_t Program::next_attend() const {
  if (next_op_ == op_count() || ops_[next_op_].fn != &Program::attend)
    throw std::invalid_argument("the queries of a layer can be read only before its attention");
  return ops_[next_op_].layer;
}

void Program::read_query(float* out) {
  const int32_t index = next_attend();
  const LayerRows& in = in_layer(index);
  const int64_t width = int64_t{model_.layers[index].heads} * model_.layers[index].head_dim;
  for (int32_t at = 0; at < in.rows; ++at)
    std::memcpy(out + in.step_row(at) * width, query_row(at, 0), width * sizeof(float));
}

void Program::write_query(const float* values) {
  const int32_t index = next_attend();
  const LayerRows& in = in_layer(index);
  const int64_t width = int64_t{model_.layers[index].heads} * model_.layers[index].head_dim;
  for (int thread = 0; thread < (single() ? width_ : 1); ++thread)
    for (int32_t at = 0; at < in.rows; ++at)
      std::memcpy(query_row(at, thread), values + in.step_row(at) * width, width * sizeof(float));
}

float* Program::hidden_row(int32_t row, int thread) {
  return single() ? private_[thread].hidden : hidden_ + int64_t{row} * model_.hidden;
}

float* Program::query_row(int32_t row, int thread) {
  return single() ? private_[thread].query : qkv_ + int64_t{row} * qkv_width_;
}

bool Program::embed(const Op&, int thread) {
  return each_row(thread, [&](int32_t row) {
    float* x = hidden_row(row, thread);
    if (rows_.tokens && rows_.tokens[row] >= 0) {
      dequantise_row(model_.embed_type, model_.embed + rows_.tokens[row] * model_.embed_row_bytes, model_.hidden, x);
      if (model_.embed_scale != 1) k_.scale(model_.embed_scale, model_.hidden, x);
    } else {
      std::memcpy(x, rows_.vectors + int64_t{row} * model_.hidden, model_.hidden * sizeof(float));
    }
  });
}

// Adds the branch that the last product left in y_ to the residual stream.
void Program::absorb(const Op& op, int32_t row, int thread) {
  float* x = hidden_row(row, thread);
  const int32_t at = op.index == fresh_op_ ? -1 : in_layer(branch_layer(op)).place_of(row);
  if (at >= 0) {
    const float* y = y_ + int64_t{at} * model_.hidden;
    if (const float* weight = branch_norm(op)) {
      k_.rms_norm(y, weight, model_.eps, model_.hidden, private_[thread].normed);
      y = private_[thread].normed;
    }
    k_.add(y, model_.hidden, x);
  }
  float* tap = op.fn == &Program::mix_feed_forward ? nullptr : taps_[op.layer].hidden;
  if (tap && (thread == 0 || !single()))
    std::memcpy(tap + int64_t{row} * model_.hidden, x, model_.hidden * sizeof(float));
}

void Program::quantise_row(const float* x, int32_t n, const Quantised& into) {
  if (n % kQuantBlock == 0) k_.quantise(x, n, into);
}

// The norm of a row of the step becomes input row `at` of the next product.
void Program::norm_row(int32_t row, int32_t at, int thread, const float* weight) {
  const int32_t n = model_.hidden;
  if (single()) {
    Private& own = private_[thread];
    k_.rms_norm(own.hidden, weight, model_.eps, n, own.normed);
    quantise_row(own.normed, n, own.quantised);
  } else {
    float* normed = normed_ + int64_t{at} * widest_;
    k_.rms_norm(hidden_row(row, thread), weight, model_.eps, n, normed);
    quantise_row(normed, n, quantised_row(at, n));
  }
}

bool Program::mix_attention(const Op& op, int thread) {
  const LayerRows& in = in_layer(op.layer);
  return each_row(thread, [&](int32_t row) {
    absorb(op, row, thread);
    const int32_t at = in.place_of(row);
    if (at >= 0) norm_row(row, at, thread, model_.layers[op.layer].attention_norm);
  });
}

bool Program::mix_feed_forward(const Op& op, int thread) {
  const LayerRows& in = in_layer(op.layer);
  return each_of(in.rows, thread, [&](int32_t at) {
    const int32_t row = in.step_row(at);
    absorb(op, row, thread);
    norm_row(row, at, thread, model_.layers[op.layer].feed_forward_norm);
  });
}

bool Program::absorb_last(const Op& op, int thread) {
  return each_row(thread, [&](int32_t row) { absorb(op, row, thread); });
}

Activations Program::activations(int32_t rows, int32_t cols, int thread) const {
  if (single()) {
    const Private& own = private_[thread];
    return {own.normed, widest_, own.quantised, 1, cols};
  }
  return {normed_, widest_, quantised_, rows, cols};
}

Quantised Program::quantised_row(int64_t row, int32_t n) const {
  const int64_t at = row * n;
  const int64_t block = at / kQuantBlock;
  return {quantised_.q + at, quantised_.d + block, quantised_.z + block, quantised_.s + at / kSumBlock};
}

// A row of n values becomes an input row of the next product.
void Program::take_row(const float* x, int32_t row, int32_t n, int thread) {
  Private& own = private_[thread];
  float* input = single() ? own.normed : normed_ + int64_t{row} * widest_;
  std::memcpy(input, x, n * sizeof(float));
  quantise_row(input, n, single() ? own.quantised : quantised_row(row, n));
}

bool Program::quantise_attended(const Op& op, int thread) {
  const Layer& layer = model_.layers[op.layer];
  return each_of(in_layer(op.layer).rows, thread, [&](int32_t row) {
    const float* x = single() ? private_[thread].attended : attended_ + int64_t{row} * attended_width_;
    take_row(x, row, layer.heads * layer.head_dim, thread);
  });
}

bool Program::quantise_gated(const Op& op, int thread) {
  const int32_t n = model_.layers[op.layer].feed_forward;
  return each_of(in_layer(op.layer).rows, thread,
                 [&](int32_t row) { take_row(gate_ + int64_t{row} * gated_width_, row, n, thread); });
}

// Splits the tiles of several matrices over the threads: one contiguous stream a thread for few rows (bound by
// memory), small groups taken in turn for many (bound by arithmetic, and a late thread loses only its group).
void Program::multiply(const Linear* const* parts, float* const* outs, const int64_t* strides, int count,
                       const Activations& a, const Op& op, int thread) {
  int64_t total = 0;
  int32_t tiles[3];
  for (int i = 0; i < count; ++i) {
    tiles[i] = (parts[i]->weight.rows + kTileRows - 1) / kTileRows;
    total += tiles[i] * parts[i]->weight.tile_bytes;
  }
  uint8_t* scratch = private_[thread].scratch;
  const auto product = [&](int i, int32_t begin, int32_t end) {
    const Linear& linear = *parts[i];
    k_.matmul(linear.weight.type)(linear.weight, a, begin, end, linear.bias, outs[i], strides[i], scratch);
  };
  if (a.rows < 16 || width_ == 1) {
    const Range mine = share(total, thread, width_);
    int64_t at = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t bytes = parts[i]->weight.tile_bytes;
      const auto tile_at = [&](int64_t limit) {
        return static_cast<int32_t>(std::clamp<int64_t>((limit - at + bytes / 2) / bytes, 0, tiles[i]));
      };
      const int32_t begin = tile_at(mine.begin), end = thread + 1 == width_ ? tiles[i] : tile_at(mine.end);
      if (begin < end) product(i, begin, end);
      at += tiles[i] * bytes;
    }
    return;
  }
  int32_t all = 0;
  for (int i = 0; i < count; ++i) all += tiles[i];
  const int32_t group = std::max(1, all / (8 * width_));
  for (;;) {
    int64_t begin = claim(op) * group;
    if (begin >= all) return;
    int64_t end = std::min<int64_t>(begin + group, all);
    for (int i = 0; i < count; ++i) {
      const auto from = static_cast<int32_t>(std::min<int64_t>(begin, tiles[i]));
      const auto to = static_cast<int32_t>(std::min<int64_t>(end, tiles[i]));
      if (from < to) product(i, from, to);
      begin = std::max<int64_t>(begin - tiles[i], 0);
      end -= tiles[i];
      if (end <= 0) break;
    }
  }
}

bool Program::project(const Op& op, int thread) {
  const Layer& layer = model_.layers[op.layer];
  const Linear* parts[] = {&layer.q, &layer.k, &layer.v};
  float* k = qkv_ + layer.heads * layer.head_dim;
  float* outs[] = {qkv_, k, k + layer.kv_heads * layer.head_dim};
  const int64_t strides[] = {qkv_width_, qkv_width_, qkv_width_};
  multiply(parts, outs, strides, 3, activations(in_layer(op.layer).rows, model_.hidden, thread), op, thread);
  return true;
}

bool Program::output(const Op& op, int thread) {
  const Layer& layer = model_.layers[op.layer];
  const Linear* part = &layer.o;
  const int64_t stride = model_.hidden;
  multiply(&part, &y_, &stride, 1, activations(in_layer(op.layer).rows, layer.heads * layer.head_dim, thread), op,
           thread);
  return true;
}

// A thread multiplies the same tiles of gate and up, so it can apply the activation to them without meeting others.
bool Program::gate_up(const Op& op, int thread) {
  const Layer& layer = model_.layers[op.layer];
  const Activations a = activations(in_layer(op.layer).rows, model_.hidden, thread);
  const int32_t tiles = (layer.feed_forward + kTileRows - 1) / kTileRows;
  uint8_t* scratch = private_[thread].scratch;
  const auto mul = layer.gelu ? k_.gelu_tanh_mul : k_.silu_mul;
  const auto tiles_of = [&](int32_t begin, int32_t end) {
    for (const auto& [linear, out] : {std::pair{&layer.gate, gate_}, std::pair{&layer.up, up_}})
      k_.matmul(linear->weight.type)(linear->weight, a, begin, end, linear->bias, out, gated_width_, scratch);
    const int32_t from = begin * kTileRows, to = std::min(end * kTileRows, layer.feed_forward);
    for (int64_t row = 0; row < a.rows; ++row) {
      float* gate = gate_ + row * gated_width_ + from;
      mul(gate, up_ + row * gated_width_ + from, to - from, gate);
    }
  };
  if (a.rows < 16 || width_ == 1) {
    const Range mine = share(tiles, thread, width_);
    if (mine.begin < mine.end) tiles_of(mine.begin, mine.end);
    return true;
  }
  const int32_t group = std::max(1, tiles / (8 * width_));
  for (int64_t begin; (begin = claim(op) * group) < tiles;) tiles_of(begin, std::min<int64_t>(begin + group, tiles));
  return true;
}

bool Program::down(const Op& op, int thread) {
  const Layer& layer = model_.layers[op.layer];
  const Linear* part = &layer.down;
  const int64_t stride = model_.hidden;
  multiply(&part, &y_, &stride, 1, activations(in_layer(op.layer).rows, layer.feed_forward, thread), op, thread);
  return true;
}

// The final norm of the wanted rows, packed one after another. A single wanted row is normed by every thread for
// itself.
bool Program::norm_wanted(const Op&, int thread) {
  const auto wanted = static_cast<int64_t>(rows_.wanted.size());
  if (wanted == 0) return false;
  const int32_t n = model_.hidden;
  if (wanted == 1) {
    Private& own = private_[thread];
    k_.rms_norm(hidden_row(rows_.wanted[0], thread), model_.final_norm, model_.eps, n, own.normed);
    quantise_row(own.normed, n, own.quantised);
    return false;
  }
  const Range mine = share(wanted, thread, width_);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    float* normed = normed_ + i * widest_;
    k_.rms_norm(hidden_row(rows_.wanted[i], thread), model_.final_norm, model_.eps, n, normed);
    quantise_row(normed, n, quantised_row(i, n));
  }
  return true;
}

bool Program::head(const Op& op, int thread) {
  const auto wanted = static_cast<int32_t>(rows_.wanted.size());
  if (wanted == 0) return false;
  const Private& own = private_[thread];
  const Activations a = wanted == 1 ? Activations{own.normed, widest_, own.quantised, 1, model_.hidden}
                                    : Activations{normed_, widest_, quantised_, wanted, model_.hidden};
  const Linear* part = &model_.head;
  const int64_t stride = model_.vocab;
  multiply(&part, &rows_.logits, &stride, 1, a, op, thread);
  return true;
}

void Program::combine_stats() {
  const int64_t chunks = (model_.vocab + kStatChunk - 1) / kStatChunk;
  for (size_t row = 0; row < stats_.size(); ++row) {
    const ChunkStats* part = chunk_stats_.data() + row * chunks;
    float max = part[0].max;
    int64_t argmax = part[0].argmax;
    for (int64_t i = 1; i < chunks; ++i)
      if (part[i].max > max || std::isnan(part[i].max)) max = part[i].max, argmax = part[i].argmax;
    double sum = 0;
    for (int64_t i = 0; i < chunks; ++i) sum += part[i].sum * std::exp(static_cast<double>(part[i].max) - max);
    stats_[row] = {max, static_cast<int32_t>(argmax), max + std::log(sum)};
    if (!rows_.top) continue;
    std::vector<Candidate>& all = chunk_top_[row * chunks];
    for (int64_t i = 1; i < chunks; ++i) {
      const std::vector<Candidate>& own = chunk_top_[row * chunks + i];
      all.insert(all.end(), own.begin(), own.end());
    }
    keep_largest(all, rows_.top);
    for (size_t i = 0; i < all.size(); ++i) top_[row * rows_.top + i] = all[i].id;
  }
}

// Statistics in chunks of fixed size, folded in order: their bits do not depend on the threads.
bool Program::logit_stats(const Op& op, int) {
  const auto wanted = static_cast<int64_t>(rows_.wanted.size());
  if (wanted == 0) return false;
  const int64_t chunks = (model_.vocab + kStatChunk - 1) / kStatChunk;
  for (int64_t unit; (unit = claim(op)) < wanted * chunks;) {
    const int64_t row = unit / chunks, begin = unit % chunks * kStatChunk;
    const int64_t n = std::min<int64_t>(kStatChunk, model_.vocab - begin);
    float* x = rows_.logits + row * model_.vocab + begin;
    if (model_.logit_softcap > 0) k_.softcap(model_.logit_softcap, static_cast<int32_t>(n), x);
    ChunkStats& into = chunk_stats_[unit];
    k_.logit_stats(x, n, &into.max, &into.argmax, &into.sum);
    into.argmax += begin;
    if (rows_.top) find_largest(k_, x, n, static_cast<int32_t>(begin), rows_.top, chunk_top_[unit]);
  }
  return true;
}

}  // namespace vivace

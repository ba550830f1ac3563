// Rotation, append and attention of a step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "vivace/program.h"

namespace vivace {

const KeyList& Program::keys(int32_t row, int32_t layer, int32_t head) const {
  const Sequence& sequence = rows_.sequences[in_layer(layer).sequence[row]];
  if (!sequence.lists) return sequence.shared;
  const KeyList& own = sequence.lists[list_begin_[layer] + head];
  return own.pages ? own : sequence.shared;
}

int32_t Program::total_visible(int32_t layer, const KeyList& list, int32_t row) const {
  const LayerRows& in = in_layer(layer);
  return in.visible[row] + list.shift + in.tail_length(row);
}

// The first ordinal inside the window; positions ascend along a list.
int32_t Program::first_visible(int32_t index, const KeyList& list, int32_t row) const {
  const int32_t window = model_.layers[index].window;
  if (window == 0) return 0;
  const LayerRows& in = in_layer(index);
  const int32_t oldest = in.positions[row] - window + 1, visible = in.visible[row] + list.shift;
  auto first =
      static_cast<int32_t>(std::lower_bound(list.positions, list.positions + visible, oldest) - list.positions);
  if (first == visible && in.tail_begin) {
    for (int32_t i = in.tail_begin[row]; i < in.tail_begin[row + 1]; ++i, ++first)
      if (list.positions[in.tail[i] + list.shift] >= oldest) break;
  }
  return first;
}

void Program::append_row(int32_t index, int32_t row, int32_t head, int thread) {
  const Layer& layer = model_.layers[index];
  const KeyList& list = keys(row, index, head);
  const int32_t slot = in_layer(index).slot[row] + list.shift, dim = layer.head_dim;
  uint8_t* cell = layer.kv + head * layer.head_stride + list.pages[slot / kPage] * layer.cell_bytes;
  const float* key = query_row(row, thread) + (layer.heads + head) * dim;
  const float* value = qkv_ + int64_t{row} * qkv_width_ + (layer.heads + layer.kv_heads + head) * dim;
  auto* k = reinterpret_cast<uint16_t*>(cell);
  k_.append(key, value, dim, slot % kPage, k, k + int64_t{kPage} * dim);
}

bool Program::rotate(const Op& op, int thread) {
  const Layer& layer = model_.layers[op.layer];
  const LayerRows& in = in_layer(op.layer);
  const int32_t dim = layer.head_dim, half = layer.rope_dim / 2;
  const bool tails = in.tail_begin != nullptr;
  const bool meet = each_of(in.rows, thread, [&](int32_t row) {
    float* q = query_row(row, thread);
    if (single()) std::memcpy(q, qkv_, (layer.heads + layer.kv_heads) * dim * sizeof(float));
    const int64_t at = int64_t{in.positions[row]} * half;
    for (int32_t head = 0; head < layer.heads + layer.kv_heads; ++head) {
      float* x = q + head * dim;
      const bool is_query = head < layer.heads;
      if (const float* norm = is_query ? layer.q_norm : layer.k_norm) k_.rms_norm(x, norm, model_.eps, dim, x);
      if (half > 0) k_.rope(layer.rope_cos + at, layer.rope_sin + at, half, x);
      if (is_query) k_.scale(layer.scale, dim, x);
    }
    float* tap = taps_[op.layer].query;
    if (tap && (thread == 0 || !single()))
      std::memcpy(tap + int64_t{in.step_row(row)} * layer.heads * dim, q, layer.heads * dim * sizeof(float));
    if (!single() || (tails && thread == 0))
      for (int32_t head = 0; head < layer.kv_heads; ++head) append_row(op.layer, row, head, thread);
  });
  return meet || tails;
}

// With few blocks the chunks of a head are shared out too; the fold over them stays in order, so the bits do not
// change.
bool Program::splits(int32_t index) const {
  const Layer& layer = model_.layers[index];
  if (taps_[index].mass || taps_[index].lse) return true;
  return width_ > 1 && static_cast<int64_t>(in_layer(index).blocks.size()) * layer.kv_heads < 4 * width_;
}

Program::ChunkSpan Program::chunk_span(int32_t index, const Block& block, int32_t head) const {
  int32_t first = std::numeric_limits<int32_t>::max(), last = 0;
  for (int32_t row = block.row; row < block.row + block.rows; ++row) {
    const KeyList& list = keys(row, index, head);
    first = std::min(first, first_visible(index, list, row));
    last = std::max(last, total_visible(index, list, row));
  }
  return {first / kChunk, (last + kChunk - 1) / kChunk};
}

Program::ChunkResult Program::partial(int32_t index, int32_t b, int32_t head, int32_t chunk) {
  const Layer& layer = model_.layers[index];
  const LayerRows& in = in_layer(index);
  const Block& block = in.blocks[b];
  const int32_t queries = block.rows * (layer.heads / layer.kv_heads);
  const int64_t chunks = (longest_list(in, block) + kChunk - 1) / kChunk;
  float* at = partials_.data() + in.block_partial[b] + (head * chunks + chunk) * queries * (layer.head_dim + 2);
  return {at, at + queries, at + 2 * queries};
}

void Program::gather_queries(int32_t index, const Block& block, int32_t head, int thread) {
  const Layer& layer = model_.layers[index];
  const int32_t group = layer.heads / layer.kv_heads, size = group * layer.head_dim;
  for (int32_t i = 0; i < block.rows; ++i)
    std::memcpy(private_[thread].q + int64_t{i} * size, query_row(block.row + i, thread) + head * size,
                size * sizeof(float));
}

// Brings keys that are not at the slot of their ordinal (rows of a tree) into lanes of their ordinal.
void Program::gather_cells(int32_t index, const KeyList& list, int32_t head, int32_t row, int32_t chunk, int thread,
                           AttendChunk& args) {
  const Layer& layer = model_.layers[index];
  const LayerRows& in = in_layer(index);
  const int32_t dim = layer.head_dim, straight = in.visible[row] + list.shift, total = total_visible(index, list, row);
  const int32_t* tail = in.tail + in.tail_begin[row];
  for (int32_t page = 0; page < kChunk / kPage; ++page) {
    const int32_t begin = chunk * kChunk + page * kPage;
    if (begin + kPage <= straight || begin >= total) continue;
    auto* k = reinterpret_cast<uint16_t*>(private_[thread].cells) + int64_t{page} * 2 * kPage * dim;
    uint16_t* v = k + int64_t{kPage} * dim;
    for (int32_t ordinal = begin; ordinal < std::min(begin + kPage, total); ++ordinal) {
      const int32_t slot = ordinal < straight ? ordinal : tail[ordinal - straight] + list.shift;
      const auto* from = reinterpret_cast<const uint16_t*>(layer.kv + head * layer.head_stride +
                                                           list.pages[slot / kPage] * layer.cell_bytes);
      const int32_t lane = ordinal - begin, source = slot % kPage;
      for (int32_t d = 0; d < dim; ++d) k[d * kPage + lane] = from[d * kPage + source];
      std::memcpy(v + lane * dim, from + (kPage + source) * dim, dim * sizeof(uint16_t));
    }
    args.k[page] = k;
    args.v[page] = v;
  }
}

// The biases of a chunk's keys in lanes of their ordinals, the same for each query: [queries][256].
void Program::gather_biases(int32_t index, const KeyList& list, int32_t row, int32_t chunk, int32_t queries,
                            float* out) const {
  const LayerRows& in = in_layer(index);
  const int32_t straight = in.visible[row] + list.shift, total = total_visible(index, list, row);
  for (int32_t lane = 0; lane < kChunk; ++lane) {
    const int32_t ordinal = chunk * kChunk + lane;
    int32_t slot = ordinal;
    if (ordinal >= straight && ordinal < total) slot = in.tail[in.tail_begin[row] + ordinal - straight] + list.shift;
    out[lane] = ordinal < total && slot < list.biased ? list.bias[slot] : 0.0f;
  }
  for (int32_t i = 1; i < queries; ++i) std::memcpy(out + i * kChunk, out, kChunk * sizeof(float));
}

void Program::attend_chunk(int32_t index, const Block& block, int32_t head, int32_t chunk, const ChunkResult& into,
                           int thread) {
  const Layer& layer = model_.layers[index];
  const int32_t group = layer.heads / layer.kv_heads, dim = layer.head_dim;
  const LayerRows& in = in_layer(index);
  const KeyList& list = keys(block.row, index, head);
  const int32_t longest = block.row + block.rows - 1;
  int32_t first[kMaxGroup], last[kMaxGroup], end = 0;
  for (int32_t i = 0; i < block.rows; ++i) {
    const int32_t from = std::clamp(first_visible(index, list, block.row + i) - chunk * kChunk, 0, kChunk);
    const int32_t to = std::clamp(total_visible(index, list, block.row + i) - chunk * kChunk, 0, kChunk);
    for (int32_t g = 0; g < group; ++g) first[i * group + g] = from, last[i * group + g] = to;
    end = std::max(end, to);
  }
  AttendChunk args{};
  args.dim = dim;
  args.queries = block.rows * group;
  args.q = private_[thread].q;
  for (int32_t page = 0; page * kPage < end; ++page) {
    const int32_t ordinal_page = chunk * (kChunk / kPage) + page;
    if (in.tail_begin && (ordinal_page + 1) * kPage > in.visible[longest] + list.shift) break;
    const auto* cell = reinterpret_cast<const uint16_t*>(layer.kv + head * layer.head_stride +
                                                         list.pages[ordinal_page] * layer.cell_bytes);
    args.k[page] = cell;
    args.v[page] = cell + int64_t{kPage} * dim;
  }
  if (in.tail_begin) gather_cells(index, list, head, longest, chunk, thread, args);
  const int32_t following = (chunk + 1) * (kChunk / kPage);
  if (following * kPage < in.visible[longest] + list.shift)
    args.next = reinterpret_cast<const uint16_t*>(layer.kv + head * layer.head_stride +
                                                  list.pages[following] * layer.cell_bytes);
  args.first = first;
  args.last = last;
  args.softcap = layer.softcap;
  args.max = into.max;
  args.sum = into.sum;
  args.out = into.out;
  if (list.bias) {
    args.bias = private_[thread].bias;
    gather_biases(index, list, longest, chunk, args.queries, private_[thread].bias);
  }
  if (taps_[index].mass) args.prob = private_[thread].prob;
  k_.attend(args);
  if (!taps_[index].mass) return;
  for (int32_t i = 0; i < args.queries; ++i) {
    const int64_t query = int64_t{in.step_row(block.row + i / group)} * layer.heads + head * group + i % group;
    const int64_t count = std::min<int64_t>(kChunk, mass_stride - chunk * kChunk);
    std::memcpy(taps_[index].mass + query * mass_stride + chunk * kChunk, args.prob + i * kChunk,
                count * sizeof(float));
  }
}

bool Program::attend(const Op& op, int thread) {
  const int32_t index = op.layer;
  const Layer& layer = model_.layers[index];
  const LayerRows& in = in_layer(index);
  const auto blocks = static_cast<int32_t>(in.blocks.size());
  const bool append = single() && !in.tail_begin;  // else the rows have been appended
  if (!splits(index)) {
    for (int64_t unit; (unit = claim(op)) < int64_t{blocks} * layer.kv_heads;) {
      const int64_t back = int64_t{blocks} * layer.kv_heads - 1 - unit;  // the longest rows first
      const auto head = static_cast<int32_t>(back % layer.kv_heads);
      const Block& block = in.blocks[back / layer.kv_heads];
      if (append) append_row(index, 0, head, thread);
      attend_whole(index, block, head, thread);
    }
    return true;
  }
  int64_t units = 0;
  for (const Block& block : in.blocks)
    for (int32_t head = 0; head < layer.kv_heads; ++head) {
      const ChunkSpan span = chunk_span(index, block, head);
      units += span.last - span.first;
    }
  const Range mine = share(units, thread, width_);
  int64_t unit = 0;
  for (int32_t b = 0; b < blocks; ++b)
    for (int32_t head = 0; head < layer.kv_heads; ++head) {
      const ChunkSpan span = chunk_span(index, in.blocks[b], head);
      bool gathered = false;
      for (int32_t chunk = span.first; chunk < span.last; ++chunk, ++unit) {
        if (unit < mine.begin || unit >= mine.end) continue;
        if (!gathered) gather_queries(index, in.blocks[b], head, thread);
        gathered = true;
        if (append && (in.slot[0] + keys(0, index, head).shift) / kChunk == chunk) append_row(index, 0, head, thread);
        attend_chunk(index, in.blocks[b], head, chunk, partial(index, b, head, chunk), thread);
      }
    }
  return true;
}

void Program::attend_whole(int32_t index, const Block& block, int32_t head, int thread) {
  const Layer& layer = model_.layers[index];
  const int32_t queries = block.rows * (layer.heads / layer.kv_heads), dim = layer.head_dim;
  gather_queries(index, block, head, thread);
  const auto results = [&](float* at) { return ChunkResult{at, at + queries, at + 2 * queries}; };
  const ChunkResult one = results(private_[thread].chunk), running = results(private_[thread].running);
  std::fill_n(running.max, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(running.sum, queries * (dim + 1), 0.0f);
  const ChunkSpan span = chunk_span(index, block, head);
  for (int32_t chunk = span.first; chunk < span.last; ++chunk) {
    attend_chunk(index, block, head, chunk, one, thread);
    k_.fold(queries, dim, one.max, one.sum, one.out, running.max, running.sum, running.out);
  }
  finish_block(index, block, head, running, thread);
}

void Program::finish_block(int32_t index, const Block& block, int32_t head, const ChunkResult& running, int thread) {
  const Layer& layer = model_.layers[index];
  const int32_t group = layer.heads / layer.kv_heads, dim = layer.head_dim;
  for (int32_t i = 0; i < block.rows; ++i) {
    const int64_t row = block.row + i;
    // A lone row that was not split is attended once, but every thread needs it: it goes to the shared buffer.
    float* out = (single() && splits(index) ? private_[thread].attended : attended_ + row * attended_width_) +
                 head * group * dim;
    float* lse = taps_[index].lse
                     ? taps_[index].lse + in_layer(index).step_row(block.row + i) * layer.heads + head * group
                     : nullptr;
    if (single() && thread != 0) lse = nullptr;
    k_.finish(group, dim, running.max + i * group, running.sum + i * group, running.out + int64_t{i} * group * dim, out,
              lse);
  }
}

// Masses as the chunks left them become probabilities, and those of tails go from their place in the row's list to
// their ordinal.
void Program::scale_mass(int32_t index, const Block& block, int32_t head, const ChunkResult* chunks, ChunkSpan span,
                         const ChunkResult& running) {
  const Layer& layer = model_.layers[index];
  const LayerRows& in = in_layer(index);
  const KeyList& list = keys(block.row, index, head);
  const int32_t group = layer.heads / layer.kv_heads;
  for (int32_t i = 0; i < block.rows * group; ++i) {
    const int32_t row = block.row + i / group;
    float* mass =
        taps_[index].mass + (int64_t{in.step_row(row)} * layer.heads + head * group + i % group) * mass_stride;
    for (int32_t chunk = span.first; chunk < span.last; ++chunk) {
      const float top = chunks[chunk - span.first].max[i];
      const float factor = std::isinf(top) ? 0.0f : std::exp(top - running.max[i]) / running.sum[i];
      const int64_t end = std::min<int64_t>((chunk + 1) * int64_t{kChunk}, mass_stride);
      for (int64_t key = int64_t{chunk} * kChunk; key < end; ++key) mass[key] *= factor;
    }
    const int32_t straight = in.visible[row] + list.shift;
    for (int32_t j = in.tail_length(row) - 1; j >= 0; --j) {  // ascending ordinals, none below its place: last first
      const float value = std::exchange(mass[straight + j], 0.0f);
      mass[in.tail[in.tail_begin[row] + j] + list.shift] = value;
    }
  }
}

bool Program::fold(const Op& op, int thread) {
  const int32_t index = op.layer;
  const Layer& layer = model_.layers[index];
  const LayerRows& in = in_layer(index);
  const int32_t width = layer.heads * layer.head_dim;
  if (!splits(index)) {
    if (single()) std::memcpy(private_[thread].attended, attended_, width * sizeof(float));
    return false;
  }
  const auto one = [&](int32_t b, int32_t head) {
    const Block& block = in.blocks[b];
    const int32_t queries = block.rows * (layer.heads / layer.kv_heads), dim = layer.head_dim;
    float* at = private_[thread].running;
    const ChunkResult running{at, at + queries, at + 2 * queries};
    std::fill_n(running.max, queries, -std::numeric_limits<float>::infinity());
    std::fill_n(running.sum, queries * (dim + 1), 0.0f);
    const ChunkSpan span = chunk_span(index, block, head);
    std::vector<ChunkResult>& parts = private_[thread].parts;
    parts.clear();
    for (int32_t chunk = span.first; chunk < span.last; ++chunk) {
      const ChunkResult part = partial(index, b, head, chunk);
      k_.fold(queries, dim, part.max, part.sum, part.out, running.max, running.sum, running.out);
      if (taps_[index].mass) parts.push_back(part);
    }
    finish_block(index, block, head, running, thread);
    if (taps_[index].mass && (thread == 0 || !single())) scale_mass(index, block, head, parts.data(), span, running);
  };
  if (single()) {
    for (int32_t head = 0; head < layer.kv_heads; ++head) one(0, head);
    return false;
  }
  for (int64_t unit; (unit = claim(op)) < static_cast<int64_t>(in.blocks.size()) * layer.kv_heads;)
    one(static_cast<int32_t>(unit / layer.kv_heads), static_cast<int32_t>(unit % layer.kv_heads));
  return true;
}

}  // namespace vivace

// Whole steps of a tiny model: the bits of a row depend neither on the threads nor on how rows are cut into steps.
#include "vivace/program.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

namespace vivace::testing {
namespace {

constexpr int32_t kHidden = 64, kVocab = 100, kHeads = 4, kKvHeads = 2, kDim = 16, kFeedForward = 96, kLayers = 2;
constexpr int32_t kTokens = 300;  // of a sequence: over one chunk of keys
constexpr int32_t kPages = (kTokens + kPage - 1) / kPage, kMaxRows = 2 * kTokens;

// Weights of one type and a cache for two sequences. The second layer has all that a layer can have.
class Tiny {
 public:
  explicit Tiny(WeightType type) : type_(type) {
    model.hidden = kHidden;
    model.vocab = kVocab;
    model.eps = 1e-6f;
    model.embed_scale = 1.5f;
    model.logit_softcap = 20;
    embed_ = random_.normals(size_t{kVocab} * kHidden);
    model.embed = reinterpret_cast<const uint8_t*>(embed_.data());
    model.embed_row_bytes = kHidden * sizeof(float);
    model.final_norm = vector(kHidden);
    model.head = linear(kVocab, kHidden, false);
    const float *cos = rotation([](double angle) { return std::cos(angle); }),
                *sin = rotation([](double angle) { return std::sin(angle); });
    for (int32_t i = 0; i < kLayers; ++i) {
      const bool rich = i == 1;
      Layer layer;
      layer.heads = kHeads;
      layer.kv_heads = kKvHeads;
      layer.head_dim = layer.rope_dim = kDim;
      layer.feed_forward = kFeedForward;
      layer.scale = 0.25f;
      layer.gelu = rich;
      layer.window = rich ? 70 : 0;
      layer.softcap = rich ? 30.0f : 0.0f;
      layer.attention_norm = vector(kHidden);
      layer.feed_forward_norm = vector(kHidden);
      if (rich) {
        layer.q_norm = vector(kDim);
        layer.k_norm = vector(kDim);
        layer.post_attention_norm = vector(kHidden);
        layer.post_feed_forward_norm = vector(kHidden);
      }
      layer.rope_cos = cos;
      layer.rope_sin = sin;
      layer.q = linear(kHeads * kDim, kHidden, rich);
      layer.k = linear(kKvHeads * kDim, kHidden, rich);
      layer.v = linear(kKvHeads * kDim, kHidden, rich);
      layer.o = linear(kHidden, kHeads * kDim, false);
      layer.gate = linear(kFeedForward, kHidden, false);
      layer.up = linear(kFeedForward, kHidden, false);
      layer.down = linear(kHidden, kFeedForward, false);
      layer.cell_bytes = int64_t{2} * kPage * kDim * sizeof(uint16_t);
      layer.head_stride = 2 * kPages * layer.cell_bytes;
      layer.kv = cells_.emplace_back(kKvHeads * layer.head_stride, uint8_t{0xff}).data();
      model.layers.push_back(layer);
    }
    for (int32_t i = 0; i < kTokens; ++i) positions.push_back(i);
    for (int32_t i = 0; i < 2 * kPages; ++i) pages[i % 2].push_back(i);  // of two sequences, interleaved
    for (auto& of_sequence : tokens)
      for (int32_t i = 0; i < kTokens; ++i) of_sequence.push_back(random_.below(kVocab));
  }

  Model model;
  std::vector<int32_t> positions, pages[2], tokens[2];

 private:
  const float* vector(size_t size) {
    auto& values = vectors_.emplace_back(random_.normals(size, 0.1f));
    for (float& value : values) value += 1;
    return values.data();
  }
  template <class Function>
  const float* rotation(Function function) {
    auto& values = vectors_.emplace_back();
    for (int32_t position = 0; position < kTokens; ++position)
      for (int32_t i = 0; i < kDim / 2; ++i)
        values.push_back(static_cast<float>(function(position * std::pow(100.0, -2.0 * i / kDim))));
    return values.data();
  }
  Linear linear(int32_t rows, int32_t cols, bool bias) {
    const int64_t row_bytes = stored_row_bytes(type_, cols), tile = packed_tile_bytes(type_, cols);
    std::vector<uint8_t> stored(rows * row_bytes);
    if (type_ == WeightType::kF32) {
      const auto values = random_.normals(int64_t{rows} * cols, 0.125f);
      std::memcpy(stored.data(), values.data(), stored.size());
    } else {  // Q8_0: a half float and 32 bytes
      for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random_.bits());
      for (size_t at = 0; at < stored.size(); at += 34) stored[at + 1] = 0x14;  // about 0.001
    }
    const int32_t tiles = (rows + kTileRows - 1) / kTileRows;
    auto& packed = packed_.emplace_back(tiles * tile);
    for (int32_t t = 0; t < tiles; ++t) {
      const uint8_t* from[kTileRows];
      for (int32_t i = 0; i < kTileRows; ++i)
        from[i] = t * kTileRows + i < rows ? stored.data() + (t * kTileRows + i) * row_bytes : nullptr;
      pack_tile(type_, from, cols, packed.data() + t * tile);
    }
    return {{type_, rows, cols, tile, packed.data()}, bias ? vector(rows) : nullptr};
  }

  WeightType type_;
  Random random_{7};
  std::vector<float> embed_;
  std::deque<std::vector<float>> vectors_;
  std::deque<Guarded<uint8_t>> packed_, cells_;
};

struct Result {
  std::vector<float> logits;  // [sequence][token][vocab]
  std::vector<LogitStats> stats;
  bool operator==(const Result& other) const {
    const auto same = [](const LogitStats& a, const LogitStats& b) {
      return a.max == b.max && a.argmax == b.argmax && a.log_sum_exp == b.log_sum_exp;
    };
    return logits.size() == other.logits.size() && same_bits(logits.data(), other.logits.data(), logits.size()) &&
           std::equal(stats.begin(), stats.end(), other.stats.begin(), other.stats.end(), same);
  }
};

// Both sequences from their first tokens on, at most `cut` rows of each a step, `together` in one step or in turn.
Result decode(const Tiny& tiny, Program& program, int32_t cut, bool together) {
  Result result;
  result.logits.resize(size_t{2} * kTokens * kVocab);
  result.stats.resize(size_t{2} * kTokens);
  const auto step = [&](int32_t begin, int32_t end, std::initializer_list<int32_t> sequences) {
    std::vector<int32_t> tokens, ordinals, sequence, visible;
    Rows rows;
    for (int32_t s : sequences) {
      for (int32_t i = begin; i < end; ++i) {
        rows.wanted.push_back(static_cast<int32_t>(tokens.size()));
        tokens.push_back(tiny.tokens[s][i]);
        ordinals.push_back(i);
        sequence.push_back(static_cast<int32_t>(rows.sequences.size()));
        visible.push_back(i + 1);
      }
      rows.sequences.push_back({{tiny.pages[s].data(), tiny.positions.data()}, nullptr, begin});
    }
    Guarded<float> logits(tokens.size() * kVocab);
    rows.rows = static_cast<int32_t>(tokens.size());
    rows.tokens = tokens.data();
    rows.positions = rows.slot = ordinals.data();
    rows.sequence = sequence.data();
    rows.visible = visible.data();
    rows.logits = logits.data();
    program.begin(rows);
    program.run(0, program.op_count());
    size_t row = 0;
    for (int32_t s : sequences)
      for (int32_t i = begin; i < end; ++i, ++row) {
        const size_t at = static_cast<size_t>(s) * kTokens + i;
        std::memcpy(&result.logits[at * kVocab], logits.data() + row * kVocab, kVocab * sizeof(float));
        result.stats[at] = program.stats()[row];
      }
  };
  for (int32_t begin = 0; begin < kTokens; begin += cut) {
    const int32_t end = std::min(begin + cut, kTokens);
    if (together) {
      step(begin, end, {0, 1});
    } else {
      step(begin, end, {0});
      step(begin, end, {1});
    }
  }
  return result;
}

void test_bits(const Kernels& kernels, WeightType type) {
  const std::string what = std::string(kernels.isa) + (type == WeightType::kF32 ? " F32" : " Q8_0");
  Tiny tiny(type);
  Pool pool(1);
  Program alone(pool, kernels, tiny.model, kMaxRows);
  const Result expected = decode(tiny, alone, 1, false);
  bool finite = true, stats = true, vary = false;
  for (float value : expected.logits) {
    finite &= std::isfinite(value) && std::abs(value) <= 20;
    vary |= std::abs(value) > 0.5f;
  }
  for (size_t row = 0; row < expected.stats.size(); ++row) {
    const float* logits = expected.logits.data() + row * kVocab;
    const float* best = std::max_element(logits, logits + kVocab);
    stats &= expected.stats[row].max == *best && expected.stats[row].argmax == best - logits;
  }
  expect(finite && vary, what + ": logits are not numbers in their range");
  expect(stats, what + ": the statistics are not those of the logits");
  for (int threads = 1; threads <= 3; ++threads) {
    pool.set_threads(threads);
    Program program(pool, kernels, tiny.model, kMaxRows);
    for (int32_t cut : {1, 2, 7, 40, kTokens})
      for (bool together : {false, true})
        expect(decode(tiny, program, cut, together) == expected, what + ": other bits with " + std::to_string(threads) +
                                                                     " threads and steps of " + std::to_string(cut) +
                                                                     (together ? " rows of each sequence" : " rows"));
  }
}

template <class Error, class Call>
bool throws(Call call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void test_errors() {
  Tiny tiny(WeightType::kF32);
  Pool pool(1);
  const Kernels& kernels = *select_kernels("portable");
  using Invalid = std::invalid_argument;
  expect(throws<Invalid>([&] { Program(pool, kernels, tiny.model, 0); }), "a program takes 0 rows");
  Model odd = tiny.model;
  odd.layers[1].kv_heads = 3;
  expect(throws<Invalid>([&] { Program(pool, kernels, odd, 1); }), "heads need not be a multiple of KV heads");
  Program program(pool, kernels, tiny.model, 2);
  for (int32_t count : {-1, 0, 3}) {
    Rows rows;
    rows.rows = count;
    expect(throws<Invalid>([&] { program.begin(rows); }), "a step takes " + std::to_string(count) + " rows of 2");
  }
  const int32_t ops = program.op_count();
  for (const auto& [first, last] : {std::pair{-1, 1}, {2, 1}, {0, ops + 1}})
    expect(throws<Invalid>([&, from = first, to = last] { program.run(from, to); }),
           "a range outside the operations runs");
  pool.set_threads(2);
  Rows row;
  row.rows = 1;
  expect(throws<std::logic_error>([&] { program.begin(row); }), "a program runs with more threads than it has buffers");
}

}  // namespace
}  // namespace vivace::testing

int main() {
  using namespace vivace;
  using namespace vivace::testing;
  for (const Kernels* kernels : all_kernels())
    for (WeightType type : {WeightType::kF32, WeightType::kQ8_0}) test_bits(*kernels, type);
  test_errors();
  return report("program");
}

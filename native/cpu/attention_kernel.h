// Attention over one chunk, written once for every instruction set: `V` is its vector of floats (simd_*.h).
//
// Queries are taken in blocks that share every load of a key or value; accumulators of a block stay in registers for a
// whole page. Each (query, key) logit and each (query, dim) value is one lane's own chain, so neither the block's size
// nor where it is cut shows in the result.
#pragma once
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "attention.h"
#include "exp.h"

// What does not depend on V has internal linkage, so that files compiled for different processors do not share it.
namespace vivace {
namespace {

constexpr int kPages = kChunk / kPage;
constexpr int kLine = 32;         // halves of a cache line
constexpr int kGroup = 48;        // queries whose logits are held at once
constexpr float kNothing = -std::numeric_limits<float>::infinity();

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// Logits of Q queries against K vectors of keys of one page; row i goes to logits + i * kChunk.
// `ahead`, when not null, is the page's worth of memory to prefetch meanwhile.
template <class V, int Q, int K>
void logit_tile(const float* q, int32_t dim, const uint16_t* k, const uint16_t* ahead, float* logits) {
  typename V::Floats sums[Q][K] = {};
  for (int32_t d = 0; d < dim; ++d) {
    if (ahead) {
      V::prefetch(ahead + d * kPage);
      V::prefetch(ahead + d * kPage + kLine);
    }
    typename V::Floats keys[K];
#pragma GCC unroll 8
    for (int v = 0; v < K; ++v) keys[v] = V::load_halves(k + d * kPage + v * V::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const typename V::Floats query = V::set(q[i * dim + d]);
#pragma GCC unroll 8
      for (int v = 0; v < K; ++v) sums[i][v] = V::fma(query, keys[v], sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < K; ++v) V::store(logits + i * kChunk + v * V::kLanes, sums[i][v]);
  }
}

// Adds prob * value of `keys` keys to D vectors of dims of Q queries. Row i of prob is at prob + i * kChunk.
// `ahead`, when not null, is where the same part of the page to prefetch begins.
template <class V, int Q, int D>
void value_tile(const float* prob, int keys, const uint16_t* v, const uint16_t* ahead, int32_t dim, float* out) {
  typename V::Floats sums[Q][D];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) sums[i][j] = V::load(out + i * dim + j * V::kLanes);
  }
  for (int key = 0; key < keys; ++key) {
    if (ahead) {
      V::prefetch(ahead + key * dim);
      if (D * V::kLanes > kLine) V::prefetch(ahead + key * dim + kLine);
    }
    typename V::Floats values[D];
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) values[j] = V::load_halves(v + key * dim + j * V::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const typename V::Floats weight = V::set(prob[i * kChunk + key]);
#pragma GCC unroll 8
      for (int j = 0; j < D; ++j) sums[i][j] = V::fma(weight, values[j], sums[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) V::store(out + i * dim + j * V::kLanes, sums[i][j]);
  }
}

using LogitTile = void (*)(const float*, int32_t, const uint16_t*, const uint16_t*, float*);
using ValueTile = void (*)(const float*, int, const uint16_t*, const uint16_t*, int32_t, float*);

constexpr int kMostVectors = 4;

template <class V>
constexpr int fitting_vectors(int queries) {
  return smaller(kMostVectors, V::fitting_vectors(queries));
}

// Index: (queries - 1) * kMostVectors + vectors - 1; null where the accumulators do not fit.
template <class V, int... I>
constexpr std::array<LogitTile, sizeof...(I)> logit_tiles(std::integer_sequence<int, I...>) {
  constexpr auto tile = []<int Q, int K>() -> LogitTile {
    if constexpr (K <= fitting_vectors<V>(Q)) return logit_tile<V, Q, K>;
    return nullptr;
  };
  return {tile.template operator()<I / kMostVectors + 1, I % kMostVectors + 1>()...};
}
template <class V, int... I>
constexpr std::array<ValueTile, sizeof...(I)> value_tiles(std::integer_sequence<int, I...>) {
  constexpr auto tile = []<int Q, int D>() -> ValueTile {
    if constexpr (D <= fitting_vectors<V>(Q)) return value_tile<V, Q, D>;
    return nullptr;
  };
  return {tile.template operator()<I / kMostVectors + 1, I % kMostVectors + 1>()...};
}
template <class V>
constexpr auto kLogitTiles = logit_tiles<V>(std::make_integer_sequence<int, V::kQueries * kMostVectors>());
template <class V>
constexpr auto kValueTiles = value_tiles<V>(std::make_integer_sequence<int, V::kQueries * kMostVectors>());

// Keys [begin, end) of a chunk.
struct Range {
  int begin;
  int end;
  bool empty() const { return begin >= end; }
  bool operator==(const Range&) const = default;
  Range within_page(int page) const { return {larger(begin - page * kPage, 0), smaller(end - page * kPage, kPage)}; }
};

// Queries that share loads: what any and what all of them see.
struct Block {
  int start;
  int count;
  Range any;
  Range all;
};

Range visible(const AttendChunk& c, int query) {
  const Range range = {larger(c.first[query], 0), smaller(c.last[query], kChunk)};
  return range.empty() ? Range{0, 0} : range;
}

// Cuts `count` queries from `start` into equal blocks. Returns how many.
template <class V>
int cut_blocks(const AttendChunk& c, int start, int count, Block* blocks) {
  constexpr int kBestBlock = 6;
  const int pieces = count <= V::kQueries ? 1 : (count + kBestBlock - 1) / kBestBlock;
  for (int piece = 0; piece < pieces; ++piece) {
    const int begin = start + count * piece / pieces;
    const int end = start + count * (piece + 1) / pieces;
    Block block = {begin, end - begin, {kChunk, 0}, {0, kChunk}};
    for (int query = begin; query < end; ++query) {
      const Range range = visible(c, query);
      if (!range.empty()) {
        block.any = {smaller(block.any.begin, range.begin), larger(block.any.end, range.end)};
      }
      block.all = {larger(block.all.begin, range.begin), smaller(block.all.end, range.end)};
    }
    blocks[piece] = block;
  }
  return pieces;
}

template <class V>
void page_logits(const AttendChunk& c, int page, const Block& block, const uint16_t* ahead, float* logits) {
  const Range keys = block.any.within_page(page);
  // A page between those that two queries see may be seen by none, and null.
  if (keys.empty() || c.k[page] == nullptr) return;
  const int end = (keys.end + V::kLanes - 1) / V::kLanes;
  for (int vector = keys.begin / V::kLanes; vector < end;) {
    const int vectors = smaller(end - vector, fitting_vectors<V>(block.count));
    kLogitTiles<V>[(block.count - 1) * kMostVectors + vectors - 1](c.q + static_cast<int64_t>(block.start)* c.dim,
                                                                   c.dim, c.k[page] + vector* V::kLanes, ahead,
                                                                   logits + page* kPage + vector* V::kLanes);
    ahead = nullptr;
    vector += vectors;
  }
}

template <class V>
void add_values(const AttendChunk& c, int page, Range keys, int start, int count, const uint16_t* ahead,
                const float* prob) {
  if (keys.empty()) return;
  const uint16_t* v = c.v[page] + static_cast<int64_t>(keys.begin) * c.dim;
  float* out = c.out + static_cast<int64_t>(start) * c.dim;
  const int most = fitting_vectors<V>(count);
  for (int left = c.dim / V::kLanes; left > 0;) {
    const int vectors = left == most + 1 && most > 2 ? most - 1 : smaller(left, most);
    kValueTiles<V>[(count - 1) * kMostVectors + vectors - 1](prob + page* kPage + keys.begin, keys.end - keys.begin, v,
                                                             ahead, c.dim, out);
    v += vectors * V::kLanes;
    if (ahead) ahead += vectors * V::kLanes;
    out += vectors * V::kLanes;
    left -= vectors;
  }
}

// Keys that all queries of the block see are taken together, the others query by query.
template <class V>
void page_values(const AttendChunk& c, int page, const Block& block, const uint16_t* ahead, const float* prob) {
  const Range any = block.any.within_page(page);
  const Range all = block.all.within_page(page);
  if (any == all) return add_values<V>(c, page, all, block.start, block.count, ahead, prob);
  const bool together = !all.empty();
  const auto alone = [&](bool before) {
    for (int i = 0; i < block.count; ++i) {
      Range keys = visible(c, block.start + i).within_page(page);
      if (before && together) keys.end = all.begin;
      if (!before) keys.begin = larger(keys.begin, all.end);
      add_values<V>(c, page, keys, block.start + i, 1, nullptr, prob + i * kChunk);
    }
  };
  alone(true);
  if (!together) return;
  add_values<V>(c, page, all, block.start, block.count, ahead, prob);
  alone(false);
}

// Sets the lanes beside the range in the vectors where it begins and ends.
template <class V>
inline void fill_beside(Range range, float value, float* row) {
  const auto values = V::set(value);
  const int before = range.begin % V::kLanes, within = range.end % V::kLanes;
  float* first = row + range.begin - before;
  float* last = row + range.end - within;
  if (before) V::store(first, V::join(before, values, V::load(first)));
  if (within) V::store(last, V::join(within, V::load(last), values));
}

// Softcap and bias of whole vectors.
template <class V>
void adjust_logits(const AttendChunk& c, int query, Range vectors, float* logits) {
  const float* bias = c.bias ? c.bias + static_cast<int64_t>(query) * kChunk : nullptr;
  const typename V::Floats cap = V::set(c.softcap);
  for (int i = vectors.begin * V::kLanes; i < vectors.end * V::kLanes; i += V::kLanes) {
    typename V::Floats logit = V::load(logits + i);
    if (c.softcap != 0.0f) logit = cap * vivace::tanh<V>(logit / cap);
    if (bias) logit = logit + V::load(bias + i);
    V::store(logits + i, logit);
  }
}

template <class V>
Range touched_vectors(Range range) {
  return {range.begin / V::kLanes, (range.end + V::kLanes - 1) / V::kLanes};
}

// Completes the visible logits, sets lanes beside them in touched vectors to -inf, and finds the maximum.
template <class V>
void maximum(const AttendChunk& c, int query, float* logits) {
  const Range range = visible(c, query);
  const Range vectors = touched_vectors<V>(range);
  if (c.softcap != 0.0f || c.bias) adjust_logits<V>(c, query, vectors, logits);
  fill_beside<V>(range, kNothing, logits);
  typename V::Floats tops = V::set(kNothing);
  for (int i = vectors.begin; i < vectors.end; ++i) tops = V::max(tops, V::load(logits + i * V::kLanes));
  c.max[query] = V::largest(tops);
}

// Turns the visible logits into exp(logit - max). Lanes beside them in touched vectors become 0.
template <class V>
void probabilities(const AttendChunk& c, int query, float* logits) {
  const Range range = visible(c, query);
  const Range vectors = touched_vectors<V>(range);
  // When every logit is -inf nothing is subtracted: their exp is 0 and that of a NaN stays NaN.
  const typename V::Floats offset = V::set(c.max[query] == kNothing ? 0.0f : c.max[query]);
  typename V::Floats sums = V::set(0.0f);
  for (int i = vectors.begin; i < vectors.end; ++i) {
    const typename V::Floats prob = exp_below<V>(V::load(logits + i * V::kLanes) - offset);
    sums = sums + prob;
    V::store(logits + i * V::kLanes, prob);
  }
  c.sum[query] = V::sum(sums);
  if (!std::isnan(c.sum[query])) return;
  c.max[query] = c.sum[query];
  fill_beside<V>(range, 0.0f, logits);  // was exp(-inf - NaN)
}

// Zeroes the vectors that `probabilities` did not touch.
template <class V>
void clear_unseen(const AttendChunk& c, int query, float* prob) {
  const Range range = visible(c, query);
  for (int i = 0; i < kChunk; i += V::kLanes) {
    if (i + V::kLanes <= range.begin || i >= range.end) V::store(prob + i, V::set(0.0f));
  }
}

// `prob` holds [count][kChunk] floats; what it holds before does not matter.
template <class V>
void attend_group(const AttendChunk& c, int start, int count, float* prob) {
  Block blocks[kGroup];
  const int pieces = cut_blocks<V>(c, start, count, blocks);
  const auto row = [&](int query) { return prob + (query - start) * kChunk; };
  const uint16_t* first_values = nullptr;
  for (int page = kPages - 1; page >= 0; --page) {
    if (c.v[page]) first_values = c.v[page];
  }
  for (int page = 0; page < kPages; ++page) {
    const uint16_t* next = page + 1 < kPages ? c.k[page + 1] : nullptr;
    if (next == nullptr) next = first_values;
    for (int i = 0; i < pieces; ++i) page_logits<V>(c, page, blocks[i], i == 0 ? next : nullptr, row(blocks[i].start));
  }
  // Apart from the rest, so that the maxima of several queries are found at the same time.
  for (int query = start; query < start + count; ++query) maximum<V>(c, query, row(query));
  for (int query = start; query < start + count; ++query) {
    probabilities<V>(c, query, row(query));
    if (c.prob) clear_unseen<V>(c, query, row(query));
    float* out = c.out + static_cast<int64_t>(query) * c.dim;
    for (int32_t d = 0; d < c.dim; d += V::kLanes) V::store(out + d, V::set(0.0f));
  }
  for (int page = 0; page < kPages; ++page) {
    const uint16_t* next = page + 1 < kPages ? c.v[page + 1] : nullptr;
    if (next == nullptr) next = c.next;
    for (int i = 0; i < pieces; ++i) page_values<V>(c, page, blocks[i], i == 0 ? next : nullptr, row(blocks[i].start));
  }
}

template <class V>
void attend(const AttendChunk& c) {
  alignas(64) float scratch[kGroup * kChunk];
  for (int start = 0; start < c.queries; start += kGroup) {
    float* prob = c.prob ? c.prob + static_cast<int64_t>(start) * kChunk : scratch;
    attend_group<V>(c, start, smaller(c.queries - start, kGroup), prob);
  }
}

template <class V>
void fold(int32_t queries, int32_t dim, const float* max, const float* sum, const float* out, float* run_max,
          float* run_sum, float* run_out) {
  for (int32_t i = 0; i < queries; ++i) {
    if (max[i] == kNothing) continue;
    const float both = max[i] > run_max[i] || std::isnan(max[i]) ? max[i] : run_max[i];
    const typename V::Floats keep = exp<V>(V::set(run_max[i] - both));
    const typename V::Floats take = exp<V>(V::set(max[i] - both));
    const auto join = [&](typename V::Floats run, typename V::Floats chunk) { return V::fma(run, keep, chunk * take); };
    run_max[i] = both;
    run_sum[i] = join(V::set(run_sum[i]), V::set(sum[i]))[0];
    for (int64_t d = static_cast<int64_t>(i) * dim; d < static_cast<int64_t>(i + 1) * dim; d += V::kLanes) {
      V::store(run_out + d, join(V::load(run_out + d), V::load(out + d)));
    }
  }
}

template <class V>
void finish(int32_t queries, int32_t dim, const float* run_max, const float* run_sum, const float* run_out, float* out,
            float* lse) {
  for (int32_t i = 0; i < queries; ++i) {
    const bool some = run_sum[i] != 0.0f;
    for (int64_t d = static_cast<int64_t>(i) * dim; d < static_cast<int64_t>(i + 1) * dim; d += V::kLanes) {
      V::store(out + d, some ? V::load(run_out + d) / V::set(run_sum[i]) : V::set(0.0f));
    }
    if (lse) lse[i] = some ? run_max[i] + std::log(run_sum[i]) : kNothing;
  }
}

template <class V>
void set_attention_of(Kernels& kernels) {
  kernels.attend = attend<V>;
  kernels.fold = fold<V>;
  kernels.finish = finish<V>;
}

}  // namespace
}  // namespace vivace

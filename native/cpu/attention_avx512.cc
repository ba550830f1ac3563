// Attention over one chunk with AVX-512.
//
// Queries are taken in blocks that share every load of a key or value; accumulators of a block stay in registers for a
// whole page. Each (query, key) logit and each (query, dim) value is one lane's own chain, so neither the block's size
// nor where it is cut shows in the result.
#include "attention.h"

#include "intrinsics.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "exp_avx512.h"

namespace vivace::avx512 {
namespace {

constexpr int kLanes = 16;
constexpr int kPages = kChunk / kPage;
constexpr int kLine = 32;         // halves of a cache line
constexpr int kMaxBlock = 7;      // queries of a block: 7 x 4 accumulators fit the registers
constexpr int kGroup = 48;        // queries whose logits are held at once
constexpr float kNothing = -std::numeric_limits<float>::infinity();

inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger(int a, int b) { return a > b ? a : b; }

inline __m512 load_halves(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline void prefetch(const uint16_t* from) { _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0); }

// Logits of Q queries against V vectors of 16 keys of one page; row i goes to logits + i * kChunk.
// `ahead`, when not null, is the page's worth of memory to prefetch meanwhile.
template <int Q, int V>
void logit_tile(const float* q, int32_t dim, const uint16_t* k, const uint16_t* ahead, float* logits) {
  __m512 sums[Q][V] = {};
  for (int32_t d = 0; d < dim; ++d) {
    if (ahead) {
      prefetch(ahead + d * kPage);
      prefetch(ahead + d * kPage + kLine);
    }
    __m512 keys[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) keys[v] = load_halves(k + d * kPage + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const __m512 query = _mm512_set1_ps(q[i * dim + d]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[i][v] = _mm512_fmadd_ps(query, keys[v], sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(logits + i * kChunk + v * kLanes, sums[i][v]);
  }
}

// Adds prob * value of `keys` keys to D vectors of 16 dims of Q queries. Row i of prob is at prob + i * kChunk.
// `ahead`, when not null, is where the same part of the page to prefetch begins.
template <int Q, int D>
void value_tile(const float* prob, int keys, const uint16_t* v, const uint16_t* ahead, int32_t dim, float* out) {
  __m512 sums[Q][D];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) sums[i][j] = _mm512_loadu_ps(out + i * dim + j * kLanes);
  }
  for (int key = 0; key < keys; ++key) {
    if (ahead) {
      prefetch(ahead + key * dim);
      if (D > 2) prefetch(ahead + key * dim + kLine);
    }
    __m512 values[D];
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) values[j] = load_halves(v + key * dim + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const __m512 weight = _mm512_set1_ps(prob[i * kChunk + key]);
#pragma GCC unroll 8
      for (int j = 0; j < D; ++j) sums[i][j] = _mm512_fmadd_ps(weight, values[j], sums[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < D; ++j) _mm512_storeu_ps(out + i * dim + j * kLanes, sums[i][j]);
  }
}

using LogitTile = void (*)(const float*, int32_t, const uint16_t*, const uint16_t*, float*);
using ValueTile = void (*)(const float*, int, const uint16_t*, const uint16_t*, int32_t, float*);

// Index: (queries - 1) * 4 + vectors - 1.
template <int... I>
constexpr std::array<LogitTile, sizeof...(I)> logit_tiles(std::integer_sequence<int, I...>) {
  return {logit_tile<I / 4 + 1, I % 4 + 1>...};
}
template <int... I>
constexpr std::array<ValueTile, sizeof...(I)> value_tiles(std::integer_sequence<int, I...>) {
  return {value_tile<I / 4 + 1, I % 4 + 1>...};
}
constexpr auto kLogitTiles = logit_tiles(std::make_integer_sequence<int, kMaxBlock * 4>());
constexpr auto kValueTiles = value_tiles(std::make_integer_sequence<int, kMaxBlock * 4>());

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
int cut_blocks(const AttendChunk& c, int start, int count, Block* blocks) {
  constexpr int kBestBlock = 6;
  const int pieces = count <= kMaxBlock ? 1 : (count + kBestBlock - 1) / kBestBlock;
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

void page_logits(const AttendChunk& c, int page, const Block& block, const uint16_t* ahead, float* logits) {
  const Range keys = block.any.within_page(page);
  // A page between those that two queries see may be seen by none, and null.
  if (keys.empty() || c.k[page] == nullptr) return;
  const int vector = keys.begin / kLanes;
  const int vectors = (keys.end + kLanes - 1) / kLanes - vector;
  kLogitTiles[(block.count - 1) * 4 + vectors - 1](c.q + static_cast<int64_t>(block.start) * c.dim, c.dim,
                                                   c.k[page] + vector * kLanes, ahead,
                                                   logits + page * kPage + vector * kLanes);
}

void add_values(const AttendChunk& c, int page, Range keys, int start, int count, const uint16_t* ahead,
                const float* prob) {
  if (keys.empty()) return;
  const uint16_t* v = c.v[page] + static_cast<int64_t>(keys.begin) * c.dim;
  float* out = c.out + static_cast<int64_t>(start) * c.dim;
  for (int left = c.dim / kLanes; left > 0;) {
    const int vectors = left == 5 ? 3 : smaller(left, 4);
    kValueTiles[(count - 1) * 4 + vectors - 1](prob + page * kPage + keys.begin, keys.end - keys.begin, v, ahead, c.dim,
                                               out);
    v += vectors * kLanes;
    if (ahead) ahead += vectors * kLanes;
    out += vectors * kLanes;
    left -= vectors;
  }
}

// Keys that all queries of the block see are taken together, the others query by query.
void page_values(const AttendChunk& c, int page, const Block& block, const uint16_t* ahead, const float* prob) {
  const Range any = block.any.within_page(page);
  const Range all = block.all.within_page(page);
  if (any == all) return add_values(c, page, all, block.start, block.count, ahead, prob);
  const bool together = !all.empty();
  const auto alone = [&](bool before) {
    for (int i = 0; i < block.count; ++i) {
      Range keys = visible(c, block.start + i).within_page(page);
      if (before && together) keys.end = all.begin;
      if (!before) keys.begin = larger(keys.begin, all.end);
      add_values(c, page, keys, block.start + i, 1, nullptr, prob + i * kChunk);
    }
  };
  alone(true);
  if (!together) return;
  add_values(c, page, all, block.start, block.count, ahead, prob);
  alone(false);
}

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

// Sets the lanes beside the range in the vectors where it begins and ends.
inline void fill_beside(Range range, float value, float* row) {
  const __m512 values = _mm512_set1_ps(value);
  const auto fill = [&](int position, bool before) {
    float* vector = row + position / kLanes * kLanes;
    const __mmask16 lanes = first_lanes(position % kLanes);
    const __mmask16 beside = before ? lanes : static_cast<__mmask16>(~lanes);
    _mm512_storeu_ps(vector, _mm512_mask_mov_ps(_mm512_loadu_ps(vector), beside, values));
  };
  if (range.begin % kLanes) fill(range.begin, true);
  if (range.end % kLanes) fill(range.end, false);
}

// Softcap and bias of whole vectors.
void adjust_logits(const AttendChunk& c, int query, Range vectors, float* logits) {
  const float* bias = c.bias ? c.bias + static_cast<int64_t>(query) * kChunk : nullptr;
  const __m512 cap = _mm512_set1_ps(c.softcap);
  for (int i = vectors.begin * kLanes; i < vectors.end * kLanes; i += kLanes) {
    __m512 logit = _mm512_loadu_ps(logits + i);
    if (c.softcap != 0.0f) logit = _mm512_mul_ps(cap, tanh16(_mm512_div_ps(logit, cap)));
    if (bias) logit = _mm512_add_ps(logit, _mm512_loadu_ps(bias + i));
    _mm512_storeu_ps(logits + i, logit);
  }
}

Range touched_vectors(Range range) { return {range.begin / kLanes, (range.end + kLanes - 1) / kLanes}; }

// Completes the visible logits, sets lanes beside them in touched vectors to -inf, and finds the maximum.
void maximum(const AttendChunk& c, int query, float* logits) {
  const Range range = visible(c, query);
  const Range vectors = touched_vectors(range);
  if (c.softcap != 0.0f || c.bias) adjust_logits(c, query, vectors, logits);
  fill_beside(range, kNothing, logits);
  __m512 tops = _mm512_set1_ps(kNothing);
  for (int i = vectors.begin; i < vectors.end; ++i) tops = _mm512_max_ps(tops, _mm512_loadu_ps(logits + i * kLanes));
  c.max[query] = _mm512_reduce_max_ps(tops);
}

// Turns the visible logits into exp(logit - max). Lanes beside them in touched vectors become 0.
void probabilities(const AttendChunk& c, int query, float* logits) {
  const Range range = visible(c, query);
  const Range vectors = touched_vectors(range);
  // When every logit is -inf nothing is subtracted: their exp is 0 and that of a NaN stays NaN.
  const __m512 offset = _mm512_set1_ps(c.max[query] == kNothing ? 0.0f : c.max[query]);
  __m512 sums = _mm512_setzero_ps();
  for (int i = vectors.begin; i < vectors.end; ++i) {
    const __m512 prob = exp16_below(_mm512_sub_ps(_mm512_loadu_ps(logits + i * kLanes), offset));
    sums = _mm512_add_ps(sums, prob);
    _mm512_storeu_ps(logits + i * kLanes, prob);
  }
  c.sum[query] = _mm512_reduce_add_ps(sums);
  if (!std::isnan(c.sum[query])) return;
  c.max[query] = c.sum[query];
  fill_beside(range, 0.0f, logits);  // was exp(-inf - NaN)
}

// Zeroes the vectors that `probabilities` did not touch.
void clear_unseen(const AttendChunk& c, int query, float* prob) {
  const Range range = visible(c, query);
  for (int i = 0; i < kChunk; i += kLanes) {
    if (i + kLanes <= range.begin || i >= range.end) _mm512_storeu_ps(prob + i, _mm512_setzero_ps());
  }
}

// `prob` holds [count][kChunk] floats; what it holds before does not matter.
void attend_group(const AttendChunk& c, int start, int count, float* prob) {
  Block blocks[kGroup];
  const int pieces = cut_blocks(c, start, count, blocks);
  const auto row = [&](int query) { return prob + (query - start) * kChunk; };
  const uint16_t* first_values = nullptr;
  for (int page = kPages - 1; page >= 0; --page) {
    if (c.v[page]) first_values = c.v[page];
  }
  for (int page = 0; page < kPages; ++page) {
    const uint16_t* next = page + 1 < kPages ? c.k[page + 1] : nullptr;
    if (next == nullptr) next = first_values;
    for (int i = 0; i < pieces; ++i) page_logits(c, page, blocks[i], i == 0 ? next : nullptr, row(blocks[i].start));
  }
  // Apart from the rest, so that the maxima of several queries are found at the same time.
  for (int query = start; query < start + count; ++query) maximum(c, query, row(query));
  for (int query = start; query < start + count; ++query) {
    probabilities(c, query, row(query));
    if (c.prob) clear_unseen(c, query, row(query));
    float* out = c.out + static_cast<int64_t>(query) * c.dim;
    for (int32_t d = 0; d < c.dim; d += kLanes) _mm512_storeu_ps(out + d, _mm512_setzero_ps());
  }
  for (int page = 0; page < kPages; ++page) {
    const uint16_t* next = page + 1 < kPages ? c.v[page + 1] : nullptr;
    if (next == nullptr) next = c.next;
    for (int i = 0; i < pieces; ++i) page_values(c, page, blocks[i], i == 0 ? next : nullptr, row(blocks[i].start));
  }
}

void attend(const AttendChunk& c) {
  alignas(64) float scratch[kGroup * kChunk];
  for (int start = 0; start < c.queries; start += kGroup) {
    float* prob = c.prob ? c.prob + static_cast<int64_t>(start) * kChunk : scratch;
    attend_group(c, start, smaller(c.queries - start, kGroup), prob);
  }
}

void fold(int32_t queries, int32_t dim, const float* max, const float* sum, const float* out, float* run_max,
          float* run_sum, float* run_out) {
  for (int32_t i = 0; i < queries; ++i) {
    if (max[i] == kNothing) continue;
    const float both = max[i] > run_max[i] || std::isnan(max[i]) ? max[i] : run_max[i];
    const __m512 keep = exp16(_mm512_set1_ps(run_max[i] - both));
    const __m512 take = exp16(_mm512_set1_ps(max[i] - both));
    const auto join = [&](__m512 run, __m512 chunk) { return _mm512_fmadd_ps(run, keep, _mm512_mul_ps(chunk, take)); };
    run_max[i] = both;
    run_sum[i] = _mm512_cvtss_f32(join(_mm512_set1_ps(run_sum[i]), _mm512_set1_ps(sum[i])));
    for (int64_t d = static_cast<int64_t>(i) * dim; d < static_cast<int64_t>(i + 1) * dim; d += kLanes) {
      _mm512_storeu_ps(run_out + d, join(_mm512_loadu_ps(run_out + d), _mm512_loadu_ps(out + d)));
    }
  }
}

void finish(int32_t queries, int32_t dim, const float* run_max, const float* run_sum, const float* run_out, float* out,
            float* lse) {
  for (int32_t i = 0; i < queries; ++i) {
    const __mmask16 some = run_sum[i] == 0.0f ? 0 : 0xffff;
    for (int64_t d = static_cast<int64_t>(i) * dim; d < static_cast<int64_t>(i + 1) * dim; d += kLanes) {
      _mm512_storeu_ps(out + d, _mm512_maskz_div_ps(some, _mm512_loadu_ps(run_out + d), _mm512_set1_ps(run_sum[i])));
    }
    if (lse) lse[i] = some ? run_max[i] + std::log(run_sum[i]) : kNothing;
  }
}

}  // namespace

void set_attention(Kernels& kernels) {
  kernels.attend = attend;
  kernels.fold = fold;
  kernels.finish = finish;
}

}  // namespace vivace::avx512

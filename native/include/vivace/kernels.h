// The kernels of one instruction set. Every function computes a row from that row alone, in one fixed
// order, so its bits do not depend on how many rows or threads there are.
#pragma once
#include <cstdint>

#include "vivace/weights.h"

namespace vivace {

constexpr int kPage = 64;          // tokens of a cache page
constexpr int kChunk = 256;        // key ordinals of an attention chunk
constexpr int kQuantBlock = 32;    // activations that share one scale and one zero point
constexpr int kSumBlock = 16;      // activations that share one sum

// Quantised activations: x = d * (q + z), with q over the whole of its range from the least to the greatest of a block.
struct Quantised {
  int8_t* q;  // [rows][cols]
  float* d;  // [rows][cols / 32] scales
  int32_t* z;  // [rows][cols / 32] zero points, -127..128
  int32_t* s;  // [rows][cols / 16] sums of q + z
};

// Rows of activations. Integer products read the quantised form; products with F32/F16/BF16 weights read f.
struct Activations {
  const float* f;  // [rows][f_stride]
  int64_t f_stride;
  Quantised quantised;  // when cols is a multiple of 32
  int32_t rows;
  int32_t cols;  // K
};

// out[r * out_stride + n] = sum_k w[n][k] * a[r][k] (+ bias[n]) for n in tiles [tile_begin, tile_end), r < rows.
// Writes only n < w.rows. `scratch` is private to the thread, kMatmulScratch bytes, 64-byte aligned.
constexpr int64_t kMatmulScratch = 256 * 1024;
using MatmulFn = void (*)(const PackedMatrix& w, const Activations& a, int32_t tile_begin, int32_t tile_end,
                          const float* bias, float* out, int64_t out_stride, uint8_t* scratch);

// One chunk of keys for `queries` query vectors that share one KV head.
// Cache cell of (layer, head, page): keys as [dim][64] then values as [64][dim], 16-bit floats (IEEE half).
struct AttendChunk {
  int32_t dim;  // a multiple of 16
  int32_t queries;  // >= 1
  const float* q;  // [queries][dim], already multiplied by the softmax scale
  const uint16_t* k[kChunk / kPage];  // key block of each page of the chunk; null when the page is not touched
  const uint16_t* v[kChunk / kPage];
  const int32_t* first;  // [queries] first visible ordinal within the chunk, 0..256
  const int32_t* last;  // [queries] one past the last visible ordinal; first >= last: nothing visible
  const float* bias;  // [queries][256] added to the logits, or null
  float softcap;  // 0: none; else logit = softcap * tanh(logit / softcap)
  float* max;  // [queries] out: chunk maximum, -inf when nothing is visible
  float* sum;  // [queries] out: sum of exp(logit - max)
  float* out;  // [queries][dim] out: sum of exp(logit - max) * value
  float* prob;  // [queries][256] out: exp(logit - max), 0 where masked; or null
  const uint16_t* next;  // a key block that is read soon after, to prefetch; or null
};

struct Kernels {
  const char* isa;

  MatmulFn (*matmul)(WeightType type);  // null when the type has no kernel
  int64_t (*int8_loop)(int64_t rounds);  // nothing but 8-bit dot products; returns the operations done

  // y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i].   out may alias x.
  void (*rms_norm)(const float* x, const float* w, float eps, int32_t n, float* out);
  void (*add)(const float* x, int32_t n, float* io);  // io += x
  void (*scale)(float factor, int32_t n, float* io);  // io *= factor
  void (*silu_mul)(const float* gate, const float* up, int32_t n, float* out);
  void (*gelu_tanh_mul)(const float* gate, const float* up, int32_t n, float* out);
  void (*softcap)(float cap, int32_t n, float* io);  // io = cap * tanh(io / cap)
  // A row of n values, a multiple of 32. With least and greatest of a block and 0: d = (greatest - least) / 255,
  // z = round(least / d) + 128, q = min(round(x / d) - z, 127); rounds to nearest even.
  void (*quantise)(const float* x, int32_t n, const Quantised& into);
  // Half-split rotation: (x[i], x[i+half]) by the angle whose cos/sin are given, i < half.
  void (*rope)(const float* cos, const float* sin, int32_t half, float* io);
  // Stores one key and one value row at `slot` (0..63) of a cell: key strided by 64, value contiguous.
  // Values beyond the half range are clamped to +-65504; NaN stays NaN.
  void (*append)(const float* key, const float* value, int32_t dim, int32_t slot, uint16_t* k, uint16_t* v);

  void (*attend)(const AttendChunk& chunk);
  // Folds a chunk into the running (max, sum, out) of `queries` rows; running max starts at -inf, sum and out at 0.
  void (*fold)(int32_t queries, int32_t dim, const float* max, const float* sum, const float* out, float* run_max,
               float* run_sum, float* run_out);
  // out[i] = run_out[i] / run_sum; zeros when run_sum is 0. lse = max + log(sum) when not null.
  void (*finish)(int32_t queries, int32_t dim, const float* run_max, const float* run_sum, const float* run_out,
                 float* out, float* lse);

  // Over n logits, in one pass: maximum, its lowest index, and sum of exp(x - max) in fixed lane order.
  void (*logit_stats)(const float* x, int64_t n, float* max, int64_t* argmax, double* sum_exp);
  // Writes the indices i < n with x[i] > floor, ascending, and returns how many. `index` has room for n and 15 more.
  int32_t (*above)(const float* x, int32_t n, float floor, int32_t* index);
};

// Every instruction set that kernels are written for, the fastest last.
constexpr const char* kIsas[] = {"portable", "neon", "avx2", "avxvnni", "avx512"};

// The kernels of an instruction set, or the best ones when `isa` is null or empty; null when the name is unknown, this
// build is for another processor or this processor lacks what they need.
const Kernels* select_kernels(const char* isa);

}  // namespace vivace

// Matrix products over packed tiles, written once for every instruction set.
//
// `Isa` supplies what differs: dot products, fused multiply-add, conversions and table look-up on vectors of 16
// numbers, prefetching, and the most rows whose accumulators fit in registers. Its Dot<kTop> gathers the products of a
// row with weights of bytes up to kTop: add() those of a quad, and total(), after at most kQuads of them, what add()
// kept back. Everything here depends on Isa, so code compiled for one instruction set is never shared with another.
//
// A lane is an output row. An output is summed block by block in ascending columns, in one float:
//   offset types   y = fma(dot * scale, d, y)
//   minimum types  y = fma(fma(dot, scale, minimum * sum), d, y)
//   half types     y = fma(fma(dot1, scale1, dot0 * scale0), d, y)       (scales of 16 columns)
//                  y = fma(fma(sum1, scale1, sum0 * scale0), d * z, y)   (sums of the weights)
//   half minima    as half types, with minimum0 * sum0 and then minimum1 * sum1 added by fma before the factor d
// with dot, sum exact integers and d the activation scale: the same bits for any number of rows or tiles.
// In types without halves the zero point z of a block of activations adds z * (sum of the weights) to dot.
#pragma once
#include <cstdint>

#include "matmul_formats.h"
#include "vivace/kernels.h"

namespace vivace::matmul_kernel {

// ---- activations ----

constexpr int kChunk = 64;                  // most rows between two passes over the weights
constexpr int64_t kPassBytes = 192 * 1024;  // of weights that several groups of rows read from cache

// What a block of activations brings besides its values, [rows] of each: the scale, the zero point (twice, as 16-bit
// numbers; for halves as a float, times the scale), then by form the start of the dot product (-offset * sum), the
// float sum, or either for both halves.
constexpr int factor_words(Form form) { return has_halves(form) ? 4 : 3; }
static_assert(kMostBlockCols / kBlockCols * 4 * factor_words(Form::kHalves) <= kMatmulScratch);

template <class Format>
VIVACE_INLINE void gather_factors(const Activations& a, int row, int rows, uint8_t* factors) {
  const int64_t blocks = a.cols / kBlockCols;
  constexpr int kWords = factor_words(Format::kForm);
  for (int r = 0; r < rows; ++r) {
    const float* d = a.quantised.d + (row + r) * blocks;
    const int32_t* z = a.quantised.z + (row + r) * blocks;
    const int32_t* s = a.quantised.s + (row + r) * blocks * 2;
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t* at = factors + 4 * (b * kWords * rows + r);
      store(at, d[b]);
      if constexpr (has_halves(Format::kForm))
        store(at + 4 * rows, d[b] * static_cast<float>(z[b]));
      else
        store(at + 4 * rows, (static_cast<uint32_t>(z[b]) & 0xffffu) * 0x10001u);
      if constexpr (Format::kForm == Form::kMinimum) {
        store(at + 8 * rows, static_cast<float>(s[2 * b] + s[2 * b + 1]));
      } else if constexpr (Format::kForm == Form::kOffset) {
        store(at + 8 * rows, -Format::kOffset * (s[2 * b] + s[2 * b + 1]));
      } else if constexpr (Format::kForm == Form::kHalfMinima) {
        store(at + 8 * rows, static_cast<float>(s[2 * b]));
        store(at + 12 * rows, static_cast<float>(s[2 * b + 1]));
      } else {
        store(at + 8 * rows, -Format::kOffset * (s[2 * b] - 16 * z[b]));
        store(at + 12 * rows, -Format::kOffset * (s[2 * b + 1] - 16 * z[b]));
      }
    }
  }
}

// ---- one block of 16 x 32 weights times kRows rows ----

template <int kRows>
struct Operand {
  const int8_t* q;         // first row's values of this block
  int64_t stride;          // between rows
  const uint8_t* factors;  // this block's
};

// Sums of bytes are words for a row or two. More rows leave the units that multiply bytes no time to add them: then
// they are pairs of 16-bit numbers, which others add.
template <class Isa, int kRows>
VIVACE_INLINE Words add_bytes(Words sums, Words bytes) {
  if constexpr (kRows <= 2) return Isa::add_bytes(sums, bytes);
  return sums + ((bytes & 0x00ff00ffu) + (bytes >> 8 & 0x00ff00ffu));
}
template <int kRows>
VIVACE_INLINE Ints whole_sums(Words sums) {
  return as_ints(kRows <= 2 ? sums : (sums & 0xffffu) + (sums >> 16));
}

// Adds the products of quads kFirst .. kFirst + kCount - 1. Returns the sums of their weights' bytes.
template <class Isa, class Format, int kFirst, int kCount, int kRows>
VIVACE_INLINE Words dots(const uint8_t* block, const Operand<kRows>& a, Ints (&n)[kRows]) {
  constexpr int kFits = 255 / Format::kTop;  // quads whose bytes can be summed in bytes
  using Dot = typename Isa::template Dot<Format::kTop>;
  Dot dot[kRows];
  Words bytes{}, sums{};
  unroll<kCount>([&](auto i) __attribute__((always_inline)) {
    constexpr bool kTotal = (i + 1) % Dot::kQuads == 0 || i + 1 == kCount;
    const Words w = Format::template quad<kFirst + i>(block);
    bytes = i % kFits == 0 ? w : bytes + w;
    if constexpr (i % kFits == kFits - 1 || i == kCount - 1) sums = add_bytes<Isa, kRows>(sums, bytes);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      dot[r].add(n[r], w, a.q + r * a.stride + 4 * (kFirst + i));
      if constexpr (kTotal) dot[r].total(n[r]);
    });
  });
  return sums;
}

template <class Isa, class Format, int kRows>
VIVACE_INLINE void accumulate(const uint8_t* block, const Scales<Format::kForm>& scales, const Operand<kRows>& a,
                              Floats (&y)[kRows]) {
  constexpr Form kForm = Format::kForm;
  constexpr bool kStarts = kForm == Form::kOffset || kForm == Form::kHalves;
  const auto factor = [&](int word, int r)
                          __attribute__((always_inline)) { return a.factors + 4 * (word * kRows + r); };
  const auto real = [&](int word, int r) __attribute__((always_inline)) { return splat(load<float>(factor(word, r))); };
  const auto start = [&](int word, int r)
                         __attribute__((always_inline)) { return splat(load<int32_t>(factor(word, r))); };
  Ints n[kRows];
  unroll<kRows>([&](auto r) __attribute__((always_inline)) { n[r] = kStarts ? start(2, r) : Ints{}; });
  if constexpr (has_halves(kForm)) {
    Floats t[kRows];
    const Words first = dots<Isa, Format, 0, 4>(block, a, n);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      t[r] = to_floats(n[r]) * scales[0];
      n[r] = kStarts ? start(3, r) : Ints{};
    });
    const Words last = dots<Isa, Format, 4, 4>(block, a, n);
    const auto total = [&](Words sums) __attribute__((always_inline)) {
      return to_floats(whole_sums<kRows>(sums) - 16 * Format::kOffset);
    };
    const Floats weights = Isa::fma(total(last), scales[1], total(first) * scales[0]);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      t[r] = Isa::fma(to_floats(n[r]), scales[1], t[r]);
      if constexpr (kForm == Form::kHalfMinima) {
        t[r] = Isa::fma(scales[3], real(3, r), Isa::fma(scales[2], real(2, r), t[r]));
      }
      y[r] = Isa::fma(t[r], real(0, r), y[r]);
      y[r] = Isa::fma(weights, real(1, r), y[r]);
    });
  } else {
    const Words sums = dots<Isa, Format, 0, 8>(block, a, n);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      n[r] = Isa::dot_pairs(n[r], sums, factor(1, r));
      if constexpr (kForm == Form::kMinimum) {
        y[r] = Isa::fma(Isa::fma(to_floats(n[r]), scales[0], scales[1] * real(2, r)), real(0, r), y[r]);
      } else {
        y[r] = Isa::fma(to_floats(n[r]) * scales[0], real(0, r), y[r]);
      }
    });
  }
}

// ---- outputs ----

struct Output {
  float* at;  // row 0, column 0
  int64_t stride;
  const float* bias;
  int32_t cols;

  VIVACE_INLINE void write(int row, int tile, Floats y) const {
    const int first = tile * kTileRows;
    float* to = at + row * stride + first;
    if (first + kTileRows <= cols) {
      if (bias) y += load<Floats>(bias + first);
      store(to, y);
      return;
    }
    for (int i = 0; first + i < cols; ++i) to[i] = bias ? y[i] + bias[first + i] : y[i];
  }
};

// ---- tiles ----

template <class Isa, class Format, int kRows>
void multiply_tiles(const PackedMatrix& w, const Activations& a, int row, int tile_begin, int tile_end,
                    const Output& out, const uint8_t* factors) {
  constexpr UnitLayout kLayout = unit_layout(Format::kType);
  const int blocks = w.cols / kBlockCols;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* unit = w.data + tile * w.tile_bytes;
    Operand<kRows> operand{a.quantised.q + int64_t{row} * a.cols, a.cols, factors};
    Floats y[kRows] = {};
    for (int first = 0; first < blocks; first += kLayout.blocks) {
      Scales<Format::kForm> scales[kLayout.blocks];
      Isa::template prefetch<kLayout.head_bytes>(unit);
      Format::scales(unit, kLayout.blocks, scales);
      const int present = kLayout.blocks == 2 && first + 1 == blocks ? 1 : kLayout.blocks;
      for (int b = 0; b < present; ++b) {
        const uint8_t* block = unit + kLayout.bytes(b);
        Isa::template prefetch<kLayout.block_bytes>(block);
        accumulate<Isa, Format>(block, scales[b], operand, y);
        operand.q += kBlockCols;
        operand.factors += 4 * factor_words(Format::kForm) * kRows;
      }
      unit += kLayout.bytes(kLayout.blocks);
    }
    unroll<kRows>([&](auto r) __attribute__((always_inline)) { out.write(row + r, tile, y[r]); });
  }
}

// Calls body(integral_constant<rows>).
template <int kMost, class Body>
VIVACE_INLINE void with_rows(int rows, Body&& body) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_rows<kMost - 1>(rows, body);
  }
  body(std::integral_constant<int, kMost>{});
}

// Rows [begin(g), begin(g + 1)) of each group: as equal as can be, at most `most`.
struct Groups {
  int rows, count;
  Groups(int rows, int most) : rows(rows), count((rows + most - 1) / most) {}
  VIVACE_INLINE int begin(int g) const { return rows * g / count; }
  VIVACE_INLINE int size(int g) const { return begin(g + 1) - begin(g); }
};

template <class Isa, class Format>
void multiply(const PackedMatrix& w, const Activations& a, int32_t tile_begin, int32_t tile_end, const float* bias,
              float* out, int64_t out_stride, uint8_t* scratch) {
  constexpr int kGroup = Isa::group(Format::kForm);
  const Output output{out, out_stride, bias, w.rows};
  const int64_t factor_bytes = int64_t{w.cols} / kBlockCols * 4 * factor_words(Format::kForm);  // a row
  const int64_t fitting = kMatmulScratch / factor_bytes;
  const int chunk = fitting < kChunk ? static_cast<int>(fitting) : kChunk;
  const int pass = w.tile_bytes < kPassBytes ? static_cast<int>(kPassBytes / w.tile_bytes) : 1;  // tiles
  for (int row = 0; row < a.rows; row += chunk) {
    const Groups groups(a.rows - row < chunk ? a.rows - row : chunk, kGroup);
    for (int g = 0; g < groups.count; ++g) {
      gather_factors<Format>(a, row + groups.begin(g), groups.size(g), scratch + groups.begin(g) * factor_bytes);
    }
    const int step = groups.count == 1 ? tile_end - tile_begin : pass;
    for (int tile = tile_begin; tile < tile_end; tile += step) {
      const int end = tile_end - tile < step ? tile_end : tile + step;
      for (int g = 0; g < groups.count; ++g) {
        with_rows<kGroup>(groups.size(g), [&](auto size) __attribute__((always_inline)) {
          multiply_tiles<Isa, Format, size>(w, a, row + groups.begin(g), tile, end, output,
                                            scratch + groups.begin(g) * factor_bytes);
        });
      }
    }
  }
}

// ---- float weights: y = (sum over even columns) + (sum over odd columns), each ascending ----

template <class Isa>
struct F32 {
  static constexpr int kPairBytes = 2 * kLine;
  VIVACE_INLINE static Floats even(const uint8_t* pair) { return load<Floats>(pair); }
  VIVACE_INLINE static Floats odd(const uint8_t* pair) { return load<Floats>(pair + kLine); }
};

template <class Isa>
struct BF16 {
  static constexpr int kPairBytes = kLine;
  VIVACE_INLINE static Floats even(const uint8_t* pair) { return as_floats(load<Words>(pair) << 16); }
  VIVACE_INLINE static Floats odd(const uint8_t* pair) { return as_floats(load<Words>(pair) & 0xffff0000u); }
};

template <class Isa>
struct F16 {
  static constexpr int kPairBytes = kLine;
  VIVACE_INLINE static Floats even(const uint8_t* pair) { return Isa::halves(pair); }
  VIVACE_INLINE static Floats odd(const uint8_t* pair) { return Isa::halves(pair + 32); }
};

template <class Isa, class Format, int kRows>
void multiply_floats(const PackedMatrix& w, const Activations& a, int row, int tile, const Output& out) {
  const uint8_t* pair = w.data + tile * w.tile_bytes;
  const float* x = a.f + row * a.f_stride;
  Floats even[kRows] = {}, odd[kRows] = {};
  int k = 0;
  for (; k + 1 < w.cols; k += 2, pair += Format::kPairBytes) {
    Isa::template prefetch<Format::kPairBytes>(pair);
    const Floats w0 = Format::even(pair), w1 = Format::odd(pair);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      even[r] = Isa::fma(w0, splat(x[r * a.f_stride + k]), even[r]);
      odd[r] = Isa::fma(w1, splat(x[r * a.f_stride + k + 1]), odd[r]);
    });
  }
  if (k < w.cols) {
    const Floats w0 = Format::even(pair);
    unroll<kRows>(
        [&](auto r) __attribute__((always_inline)) { even[r] = Isa::fma(w0, splat(x[r * a.f_stride + k]), even[r]); });
  }
  unroll<kRows>([&](auto r) __attribute__((always_inline)) { out.write(row + r, tile, even[r] + odd[r]); });
}

template <class Isa, class Format>
void multiply_float(const PackedMatrix& w, const Activations& a, int32_t tile_begin, int32_t tile_end,
                    const float* bias, float* out, int64_t out_stride, uint8_t*) {
  const Output output{out, out_stride, bias, w.rows};
  for (int chunk = 0; chunk < a.rows; chunk += kChunk) {
    const int rows = a.rows - chunk < kChunk ? a.rows - chunk : kChunk;
    const Groups groups(rows, Isa::kFloatGroup);
    for (int tile = tile_begin; tile < tile_end; ++tile) {
      for (int g = 0; g < groups.count; ++g) {
        with_rows<Isa::kFloatGroup>(groups.size(g), [&](auto size) __attribute__((always_inline)) {
          multiply_floats<Isa, Format, size>(w, a, chunk + groups.begin(g), tile, output);
        });
      }
    }
  }
}

// The products of this instruction set, null for other types; in two parts that are compiled apart where that takes
// long.

template <class Isa>
MatmulFn select_blocks(WeightType type) {  // of 32 columns, and float types
  switch (type) {
    case WeightType::kF32: return multiply_float<Isa, F32<Isa>>;
    case WeightType::kF16: return multiply_float<Isa, F16<Isa>>;
    case WeightType::kBF16: return multiply_float<Isa, BF16<Isa>>;
    case WeightType::kQ4_0: return multiply<Isa, Q4_0<Isa>>;
    case WeightType::kQ4_1: return multiply<Isa, Q4_1<Isa>>;
    case WeightType::kQ5_0: return multiply<Isa, Q5_0<Isa>>;
    case WeightType::kQ5_1: return multiply<Isa, Q5_1<Isa>>;
    case WeightType::kQ8_0: return multiply<Isa, Q8_0<Isa>>;
    case WeightType::kIQ4_NL: return multiply<Isa, IQ4_NL<Isa>>;
    default: return nullptr;
  }
}

template <class Isa>
MatmulFn select_super_blocks(WeightType type) {  // of 256 columns
  switch (type) {
    case WeightType::kQ2_K: return multiply<Isa, Q2_K<Isa>>;
    case WeightType::kQ3_K: return multiply<Isa, Q3_K<Isa>>;
    case WeightType::kQ4_K: return multiply<Isa, Q4_K<Isa>>;
    case WeightType::kQ5_K: return multiply<Isa, Q5_K<Isa>>;
    case WeightType::kQ6_K: return multiply<Isa, Q6_K<Isa>>;
    case WeightType::kIQ4_XS: return multiply<Isa, IQ4_XS<Isa>>;
    default: return nullptr;
  }
}

}  // namespace vivace::matmul_kernel

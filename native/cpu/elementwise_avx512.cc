// Row-wise kernels with AVX-512. Every tail is a masked vector, so an element's bits do not depend on its place.
#include "intrinsics.h"

#include <cmath>
#include <limits>

#include "elementwise.h"
#include "exp_avx512.h"

namespace vivace::avx512 {
namespace {

constexpr int kLanes = 16;

inline __mmask16 lanes_left(int64_t left) { return static_cast<__mmask16>(left >= kLanes ? 0xffff : (1u << left) - 1); }

// Calls action(offset, mask) for each vector of n elements.
template <class Action>
inline void each_vector(int32_t n, Action action) {
  for (int32_t i = 0; i < n; i += kLanes) action(i, lanes_left(n - i));
}

// Sums of squares go to four accumulators in turn, which are added as a tree.
void rms_norm(const float* x, const float* w, float eps, int32_t n, float* out) {
  __m512 squares[4] = {};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const __m512 value = _mm512_loadu_ps(x + i + j * kLanes);
      squares[j] = _mm512_fmadd_ps(value, value, squares[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const __m512 value = _mm512_maskz_loadu_ps(lanes_left(n - i), x + i);
    squares[j] = _mm512_fmadd_ps(value, value, squares[j]);
  }
  const __m512 sum = _mm512_add_ps(_mm512_add_ps(squares[0], squares[1]), _mm512_add_ps(squares[2], squares[3]));
  const float mean = _mm512_reduce_add_ps(sum) / static_cast<float>(n);
  const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
  each_vector(n, [&](int32_t at, __mmask16 mask) {
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + at), factor);
    _mm512_mask_storeu_ps(out + at, mask, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(mask, w + at)));
  });
}

void add(const float* x, int32_t n, float* io) {
  each_vector(n, [&](int32_t at, __mmask16 mask) {
    const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, io + at), _mm512_maskz_loadu_ps(mask, x + at));
    _mm512_mask_storeu_ps(io + at, mask, sum);
  });
}

void scale(float factor, int32_t n, float* io) {
  each_vector(n, [&](int32_t at, __mmask16 mask) {
    const __m512 value = _mm512_maskz_loadu_ps(mask, io + at);
    _mm512_mask_storeu_ps(io + at, mask, _mm512_mul_ps(value, _mm512_set1_ps(factor)));
  });
}

// x / (1 + exp(-t))
inline __m512 gated(__m512 x, __m512 t) {
  const __m512 negated = _mm512_xor_ps(t, _mm512_set1_ps(-0.0f));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(negated)));
}

void silu_mul(const float* gate, const float* up, int32_t n, float* out) {
  each_vector(n, [&](int32_t at, __mmask16 mask) {
    const __m512 x = _mm512_maskz_loadu_ps(mask, gate + at);
    _mm512_mask_storeu_ps(out + at, mask, _mm512_mul_ps(gated(x, x), _mm512_maskz_loadu_ps(mask, up + at)));
  });
}

// 0.5 x (1 + tanh u) written as x / (1 + exp(-2u)), which does not cancel for negative x.
void gelu_tanh_mul(const float* gate, const float* up, int32_t n, float* out) {
  each_vector(n, [&](int32_t at, __mmask16 mask) {
    const __m512 x = _mm512_maskz_loadu_ps(mask, gate + at);
    const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 u = _mm512_fmadd_ps(cubic, _mm512_set1_ps(0.044715f), x);
    const __m512 active = gated(x, _mm512_mul_ps(u, _mm512_set1_ps(1.5957691216f)));
    _mm512_mask_storeu_ps(out + at, mask, _mm512_mul_ps(active, _mm512_maskz_loadu_ps(mask, up + at)));
  });
}

void softcap(float cap, int32_t n, float* io) {
  const __m512 caps = _mm512_set1_ps(cap);
  each_vector(n, [&](int32_t at, __mmask16 mask) {
    const __m512 value = _mm512_maskz_loadu_ps(mask, io + at);
    _mm512_mask_storeu_ps(io + at, mask, _mm512_mul_ps(caps, tanh16(_mm512_div_ps(value, caps))));
  });
}

// The largest number of each of four vectors, as integers: throughout lane i of 128 bits that of vector i.
inline __m512i largest_of_each(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_max_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  const __m512i cd = _mm512_max_epi32(_mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee));
  __m512i top = _mm512_max_epi32(_mm512_shuffle_i64x2(ab, cd, 0x88), _mm512_shuffle_i64x2(ab, cd, 0xdd));
  top = _mm512_max_epi32(top, _mm512_shuffle_epi32(top, _MM_PERM_BADC));
  return _mm512_max_epi32(top, _mm512_shuffle_epi32(top, _MM_PERM_CDAB));
}

// x / step to the nearest integer. The remainder of a first guess corrects it to what a division would give.
inline __m512i divide(__m512 x, __m512 step, __m512 inverse, __mmask16 usable) {
  const __m512 guess = _mm512_mul_ps(x, inverse);
  const __m512 ratio = _mm512_fmadd_ps(_mm512_fnmadd_ps(guess, step, x), inverse, guess);
  return _mm512_maskz_cvtps_epi32(usable, ratio);
}

// Two blocks at a time; an odd last one goes with a block of zeros that is not stored. In vectors of 128-bit lanes
// the first two belong to the first block.
void quantise(const float* x, int32_t n, const Quantised& into) {
  const __m512i by_vector = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  const int32_t blocks = n / kQuantBlock;
  for (int32_t block = 0; block < blocks; block += 2) {
    const bool pair = block + 1 < blocks;
    __m512 values[4];
    __m512i above[2], below[2];  // magnitudes as integers order like floats, with NaN above infinity
    for (int i = 0; i < 2; ++i) {
      above[i] = below[i] = _mm512_setzero_si512();
      for (int j = 0; j < 2; ++j) {
        const int at = 2 * i + j;
        values[at] = _mm512_maskz_loadu_ps(i == 0 || pair ? 0xffff : 0, x + block * kQuantBlock + at * kLanes);
        const __m512i bits = _mm512_castps_si512(values[at]);
        above[i] = _mm512_max_epi32(above[i], bits);
        below[i] = _mm512_max_epi32(below[i], _mm512_xor_si512(bits, sign));
      }
    }
    const __m512 extents = _mm512_castsi512_ps(largest_of_each(above[0], below[0], above[1], below[1]));
    const __m512 parts = _mm512_div_ps(extents, _mm512_set1_ps(kLevels));
    __m512 step = _mm512_add_ps(parts, _mm512_shuffle_f32x4(parts, parts, 0xb1));
    const __mmask16 normal = _mm512_cmpge_epi32_mask(_mm512_castps_si512(step), _mm512_set1_epi32(kLeastScale));
    const __mmask16 usable =
        _mm512_mask_cmplt_epi32_mask(normal, _mm512_castps_si512(step), _mm512_set1_epi32(kInfinity));
    step = _mm512_maskz_mov_ps(normal, step);
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), step);
    const __m512i least = divide(_mm512_shuffle_f32x4(extents, extents, 0xf5), step, inverse, usable);
    const __m512i zero = _mm512_maskz_sub_epi32(usable, _mm512_set1_epi32(128), least);

    __m512i levels[4];
    for (int i = 0; i < 4; ++i) {
      const auto spread = [&](__m512 lanes) {
        return i < 2 ? _mm512_shuffle_f32x4(lanes, lanes, 0x00) : _mm512_shuffle_f32x4(lanes, lanes, 0xaa);
      };
      const __mmask16 all = usable >> (i < 2 ? 0 : 8) & 1 ? 0xffff : 0;
      levels[i] = _mm512_sub_epi32(divide(values[i], spread(step), spread(inverse), all),
                                   _mm512_castps_si512(spread(_mm512_castsi512_ps(zero))));
    }
    const __m512i bytes = _mm512_permutexvar_epi32(
        by_vector,
        _mm512_packs_epi16(_mm512_packs_epi32(levels[0], levels[1]), _mm512_packs_epi32(levels[2], levels[3])));
    _mm512_mask_storeu_epi8(into.q + block * kQuantBlock, pair ? ~__mmask64{0} : 0xffffffff, bytes);

    const auto one_of_each = [](__m512i lanes) {
      return _mm_unpacklo_epi32(_mm512_castsi512_si128(lanes), _mm512_extracti32x4_epi32(lanes, 2));
    };
    const __mmask8 stored = pair ? 3 : 1;
    _mm_mask_storeu_ps(into.d + block, stored, _mm_castsi128_ps(one_of_each(_mm512_castps_si512(step))));
    _mm_mask_storeu_epi32(into.z + block, stored, one_of_each(zero));

    // Each lane of 128 bits is one sum block, whose four numbers bring a quarter of its zero points each.
    __m512i sums = _mm512_dpbusd_epi32(_mm512_slli_epi32(zero, 2), _mm512_set1_epi8(1), bytes);
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
    const __m128i four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(by_vector, sums));
    _mm_mask_storeu_epi32(into.s + block * (kQuantBlock / kSumBlock), pair ? 0xf : 3, four);
  }
}

void rope(const float* cos, const float* sin, int32_t half, float* io) {
  each_vector(half, [&](int32_t at, __mmask16 mask) {
    const __m512 a = _mm512_maskz_loadu_ps(mask, io + at);
    const __m512 b = _mm512_maskz_loadu_ps(mask, io + half + at);
    const __m512 c = _mm512_maskz_loadu_ps(mask, cos + at);
    const __m512 s = _mm512_maskz_loadu_ps(mask, sin + at);
    _mm512_mask_storeu_ps(io + at, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    _mm512_mask_storeu_ps(io + half + at, mask, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
  });
}

inline __m256i clamped_half(__mmask16 mask, const float* x) {
  const __m512 value = _mm512_maskz_loadu_ps(mask, x);
  const __m512 clamped = _mm512_max_ps(_mm512_set1_ps(-kHalfMax), _mm512_min_ps(_mm512_set1_ps(kHalfMax), value));
  return _mm512_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

void append(const float* key, const float* value, int32_t dim, int32_t slot, uint16_t* k, uint16_t* v) {
  each_vector(dim, [&](int32_t at, __mmask16 mask) {
    _mm256_mask_storeu_epi16(v + static_cast<int64_t>(slot) * dim + at, mask, clamped_half(mask, value + at));
    alignas(32) uint16_t halves[kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(halves), clamped_half(mask, key + at));
    const int32_t count = dim - at < kLanes ? dim - at : kLanes;
    for (int32_t i = 0; i < count; ++i) k[static_cast<int64_t>(at + i) * kPage + slot] = halves[i];
  });
}

// A NaN logit gives max and sum NaN and the index of the first NaN; a maximum of +inf makes the sum NaN.
// n = 0 gives -inf, -1, 0.
//
// Blocks of 1024 stay in the first-level cache between their maximum and their sum.
void logit_stats(const float* x, int64_t n, float* max, int64_t* argmax, double* sum_exp) {
  constexpr int64_t kBlock = 1024;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const __m512 least = _mm512_set1_ps(-kInfinity);
  float best = -kInfinity;
  int64_t best_block = n > 0 ? 0 : -1;
  __m512d sums[2] = {};

  for (int64_t start = 0; start < n; start += kBlock) {
    const float* in = x + start;
    const int64_t count = n - start < kBlock ? n - start : kBlock;
    const auto load = [&](int64_t at) { return _mm512_mask_loadu_ps(least, lanes_left(count - at), in + at); };

    __m512 tops[4] = {least, least, least, least};
    __mmask16 invalid = 0;
    for (int64_t i = 0; i < count; i += 4 * kLanes) {
      for (int64_t j = 0; j < 4; ++j) {
        if (i + j * kLanes >= count) break;
        const __m512 value = load(i + j * kLanes);
        invalid |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        tops[j] = _mm512_max_ps(tops[j], value);
      }
    }
    if (invalid) {
      int64_t i = start;
      while (!std::isnan(x[i])) ++i;
      *argmax = i;
      *max = std::numeric_limits<float>::quiet_NaN();
      *sum_exp = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    const float top =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(tops[0], tops[1]), _mm512_max_ps(tops[2], tops[3])));
    if (top > best) {
      const __m512d shrink = _mm512_set1_pd(std::exp(static_cast<double>(best) - top));
      for (__m512d& sum : sums) sum = _mm512_mul_pd(sum, shrink);
      best = top;
      best_block = start;
    }
    if (best == -kInfinity) continue;

    const __m512 offset = _mm512_set1_ps(best);
    __m512 parts[4] = {};
    for (int64_t i = 0; i < count; i += 4 * kLanes) {
      for (int64_t j = 0; j < 4; ++j) {
        if (i + j * kLanes >= count) break;
        _mm_prefetch(reinterpret_cast<const char*>(in + kBlock + i + j * kLanes), _MM_HINT_T0);  // of the next block
        parts[j] = _mm512_add_ps(parts[j], exp16_below(_mm512_sub_ps(load(i + j * kLanes), offset)));
      }
    }
    const __m512 part = _mm512_add_ps(_mm512_add_ps(parts[0], parts[1]), _mm512_add_ps(parts[2], parts[3]));
    sums[0] = _mm512_add_pd(sums[0], _mm512_cvtps_pd(_mm512_castps512_ps256(part)));
    sums[1] = _mm512_add_pd(sums[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(part, 1)));
  }

  *max = best;
  *argmax = best_block;
  if (best > -kInfinity) {
    while (x[*argmax] != best) ++*argmax;
  }
  *sum_exp = best == kInfinity ? std::numeric_limits<double>::quiet_NaN()
                               : _mm512_reduce_add_pd(_mm512_add_pd(sums[0], sums[1]));
}

int32_t above(const float* x, int32_t n, float floor, int32_t* index) {
  const __m512 limit = _mm512_set1_ps(floor);
  __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int32_t count = 0;
  for (int32_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = lanes_left(n - i);
    const __mmask16 over = _mm512_mask_cmp_ps_mask(mask, _mm512_maskz_loadu_ps(mask, x + i), limit, _CMP_GT_OQ);
    if (over) {
      _mm512_storeu_si512(index + count, _mm512_maskz_compress_epi32(over, places));
      count += __builtin_popcount(over);
    }
    places = _mm512_add_epi32(places, _mm512_set1_epi32(kLanes));
  }
  return count;
}

}  // namespace

void set_elementwise(Kernels& kernels) {
  kernels.rms_norm = rms_norm;
  kernels.add = add;
  kernels.scale = scale;
  kernels.silu_mul = silu_mul;
  kernels.gelu_tanh_mul = gelu_tanh_mul;
  kernels.softcap = softcap;
  kernels.quantise = quantise;
  kernels.rope = rope;
  kernels.append = append;
  kernels.logit_stats = logit_stats;
  kernels.above = above;
}

}  // namespace vivace::avx512

// Vectors of 16 floats.
#pragma once
#include "intrinsics.h"

#include <cstdint>

namespace vivace::avx512 {

struct Simd {
  using Floats = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kQueries = 7;  // of an attention tile, at most
  // Vectors of keys or values of such a tile whose accumulators fit the registers.
  static constexpr int fitting_vectors(int) { return 4; }

  static Floats set(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  // Of the first `count` lanes, 1 to 16; the others are `rest`.
  static Floats load(const float* from, int64_t count, float rest = 0.0f) {
    return _mm512_mask_loadu_ps(set(rest), first(count), from);
  }
  static void store(float* to, int64_t count, Floats x) { _mm512_mask_storeu_ps(to, first(count), x); }

  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats fms(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
  static Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
  // b where one is NaN.
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats negate(Floats x) { return _mm512_xor_ps(x, set(-0.0f)); }
  static Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
  static Floats with_sign_of(Floats x, Floats sign) { return _mm512_or_ps(x, _mm512_and_ps(sign, set(-0.0f))); }
  // Where a >= b, x, else y.
  static Floats where_at_least(Floats a, Floats b, Floats x, Floats y) {
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), x);
  }
  // The first `count` lanes of x, the others of y.
  static Floats join(int count, Floats x, Floats y) { return _mm512_mask_mov_ps(y, first(count), x); }
  static bool any_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
  static Floats round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // p * 2^n for whole n in [-151, 129] and p near 1.
  static Floats scale(Floats p, Floats n) { return _mm512_scalef_ps(p, n); }

  static float sum(Floats x) { return _mm512_reduce_add_ps(x); }
  static float largest(Floats x) { return _mm512_reduce_max_ps(x); }

  static Floats load_halves(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store_halves(uint16_t* to, int64_t count, Floats x) {
    _mm256_mask_storeu_epi16(to, first(count), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Writes `place` + i for each of the first `count` lanes above the limit, ascending. Returns how many.
  static int store_places_above(const float* from, int64_t count, Floats limit, int32_t place, int32_t* to) {
    const __mmask16 over = _mm512_mask_cmp_ps_mask(first(count), load(from, count), limit, _CMP_GT_OQ);
    if (!over) return 0;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(over, _mm512_add_epi32(lanes, _mm512_set1_epi32(place))));
    return __builtin_popcount(over);
  }
  static void prefetch(const void* from) { _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0); }

 private:
  static __mmask16 first(int64_t count) { return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1u << count) - 1); }
};

}  // namespace vivace::avx512

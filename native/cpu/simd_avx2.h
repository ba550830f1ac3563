// Vectors of 8 floats.
#pragma once
#include "intrinsics.h"

#include <cstdint>

namespace vivace::avx2 {

struct Simd {
  using Floats = __m256;
  using Ints = int32_t __attribute__((vector_size(32)));
  static constexpr int kLanes = 8;
  static constexpr int kQueries = 6;
  static constexpr int fitting_vectors(int queries) { return 15 / (queries + 1); }  // and one register for a query

  static Floats set(float x) { return _mm256_set1_ps(x); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static Floats load(const float* from, int64_t count, float rest = 0.0f) {
    if (count >= kLanes) return load(from);
    return join(count, _mm256_maskload_ps(from, first(count)), set(rest));
  }
  static void store(float* to, int64_t count, Floats x) {
    if (count >= kLanes) return store(to, x);
    _mm256_maskstore_ps(to, first(count), x);
  }

  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats fms(Floats a, Floats b, Floats c) { return _mm256_fmsub_ps(a, b, c); }
  static Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats negate(Floats x) { return _mm256_xor_ps(x, set(-0.0f)); }
  static Floats magnitude(Floats x) { return _mm256_andnot_ps(set(-0.0f), x); }
  static Floats with_sign_of(Floats x, Floats sign) { return _mm256_or_ps(x, _mm256_and_ps(sign, set(-0.0f))); }
  static Floats where_at_least(Floats a, Floats b, Floats x, Floats y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
  }
  static Floats join(int64_t count, Floats x, Floats y) {
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(first(count)));
  }
  static bool any_nan(Floats x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
  static Floats round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // In two steps, each by a normal number: only the last may leave the normal range.
  static Floats scale(Floats p, Floats n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return p * power(half) * power(_mm256_sub_epi32(whole, half));
  }

  static float sum(Floats x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return y[0] + y[1];
  }
  static float largest(Floats x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return y[0] > y[1] ? y[0] : y[1];
  }

  static Floats load_halves(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_halves(uint16_t* to, int64_t count, Floats x) {
    alignas(16) uint16_t halves[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(halves),
                    _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    for (int64_t i = 0; i < count && i < kLanes; ++i) to[i] = halves[i];
  }
  static int store_places_above(const float* from, int64_t count, Floats limit, int32_t place, int32_t* to) {
    int over = _mm256_movemask_ps(_mm256_cmp_ps(load(from, count, -__builtin_inff()), limit, _CMP_GT_OQ));
    int found = 0;
    for (; over; over &= over - 1) to[found++] = place + __builtin_ctz(over);
    return found;
  }
  static int32_t largest(Ints x) {
    __m128i y = _mm_max_epi32(_mm256_castsi256_si128(__m256i(x)), _mm256_extracti128_si256(__m256i(x), 1));
    y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
  }
  // Sixteen numbers to bytes, of those above 127 to 127. Returns the sum of the bytes.
  static int32_t store_bytes(int8_t* to, const Ints (&x)[2]) {
    const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(__m256i(x[0]), __m256i(x[1])), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    const __m128i flipped = _mm_xor_si128(bytes, _mm_set1_epi8(-128));  // plus 128, for the sum of unsigned bytes
    const __m128i sums = _mm_sad_epu8(flipped, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 16 * 128;
  }
  static Ints to_ints(Floats x) { return Ints(_mm256_cvtps_epi32(x)); }
  static void prefetch(const void* from) { _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0); }

 private:
  static __m256i first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Floats power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace vivace::avx2

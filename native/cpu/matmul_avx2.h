// What AVX2 brings to the matrix products, but for the dot product.
#pragma once
#include "intrinsics.h"

#include "matmul_kernel.h"

namespace vivace::avx2 {

template <class Part>
VIVACE_INLINE __m256i bits(Part part) {
  return __m256i(part);
}

VIVACE_INLINE __m256i spread(const void* four_bytes) {
  return _mm256_set1_epi32(matmul_kernel::load<int32_t>(four_bytes));
}

struct IsaBase {
  using Ints = matmul_kernel::Ints;
  using Words = matmul_kernel::Words;
  using Floats = matmul_kernel::Floats;
  using Form = matmul_kernel::Form;

#ifdef VIVACE_SANITIZED  // fewer sizes of groups: the same code, compiled in a tenth of the time
  static constexpr int kFloatGroup = 2;
#else
  static constexpr int kFloatGroup = 3;
#endif

  VIVACE_INLINE static Ints dot_pairs(const Ints& sum, const Words& w, const uint8_t* pair) {
    const __m256i x = spread(pair);
    return matmul_kernel::of_parts<Ints>([&](auto i) __attribute__((always_inline)) {
      return Ints::Part(_mm256_add_epi32(bits(sum.part[i]), _mm256_madd_epi16(bits(w.part[i]), x)));
    });
  }
  VIVACE_INLINE static Words add_bytes(const Words& sums, const Words& bytes) {
    return matmul_kernel::of_parts<Words>([&](auto i) __attribute__((always_inline)) {
      const __m256i pairs = _mm256_maddubs_epi16(bits(bytes.part[i]), _mm256_set1_epi8(1));
      return Words::Part(_mm256_add_epi32(bits(sums.part[i]), _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
    });
  }
  VIVACE_INLINE static Words lookup(const uint8_t (&table)[16], const Words& bytes) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return matmul_kernel::of_parts<Words>([&](auto i) __attribute__((always_inline)) {
      return Words::Part(_mm256_shuffle_epi8(twice, bits(bytes.part[i])));
    });
  }
  VIVACE_INLINE static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return matmul_kernel::of_parts<Floats>([&](auto i) __attribute__((always_inline)) {
      return Floats::Part(_mm256_fmadd_ps(__m256(a.part[i]), __m256(b.part[i]), __m256(c.part[i])));
    });
  }
  VIVACE_INLINE static Floats halves(const uint8_t* from) {
    return matmul_kernel::of_parts<Floats>([&](auto i) __attribute__((always_inline)) {
      return Floats::Part(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i))));
    });
  }
  VIVACE_INLINE static Ints widen(const uint8_t* from) {
    return matmul_kernel::of_parts<Ints>([&](auto i) __attribute__((always_inline)) {
      return Ints::Part(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * i))));
    });
  }
  // Hardware prefetching alone reaches half the bandwidth when a block takes long to compute. Running past the
  // weights is harmless.
  template <int kBytes>
  VIVACE_INLINE static void prefetch(const uint8_t* from) {
    constexpr int kAhead = 8192;
    matmul_kernel::unroll<kBytes / kLine>([&](auto line) __attribute__((always_inline)) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kAhead + line * kLine), _MM_HINT_T0);
    });
  }
};

}  // namespace vivace::avx2

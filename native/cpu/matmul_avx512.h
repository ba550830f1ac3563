// What AVX-512 supplies to the matrix products. In an unnamed namespace, so that each file that includes it compiles
// its own part of them.
#pragma once
#include "intrinsics.h"
#include "matmul.h"
#include "matmul_kernel.h"

namespace vivace::avx512 {
namespace {

struct Isa {
  using Ints = matmul_kernel::Ints;
  using Words = matmul_kernel::Words;
  using Floats = matmul_kernel::Floats;
  using Form = matmul_kernel::Form;

#ifdef VIVACE_SANITIZED  // fewer sizes of groups: the same code, compiled in a tenth of the time
  static constexpr int kFloatGroup = 2;
  static constexpr int group(Form) { return 3; }
#else
  static constexpr int kFloatGroup = 8;
  static constexpr int group(Form form) { return matmul_kernel::has_halves(form) ? 9 : 12; }
#endif

  // As assembly because GCC 12 does not fold the broadcast into the instruction.
  VIVACE_INLINE static Ints dot(Ints sum, Words w, const int8_t* quad) {
    using Quad [[gnu::may_alias]] = int32_t;
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Quad*>(quad)));
    return sum;
  }
  template <int>
  struct Dot {
    static constexpr int kQuads = 8;
    VIVACE_INLINE void add(Ints& sum, Words w, const int8_t* quad) { sum = dot(sum, w, quad); }
    VIVACE_INLINE void total(Ints&) {}
  };
  VIVACE_INLINE static Ints dot_pairs(Ints sum, Words w, const uint8_t* pair) {
    using Pair [[gnu::may_alias]] = int32_t;
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Pair*>(pair)));
    return sum;
  }
  // The four bytes of each word added to its sum.
  VIVACE_INLINE static Words add_bytes(Words sums, Words bytes) {
    static constexpr int8_t kOnes[4] = {1, 1, 1, 1};
    return Words(dot(Ints(sums), bytes, kOnes));
  }
  VIVACE_INLINE static Floats fma(Floats a, Floats b, Floats c) {
    return Floats(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
  }
  // The forms with a mask: the plain ones warn about an undefined operand in GCC 12.
  VIVACE_INLINE static Floats halves(const uint8_t* from) {
    return Floats(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
  }
  VIVACE_INLINE static Ints widen(const uint8_t* from) {
    return Ints(_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  // Bytes 0..15 replaced by the table's.
  VIVACE_INLINE static Words lookup(const uint8_t (&table)[16], Words bytes) {
    const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return Words(_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, once), __m512i(bytes)));
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

}  // namespace

MatmulFn super_block_matmul(WeightType type);

}  // namespace vivace::avx512

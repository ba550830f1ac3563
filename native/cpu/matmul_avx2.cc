#include "matmul_avx2.h"

#include "int8_loop.h"
#include "matmul.h"

namespace vivace::avx2 {
namespace {

using matmul_kernel::Ints;
using matmul_kernel::Words;

// Pairs of 16-bit sums to 32-bit ones, times the factor.
VIVACE_INLINE void add_pairs(Ints& sum, const Words& pairs, int16_t factor) {
  matmul_kernel::unroll<matmul_kernel::kParts>([&](auto i) __attribute__((always_inline)) {
    const __m256i whole = _mm256_madd_epi16(bits(pairs.part[i]), _mm256_set1_epi16(factor));
    sum.part[i] = Ints::Part(_mm256_add_epi32(bits(sum.part[i]), whole));
  });
}

// Adds the products of bytes, two at a time, to 16-bit sums. The addition is assembly because GCC 12 would compute the
// products of a whole block, for which there are no registers, before it adds them.
VIVACE_INLINE void add_products(Words& pairs, const Words& w, __m256i x) {
  matmul_kernel::unroll<matmul_kernel::kParts>([&](auto i) __attribute__((always_inline)) {
    const __m256i products = _mm256_maddubs_epi16(bits(w.part[i]), x);
    asm("vpaddw %1, %0, %0" : "+x"(pairs.part[i]) : "x"(products));
  });
}

struct Isa : IsaBase {
#ifdef VIVACE_SANITIZED  // fewer sizes of groups: the same code, compiled in a tenth of the time
  static constexpr int group(Form) { return 2; }
#else
  static constexpr int group(Form) { return 4; }
#endif

  // Sums of 16 bits hold kQuads quads, whose products are at most kTop * 128.
  template <int kTop>
  struct Dot {
    static constexpr int kQuads = kTop <= 15 ? 8 : kTop <= 31 ? 4 : kTop <= 63 ? 2 : 1;
    static_assert(kQuads * 2 * kTop * 128 <= INT16_MAX);
    Words pairs{};
    VIVACE_INLINE void add(Ints&, const Words& w, const int8_t* quad) { add_products(pairs, w, spread(quad)); }
    VIVACE_INLINE void total(Ints& sum) {
      add_pairs(sum, pairs, 1);
      pairs = Words{};
    }
  };
  // Larger bytes half by half.
  template <int kTop>
    requires(kTop > 127)
  struct Dot<kTop> {
    static constexpr int kQuads = 8;
    Words low{}, high{};
    VIVACE_INLINE void add(Ints&, const Words& w, const int8_t* quad) {
      const __m256i x = spread(quad);
      add_products(low, w & 0x0f0f0f0fu, x);
      add_products(high, w >> 4 & 0x0f0f0f0fu, x);
    }
    VIVACE_INLINE void total(Ints& sum) {
      add_pairs(sum, low, 1);
      add_pairs(sum, high, 16);
      low = high = Words{};
    }
  };
};

}  // namespace

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : matmul_kernel::select_super_blocks<Isa>(type);
}

int64_t int8_loop(int64_t rounds) {
  return vivace::int8_loop(rounds, _mm256_set1_epi8(3), _mm256_set1_epi8(1), [](__m256i& sum, __m256i w, __m256i x) {
    __m256i products;
    asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(w), "x"(x));
  });
}

}  // namespace vivace::avx2

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "half.h"
#include "int8_loop.h"
#include "matmul.h"
#include "matmul_kernel.h"

namespace vivace::portable {
namespace {

using matmul_kernel::Floats;
using matmul_kernel::Ints;
using matmul_kernel::Words;

struct Isa {
  using Form = matmul_kernel::Form;

  static constexpr int kFloatGroup = 2;
  static constexpr int group(Form) { return 2; }

  // Pairs of 16-bit numbers times a pair, summed.
  VIVACE_INLINE static Ints::Part multiply_pairs(Words::Part w, Words::Part x) {
#if defined(__SSE2__)
    return Ints::Part(_mm_madd_epi16(__m128i(w), __m128i(x)));
#else
    const auto low = [](Words::Part pairs) { return Ints::Part(pairs << 16) >> 16; };
    const auto high = [](Words::Part pairs) { return Ints::Part(pairs) >> 16; };
    return low(w) * low(x) + high(w) * high(x);
#endif
  }

  template <int>
  struct Dot {
    static constexpr int kQuads = 8;
    VIVACE_INLINE void add(Ints& sum, const Words& w, const int8_t* quad) {
      using Shorts = int16_t __attribute__((vector_size(16)));
      const auto x = Shorts(matmul_kernel::load<uint32_t>(quad) - Words::Part{});
      const auto even = Words::Part(x << 8 >> 8), odd = Words::Part(x >> 8);
      matmul_kernel::unroll<matmul_kernel::kParts>([&](auto i) __attribute__((always_inline)) {
        const Words::Part bytes = w.part[i];
        sum.part[i] += multiply_pairs(bytes & 0x00ff00ffu, even) + multiply_pairs(bytes >> 8 & 0x00ff00ffu, odd);
      });
    }
    VIVACE_INLINE void total(Ints&) {}
  };
  VIVACE_INLINE static Ints dot_pairs(const Ints& sum, const Words& w, const uint8_t* pair) {
    const auto x = matmul_kernel::load<uint32_t>(pair) - Words::Part{};
    return matmul_kernel::of_parts<Ints>(
        [&](auto i) __attribute__((always_inline)) { return sum.part[i] + multiply_pairs(w.part[i], x); });
  }
  VIVACE_INLINE static Words add_bytes(const Words& sums, const Words& bytes) {
    const Words pairs = (bytes & 0x00ff00ffu) + (bytes >> 8 & 0x00ff00ffu);
    return sums + (pairs & 0xffffu) + (pairs >> 16);
  }
  VIVACE_INLINE static Words lookup(const uint8_t (&table)[16], const Words& bytes) {
    uint8_t found[kLine];
    matmul_kernel::store(found, bytes);
    for (uint8_t& byte : found) byte = table[byte];
    return matmul_kernel::load<Words>(found);
  }
  VIVACE_INLINE static Floats fma(const Floats& a, const Floats& b, const Floats& c) { return a * b + c; }
  VIVACE_INLINE static Floats halves(const uint8_t* from) {
    return matmul_kernel::of_parts<Floats>([&](auto i)
                                               __attribute__((always_inline)) { return half_to_float4(from + 8 * i); });
  }
  VIVACE_INLINE static Ints widen(const uint8_t* from) {
    return matmul_kernel::of_parts<Ints>([&](auto i) __attribute__((always_inline)) {
      using Bytes = int8_t __attribute__((vector_size(4)));
      return __builtin_convertvector(matmul_kernel::load<Bytes>(from + 4 * i), Ints::Part);
    });
  }
  template <int kBytes>
  VIVACE_INLINE static void prefetch(const uint8_t*) {}
};

}  // namespace

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : matmul_kernel::select_super_blocks<Isa>(type);
}

int64_t int8_loop(int64_t rounds) {
  const Words::Part ones = Words::Part{} + 0x01010101u;
  return vivace::int8_loop(rounds, ones, ones, [](Words::Part& sum, Words::Part w, Words::Part x) {
#if defined(__SSE2__)
    asm volatile("" : "+x"(w));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(w));
#else
    asm volatile("" : "+m"(w));
#endif
    sum += Words::Part(Isa::multiply_pairs(w & 0x00ff00ffu, x) + Isa::multiply_pairs(w >> 8 & 0x00ff00ffu, x));
  });
}

}  // namespace vivace::portable

#include "int8_loop.h"
#include "matmul.h"
#include "matmul_avx2.h"

namespace vivace::avxvnni {
namespace {

using avx2::bits;
using matmul_kernel::Ints;
using matmul_kernel::Words;

struct Isa : avx2::IsaBase {
#ifdef VIVACE_SANITIZED  // fewer sizes of groups: the same code, compiled in a tenth of the time
  static constexpr int group(Form) { return 2; }
#else
  static constexpr int group(Form) { return 4; }
#endif

  template <int kTop>
  struct Dot {
    static constexpr int kQuads = 8;
    VIVACE_INLINE void add(Ints& sum, const Words& w, const int8_t* quad) {
      const __m256i x = avx2::spread(quad);
      matmul_kernel::unroll<matmul_kernel::kParts>([&](auto i) __attribute__((always_inline)) {
        sum.part[i] = Ints::Part(_mm256_dpbusd_avx_epi32(bits(sum.part[i]), bits(w.part[i]), x));
      });
    }
    VIVACE_INLINE void total(Ints&) {}
  };
};

}  // namespace

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : matmul_kernel::select_super_blocks<Isa>(type);
}

int64_t int8_loop(int64_t rounds) {
  return vivace::int8_loop(rounds, _mm256_set1_epi8(3), _mm256_set1_epi8(1), [](__m256i& sum, __m256i w, __m256i x) {
    asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
  });
}

}  // namespace vivace::avxvnni

#include <immintrin.h>

#include "matmul.h"
#include "matmul_kernel.h"

namespace vivace::avx512 {
namespace {

struct Isa {
  using Ints = matmul_kernel::Ints;
  using Words = matmul_kernel::Words;
  using Floats = matmul_kernel::Floats;
  static constexpr int kGroup = 8;

  VIVACE_INLINE static Ints dot(Ints sum, Words w, const int8_t* quad) {
    const __m512i a = _mm512_set1_epi32(matmul_kernel::load<int32_t>(quad));
    return Ints(_mm512_dpbusd_epi32(__m512i(sum), __m512i(w), a));
  }
  VIVACE_INLINE static Floats fma(Floats a, Floats b, Floats c) {
    return Floats(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
  }
  VIVACE_INLINE static Floats halves(const uint8_t* from) {
    // The form with a mask: the other one warns about an undefined operand in GCC 12.
    return Floats(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
  }
};

}  // namespace

MatmulFn matmul(WeightType type) { return matmul_kernel::select<Isa>(type); }

}  // namespace vivace::avx512

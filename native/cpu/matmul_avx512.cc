#include "matmul_avx512.h"

#include "int8_loop.h"

namespace vivace::avx512 {

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : super_block_matmul(type);
}

int64_t int8_loop(int64_t rounds) {
  return vivace::int8_loop(rounds, _mm512_set1_epi8(3), _mm512_set1_epi8(1), [](__m512i& sum, __m512i w, __m512i x) {
    asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  });
}

}  // namespace vivace::avx512

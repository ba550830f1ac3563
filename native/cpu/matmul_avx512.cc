#include "matmul_avx512.h"

namespace vivace::avx512 {

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : super_block_matmul(type);
}

}  // namespace vivace::avx512

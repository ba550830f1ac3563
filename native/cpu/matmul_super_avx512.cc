#include "matmul_avx512.h"

namespace vivace::avx512 {

MatmulFn super_block_matmul(WeightType type) { return matmul_kernel::select_super_blocks<Isa>(type); }

}  // namespace vivace::avx512

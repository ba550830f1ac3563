// The matrix products of each instruction set; null when a type has none.
#pragma once
#include "vivace/kernels.h"

namespace vivace {
namespace portable {
MatmulFn matmul(WeightType type);
}
namespace avx512 {
MatmulFn matmul(WeightType type);
}
}  // namespace vivace

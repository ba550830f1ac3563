// The matrix products of each instruction set, null when a type has none; and the loop that tells its int8 peak.
#pragma once
#include "vivace/kernels.h"

namespace vivace {
namespace portable {
MatmulFn matmul(WeightType type);
int64_t int8_loop(int64_t rounds);
}  // namespace portable
namespace neon {
MatmulFn matmul(WeightType type);
int64_t int8_loop(int64_t rounds);
}  // namespace neon
namespace avx2 {
MatmulFn matmul(WeightType type);
int64_t int8_loop(int64_t rounds);
}  // namespace avx2
namespace avxvnni {
MatmulFn matmul(WeightType type);
int64_t int8_loop(int64_t rounds);
}  // namespace avxvnni
namespace avx512 {
MatmulFn matmul(WeightType type);
int64_t int8_loop(int64_t rounds);
}  // namespace avx512
}  // namespace vivace

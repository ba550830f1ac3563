#include "attention_kernel.h"
#include "simd_avx512.h"

namespace vivace::avx512 {

void set_attention(Kernels& kernels) { set_attention_of<Simd>(kernels); }

}  // namespace vivace::avx512

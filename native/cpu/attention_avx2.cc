#include "attention_kernel.h"
#include "simd_avx2.h"

namespace vivace::avx2 {

void set_attention(Kernels& kernels) { set_attention_of<Simd>(kernels); }

}  // namespace vivace::avx2

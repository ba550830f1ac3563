#include "attention_kernel.h"
#include "simd_portable.h"

namespace vivace::portable {

void set_attention(Kernels& kernels) { set_attention_of<Simd>(kernels); }

}  // namespace vivace::portable

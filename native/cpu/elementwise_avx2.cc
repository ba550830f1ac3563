#include "elementwise_kernel.h"
#include "quantise_kernel.h"
#include "simd_avx2.h"

namespace vivace::avx2 {

void set_elementwise(Kernels& kernels) {
  set_elementwise_of<Simd>(kernels);
  kernels.quantise = quantise<Simd>;
}

}  // namespace vivace::avx2

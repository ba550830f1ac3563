#include "elementwise_kernel.h"
#include "quantise_kernel.h"
#include "simd_portable.h"

namespace vivace::portable {

void set_elementwise(Kernels& kernels) {
  set_elementwise_of<Simd>(kernels);
  kernels.quantise = quantise<Simd>;
}

}  // namespace vivace::portable

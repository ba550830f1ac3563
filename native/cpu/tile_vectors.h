// Sixteen 32-bit numbers, one for each row of a tile. Code that depends on an instruction set or is always inlined
// only: every file compiles its own.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "packed_layout.h"

namespace vivace::matmul_kernel {

#define VIVACE_INLINE [[gnu::always_inline]] inline

using Words = uint32_t __attribute__((vector_size(kLine)));
using Ints = int32_t __attribute__((vector_size(kLine)));
using Floats = float __attribute__((vector_size(kLine)));

template <class T>
VIVACE_INLINE T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
VIVACE_INLINE void store(void* to, const T& value) {
  std::memcpy(to, &value, sizeof value);
}

VIVACE_INLINE Floats splat(float value) { return value - Floats{}; }
VIVACE_INLINE Ints splat(int32_t value) { return value - Ints{}; }
VIVACE_INLINE Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }
VIVACE_INLINE Ints as_ints(Words words) { return Ints(words); }
VIVACE_INLINE Floats as_floats(Words words) { return Floats(words); }

// body(integral_constant<0>) ... body(integral_constant<kCount - 1>): indices are constants, so arrays
// indexed by them live in registers.
template <int kCount, class Body>
VIVACE_INLINE void unroll(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

}  // namespace vivace::matmul_kernel

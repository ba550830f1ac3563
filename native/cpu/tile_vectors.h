// Sixteen 32-bit numbers, one for each row of a tile, in as many registers as the instruction set needs.
//
// With AVX-512 they are the compiler's own vectors. Wider ones than a register it would keep in memory, so elsewhere
// they are made of parts that fit. The types differ between files compiled for different instruction sets: only code
// that depends on one may use them, or code that is always inlined.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "packed_layout.h"

#define VIVACE_INLINE [[gnu::always_inline]] inline

namespace vivace::matmul_kernel {

// body(integral_constant<0>) ... body(integral_constant<kCount - 1>): indices are constants, so arrays
// indexed by them live in registers.
template <int kCount, class Body>
VIVACE_INLINE void unroll(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

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

#if defined(__AVX512F__)

using Words = uint32_t __attribute__((vector_size(kLine)));
using Ints = int32_t __attribute__((vector_size(kLine)));
using Floats = float __attribute__((vector_size(kLine)));

VIVACE_INLINE Floats splat(float value) { return value - Floats{}; }
VIVACE_INLINE Ints splat(int32_t value) { return value - Ints{}; }
VIVACE_INLINE Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }
VIVACE_INLINE Ints as_ints(Words words) { return Ints(words); }
VIVACE_INLINE Floats as_floats(Words words) { return Floats(words); }

#else

#if defined(__AVX2__)
constexpr int kPart = 32;
#else
constexpr int kPart = 16;
#endif
constexpr int kParts = kLine / kPart;
constexpr int kPartRows = kPart / 4;

template <class T>
struct Wide {
  typedef T Part __attribute__((vector_size(kPart)));
  Part part[kParts];

  VIVACE_INLINE T operator[](int row) const { return part[row / kPartRows][row % kPartRows]; }
  VIVACE_INLINE Wide& operator+=(const Wide& other) { return *this = *this + other; }
};

using Words = Wide<uint32_t>;
using Ints = Wide<int32_t>;
using Floats = Wide<float>;

// {make(integral_constant<0>), ...}, a part each.
template <class T, class Make>
VIVACE_INLINE T of_parts(Make&& make) {
  return [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    return T{{make(std::integral_constant<int, kIndex>{})...}};
  }(std::make_integer_sequence<int, kParts>{});
}

// Part by part: as a whole they would go through memory.
template <class T>
  requires std::is_same_v<T, Wide<uint32_t>> || std::is_same_v<T, Wide<int32_t>> || std::is_same_v<T, Wide<float>>
VIVACE_INLINE T load(const void* from) {
  return of_parts<T>([&](auto i) __attribute__((always_inline)) {
    typename T::Part part;
    std::memcpy(&part, static_cast<const uint8_t*>(from) + i * kPart, kPart);
    return part;
  });
}
template <class T>
VIVACE_INLINE void store(void* to, const Wide<T>& value) {
  unroll<kParts>([&](auto i) __attribute__((always_inline)) {
    std::memcpy(static_cast<uint8_t*>(to) + i * kPart, &value.part[i], kPart);
  });
}

#define VIVACE_OPERATOR(op)                                                                                  \
  template <class T>                                                                                         \
  VIVACE_INLINE Wide<T> operator op(const Wide<T>& a, const Wide<T>& b) {                                    \
    return of_parts<Wide<T>>([&](auto i) __attribute__((always_inline)) { return a.part[i] op b.part[i]; }); \
  }                                                                                                          \
  template <class T>                                                                                         \
  VIVACE_INLINE Wide<T> operator op(const Wide<T>& a, std::type_identity_t<T> b) {                           \
    return of_parts<Wide<T>>([&](auto i) __attribute__((always_inline)) { return a.part[i] op b; });         \
  }
VIVACE_OPERATOR(+)
VIVACE_OPERATOR(-)
VIVACE_OPERATOR(*)
VIVACE_OPERATOR(&)
VIVACE_OPERATOR(|)
VIVACE_OPERATOR(^)
VIVACE_OPERATOR(<<)
VIVACE_OPERATOR(>>)
#undef VIVACE_OPERATOR

template <class T>
VIVACE_INLINE Wide<T> operator-(const Wide<T>& a) {
  return of_parts<Wide<T>>([&](auto i) __attribute__((always_inline)) { return -a.part[i]; });
}

template <class T>
VIVACE_INLINE Wide<T> splat(T value) {
  return of_parts<Wide<T>>([&](auto) __attribute__((always_inline)) { return value - typename Wide<T>::Part{}; });
}
VIVACE_INLINE Floats to_floats(const Ints& values) {
  return of_parts<Floats>(
      [&](auto i) __attribute__((always_inline)) { return __builtin_convertvector(values.part[i], Floats::Part); });
}
VIVACE_INLINE Ints as_ints(const Words& words) {
  return of_parts<Ints>([&](auto i) __attribute__((always_inline)) { return Ints::Part(words.part[i]); });
}
VIVACE_INLINE Floats as_floats(const Words& words) {
  return of_parts<Floats>([&](auto i) __attribute__((always_inline)) { return Floats::Part(words.part[i]); });
}

#endif

}  // namespace vivace::matmul_kernel

// IEEE half to float without hardware help.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace vivace {

[[gnu::always_inline]] inline float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// Four at once.
[[gnu::always_inline]] inline auto half_to_float4(const void* halves) {
  using Halves = uint16_t __attribute__((vector_size(8)));
  using Words = uint32_t __attribute__((vector_size(16)));
  using Ints = int32_t __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(16)));
  Halves stored;
  std::memcpy(&stored, halves, sizeof stored);
  const Words half = __builtin_convertvector(stored, Words), sign = (half & 0x8000u) << 16;
  const Ints magnitude = Ints(half & 0x7fffu), bias = Ints{} + 0x38000000;
  const Ints special = (magnitude >= 0x7c00) & bias;  // infinities and NaN: twice the bias
  // A subnormal takes the place after the point of 2^-14, which is then subtracted: subnormal floats may be flushed.
  const Ints subnormal = magnitude < 0x0400;
  const Ints bits = (magnitude << 13) + bias + special + (subnormal & 0x00800000);
  const Floats value = Floats(bits) - Floats(subnormal & 0x38800000);
  return Floats(Words(value) | sign);
}

template <class T>
[[gnu::always_inline]] inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace vivace

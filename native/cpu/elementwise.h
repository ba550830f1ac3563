// Row-wise kernels other than products and attention, one set per instruction set.
#pragma once
#include <bit>
#include <cstdint>

#include "vivace/kernels.h"

namespace vivace {

namespace portable {
void set_elementwise(Kernels& kernels);
}
namespace avx2 {
void set_elementwise(Kernels& kernels);
}
namespace avx512 {
void set_elementwise(Kernels& kernels);
}

constexpr float kHalfMax = 65504.0f;

// A block whose scale would be below the normal numbers is quantised to d = q = z = 0. One with a value that is not
// finite keeps that in its scale and has q = z = 0, so that its products are NaN.
constexpr int32_t kLeastScale = 0x00800000;  // bits of the least normal number
constexpr int32_t kInfinity = 0x7f800000;
constexpr float kLevels = 255.0f;

// Rounds to nearest even; overflows to infinity; NaN stays a quiet NaN.
[[gnu::always_inline]] inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

}  // namespace vivace

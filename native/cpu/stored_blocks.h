// The blocks of each weight type as files hold them.
#pragma once
#include <cstdint>

#include "half.h"
#include "vivace/weights.h"

namespace vivace {

struct StoredBlock {
  int cols;  // 0: unknown type
  int bytes;
};

constexpr StoredBlock stored_block(WeightType type) {
  switch (type) {
    case WeightType::kF32: return {1, 4};
    case WeightType::kF16: return {1, 2};
    case WeightType::kBF16: return {1, 2};
    case WeightType::kQ4_0: return {32, 18};
    case WeightType::kQ4_1: return {32, 20};
    case WeightType::kQ5_0: return {32, 22};
    case WeightType::kQ5_1: return {32, 24};
    case WeightType::kQ8_0: return {32, 34};
    case WeightType::kQ2_K: return {256, 84};
    case WeightType::kQ3_K: return {256, 110};
    case WeightType::kQ4_K: return {256, 144};
    case WeightType::kQ5_K: return {256, 176};
    case WeightType::kQ6_K: return {256, 210};
    case WeightType::kIQ4_NL: return {32, 18};
    case WeightType::kIQ4_XS: return {256, 136};
  }
  return {0, 0};
}

// Scale and minimum `i` of the twelve bytes of a Q4_K or Q5_K block.
struct ScaleMin {
  uint32_t scale;
  uint32_t minimum;
};

inline ScaleMin scale_min(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63u, packed[i + 4] & 63u};
  const uint32_t low = packed[i + 4], scale_top = packed[i - 4] >> 6, minimum_top = packed[i] >> 6;
  return {(low & 15) | scale_top << 4, low >> 4 | minimum_top << 4};
}

// Scale `s` of the sixteen, 32 added, in the twelve bytes of a Q3_K block.
inline uint32_t q3_k_scale(const uint8_t* packed, int s) {
  return (packed[s % 8] >> s / 8 * 4 & 15u) | (packed[8 + s % 4] >> s / 4 * 2 & 3u) << 4;
}

inline float half_at(const uint8_t* at) { return half_to_float(load<uint16_t>(at)); }

}  // namespace vivace

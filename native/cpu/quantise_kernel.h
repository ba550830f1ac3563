// Quantising rows of activations, for vectors of which a block has several.
#pragma once
#include <bit>

#include "elementwise.h"

namespace vivace {
namespace {

template <class V>
void quantise(const float* x, int32_t n, const Quantised& into) {
  using Ints = typename V::Ints;
  constexpr int kVectors = kQuantBlock / V::kLanes;
  const auto larger = [](Ints a, Ints b) __attribute__((always_inline)) { return a > b ? a : b; };
  for (int32_t block = 0; block < n / kQuantBlock; ++block) {
    const float* in = x + block * kQuantBlock;
    int8_t* q = into.q + block * kQuantBlock;
    Ints highest{}, lowest{};  // magnitudes as integers order like floats, with NaN above infinity
    for (int i = 0; i < kVectors; ++i) {
      const auto values = V::load(in + i * V::kLanes);
      highest = larger(highest, Ints(values));
      lowest = larger(lowest, Ints(V::negate(values)));
    }
    const float below = std::bit_cast<float>(V::largest(lowest));
    const float step = std::bit_cast<float>(V::largest(highest)) / kLevels + below / kLevels;
    const auto bits = std::bit_cast<int32_t>(step);
    const bool normal = bits >= kLeastScale, usable = normal && bits < kInfinity;
    const int32_t zero = usable ? 128 - V::to_ints(V::set(below / step))[0] : 0;
    into.d[block] = normal ? step : 0.0f;
    into.z[block] = zero;
    int32_t* sums = into.s + block * (kQuantBlock / kSumBlock);
    if (!usable) {
      for (int i = 0; i < kQuantBlock; ++i) q[i] = 0;
      for (int part = 0; part < kQuantBlock / kSumBlock; ++part) sums[part] = 0;
      continue;
    }
    for (int part = 0; part < kQuantBlock / kSumBlock; ++part) {
      Ints levels[kSumBlock / V::kLanes];
      for (int i = 0; i < kSumBlock / V::kLanes; ++i) {
        levels[i] = V::to_ints(V::load(in + part * kSumBlock + i * V::kLanes) / V::set(step)) - zero;
      }
      sums[part] = kSumBlock * zero + V::store_bytes(q + part * kSumBlock, levels);
    }
  }
}

}  // namespace
}  // namespace vivace

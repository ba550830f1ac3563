// The loop that measures how many 8-bit dot products a second an instruction set can do.
#pragma once
#include <cstdint>
#include <utility>

namespace vivace {
namespace {

// Twelve accumulators hide the latency of a dot and stay in registers. add(sum, w, x) adds the dot products of vectors
// of bytes in a way that the compiler cannot leave out. Returns the operations: a multiplication and an addition a
// byte.
template <class Vector, class Add>
int64_t int8_loop(int64_t rounds, Vector w, Vector x, Add add) {
  Vector sums[12] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) add(sums[i], w, x);
  }
  for (const Vector& sum : sums) asm volatile("" ::"m"(sum));
  return rounds * 12 * static_cast<int64_t>(sizeof(Vector)) * 2;
}

}  // namespace
}  // namespace vivace

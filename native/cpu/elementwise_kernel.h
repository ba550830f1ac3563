// Row-wise kernels, written once for every instruction set: `V` is its vector of floats (simd_*.h). Every tail is a
// vector too, so an element's bits do not depend on its place.
//
// What does not depend on V has internal linkage, so that files compiled for different processors do not share it.
#pragma once
#include <cmath>
#include <limits>

#include "elementwise.h"
#include "exp.h"

namespace vivace {
namespace {

// Calls action(offset, count) for each vector of n elements.
template <class V, class Action>
[[gnu::always_inline]] inline void each_vector(int32_t n, Action action) {
  int32_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) action(i, V::kLanes);
  if (i < n) action(i, n - i);
}

// Sums of squares go to four accumulators in turn, which are added as a tree.
template <class V>
void rms_norm(const float* x, const float* w, float eps, int32_t n, float* out) {
  typename V::Floats squares[4] = {};
  int32_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    for (int j = 0; j < 4; ++j) {
      const auto value = V::load(x + i + j * V::kLanes);
      squares[j] = V::fma(value, value, squares[j]);
    }
  }
  for (int j = 0; i < n; i += V::kLanes, ++j) {
    const auto value = V::load(x + i, n - i);
    squares[j] = V::fma(value, value, squares[j]);
  }
  const float mean = V::sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(n);
  const auto factor = V::set(1.0f / std::sqrt(mean + eps));
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    V::store(out + at, count, V::load(x + at, count) * factor * V::load(w + at, count));
  });
}

template <class V>
void add(const float* x, int32_t n, float* io) {
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    V::store(io + at, count, V::load(io + at, count) + V::load(x + at, count));
  });
}

template <class V>
void scale(float factor, int32_t n, float* io) {
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    V::store(io + at, count, V::load(io + at, count) * V::set(factor));
  });
}

// x / (1 + exp(-t))
template <class V>
[[gnu::always_inline]] inline typename V::Floats gated(typename V::Floats x, typename V::Floats t) {
  return x / (V::set(1.0f) + vivace::exp<V>(V::negate(t)));
}

template <class V>
void silu_mul(const float* gate, const float* up, int32_t n, float* out) {
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    const auto x = V::load(gate + at, count);
    V::store(out + at, count, gated<V>(x, x) * V::load(up + at, count));
  });
}

// 0.5 x (1 + tanh u) written as x / (1 + exp(-2u)), which does not cancel for negative x.
template <class V>
void gelu_tanh_mul(const float* gate, const float* up, int32_t n, float* out) {
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    const auto x = V::load(gate + at, count);
    const auto u = V::fma(x * x * x, V::set(0.044715f), x);
    V::store(out + at, count, gated<V>(x, u * V::set(1.5957691216f)) * V::load(up + at, count));
  });
}

template <class V>
void softcap(float cap, int32_t n, float* io) {
  const auto caps = V::set(cap);
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    V::store(io + at, count, caps * vivace::tanh<V>(V::load(io + at, count) / caps));
  });
}

template <class V>
void rope(const float* cos, const float* sin, int32_t half, float* io) {
  each_vector<V>(half, [&](int32_t at, int count) __attribute__((always_inline)) {
    const auto a = V::load(io + at, count), b = V::load(io + half + at, count);
    const auto c = V::load(cos + at, count), s = V::load(sin + at, count);
    V::store(io + at, count, V::fms(a, c, b * s));
    V::store(io + half + at, count, V::fma(b, c, a * s));
  });
}

template <class V>
void append(const float* key, const float* value, int32_t dim, int32_t slot, uint16_t* k, uint16_t* v) {
  const auto clamped = [](const float* x, int count) __attribute__((always_inline)) {
    return V::max(V::set(-kHalfMax), V::min(V::set(kHalfMax), V::load(x, count)));
  };
  each_vector<V>(dim, [&](int32_t at, int count) __attribute__((always_inline)) {
    V::store_halves(v + static_cast<int64_t>(slot) * dim + at, count, clamped(value + at, count));
    uint16_t halves[V::kLanes];
    V::store_halves(halves, V::kLanes, clamped(key + at, count));
    for (int32_t i = 0; i < count; ++i) k[static_cast<int64_t>(at + i) * kPage + slot] = halves[i];
  });
}

// A NaN logit gives max and sum NaN and the index of the first NaN; a maximum of +inf makes the sum NaN.
// n = 0 gives -inf, -1, 0.
//
// Blocks of 1024 stay in the first-level cache between their maximum and their sum.
template <class V>
void logit_stats(const float* x, int64_t n, float* max, int64_t* argmax, double* sum_exp) {
  constexpr int64_t kBlock = 1024;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using Floats = typename V::Floats;
  const auto least = V::set(-kInfinity);
  float best = -kInfinity;
  int64_t best_block = n > 0 ? 0 : -1;
  double sum = 0.0;

  for (int64_t start = 0; start < n; start += kBlock) {
    const float* in = x + start;
    const int64_t count = n - start < kBlock ? n - start : kBlock;
    // Calls action(j, offset, values) for each vector, j of 0..3 in turn. Lanes past the end are -inf.
    const auto each = [&](auto&& action) __attribute__((always_inline)) {
      int64_t i = 0;
      for (; i + 4 * V::kLanes <= count; i += 4 * V::kLanes) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) action(j, i + j * V::kLanes, V::load(in + i + j * V::kLanes));
      }
      for (int j = 0; i < count; i += V::kLanes, ++j) action(j, i, V::load(in + i, count - i, -kInfinity));
    };

    Floats tops[4] = {least, least, least, least}, nans[4] = {};
    each([&](int j, int64_t, Floats value) __attribute__((always_inline)) {
      nans[j] = V::where_at_least(value, value, nans[j], value);
      tops[j] = V::max(tops[j], value);
    });
    if (V::any_nan((nans[0] + nans[1]) + (nans[2] + nans[3]))) {
      int64_t i = start;
      while (!std::isnan(x[i])) ++i;
      *argmax = i;
      *max = std::numeric_limits<float>::quiet_NaN();
      *sum_exp = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    const float top = V::largest(V::max(V::max(tops[0], tops[1]), V::max(tops[2], tops[3])));
    if (top > best) {
      sum *= std::exp(static_cast<double>(best) - top);
      best = top;
      best_block = start;
    }
    if (best == -kInfinity) continue;

    Floats sums[4] = {};
    each([&](int j, int64_t at, Floats value) __attribute__((always_inline)) {
      V::prefetch(in + kBlock + at);  // of the next block
      sums[j] = sums[j] + exp_below<V>(value - V::set(best));
    });
    sum += V::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  *max = best;
  *argmax = best_block;
  if (best > -kInfinity) {
    while (x[*argmax] != best) ++*argmax;
  }
  *sum_exp = best == kInfinity ? std::numeric_limits<double>::quiet_NaN() : sum;
}

template <class V>
int32_t above(const float* x, int32_t n, float floor, int32_t* index) {
  const auto limit = V::set(floor);
  int32_t found = 0;
  each_vector<V>(n, [&](int32_t at, int count) __attribute__((always_inline)) {
    found += V::store_places_above(x + at, count, limit, at, index + found);
  });
  return found;
}

template <class V>
void set_elementwise_of(Kernels& kernels) {
  kernels.rms_norm = rms_norm<V>;
  kernels.add = add<V>;
  kernels.scale = scale<V>;
  kernels.silu_mul = silu_mul<V>;
  kernels.gelu_tanh_mul = gelu_tanh_mul<V>;
  kernels.softcap = softcap<V>;
  kernels.rope = rope<V>;
  kernels.append = append<V>;
  kernels.logit_stats = logit_stats<V>;
  kernels.above = above<V>;
}

}  // namespace
}  // namespace vivace

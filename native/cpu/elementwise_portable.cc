// Row-wise kernels in plain C++.
#include "elementwise.h"

#include <cmath>
#include <limits>

namespace vivace::portable {
namespace {

void rms_norm(const float* x, const float* w, float eps, int32_t n, float* out) {
  double squares = 0.0;
  for (int32_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / std::sqrt(squares / n + eps));
  for (int32_t i = 0; i < n; ++i) out[i] = x[i] * factor * w[i];
}

void add(const float* x, int32_t n, float* io) {
  for (int32_t i = 0; i < n; ++i) io[i] += x[i];
}

void scale(float factor, int32_t n, float* io) {
  for (int32_t i = 0; i < n; ++i) io[i] *= factor;
}

void silu_mul(const float* gate, const float* up, int32_t n, float* out) {
  for (int32_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

// 0.5 x (1 + tanh u) written as x / (1 + exp(-2u)), which does not cancel for negative x.
void gelu_tanh_mul(const float* gate, const float* up, int32_t n, float* out) {
  for (int32_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float u2 = 1.5957691216f * (x + 0.044715f * x * x * x);
    out[i] = x / (1.0f + std::exp(-u2)) * up[i];
  }
}

void softcap(float cap, int32_t n, float* io) {
  for (int32_t i = 0; i < n; ++i) io[i] = cap * std::tanh(io[i] / cap);
}

void quantise(const float* x, int32_t n, const Quantised& into) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even
  const auto rounded = [](float value) { return static_cast<int32_t>((value + kRound) - kRound); };
  for (int32_t block = 0; block < n / kQuantBlock; ++block) {
    const float* in = x + block * kQuantBlock;
    int8_t* q = into.q + block * kQuantBlock;
    int32_t above = 0, below = 0;  // magnitudes as integers order like floats, with NaN above infinity
    for (int32_t i = 0; i < kQuantBlock; ++i) {
      above = std::max(above, std::bit_cast<int32_t>(in[i]));
      below = std::max(below, std::bit_cast<int32_t>(-in[i]));
    }
    const float step = std::bit_cast<float>(above) / kLevels + std::bit_cast<float>(below) / kLevels;
    const auto bits = std::bit_cast<int32_t>(step);
    const bool normal = bits >= kLeastScale, usable = normal && bits < kInfinity;
    const int32_t zero = usable ? 128 - rounded(std::bit_cast<float>(below) / step) : 0;
    into.d[block] = normal ? step : 0.0f;
    into.z[block] = zero;
    for (int32_t part = 0; part < kQuantBlock / kSumBlock; ++part) {
      int32_t sum = kSumBlock * zero;
      for (int32_t i = part * kSumBlock; i < (part + 1) * kSumBlock; ++i) {
        q[i] = static_cast<int8_t>(usable ? std::min(rounded(in[i] / step) - zero, 127) : 0);
        sum += q[i];
      }
      into.s[block * (kQuantBlock / kSumBlock) + part] = sum;
    }
  }
}

void rope(const float* cos, const float* sin, int32_t half, float* io) {
  for (int32_t i = 0; i < half; ++i) {
    const float a = io[i];
    const float b = io[i + half];
    io[i] = a * cos[i] - b * sin[i];
    io[i + half] = b * cos[i] + a * sin[i];
  }
}

uint16_t clamped_half(float x) { return float_to_half(x > kHalfMax ? kHalfMax : x < -kHalfMax ? -kHalfMax : x); }

void append(const float* key, const float* value, int32_t dim, int32_t slot, uint16_t* k, uint16_t* v) {
  for (int32_t i = 0; i < dim; ++i) {
    k[static_cast<int64_t>(i) * kPage + slot] = clamped_half(key[i]);
    v[static_cast<int64_t>(slot) * dim + i] = clamped_half(value[i]);
  }
}

// A NaN logit gives max and sum NaN and the index of the first NaN; a maximum of +inf makes the sum NaN.
// n = 0 gives -inf, -1, 0.
void logit_stats(const float* x, int64_t n, float* max, int64_t* argmax, double* sum_exp) {
  *max = -std::numeric_limits<float>::infinity();
  *argmax = n > 0 ? 0 : -1;
  *sum_exp = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) {
      *max = std::numeric_limits<float>::quiet_NaN();
      *sum_exp = std::numeric_limits<double>::quiet_NaN();
      *argmax = i;
      return;
    }
    if (x[i] > *max) {
      *sum_exp = *sum_exp * std::exp(static_cast<double>(*max) - x[i]) + 1.0;
      *max = x[i];
      *argmax = i;
    } else if (x[i] > -std::numeric_limits<float>::infinity()) {
      *sum_exp += std::exp(x[i] - *max);
    }
  }
  if (*max == std::numeric_limits<float>::infinity()) *sum_exp = std::numeric_limits<double>::quiet_NaN();
}

int32_t above(const float* x, int32_t n, float floor, int32_t* index) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (x[i] > floor) index[count++] = i;
  }
  return count;
}

}  // namespace

void set_elementwise(Kernels& kernels) {
  kernels.rms_norm = rms_norm;
  kernels.add = add;
  kernels.scale = scale;
  kernels.silu_mul = silu_mul;
  kernels.gelu_tanh_mul = gelu_tanh_mul;
  kernels.softcap = softcap;
  kernels.quantise = quantise;
  kernels.rope = rope;
  kernels.append = append;
  kernels.logit_stats = logit_stats;
  kernels.above = above;
}

}  // namespace vivace::portable

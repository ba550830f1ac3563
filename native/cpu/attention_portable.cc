// Attention over one chunk in plain C++.
#include "attention.h"

#include <cmath>
#include <limits>

#include "half.h"

namespace vivace::portable {
namespace {

constexpr int kLanes = 16;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// logits[i] of keys begin <= i < end of one page.
void page_logits(const float* q, int32_t dim, const uint16_t* k, int begin, int end, float* logits) {
  for (int i = begin; i < end; ++i) logits[i] = 0.0f;
  for (int32_t d = 0; d < dim; ++d) {
    for (int i = begin; i < end; ++i) logits[i] += q[d] * half_to_float(k[d * kPage + i]);
  }
}

// out += prob[i] * value[i] of keys begin <= i < end of one page.
void page_values(const float* prob, int32_t dim, const uint16_t* v, int begin, int end, float* out) {
  for (int i = begin; i < end; ++i) {
    const uint16_t* value = v + static_cast<int64_t>(i) * dim;
    for (int32_t d = 0; d < dim; ++d) out[d] += prob[i] * half_to_float(value[d]);
  }
}

// Turns the visible logits into exp(logit - max); the rest of the 256 becomes 0. Returns the sum.
float probabilities(int first, int last, float max, float* logits) {
  float lanes[kLanes] = {};
  for (int i = 0; i < kChunk; ++i) {
    const bool visible = i >= first && i < last && max != kNothing;
    logits[i] = visible ? std::exp(logits[i] - max) : 0.0f;
    lanes[i % kLanes] += logits[i];
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

void attend_query(const AttendChunk& c, int32_t query) {
  const int first = c.first[query] > 0 ? c.first[query] : 0;
  const int last = c.last[query] < kChunk ? c.last[query] : kChunk;
  float buffer[kChunk];
  float* prob = c.prob ? c.prob + static_cast<int64_t>(query) * kChunk : buffer;
  float* out = c.out + static_cast<int64_t>(query) * c.dim;
  for (int32_t d = 0; d < c.dim; ++d) out[d] = 0.0f;

  const auto each_page = [&](auto&& action) {
    for (int page = 0; page < kChunk / kPage; ++page) {
      const int start = page * kPage;
      const int begin = first > start ? first - start : 0;
      const int end = last < start + kPage ? last - start : kPage;
      if (begin < end) action(page, begin, end);
    }
  };
  each_page([&](int page, int begin, int end) {
    page_logits(c.q + static_cast<int64_t>(query) * c.dim, c.dim, c.k[page], begin, end, prob + page * kPage);
  });
  float max = kNothing;
  for (int i = first; i < last; ++i) {
    if (c.softcap != 0.0f) prob[i] = c.softcap * std::tanh(prob[i] / c.softcap);
    if (c.bias) prob[i] += c.bias[static_cast<int64_t>(query) * kChunk + i];
    if (prob[i] > max || std::isnan(prob[i])) max = prob[i];  // nothing is greater than NaN, so NaN stays
  }
  const float sum = probabilities(first, last, max, prob);
  c.max[query] = std::isnan(sum) ? sum : max;
  c.sum[query] = sum;
  if (max == kNothing) return;
  each_page([&](int page, int begin, int end) { page_values(prob + page * kPage, c.dim, c.v[page], begin, end, out); });
}

void attend(const AttendChunk& chunk) {
  for (int32_t query = 0; query < chunk.queries; ++query) attend_query(chunk, query);
}

void fold(int32_t queries, int32_t dim, const float* max, const float* sum, const float* out, float* run_max,
          float* run_sum, float* run_out) {
  for (int32_t i = 0; i < queries; ++i) {
    if (max[i] == kNothing) continue;
    const float both = max[i] > run_max[i] || std::isnan(max[i]) ? max[i] : run_max[i];
    const float keep = std::exp(run_max[i] - both);
    const float take = std::exp(max[i] - both);
    run_max[i] = both;
    run_sum[i] = run_sum[i] * keep + sum[i] * take;
    for (int64_t d = static_cast<int64_t>(i) * dim; d < static_cast<int64_t>(i + 1) * dim; ++d) {
      run_out[d] = run_out[d] * keep + out[d] * take;
    }
  }
}

void finish(int32_t queries, int32_t dim, const float* run_max, const float* run_sum, const float* run_out, float* out,
            float* lse) {
  for (int32_t i = 0; i < queries; ++i) {
    for (int64_t d = static_cast<int64_t>(i) * dim; d < static_cast<int64_t>(i + 1) * dim; ++d) {
      out[d] = run_sum[i] == 0.0f ? 0.0f : run_out[d] / run_sum[i];
    }
    if (lse) lse[i] = run_sum[i] == 0.0f ? kNothing : run_max[i] + std::log(run_sum[i]);
  }
}

}  // namespace

void set_attention(Kernels& kernels) {
  kernels.attend = attend;
  kernels.fold = fold;
  kernels.finish = finish;
}

}  // namespace vivace::portable

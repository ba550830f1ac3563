// Row-wise kernels of every instruction set against references in double.
#include <algorithm>
#include <limits>

#include "../cpu/elementwise.h"
#include "../cpu/half.h"
#include "check.h"

using namespace vivace;
using namespace vivace::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const int kSizes[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 80, 127, 192, 576, 577, 640, 1536, 2049};

std::string label(const Kernels& kernels, const char* what, int n) {
  return std::string(kernels.isa) + " " + what + " n=" + std::to_string(n);
}

bool near(double value, double want, double relative, double absolute) {
  return std::abs(value - want) <= std::abs(want) * relative + absolute;
}

template <class Reference>
void expect_near(const float* got, int n, double relative, double absolute, const std::string& what, Reference want) {
  for (int i = 0; i < n; ++i) {
    if (near(got[i], want(i), relative, absolute)) continue;
    expect(false, what + " at " + std::to_string(i) + ": " + std::to_string(got[i]) + " != " + std::to_string(want(i)));
    return;
  }
}

// An element's bits may not depend on its place in the row.
template <class Function>
void expect_place_invariant(int n, const std::string& what, Function run) {
  Guarded<float> whole(n);
  run(0, n, whole.data());
  for (int cut : {1, 5, 16, 21}) {
    if (cut >= n) continue;
    Guarded<float> head(cut), tail(n - cut);
    run(0, cut, head.data());
    run(cut, n, tail.data());
    expect(same_bits(head.data(), whole.data(), cut) && same_bits(tail.data(), whole.data() + cut, n - cut),
           what + " depends on place");
  }
}

void test_rms_norm(const Kernels& k, int n) {
  Random random(n);
  Guarded<float> x(random.normals(n, 3.0f)), w(random.normals(n)), out(n);
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double factor = 1.0 / std::sqrt(squares / n + 1e-5);
  k.rms_norm(x.data(), w.data(), 1e-5f, n, out.data());
  const std::vector<float> input = x.copy();
  expect_near(out.data(), n, 1e-6, 0, label(k, "rms_norm", n), [&](int i) { return input[i] * factor * w[i]; });
  k.rms_norm(x.data(), w.data(), 1e-5f, n, x.data());
  expect(same_bits(x.data(), out.data(), n), label(k, "rms_norm in place", n));
}

void test_pointwise(const Kernels& k, int n) {
  Random random(100 + n);
  const std::vector<float> a = random.normals(n, 4.0f), b = random.normals(n);
  Guarded<float> x(a), y(b), out(n);

  Guarded<float> sum(a);
  k.add(y.data(), n, sum.data());
  expect_near(sum.data(), n, 0, 0, label(k, "add", n), [&](int i) { return a[i] + b[i]; });
  Guarded<float> product(a);
  k.scale(0.37f, n, product.data());
  expect_near(product.data(), n, 0, 0, label(k, "scale", n), [&](int i) { return a[i] * 0.37f; });

  k.silu_mul(x.data(), y.data(), n, out.data());
  expect_near(out.data(), n, 5e-7, 0, label(k, "silu_mul", n),
              [&](int i) { return a[i] / (1.0 + std::exp(-static_cast<double>(a[i]))) * b[i]; });
  k.gelu_tanh_mul(x.data(), y.data(), n, out.data());
  for (int i = 0; i < n; ++i) {
    const double v = a[i], u = std::sqrt(2.0 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
    const double want = 0.5 * v * (1.0 + std::tanh(u)) * b[i];
    expect(near(out[i], want, 2e-6, 1e-7), label(k, "gelu_tanh_mul", n));
  }
  Guarded<float> capped(random.normals(n, 60.0f));
  const std::vector<float> logits = capped.copy();
  k.softcap(30.0f, n, capped.data());
  expect_near(capped.data(), n, 5e-7, 0, label(k, "softcap", n),
              [&](int i) { return 30.0 * std::tanh(static_cast<double>(logits[i] / 30.0f)); });

  expect_place_invariant(n, label(k, "silu_mul", n), [&](int begin, int end, float* to) {
    k.silu_mul(x.data() + begin, y.data() + begin, end - begin, to);
  });
  expect_place_invariant(n, label(k, "gelu_tanh_mul", n), [&](int begin, int end, float* to) {
    k.gelu_tanh_mul(x.data() + begin, y.data() + begin, end - begin, to);
  });
}

// Floats spread over the whole range: exp through silu, tanh through softcap with cap 1. Where e^-x overflows silu is
// 0.
void test_functions_densely(const Kernels& k) {
  std::vector<float> points;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 48611) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(x)) points.push_back(x);
  }
  const int n = static_cast<int>(points.size());
  Guarded<float> x(points), ones(n, 1.0f), out(n);
  k.silu_mul(x.data(), ones.data(), n, out.data());
  expect_near(out.data(), n, 5e-7, 3e-37, label(k, "silu densely", n),
              [&](int i) { return points[i] / (1.0 + std::exp(-static_cast<double>(points[i]))); });
  k.softcap(1.0f, n, x.data());
  expect_near(x.data(), n, 4e-7, 0, label(k, "tanh densely", n),
              [&](int i) { return std::tanh(static_cast<double>(points[i])); });

  float edges[] = {kNan, kInfinity, -kInfinity, 0.0f, -0.0f};
  k.softcap(5.0f, 5, edges);
  expect(std::isnan(edges[0]) && edges[1] == 5.0f && edges[2] == -5.0f && edges[3] == 0.0f && edges[4] == 0.0f &&
             std::signbit(edges[4]),
         label(k, "softcap of edges", 5));
  const float gates[] = {kNan, kInfinity, 200.0f, -200.0f, 0.0f}, ups[] = {1, 1, 1, 1, 1};
  float gated[5];
  for (const auto function : {k.silu_mul, k.gelu_tanh_mul}) {
    function(gates, ups, 5, gated);
    expect(std::isnan(gated[0]) && gated[1] == kInfinity && gated[2] == 200.0f && std::abs(gated[3]) < 1e-35f &&
               gated[4] == 0.0f,
           label(k, "gates of edges", 5));
  }
}

struct Codes {
  explicit Codes(const Kernels& k, const std::vector<float>& values)
      : q(values.size()), d(values.size() / kQuantBlock), z(values.size() / kQuantBlock), s(values.size() / kSumBlock) {
    Guarded<float> x(values);
    k.quantise(x.data(), static_cast<int>(values.size()), {q.data(), d.data(), z.data(), s.data()});
  }
  Guarded<int8_t> q;
  Guarded<float> d;
  Guarded<int32_t> z, s;
};

// Every code, scale, zero point and sum as the definition gives them.
void expect_codes(const Kernels& k, const std::vector<float>& x, const char* what) {
  Codes got(k, x);
  for (int block = 0; block < static_cast<int>(x.size()) / 32; ++block) {
    const float* in = x.data() + block * 32;
    const float greatest = std::max(0.0f, *std::max_element(in, in + 32));
    const float least = std::min(0.0f, *std::min_element(in, in + 32));
    const float d = greatest / 255.0f - least / 255.0f;
    const int z = static_cast<int>(std::nearbyint(least / d)) + 128;
    expect(got.d[block] == d && got.z[block] == z, label(k, what, block));
    int sums[2] = {};
    for (int i = 0; i < 32; ++i) {
      const int level = static_cast<int>(std::nearbyint(in[i] / d)), q = std::min(level - z, 127);
      expect(got.q[block * 32 + i] == q, label(k, what, block * 32 + i));
      expect(q >= -128 && std::abs(double{d} * (q + z) - in[i]) <= 0.5001 * d, label(k, what, block * 32 + i));
      sums[i / 16] += q + z;
    }
    expect(got.s[2 * block] == sums[0] && got.s[2 * block + 1] == sums[1], label(k, what, block));
  }
}

void test_quantise(const Kernels& k) {
  Random random(7);
  for (int n : {32, 64, 96, 576, 1536, 8960}) {
    std::vector<float> x = random.normals(n);
    for (int i = 0; i < n; i += 96) x[i] *= 1e4f;
    for (int i = 32; i < n; i += 96) {  // blocks of one sign
      for (int j = i; j < i + 32; ++j) x[j] = i % 64 ? std::abs(x[j]) : -5 - std::abs(x[j]);
    }
    expect_codes(k, x, "quantise");
  }
  // Values at and beside the borders between levels, for scales all over the range.
  std::vector<float> borders;
  for (int block = 0; block < 4000; ++block) {
    const float greatest = std::ldexp(1.0f + static_cast<float>(random.uniform()), random.below(235) - 110);
    const float least = -greatest * static_cast<float>(random.uniform());
    const float d = greatest / 255.0f - least / 255.0f;
    borders.push_back(block % 2 ? greatest : -greatest);
    borders.push_back(block % 2 ? least : -least);
    for (int i = 2; i < 32; ++i) {
      const float border = (random.below(127) + 0.5f) * (block % 2 ? d : -d);
      borders.push_back(i % 3 == 0 ? border : std::nextafter(border, i % 3 == 1 ? 0.0f : 2 * border));
    }
  }
  expect_codes(k, borders, "quantise borders");
  std::vector<float> halves(32, 0.0f);  // ties go to even
  halves[0] = 200.0f, halves[1] = 0.5f, halves[2] = 1.5f, halves[3] = -2.5f, halves[4] = -55.0f;
  Codes ties(k, halves);
  const int z = ties.z[0];
  expect(z == 73 && ties.q[0] + z == 200 && ties.q[1] + z == 0 && ties.q[2] + z == 2 && ties.q[3] + z == -2 &&
             ties.q[4] + z == -55,
         label(k, "quantise ties", 32));

  std::vector<float> special(32 * 5, 0.0f);
  special[32] = kInfinity, special[33] = 1.0f;
  special[64] = kNan, special[65] = -1.0f;
  special[96] = 1e-36f, special[97] = -1e-44f;  // the scale is not a normal number
  special[128] = std::numeric_limits<float>::max(), special[129] = -kNan;
  Codes odd(k, special);
  expect(odd.d[0] == 0.0f && odd.d[1] == kInfinity && std::isnan(odd.d[2]) && odd.d[3] == 0.0f && std::isnan(odd.d[4]),
         label(k, "quantise d of edges", 160));
  for (int i = 0; i < 160; ++i) {
    expect(odd.q[i] == 0 && odd.z[i / 32] == 0 && odd.s[i / 16] == 0, label(k, "quantise edges", i));
  }
  special.assign(32, 0.0f);
  special[3] = -kInfinity;
  expect(Codes(k, special).d[0] == kInfinity, label(k, "quantise minus infinity", 32));
}

void test_rope(const Kernels& k) {
  for (int half : {1, 8, 16, 32, 40, 48, 64, 128}) {
    Random random(half);
    const std::vector<float> x = random.normals(2 * half);
    Guarded<float> io(x), cos(half), sin(half);
    for (int i = 0; i < half; ++i) cos[i] = std::cos(0.3f * i), sin[i] = std::sin(0.3f * i);
    k.rope(cos.data(), sin.data(), half, io.data());
    for (int i = 0; i < half; ++i) {
      const double c = cos[i], s = sin[i];
      expect(
          near(io[i], x[i] * c - x[i + half] * s, 0, 5e-7) && near(io[i + half], x[i + half] * c + x[i] * s, 0, 5e-7),
          label(k, "rope", half));
    }
  }
}

void test_halves() {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      expect((float_to_half(value) & 0x7e00) == 0x7e00, "float_to_half of NaN");
    } else {
      expect(float_to_half(value) == bits, "float_to_half(half_to_float) " + std::to_string(bits));
    }
    if (bits >= 0x7bff) continue;
    // Halfway to the next half: to even; and the neighbours of halfway, to the nearer.
    const float middle = (value + half_to_float(static_cast<uint16_t>(bits + 1))) / 2;
    expect(float_to_half(middle) == bits + (bits & 1) && float_to_half(std::nextafter(middle, 0.0f)) == bits &&
               float_to_half(std::nextafter(middle, 1e9f)) == bits + 1,
           "float_to_half rounds " + std::to_string(bits));
  }
}

void test_append(const Kernels& k) {
  for (int dim : {16, 64, 80, 96, 128, 256}) {
    for (int slot : {0, 1, 37, 63}) {
      Random random(dim + slot);
      std::vector<float> key = random.normals(dim), value = random.normals(dim, 1e-5f);
      key[0] = kInfinity, key[1] = 7e4f, key[2] = kNan, value[3] = -1e30f, value[4] = -kInfinity, value[5] = kNan;
      Guarded<float> keys(key), values(value);
      Guarded<uint16_t> cell_k(dim * kPage, 0xbeef), cell_v(dim * kPage, 0xbeef);
      k.append(keys.data(), values.data(), dim, slot, cell_k.data(), cell_v.data());
      const auto right = [](uint16_t half, float from) {
        if (std::isnan(from)) return std::isnan(half_to_float(half));
        return half == float_to_half(std::clamp(from, -65504.0f, 65504.0f));
      };
      for (int d = 0; d < dim; ++d) {
        for (int t = 0; t < kPage; ++t) {
          const uint16_t got_k = cell_k[d * kPage + t], got_v = cell_v[t * dim + d];
          expect(t == slot ? right(got_k, key[d]) && right(got_v, value[d]) : got_k == 0xbeef && got_v == 0xbeef,
                 label(k, "append", dim));
        }
      }
    }
  }
}

void test_logit_stats(const Kernels& k) {
  float max;
  int64_t argmax;
  double sum;
  for (int n : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 1023, 1024, 1025, 4099, 49152, 262144}) {
    Random random(n);
    for (int variant = 0; variant < 3; ++variant) {
      std::vector<float> values = random.normals(n, 8.0f);
      if (variant == 1) std::sort(values.begin(), values.end());  // the maximum moves in every block
      if (variant == 2) {
        for (float& value : values) value = std::round(value / 8.0f);  // many ties
        values[n / 2] = -kInfinity;
      }
      Guarded<float> x(values);
      k.logit_stats(x.data(), n, &max, &argmax, &sum);
      const auto best = std::max_element(values.begin(), values.end());
      double want = 0;
      for (const float value : values) want += std::exp(static_cast<double>(value) - *best);
      expect(max == *best && argmax == best - values.begin(), label(k, "logit_stats max", n));
      expect(n == 1 && variant == 2 ? sum == 0 : near(sum, want, 5e-7, 0), label(k, "logit_stats sum", n));
      for (const int at : {n - 1, n / 2, n / 3}) {  // the first one counts
        x[at] = kNan;
        k.logit_stats(x.data(), n, &max, &argmax, &sum);
        expect(std::isnan(max) && std::isnan(sum) && argmax == at, label(k, "logit_stats NaN", n));
      }
    }
  }
  Guarded<float> nothing(100, -kInfinity);
  k.logit_stats(nothing.data(), 100, &max, &argmax, &sum);
  expect(max == -kInfinity && argmax == 0 && sum == 0.0, label(k, "logit_stats of nothing", 100));
  nothing[40] = kInfinity;
  k.logit_stats(nothing.data(), 100, &max, &argmax, &sum);
  expect(max == kInfinity && argmax == 40 && std::isnan(sum), label(k, "logit_stats of infinity", 100));
  k.logit_stats(nothing.data(), 0, &max, &argmax, &sum);
  expect(max == -kInfinity && argmax == -1 && sum == 0.0, label(k, "logit_stats", 0));
}

void test_selection() {
  for (const Kernels* kernels : all_kernels()) {
    expect(select_kernels(kernels->isa) == kernels, std::string("select ") + kernels->isa);
  }
  expect(all_kernels().front()->isa == std::string("portable"), "portable kernels run everywhere");
  expect(select_kernels("sse9") == nullptr, "select of an unknown name");
  expect(select_kernels(nullptr) == all_kernels().back(), "select the best");
}

}  // namespace

int main() {
  test_selection();
  test_halves();
  for (const Kernels* kernels : all_kernels()) {
    for (const int n : kSizes) {
      test_rms_norm(*kernels, n);
      test_pointwise(*kernels, n);
    }
    test_functions_densely(*kernels);
    test_quantise(*kernels);
    test_rope(*kernels);
    test_append(*kernels);
    test_logit_stats(*kernels);
  }
  return report("elementwise_test");
}

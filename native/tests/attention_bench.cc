// Speed of attention and the row-wise kernels on one thread, beside what the core can do at best.
//   attention_bench [isa]
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "check.h"

using namespace vivace;
using namespace vivace::testing;

namespace {

constexpr int kPages = kChunk / kPage;

// Best of several runs, in seconds.
double best_time(int runs, const std::function<void()>& run) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

volatile float sink;

#if defined(__x86_64__)
// Twelve chains of zeros in named registers, so that no compiler can spill them.
double fma_peak() {
  constexpr int kTurns = 1000000;
  const double time = best_time(10, [] {
    asm volatile("vzeroall" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                       "xmm12");
    for (int turn = 0; turn < kTurns; ++turn) {
#define CHAIN(i) "vfmadd231ps %%zmm12, %%zmm12, %%zmm" #i "\n\t"
      asm volatile(CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7) CHAIN(8) CHAIN(9) CHAIN(10)
                       CHAIN(11)::
                           : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                             "xmm11", "xmm12");
#undef CHAIN
    }
  });
  return kTurns * 12.0 * 32 / time / 1e9;
}
#else
double fma_peak() { return std::nan(""); }
#endif

void read_all(const uint16_t* memory, int64_t bytes) {
  const uint64_t* words = reinterpret_cast<const uint64_t*>(memory);
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= bytes / 8; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  sink = static_cast<float>(std::count(sums, sums + 16, 0u));
}

struct Shape {
  const char* model;
  int group;
  int dim;
};
const Shape kShapes[] = {
    {"SmolLM2-135M", 3, 64}, {"Qwen2.5-0.5B", 7, 64}, {"Qwen2.5-1.5B", 6, 128}, {"Gemma3-270M", 4, 256}};

// Rows of one KV head over a cache of cells, as a step does it.
class Head {
 public:
  Head(const Kernels& kernels, Shape shape, int max_queries)
      : kernels_(kernels),
        dim_(shape.dim),
        q_(Random(1).normals(max_queries * shape.dim, 0.1f)),
        first_(max_queries),
        last_(max_queries),
        max_(max_queries),
        sum_(max_queries),
        out_(max_queries * dim_),
        run_max_(max_queries),
        run_sum_(max_queries),
        run_out_(max_queries * dim_) {}

  // Queries i see keys below begin_visible + i / group; pages lie one after another from `cells`.
  void run(const uint16_t* cells, int queries, int group, int begin_visible) {
    const int64_t half_cell = int64_t{kPage} * dim_;
    std::fill_n(run_max_.data(), queries, -1.0f / 0.0f);
    std::fill_n(run_sum_.data(), queries, 0.0f);
    std::fill_n(run_out_.data(), queries * dim_, 0.0f);
    const int end = begin_visible + (queries - 1) / group;
    for (int start = 0; start < end; start += kChunk) {
      AttendChunk chunk = {};
      chunk.dim = dim_;
      chunk.queries = queries;
      chunk.q = q_.data();
      for (int page = 0; page < kPages && start + page * kPage < end; ++page) {
        chunk.k[page] = cells + (start / kPage + page) * 2 * half_cell;
        chunk.v[page] = chunk.k[page] + half_cell;
      }
      for (int i = 0; i < queries; ++i) {
        first_[i] = 0;
        last_[i] = std::clamp(begin_visible + i / group - start, 0, kChunk);
      }
      chunk.next = cells + (start + kChunk) / kPage * 2 * half_cell;
      chunk.first = first_.data();
      chunk.last = last_.data();
      chunk.max = max_.data();
      chunk.sum = sum_.data();
      chunk.out = out_.data();
      kernels_.attend(chunk);
      kernels_.fold(queries, dim_, max_.data(), sum_.data(), out_.data(), run_max_.data(), run_sum_.data(),
                    run_out_.data());
    }
    kernels_.finish(queries, dim_, run_max_.data(), run_sum_.data(), run_out_.data(), out_.data(), nullptr);
  }

 private:
  const Kernels& kernels_;
  int dim_;
  Guarded<float> q_;
  Guarded<int32_t> first_, last_;
  Guarded<float> max_, sum_, out_, run_max_, run_sum_, run_out_;
};

// Reading and attending take turns over the layers of a memory that no cache holds, because its bandwidth changes from
// moment to moment. The lower fifth of the times leaves out those that something else interrupted.
void bench_decode(const Kernels& k, const uint16_t* memory, int64_t bytes, double peak) {
  std::printf("\ndecode, depth 4096        read GB/s   attention GB/s (of read)   in cache GB/s   GFLOP/s (of peak)\n");
  for (const Shape& shape : kShapes) {
    Head head(k, shape, shape.group);
    const int64_t cell = int64_t{2} * kPage * shape.dim;  // halves
    const int depth = 4096;
    const int64_t layer = depth / kPage * cell;
    const int64_t layers = bytes / (layer * 2);
    std::vector<double> reads, attends;
    for (int64_t i = 0; i < 4 * layers; ++i) {
      const uint16_t* one = memory + i % layers * layer;
      const uint16_t* other = memory + (i + layers / 2) % layers * layer;
      reads.push_back(best_time(1, [&] { read_all(one, layer * 2); }));
      attends.push_back(best_time(1, [&] { head.run(other, shape.group, shape.group, depth); }));
    }
    const auto rate = [&](std::vector<double>& times) {
      std::nth_element(times.begin(), times.begin() + times.size() / 5, times.end());
      return layer * 2 / times[times.size() / 5] / 1e9;
    };
    const double read = rate(reads), cold = rate(attends);
    const double hot_time = best_time(50, [&] {
      for (int i = 0; i < 100; ++i) head.run(memory, shape.group, shape.group, kChunk);
    });
    const double hot = 100.0 * kPages * cell * 2 / hot_time / 1e9;
    std::printf("%-13s %d x %-3d         %6.1f           %6.1f (%.2f)          %6.1f          %6.1f (%.2f)\n",
                shape.model, shape.group, shape.dim, read, cold, cold / read, hot, hot * shape.group,
                hot * shape.group / peak);
  }
}

void bench_prefill(const Kernels& k, const uint16_t* memory, double peak) {
  std::printf("\nprefill of 512 rows          rows per call   us per KV head   GFLOP/s on visible keys (of peak)\n");
  for (const Shape& shape : kShapes) {
    for (int rows : {4, 8, 16, 32}) {
      Head head(k, shape, rows * shape.group);
      const double time = best_time(20, [&] {
        for (int row = 0; row < 512; row += rows) head.run(memory, rows * shape.group, shape.group, row + 1);
      });
      const double rate = 4.0 * shape.group * shape.dim * (512.0 * 513 / 2) / time / 1e9;
      std::printf("%-13s %d x %-3d               %2d            %7.0f          %6.1f (%.2f)\n", shape.model,
                  shape.group, shape.dim, rows, time * 1e6, rate, rate / peak);
    }
  }
}

void bench_rows(const Kernels& k) {
  std::printf("\nrow-wise, in cache           elements   ns\n");
  const int n = 1536;
  Random random(3);
  Guarded<float> x(random.normals(n)), y(random.normals(n)), out(n), d(n / 32);
  Guarded<int8_t> q(n);
  Guarded<int32_t> z(n / 32), s(n / 16);
  const auto row = [&](const char* name, int count, const std::function<void()>& run) {
    const double time = best_time(20, [&] {
      for (int i = 0; i < 1000; ++i) run();
    });
    std::printf("%-28s %8d %7.1f\n", name, count, time * 1e6);
  };
  row("rms_norm", n, [&] { k.rms_norm(x.data(), y.data(), 1e-5f, n, out.data()); });
  row("add", n, [&] { k.add(x.data(), n, out.data()); });
  row("silu_mul", n, [&] { k.silu_mul(x.data(), y.data(), n, out.data()); });
  row("gelu_tanh_mul", n, [&] { k.gelu_tanh_mul(x.data(), y.data(), n, out.data()); });
  row("quantise", n, [&] { k.quantise(x.data(), n, {q.data(), d.data(), z.data(), s.data()}); });
  row("rope", 64, [&] { k.rope(y.data(), y.data() + 32, 32, x.data()); });
  Guarded<uint16_t> cell(2 * 64 * kPage);
  row("append", 64, [&] { k.append(x.data(), y.data(), 64, 5, cell.data(), cell.data() + 64 * kPage); });
}

void bench_logits(const Kernels& k, const float* logits, int64_t count) {
  float max;
  int64_t argmax;
  double sum;
  for (const int64_t n : {int64_t{49152}, int64_t{262144}, count}) {
    const double time = best_time(20, [&] { k.logit_stats(logits, n, &max, &argmax, &sum); });
    std::printf("logit_stats %9ld: %.1f us, %.1f GB/s\n", static_cast<long>(n), time * 1e6, n * 4 / time / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels* kernels = select_kernels(argc > 1 ? argv[1] : nullptr);
  if (kernels == nullptr) {
    std::fprintf(stderr, "attention_bench: this processor has no kernels named '%s'\n", argv[1]);
    return 2;
  }
  Guarded<uint16_t> memory(size_t{128} << 20);
  const int64_t bytes = static_cast<int64_t>(memory.size()) * 2;
  Random random(2);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = 0x2c00 | (random.bits() & 0x83ff);  // +-[1/16, 1/8)
  const double peak = select_kernels("avx512") ? fma_peak() : std::nan("");
  std::printf("%s; one thread multiplies and adds %.0f GFLOP/s\n", kernels->isa, peak);
  bench_decode(*kernels, memory.data(), bytes, peak);
  bench_prefill(*kernels, memory.data(), peak);
  bench_rows(*kernels);
  float* logits = reinterpret_cast<float*>(memory.data());
  for (int64_t i = 0; i < bytes / 4; ++i) logits[i] = 0.001f * (i % 4001);
  bench_logits(*kernels, logits, bytes / 4);
}

// Speed of the matrix products beside the machine's limits, per thread. Needs a processor with AVX-512.
//   VIVACE_ISA=avx2 matmul_bench [threads] [type or all] [rows ...]
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "vivace/kernels.h"
#include "vivace/weights.h"

using namespace vivace;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int threads = 1;

// Seconds of body(thread) run by all threads at once, the best of `repeats`.
double best_time(int repeats, const std::function<void(int)>& body) {
  double best = 1e9;
  std::atomic<int> ready{0}, done{0};
  std::vector<double> start(threads), end(threads);
  const auto work = [&](int t) {
    cpu_set_t processor;  // pinned: short runs end before the scheduler has spread the threads
    CPU_ZERO(&processor);
    CPU_SET(t, &processor);
    sched_setaffinity(0, sizeof processor, &processor);
    for (int i = 0; i < repeats; ++i) {
      ++ready;
      while (ready.load() < threads * (i + 1)) {
      }
      start[t] = now();
      body(t);
      end[t] = now();
      ++done;
      while (done.load() < threads * (i + 1)) {
      }
      if (t == 0) best = std::min(best, *std::max_element(end.begin(), end.end()) - start[0]);
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
  return best;
}

[[gnu::target("avx512f")]] void read_all(const uint8_t* from, int64_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t i = 0; i < bytes; i += 128) {
    a = _mm512_xor_si512(a, _mm512_load_si512(from + i));
    b = _mm512_xor_si512(b, _mm512_load_si512(from + i + 64));
  }
  asm volatile("" ::"v"(a), "v"(b));  // the reads count as used
}

// Twelve independent accumulators that stay in registers.
[[gnu::target("avx512f,avx512vnni")]] void int8_peak(int64_t loops) {
  __m512i n[12] = {};
  const __m512i x = _mm512_set1_epi32(0x01020304);
  for (int64_t i = 0; i < loops; ++i) {
    asm volatile(
        "vpdpbusd %12,%12,%0\n vpdpbusd %12,%12,%1\n vpdpbusd %12,%12,%2\n vpdpbusd %12,%12,%3\n"
        "vpdpbusd %12,%12,%4\n vpdpbusd %12,%12,%5\n vpdpbusd %12,%12,%6\n vpdpbusd %12,%12,%7\n"
        "vpdpbusd %12,%12,%8\n vpdpbusd %12,%12,%9\n vpdpbusd %12,%12,%10\n vpdpbusd %12,%12,%11\n"
        : "+v"(n[0]), "+v"(n[1]), "+v"(n[2]), "+v"(n[3]), "+v"(n[4]), "+v"(n[5]), "+v"(n[6]), "+v"(n[7]), "+v"(n[8]),
          "+v"(n[9]), "+v"(n[10]), "+v"(n[11])
        : "v"(x));
  }
}

uint8_t* allocate(int64_t bytes) {
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) >> 21 << 21));
  std::memset(memory, 1, bytes);
  return memory;
}

struct Shape {
  WeightType type;
  const char* name;
  int outputs, cols;
};

const Shape kShapes[] = {
    {WeightType::kQ4_1, "Q4_1", 576, 576},       {WeightType::kQ4_1, "Q4_1", 1536, 576},
    {WeightType::kQ4_1, "Q4_1", 576, 1536},      {WeightType::kQ5_0, "Q5_0", 2048, 640},
    {WeightType::kQ5_0, "Q5_0", 4864, 896},      {WeightType::kQ8_0, "Q8_0", 896, 896},
    {WeightType::kQ8_0, "Q8_0", 49152, 576},     {WeightType::kQ4_K, "Q4_K", 896, 4864},
    {WeightType::kQ4_K, "Q4_K", 8960, 1536},     {WeightType::kQ4_K, "Q4_K", 1536, 8960},
    {WeightType::kQ6_K, "Q6_K", 1536, 8960},     {WeightType::kQ6_K, "Q6_K", 32768, 1536},
    {WeightType::kQ4_0, "Q4_0", 8960, 1536},     {WeightType::kQ5_1, "Q5_1", 8960, 1536},
    {WeightType::kQ2_K, "Q2_K", 8960, 1536},     {WeightType::kQ3_K, "Q3_K", 8960, 1536},
    {WeightType::kQ5_K, "Q5_K", 8960, 1536},     {WeightType::kIQ4_NL, "IQ4_NL", 8960, 1536},
    {WeightType::kIQ4_XS, "IQ4_XS", 8960, 1536}, {WeightType::kBF16, "BF16", 1536, 1536},
    {WeightType::kF32, "F32", 1536, 1536},
};

}  // namespace

int main(int argc, char** argv) {
  const Kernels* kernels = select_kernels(std::getenv("VIVACE_ISA"));
  if (kernels == nullptr) return std::printf("no kernels for $VIVACE_ISA\n"), 2;
  threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string wanted = argc > 2 ? argv[2] : "all";
  std::vector<int> rows;
  for (int i = 3; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  if (rows.empty()) rows = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 512};

  const int64_t arena_bytes = int64_t{400} << 20;
  uint8_t* arena = allocate(arena_bytes);
  const auto bandwidth = [&] {
    return arena_bytes / 1e9 /
           best_time(5, [&](int t) { read_all(arena + arena_bytes / threads * t, arena_bytes / threads / 128 * 128); });
  };
  constexpr int64_t kLoops = 1000000;
  const double peak = threads * kLoops * 12 * 128 / 1e9 / best_time(20, [](int) { int8_peak(kLoops); });

  std::mt19937 generator(1);
  const int most = *std::max_element(rows.begin(), rows.end());
  for (const Shape& shape : kShapes) {
    if (wanted != "all" && wanted != shape.name) continue;
    const int64_t tile_bytes = packed_tile_bytes(shape.type, shape.cols);
    const int tiles = shape.outputs / 16;
    const int64_t bytes = tile_bytes * tiles;
    // Copies side by side in the arena, used in turn, so that weights come from memory.
    const int copies = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(arena_bytes / bytes, 400)));
    std::vector<uint8_t> stored(16 * stored_row_bytes(shape.type, shape.cols));
    for (uint8_t& byte : stored) byte = static_cast<uint8_t>(generator() & 0x3f);
    const uint8_t* tile_rows[kTileRows];
    for (int i = 0; i < kTileRows; ++i) tile_rows[i] = stored.data() + i * stored.size() / 16;
    pack_tile(shape.type, tile_rows, shape.cols, arena);
    for (int64_t i = 1; i < int64_t{copies} * tiles; ++i) std::memcpy(arena + i * tile_bytes, arena, tile_bytes);

    const int64_t cells = int64_t{most} * shape.cols;
    std::vector<float> f(cells, 0.5f), d(cells / 32, 0.01f), out(int64_t{most} * shape.outputs);
    std::vector<int8_t> q(cells, 3);
    std::vector<int32_t> z(cells / 32, 3), s(cells / 16, 96);
    std::vector<uint8_t*> scratch;
    for (int t = 0; t < threads; ++t) scratch.push_back(allocate(kMatmulScratch));
    const MatmulFn matmul = kernels->matmul(shape.type);
    const double limit = bandwidth();
    std::printf("%s %dx%d: %.1f MB, bandwidth %.1f GB/s, int8 peak %.0f GOP/s, %d threads\n", shape.name, shape.outputs,
                shape.cols, bytes / 1e6, limit, peak, threads);
    double one = 0;
    for (int m : rows) {
      const Activations a{f.data(), shape.cols, {q.data(), d.data(), z.data(), s.data()}, m, shape.cols};
      const auto product = [&](int t, int copy) {
        const PackedMatrix w{shape.type, shape.outputs, shape.cols, tile_bytes, arena + copy * bytes};
        matmul(w, a, tiles * t / threads, tiles * (t + 1) / threads, nullptr, out.data(), shape.outputs, scratch[t]);
      };
      const double operations = 2.0 * shape.outputs * shape.cols * m;
      const int cold_runs = std::max(1, std::min<int>(copies, static_cast<int>(4e10 / operations) + 1));
      const double cold = best_time(7,
                                    [&](int t) {
                                      for (int i = 0; i < cold_runs; ++i) product(t, i);
                                    }) /
                          cold_runs;
      const int hot_runs = std::max(1, static_cast<int>(2e9 / operations));
      const double hot = best_time(5,
                                   [&](int t) {
                                     for (int i = 0; i < hot_runs; ++i) product(t, 0);
                                   }) /
                         hot_runs;
      if (m == 1) one = cold;
      const double ideal = std::max(bytes / limit / 1e9, operations / (0.6e9 * peak));
      std::printf(
          "  %3d rows: %8.1f us %5.1f GB/s (%.2f) %6.0f GOP/s (%.2f) x%.2f of one row, %.2f of ideal;"
          " hot %8.1f us %5.0f GB/s %6.0f GOP/s (%.2f)\n",
          m, cold * 1e6, bytes / cold / 1e9, bytes / cold / 1e9 / limit, operations / cold / 1e9,
          operations / cold / 1e9 / peak, one > 0 ? cold / one : 0.0, cold / ideal, hot * 1e6, bytes / hot / 1e9,
          operations / hot / 1e9, operations / hot / 1e9 / peak);
    }
    for (uint8_t* memory : scratch) std::free(memory);
  }
  std::free(arena);
}

#include "vivace/probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "vivace/kernels.h"

namespace vivace {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Words {  // a struct, since a container drops the attributes of a bare vector
  uint64_t values __attribute__((vector_size(64)));
};

}  // namespace

double probe_bandwidth(Pool& pool, double seconds, int megabytes) {
  struct Job {
    std::vector<Words> memory;
    std::vector<Words> sums;
  } job;
  job.memory.assign(static_cast<size_t>(megabytes) * (1 << 20) / sizeof(Words), Words{});
  job.sums.resize(pool.threads());
  const auto read = [](void* context, int thread, int width) {
    auto& [memory, sums] = *static_cast<Job*>(context);
    const Range mine = share(static_cast<int64_t>(memory.size()), thread, width);
    Words sum[8] = {};
    int64_t i = mine.begin;
    for (; i + 8 <= mine.end; i += 8) {
      __builtin_prefetch(&memory[std::min<int64_t>(i + 128, mine.end - 1)]);
      for (int lane = 0; lane < 8; ++lane) sum[lane].values ^= memory[i + lane].values;
    }
    for (int lane = 1; lane < 8; ++lane) sum[0].values ^= sum[lane].values;
    sums[thread] = sum[0];
  };
  const double end = now() + seconds;
  double best = 0;
  do {
    const double start = now();
    pool.run(pool.threads(), read, &job);
    best = std::max(best, static_cast<double>(job.memory.size() * sizeof(Words)) / (now() - start));
  } while (now() < end);
  return best;
}

double probe_int8(Pool& pool, double seconds) {
  constexpr int64_t kRounds = 200'000;
  const auto work = [](void*, int, int) { select_kernels(nullptr)->int8_loop(kRounds); };
  const double operations = static_cast<double>(select_kernels(nullptr)->int8_loop(kRounds)) * pool.threads();
  const double end = now() + seconds;
  double best = 0;
  do {
    const double start = now();
    pool.run(pool.threads(), work, nullptr);
    best = std::max(best, operations / (now() - start));
  } while (now() < end);
  return best;
}

}  // namespace vivace

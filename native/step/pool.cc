#include "vivace/pool.h"

#include <chrono>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vivace {
namespace {

constexpr int kShortSpin = 2000;                // pauses before the clock is read at all
constexpr int64_t kBarrierSpinNs = 60'000;      // then spin this long before sleeping
constexpr int64_t kIdleSpinNs = 300'000;        // between two jobs: longer than the gap between two tokens

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Subnormal results would make a step's speed depend on its data; every thread of a run flushes them alike.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushSubnormals() {}
#endif
};

// Spins until `word` differs from `seen`, sleeping after `spin_ns`. Returns the nanoseconds past the short spin.
int64_t wait_for_change(std::atomic<uint32_t>& word, uint32_t seen, std::atomic<int32_t>& sleepers, int64_t spin_ns) {
  for (int i = 0; i < kShortSpin; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return 0;
    pause();
  }
  const int64_t start = now_ns();
  while (now_ns() - start < spin_ns) {
    for (int i = 0; i < 64; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return now_ns() - start;
      pause();
    }
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == seen) word.wait(seen, std::memory_order_acquire);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return now_ns() - start;
}

}  // namespace

int64_t Barrier::arrive_and_wait(int width) {
  if (width == 1) return 0;
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == width) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
    return 0;
  }
  return wait_for_change(generation_, generation, sleepers_, kBarrierSpinNs);
}

Pool::Pool(int threads) : threads_(threads) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads must be between 1 and 256");
  start_workers();
}

Pool::~Pool() { stop_workers(); }

void Pool::set_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads must be between 1 and 256");
  if (threads > static_cast<int>(workers_.size()) + 1) {
    stop_workers();
    threads_ = threads;
    start_workers();
  }
  threads_ = threads;
  narrow_left_ = narrow_span_ = slow_runs_ = 0;
}

void Pool::start_workers() {
  stopping_ = false;
  for (int thread = 1; thread < threads_; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
}

void Pool::stop_workers() {
  stopping_.store(true, std::memory_order_release);
  job_.fetch_add(1, std::memory_order_seq_cst);
  job_.notify_all();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
  job_.store(0, std::memory_order_relaxed);
}

void Pool::serve(int thread) {
  uint32_t seen = 0;
  bool needed = true;
  for (;;) {
    wait_for_change(job_, seen, sleepers_, needed ? kIdleSpinNs : 0);
    seen = job_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire)) return;
    needed = thread < job_width_;
    if (needed) {
      FlushSubnormals flush;
      body_(context_, thread, job_width_);
    }
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void Pool::run(int width, Body body, void* context) {
  FlushSubnormals flush;
  if (width == 1) {
    body(context, 0, 1);
    return;
  }
  body_ = body;
  context_ = context;
  job_width_ = width;
  running_.store(static_cast<int32_t>(workers_.size()), std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) job_.notify_all();
  body(context, 0, width);
  // Workers outside the width only note the job; the others have passed the body's last barrier.
  while (running_.load(std::memory_order_acquire) > 0) {
    for (int i = 0; i < 256 && running_.load(std::memory_order_acquire) > 0; ++i) pause();
    if (running_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }
}

int Pool::width() {
  if (narrow_left_ > 0) {
    --narrow_left_;
    ++narrowed_runs_;
    return 1;
  }
  return threads_;
}

// A static split falls off a cliff when another process takes a core: a thread waits whole time slices for the
// late one. Two such runs in a row narrow the next ones to one thread, for longer each time it happens again.
void Pool::report(int width, int64_t run_ns, int64_t waited_ns) {
  if (width == 1) return;
  constexpr int kFirstSpan = 16, kLongestSpan = 512;
  if (waited_ns > run_ns / 3 && waited_ns > 500'000) {
    if (++slow_runs_ >= 2 || narrow_span_ > 0) {
      narrow_span_ = narrow_span_ == 0 ? kFirstSpan : std::min(2 * narrow_span_, kLongestSpan);
      narrow_left_ = narrow_span_;
      slow_runs_ = 0;
    }
    return;
  }
  slow_runs_ = 0;
  narrow_span_ /= 2;
}

}  // namespace vivace

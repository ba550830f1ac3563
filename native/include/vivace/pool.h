// A persistent pool: threads spin for a while between jobs, then sleep; the caller is thread 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace vivace {

constexpr int kMaxThreads = 256;

// Meets `width` threads. Waiters spin, then sleep in the kernel so that a late thread can have their core.
class Barrier {
 public:
  // Returns the nanoseconds this thread waited beyond a short spin.
  int64_t arrive_and_wait(int width);

 private:
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int32_t> sleepers_{0};
};

class Pool {
 public:
  using Body = void (*)(void* context, int thread, int width);

  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // Takes effect before the next run; starts threads only when there were never so many. Throws std::invalid_argument
  // outside 1..kMaxThreads.
  void set_threads(int threads);

  // Runs body on threads 0..width-1, at most all there are, and returns when all are done.
  void run(int width, Body body, void* context);

  // The number of threads to use now: all, or one while another process holds a core (see report).
  int width();
  // Tells how a run went: nanoseconds it took and the longest time a thread waited for another.
  void report(int width, int64_t run_ns, int64_t waited_ns);
  int64_t narrowed_runs() const { return narrowed_runs_; }

 private:
  void serve(int thread);
  void start_workers();
  void stop_workers();

  int threads_;
  std::vector<std::thread> workers_;
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<int32_t> running_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
  Body body_ = nullptr;
  void* context_ = nullptr;
  int job_width_ = 0;
  int narrow_left_ = 0;
  int narrow_span_ = 0;
  int slow_runs_ = 0;
  int64_t narrowed_runs_ = 0;
};

// Splits `count` items into contiguous ranges, one per thread.
struct Range {
  int64_t begin, end;
};
inline Range share(int64_t count, int thread, int width) {
  return {count * thread / width, count * (thread + 1) / width};
}

}  // namespace vivace

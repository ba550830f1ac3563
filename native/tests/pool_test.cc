// The thread pool and its barrier: every thread of a run does its part once, whatever happened before.
#include "vivace/pool.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace vivace::testing {
namespace {

constexpr int kItems = 37;  // no multiple of a width

// What a body saw. Plain integers: threads that touched the same one, or that `run` did not wait for, are a data race.
struct Seen {
  int64_t per_item[kItems] = {};
  int64_t per_thread[kMaxThreads] = {};
  int64_t wrong_width = 0;  // counted by thread 0
  int expected_width = 0;

  static void body(void* context, int thread, int width) {
    auto& seen = *static_cast<Seen*>(context);
    if (thread == 0) seen.wrong_width += width != seen.expected_width;
    ++seen.per_thread[thread];
    const Range mine = share(kItems, thread, width);
    for (int64_t i = mine.begin; i < mine.end; ++i) ++seen.per_item[i];
  }
};

// `runs` runs of one width: each item and thread exactly once a run.
void run_often(Pool& pool, int width, int runs, const std::string& what) {
  Seen seen;
  seen.expected_width = width;
  for (int i = 0; i < runs; ++i) pool.run(width, &Seen::body, &seen);
  bool items = true, threads = true;
  for (int64_t count : seen.per_item) items &= count == runs;
  for (int thread = 0; thread < kMaxThreads; ++thread)
    threads &= seen.per_thread[thread] == (thread < width ? runs : 0);
  expect(items, what + ": items are not done once a run");
  expect(threads && seen.wrong_width == 0, what + ": threads are not called once a run");
}

// Longer than any thread spins, so that all are asleep (or about to be, which is as worth testing).
void let_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

template <class Call>
bool throws(Call call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void test_share() {
  for (int64_t count : {0, 1, 3, 37, 4096})
    for (int width = 1; width <= 5; ++width) {
      int64_t at = 0;
      bool joined = true;
      for (int thread = 0; thread < width; ++thread) {
        const Range range = share(count, thread, width);
        joined &= range.begin == at && range.end >= at && range.end - range.begin <= count / width + 1;
        at = range.end;
      }
      expect(joined && at == count, "shares do not cover the items evenly");
    }
}

void test_widths() {
  for (int threads = 1; threads <= 4; ++threads) {
    Pool pool(threads);
    for (int width = 1; width <= threads; ++width)
      run_often(pool, width, 300, std::to_string(width) + " of " + std::to_string(threads) + " threads");
  }
}

void test_changing_widths() {
  Pool pool(4);
  Random random(1);
  for (int i = 0; i < 300; ++i) run_often(pool, 1 + random.below(4), 1, "a width unlike the one before");
}

void test_sleep() {
  Pool pool(3);
  for (int i = 0; i < 10; ++i) {
    let_sleep();
    run_often(pool, 1 + i % 3, 2, "after sleep");
  }
  let_sleep();  // and destruction while asleep
}

void test_rebuild() {
  Pool pool(2);
  for (int threads : {4, 1, 3, 3, 2}) {
    pool.set_threads(threads);
    expect(pool.threads() == threads && pool.width() == threads, "the pool does not have the threads set");
    run_often(pool, threads, 20, "after set_threads");
    if (threads == 3) let_sleep();
  }
  for (int threads : {0, -1, kMaxThreads + 1}) {
    expect(throws([&] { pool.set_threads(threads); }), "set_threads takes a number out of range");
    expect(throws([&] { Pool made(threads); }), "a pool takes a number out of range");
  }
  expect(pool.threads() == 2, "a refused number changes the pool");
  run_often(pool, 2, 20, "after a refused number");
  for (int i = 0; i < 20; ++i) Pool unused(1 + i % 4);
}

// Each thread of a run is a thread of its own, and the caller is the first of them.
void test_threads_differ() {
  Pool pool(4);
  std::vector<std::thread::id> ids(4);
  pool.run(
      4, [](void* at, int thread, int) { (*static_cast<decltype(ids)*>(at))[thread] = std::this_thread::get_id(); },
      &ids);
  expect(ids[0] == std::this_thread::get_id(), "the caller is not thread 0");
  expect(std::set(ids.begin(), ids.end()).size() == 4, "one thread did the part of two");
}

// Between two barriers all see what all wrote before: sums passed round the threads come out exact.
void test_barrier() {
  struct Job {
    Barrier barrier;
    int64_t value[4] = {}, next[4] = {};
    int late = 0;
  } job;
  constexpr int kRounds = 500;
  Pool pool(4);
  const auto body = [](void* context, int thread, int width) {
    auto& [barrier, value, next, late] = *static_cast<Job*>(context);
    for (int round = 0; round < kRounds; ++round) {
      if (round == late && thread == width - 1) let_sleep();  // the others sleep in the barrier
      next[thread] = value[(thread + 1) % width] + thread + 1;
      barrier.arrive_and_wait(width);
      value[thread] = next[thread];
      barrier.arrive_and_wait(width);
    }
  };
  for (int width = 1; width <= 4; ++width) {
    std::fill(job.value, job.value + 4, 0);
    job.late = 100 * width;
    pool.run(width, body, &job);
    int64_t total = 0;
    for (int64_t value : job.value) total += value;
    expect(total == int64_t{kRounds} * width * (width + 1) / 2, "a barrier of " + std::to_string(width) + " leaks");
  }
}

// Runs in which a thread waited for most of the time narrow the pool for a while; others leave it alone.
void test_narrowing() {
  constexpr int64_t kRun = 10'000'000, kLate = 8'000'000, kPrompt = 100'000;
  Pool pool(2);
  const auto narrow_runs = [&] {
    int count = 0;
    while (pool.width() == 1) ++count;
    return count;
  };
  for (int i = 0; i < 5; ++i) {
    pool.report(2, kRun, kLate);
    pool.report(2, kRun, kPrompt);
  }
  expect(narrow_runs() == 0, "single late runs narrow the pool");
  pool.report(2, 1'000, 900);
  pool.report(2, 1'000, 900);
  expect(narrow_runs() == 0, "short waits narrow the pool");
  pool.report(1, kRun, kLate);
  pool.report(1, kRun, kLate);
  expect(narrow_runs() == 0, "runs of one thread narrow the pool");
  pool.report(2, kRun, kLate);
  pool.report(2, kRun, kLate);
  const int first = narrow_runs();
  pool.report(2, kRun, kLate);
  const int second = narrow_runs();
  expect(first > 0 && second == 2 * first, "late runs do not narrow the pool, or not for longer each time");
  expect(pool.narrowed_runs() == first + second, "narrowed runs are not counted");
  int longest = second;
  for (int i = 0; i < 10; ++i) {
    pool.report(2, kRun, kLate);
    longest = narrow_runs();
  }
  pool.report(2, kRun, kLate);
  expect(narrow_runs() == longest, "the pool narrows for ever longer");
  for (int i = 0; i < 20; ++i) pool.report(2, kRun, kPrompt);
  pool.report(2, kRun, kLate);
  expect(narrow_runs() == 0, "good runs do not clear what was");
  pool.report(2, kRun, kLate);
  pool.set_threads(3);
  expect(pool.width() == 3, "new threads start narrow");
}

}  // namespace
}  // namespace vivace::testing

int main() {
  using namespace vivace::testing;
  test_share();
  test_widths();
  test_changing_widths();
  test_sleep();
  test_rebuild();
  test_threads_differ();
  test_barrier();
  test_narrowing();
  return report("pool");
}

#include "vivace/largest.h"

#include <algorithm>
#include <limits>

namespace vivace {

void keep_largest(std::vector<Candidate>& list, int32_t count) {
  const auto kept = std::min<size_t>(list.size(), count);
  std::partial_sort(list.begin(), list.begin() + kept, list.end(), comes_before);
  list.resize(kept);
}

void find_largest(const Kernels& kernels, const float* x, int64_t n, int32_t first_id, int32_t count,
                  std::vector<Candidate>& into) {
  constexpr int64_t kBlock = 512;
  int32_t index[kBlock + 15];
  float floor = -std::numeric_limits<float>::infinity();  // what is not above it cannot be among the largest any more
  into.clear();
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const float* block = x + begin;
    const int32_t found = kernels.above(block, static_cast<int32_t>(std::min(kBlock, n - begin)), floor, index);
    for (int32_t i = 0; i < found; ++i)
      into.push_back({block[index[i]], first_id + static_cast<int32_t>(begin) + index[i]});
    if (static_cast<int64_t>(into.size()) < count + kBlock / 2) continue;
    std::nth_element(into.begin(), into.begin() + count - 1, into.end(), comes_before);
    into.resize(count);
    floor = into.back().value;
  }
  keep_largest(into, count);
}

}  // namespace vivace

// The largest of a long row, found in one pass without sorting it.
#pragma once
#include <cstdint>
#include <vector>

#include "vivace/kernels.h"

namespace vivace {

struct Candidate {
  float value;
  int32_t id;
};

// The larger value first; of equal ones the lower id.
inline bool comes_before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// Cuts the list to its first `count`, in order.
void keep_largest(std::vector<Candidate>& list, int32_t count);

// The `count` largest of x[0..n), in order, with ids from `first_id` on. -inf and NaN are never among them, so there
// may be fewer.
void find_largest(const Kernels& kernels, const float* x, int64_t n, int32_t first_id, int32_t count,
                  std::vector<Candidate>& into);

}  // namespace vivace

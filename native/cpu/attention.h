// Attention over one chunk of a paged cache of 16-bit floats, one set per instruction set.
//
// Orders that make the result of a query independent of everything but itself and its visible keys:
// a logit is one multiply-add chain over `dim` ascending from 0; then softcap; then bias. The sum of a chunk adds its
// 16 key vectors lane by lane ascending, then its 16 lanes as a tree. A value is one chain over visible keys ascending
// from 0. A bias of -inf gives probability 0, but the value of such a key is read and must be finite; the values of
// keys outside [first, last) are not read. A NaN among the visible logits makes max, sum and out NaN.
//
// Fold, with m = max(run_max, max), a = exp(run_max - m), b = exp(max - m): run = run * a + (chunk * b) for sum and
// out.
#pragma once
#include "vivace/kernels.h"

namespace vivace {

namespace portable {
void set_attention(Kernels& kernels);
}
namespace avx2 {
void set_attention(Kernels& kernels);
}
namespace avx512 {
void set_attention(Kernels& kernels);
}

}  // namespace vivace

#include "vivace/probe.h"

#if defined(__AVX512VNNI__)
#include "intrinsics.h"
#endif

namespace vivace {

int64_t int8_loop_avx512(int64_t rounds) {
#if defined(__AVX512VNNI__)
  // Twelve accumulators hide the latency of a dot and stay in registers.
  __m512i a[12];
  for (int i = 0; i < 12; ++i) a[i] = _mm512_set1_epi32(i);
  __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm512_dpbusd_epi32(a[i], w, x);
    asm volatile("" : "+v"(w), "+v"(x));
  }
  __m512i sum = a[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_epi32(sum, a[i]);
  volatile int sink = _mm512_reduce_add_epi32(sum);
  (void)sink;
  return rounds * 12 * 64 * 2;
#else
  (void)rounds;
  return 0;
#endif
}

}  // namespace vivace

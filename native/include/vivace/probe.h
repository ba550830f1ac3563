// What the machine can do at most: the limits that benchmarks are held against.
#pragma once
#include "vivace/pool.h"

namespace vivace {

// Bytes per second that the pool's threads read from memory together: the best pass over `megabytes` within `seconds`.
double probe_bandwidth(Pool& pool, double seconds, int megabytes);
// Multiply-add operations (two each) per second of 8-bit dot products, all threads; 0 without AVX-512 VNNI.
double probe_int8(Pool& pool, double seconds);

int64_t int8_loop_avx512(int64_t rounds);  // operations done

}  // namespace vivace

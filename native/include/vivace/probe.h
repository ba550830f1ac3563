// What the machine can do at most: the limits that benchmarks are held against.
#pragma once
#include "vivace/pool.h"

namespace vivace {

// Bytes per second that the pool's threads read from memory together: the best pass over `megabytes` within `seconds`.
double probe_bandwidth(Pool& pool, double seconds, int megabytes);
// Multiply-add operations (two each) per second of 8-bit dot products with the best instruction set, all threads.
double probe_int8(Pool& pool, double seconds);

}  // namespace vivace

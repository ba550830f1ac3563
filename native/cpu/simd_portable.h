// Vectors of 4 floats, in the compiler's own vectors: SSE2 and NEON have registers for them.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "elementwise.h"
#include "half.h"

namespace vivace::portable {

struct Simd {
  using Floats = float __attribute__((vector_size(16)));
  using Ints = int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kQueries = 6;
  static constexpr int fitting_vectors(int queries) { return 15 / (queries + 1); }  // and one register for a query

  static Floats set(float x) { return x - Floats{}; }
  static Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  static void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }
  static Floats load(const float* from, int64_t count, float rest = 0.0f) {
    if (count >= kLanes) return load(from);
    Floats x = set(rest);
    for (int64_t i = 0; i < count; ++i) x[i] = from[i];
    return x;
  }
  static void store(float* to, int64_t count, Floats x) {
    if (count >= kLanes) return store(to, x);
    for (int64_t i = 0; i < count; ++i) to[i] = x[i];
  }

#if defined(__aarch64__)
  static Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
#else
  static Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
#endif
  static Floats fms(Floats a, Floats b, Floats c) { return fma(a, b, -c); }
  static Floats fnma(Floats a, Floats b, Floats c) { return fma(-a, b, c); }
  static Floats max(Floats a, Floats b) { return a > b ? a : b; }
  static Floats min(Floats a, Floats b) { return a < b ? a : b; }
  static Floats negate(Floats x) { return -x; }
  static Floats magnitude(Floats x) { return Floats(Ints(x) & INT32_MAX); }
  static Floats with_sign_of(Floats x, Floats sign) { return Floats(Ints(x) | (Ints(sign) & INT32_MIN)); }
  static Floats where_at_least(Floats a, Floats b, Floats x, Floats y) { return a >= b ? x : y; }
  static Floats join(int64_t count, Floats x, Floats y) {
    return Ints{0, 1, 2, 3} < static_cast<int32_t>(count) ? x : y;
  }
  static bool any_nan(Floats x) {
    const Ints nan = x != x;
    return (nan[0] | nan[1] | nan[2] | nan[3]) != 0;
  }
  // Adding 1.5 * 2^23 rounds to nearest even.
  static Floats round(Floats x) { return (x + kRound) - kRound; }
  // In two steps, each by a normal number: only the last may leave the normal range.
  static Floats scale(Floats p, Floats n) {
    const Ints whole = to_ints(n), half = whole >> 1;
    return p * power(half) * power(whole - half);
  }

  static float sum(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float largest(Floats x) {
    const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
  }

  static Floats load_halves(const uint16_t* from) {
#if defined(__aarch64__)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    return half_to_float4(from);
#endif
  }
  static void store_halves(uint16_t* to, int64_t count, Floats x) {
    for (int64_t i = 0; i < count && i < kLanes; ++i) to[i] = float_to_half(x[i]);
  }
  static int store_places_above(const float* from, int64_t count, Floats limit, int32_t place, int32_t* to) {
    int found = 0;
    for (int32_t i = 0; i < count && i < kLanes; ++i) {
      if (from[i] > limit[0]) to[found++] = place + i;
    }
    return found;
  }
  static int32_t largest(Ints x) {
    const int32_t a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
  }
  // Sixteen numbers to bytes, of those above 127 to 127. Returns the sum of the bytes.
  static int32_t store_bytes(int8_t* to, const Ints (&x)[4]) {
    Ints total{};
    for (int i = 0; i < 4; ++i) {
      const Ints kept = x[i] < 127 ? x[i] : Ints{} + 127;
      for (int lane = 0; lane < kLanes; ++lane) to[i * kLanes + lane] = static_cast<int8_t>(kept[lane]);
      total += kept;
    }
    return (total[0] + total[1]) + (total[2] + total[3]);
  }
  // To nearest even, of numbers below 2^22 in size.
  static Ints to_ints(Floats x) { return Ints(x + kRound) - Ints(set(kRound)); }
  static void prefetch(const void* from) { __builtin_prefetch(from); }

 private:
  static constexpr float kRound = 12582912.0f;
  static Floats power(Ints n) { return Floats((n + 127) << 23); }
};

}  // namespace vivace::portable

// What the native tests share: failures that are counted, and buffers between guard zones.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "vivace/kernels.h"

namespace vivace::testing {

inline int failures = 0;

inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  if (++failures <= 50) std::printf("FAIL %s\n", what.c_str());
}

inline int report(const char* name) {
  std::printf("%s: %s\n", name, failures ? "FAILED" : "ok");
  return failures ? 1 : 0;
}

// `count` elements, 64-byte aligned, between zones that are checked for writes on destruction, and for reads too when
// built with the address sanitizer.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count, T fill = T{}) : count_(count) {
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, (count * sizeof(T) + 2 * kZone + 63) / 64 * 64));
    std::memset(memory_, kByte, kZone);
    std::memset(end(), kByte, kZone);
    for (size_t i = 0; i < count; ++i) data()[i] = fill;
    guard(true);
  }
  Guarded(const std::vector<T>& values) : Guarded(values.size()) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  ~Guarded() {
    guard(false);
    bool intact = true;
    for (size_t i = 0; i < kZone; ++i) intact &= memory_[i] == kByte && end()[i] == kByte;
    expect(intact, "a kernel wrote outside its buffer");
    std::free(memory_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + kZone); }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data()[i]; }
  std::vector<T> copy() { return std::vector<T>(data(), data() + count_); }

 private:
  static constexpr size_t kZone = 256;
  static constexpr uint8_t kByte = 0xff;  // floats and halves of it are NaN, which shows when read
  uint8_t* end() { return memory_ + kZone + count_ * sizeof(T); }
  void guard([[maybe_unused]] bool on) {
#if defined(__SANITIZE_ADDRESS__)
    if (on) {
      ASAN_POISON_MEMORY_REGION(memory_, kZone);
      ASAN_POISON_MEMORY_REGION(end(), kZone);
    } else {
      ASAN_UNPOISON_MEMORY_REGION(memory_, kZone);
      ASAN_UNPOISON_MEMORY_REGION(end(), kZone);
    }
#endif
  }

  size_t count_;
  uint8_t* memory_;
};

template <class T>
bool same_bits(const T* a, const T* b, size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(T)) == 0;
}

// Small, seeded and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    const uint64_t mixed = (state_ ^ (state_ >> 29)) * 0xbf58476d1ce4e5b9u;
    return static_cast<uint32_t>(mixed >> 32);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
  double uniform() { return bits() / 4294967296.0; }  // [0, 1)
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * uniform()));
  }
  std::vector<float> normals(size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = scale * normal();
    return values;
  }

 private:
  uint64_t state_;
};

inline std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> sets;
  for (const char* isa : kIsas) {
    if (const Kernels* kernels = select_kernels(isa)) sets.push_back(kernels);
  }
  return sets;
}

}  // namespace vivace::testing

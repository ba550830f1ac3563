// The kernel tables and the choice among them.
#include "vivace/kernels.h"

#include <cstring>
#include <iterator>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "attention.h"
#include "elementwise.h"
#include "matmul.h"

namespace vivace {
namespace {

using Fill = void (*)(Kernels&);

Kernels table(const char* isa, MatmulFn (*matmul)(WeightType), int64_t (*int8_loop)(int64_t), Fill elementwise,
              Fill attention) {
  Kernels kernels{};
  kernels.isa = isa;
  kernels.matmul = matmul;
  kernels.int8_loop = int8_loop;
  elementwise(kernels);
  attention(kernels);
  return kernels;
}

const Kernels* portable_kernels() {
  static const Kernels kernels =
      table("portable", portable::matmul, portable::int8_loop, portable::set_elementwise, portable::set_attention);
  return &kernels;
}

// Each checks that the processor, and the system, have everything the compiler was allowed to use in the files built
// for it. Even filling the table uses it, so that comes after.
#if defined(__x86_64__)

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

const Kernels* avx2_kernels() {
  if (!has_avx2()) return nullptr;
  static const Kernels kernels =
      table("avx2", avx2::matmul, avx2::int8_loop, avx2::set_elementwise, avx2::set_attention);
  return &kernels;
}

const Kernels* avxvnni_kernels() {
  if (!has_avx2() || !__builtin_cpu_supports("avxvnni")) return nullptr;
  static const Kernels kernels =
      table("avxvnni", avxvnni::matmul, avxvnni::int8_loop, avx2::set_elementwise, avx2::set_attention);
  return &kernels;
}

const Kernels* avx512_kernels() {
  if (!has_avx2() || !__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16") ||
      !__builtin_cpu_supports("avx512vbmi")) {
    return nullptr;
  }
  static const Kernels kernels =
      table("avx512", avx512::matmul, avx512::int8_loop, avx512::set_elementwise, avx512::set_attention);
  return &kernels;
}

const Kernels* neon_kernels() { return nullptr; }

#else

const Kernels* avx2_kernels() { return nullptr; }
const Kernels* avxvnni_kernels() { return nullptr; }
const Kernels* avx512_kernels() { return nullptr; }

// What every 64-bit ARM processor has is in the portable kernels already.
const Kernels* neon_kernels() {
#if defined(__aarch64__)
  constexpr unsigned long kNeeded = HWCAP_ASIMDDP | HWCAP_ASIMDRDM | HWCAP_ATOMICS | HWCAP_CRC32;  // ARMv8.2
  if ((getauxval(AT_HWCAP) & kNeeded) != kNeeded) return nullptr;
  static const Kernels kernels =
      table("neon", neon::matmul, neon::int8_loop, portable::set_elementwise, portable::set_attention);
  return &kernels;
#else
  return nullptr;
#endif
}

#endif

const Kernels* named(const char* isa) {
  if (std::strcmp(isa, "avx512") == 0) return avx512_kernels();
  if (std::strcmp(isa, "avxvnni") == 0) return avxvnni_kernels();
  if (std::strcmp(isa, "avx2") == 0) return avx2_kernels();
  if (std::strcmp(isa, "neon") == 0) return neon_kernels();
  return std::strcmp(isa, "portable") == 0 ? portable_kernels() : nullptr;
}

}  // namespace

const Kernels* select_kernels(const char* isa) {
  if (isa != nullptr && *isa != '\0') return named(isa);
  for (auto name = std::rbegin(kIsas); name != std::rend(kIsas); ++name) {
    if (const Kernels* best = named(*name)) return best;
  }
  return nullptr;
}

}  // namespace vivace

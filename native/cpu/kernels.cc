// The kernel tables and the choice among them.
#include "vivace/kernels.h"

#include <cstring>

#include "attention.h"
#include "elementwise.h"
#include "matmul.h"

namespace vivace {
namespace {

#if defined(__x86_64__)
// Everything the compiler was allowed to use in the files built for AVX-512.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
}
#endif

}  // namespace

const Kernels& portable_kernels() {
  static const Kernels table = [] {
    Kernels kernels{};
    kernels.isa = "portable";
    kernels.matmul = portable::matmul;
    portable::set_elementwise(kernels);
    portable::set_attention(kernels);
    return kernels;
  }();
  return table;
}

const Kernels* avx512_kernels() {
#if defined(__x86_64__)
  static const Kernels table = [] {
    Kernels kernels{};
    kernels.isa = "avx512";
    kernels.matmul = avx512::matmul;
    avx512::set_elementwise(kernels);
    avx512::set_attention(kernels);
    return kernels;
  }();
  static const bool usable = has_avx512();
  return usable ? &table : nullptr;
#else
  return nullptr;
#endif
}

const Kernels* avx2_kernels() { return nullptr; }

const Kernels* select_kernels(const char* isa) {
  if (isa == nullptr || *isa == '\0') {
    if (const Kernels* best = avx512_kernels()) return best;
    if (const Kernels* best = avx2_kernels()) return best;
    return &portable_kernels();
  }
  if (std::strcmp(isa, "avx512") == 0) return avx512_kernels();
  if (std::strcmp(isa, "avx2") == 0) return avx2_kernels();
  if (std::strcmp(isa, "portable") == 0) return &portable_kernels();
  return nullptr;
}

}  // namespace vivace

#include <arm_neon.h>

#include "int8_loop.h"
#include "matmul.h"
#include "matmul_kernel.h"

namespace vivace::neon {
namespace {

using matmul_kernel::Floats;
using matmul_kernel::Ints;
using matmul_kernel::Words;

VIVACE_INLINE int8x16_t spread(const void* four_bytes) {
  return vreinterpretq_s8_s32(vdupq_n_s32(matmul_kernel::load<int32_t>(four_bytes)));
}

struct Isa {
  using Form = matmul_kernel::Form;

#ifdef VIVACE_SANITIZED  // fewer sizes of groups: the same code, compiled in a tenth of the time
  static constexpr int kFloatGroup = 2;
  static constexpr int group(Form) { return 3; }
#else
  static constexpr int kFloatGroup = 3;
  static constexpr int group(Form) { return 5; }
#endif

  // The instruction multiplies signed bytes. Weights above 127 are taken less 128, and 128 times the activations added.
  template <int kTop>
  struct Dot {
    static constexpr int kQuads = 8;
    int32x4_t activations = vdupq_n_s32(0);
    VIVACE_INLINE void add(Ints& sum, const Words& w, const int8_t* quad) {
      const int8x16_t x = spread(quad);
      matmul_kernel::unroll<matmul_kernel::kParts>([&](auto i) __attribute__((always_inline)) {
        const auto bytes = vreinterpretq_s8_u32(kTop > 127 ? w.part[i] ^ 0x80808080u : w.part[i]);
        sum.part[i] = vdotq_s32(sum.part[i], bytes, x);
      });
      if constexpr (kTop > 127) activations = vdotq_s32(activations, vdupq_n_s8(1), x);
    }
    VIVACE_INLINE void total(Ints& sum) {
      if constexpr (kTop <= 127) return;
      matmul_kernel::unroll<matmul_kernel::kParts>(
          [&](auto i) __attribute__((always_inline)) { sum.part[i] += activations * 128; });
      activations = vdupq_n_s32(0);
    }
  };

  VIVACE_INLINE static Ints dot_pairs(const Ints& sum, const Words& w, const uint8_t* pair) {
    const int16x8_t x = vreinterpretq_s16_s8(spread(pair));
    return matmul_kernel::of_parts<Ints>([&](auto i) __attribute__((always_inline)) {
      const int16x8_t pairs = vreinterpretq_s16_u32(w.part[i]);
      const int32x4_t first = vmull_s16(vget_low_s16(pairs), vget_low_s16(x)), second = vmull_high_s16(pairs, x);
      return sum.part[i] + vpaddq_s32(first, second);
    });
  }
  VIVACE_INLINE static Words add_bytes(const Words& sums, const Words& bytes) {
    return matmul_kernel::of_parts<Words>([&](auto i) __attribute__((always_inline)) {
      return vdotq_u32(sums.part[i], vreinterpretq_u8_u32(bytes.part[i]), vdupq_n_u8(1));
    });
  }
  VIVACE_INLINE static Words lookup(const uint8_t (&table)[16], const Words& bytes) {
    return matmul_kernel::of_parts<Words>([&](auto i) __attribute__((always_inline)) {
      return vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(bytes.part[i])));
    });
  }
  VIVACE_INLINE static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return matmul_kernel::of_parts<Floats>(
        [&](auto i) __attribute__((always_inline)) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
  }
  VIVACE_INLINE static Floats halves(const uint8_t* from) {
    return matmul_kernel::of_parts<Floats>([&](auto i) __attribute__((always_inline)) {
      return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 8 * i)));
    });
  }
  VIVACE_INLINE static Ints widen(const uint8_t* from) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
  }
  template <int kBytes>
  VIVACE_INLINE static void prefetch(const uint8_t*) {}
};

}  // namespace

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : matmul_kernel::select_super_blocks<Isa>(type);
}

int64_t int8_loop(int64_t rounds) {
  return vivace::int8_loop(rounds, vdupq_n_s32(3), vdupq_n_s32(1), [](int32x4_t& sum, int32x4_t w, int32x4_t x) {
    asm volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(w), "w"(x));
  });
}

}  // namespace vivace::neon

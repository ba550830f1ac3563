#include "half.h"
#include "matmul.h"
#include "matmul_kernel.h"

namespace vivace::portable {
namespace {

struct Isa {
  using Ints = matmul_kernel::Ints;
  using Words = matmul_kernel::Words;
  using Floats = matmul_kernel::Floats;
  using Form = matmul_kernel::Form;

  static constexpr int kFloatGroup = 1;
  static constexpr int group(Form) { return 1; }

  VIVACE_INLINE static Ints dot(Ints sum, Words w, const int8_t* quad) {
    for (int i = 0; i < 4; ++i) {
      const Words bytes = w >> 8 * i & 255u;
      sum += reinterpret_cast<const Ints&>(bytes) * int32_t{quad[i]};
    }
    return sum;
  }
  VIVACE_INLINE static Ints dot_pairs(Ints sum, Words w, const uint8_t* pair) {
    for (int i = 0; i < 2; ++i) {
      const Words part = w >> 16 * i & 0xffffu;
      sum += reinterpret_cast<const Ints&>(part) * int32_t{matmul_kernel::load<int16_t>(pair + 2 * i)};
    }
    return sum;
  }
  VIVACE_INLINE static Words add_bytes(Words sums, Words bytes) {
    const Words pairs = (bytes & 0x00ff00ffu) + (bytes >> 8 & 0x00ff00ffu);
    return sums + (pairs & 0xffffu) + (pairs >> 16);
  }
  VIVACE_INLINE static Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
  VIVACE_INLINE static Floats halves(const uint8_t* from) {
    Floats values;
    for (int i = 0; i < kTileRows; ++i) values[i] = half_to_float(vivace::load<uint16_t>(from + 2 * i));
    return values;
  }
  VIVACE_INLINE static Ints widen(const uint8_t* from) {
    Ints values;
    for (int i = 0; i < kTileRows; ++i) values[i] = static_cast<int8_t>(from[i]);
    return values;
  }
  VIVACE_INLINE static Words lookup(const uint8_t (&table)[16], Words bytes) {
    Words found{};
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < kTileRows; ++r) found[r] |= uint32_t{table[bytes[r] >> 8 * i & 15u]} << 8 * i;
    }
    return found;
  }
  template <int kBytes>
  VIVACE_INLINE static void prefetch(const uint8_t*) {}
};

}  // namespace

MatmulFn matmul(WeightType type) {
  const MatmulFn found = matmul_kernel::select_blocks<Isa>(type);
  return found ? found : matmul_kernel::select_super_blocks<Isa>(type);
}

}  // namespace vivace::portable

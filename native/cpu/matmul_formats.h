// What each weight type with blocks adds to the matrix products: how to read the scales of a unit and the quads of a
// block.
#pragma once
#include <cstdint>

#include "packed_layout.h"
#include "tile_vectors.h"

namespace vivace::matmul_kernel {

enum class Form { kOffset, kMinimum, kHalves, kHalfMinima };

constexpr bool has_halves(Form form) { return form == Form::kHalves || form == Form::kHalfMinima; }

// Scales of one block of 32 columns: of the block; of it and of its minimum; of its halves; and of their minima.
constexpr int scale_count(Form form) { return form == Form::kOffset ? 1 : form == Form::kHalfMinima ? 4 : 2; }

template <Form kForm>
using Scales = Floats[scale_count(kForm)];

// `bits` moved up by kBy, or down by -kBy.
template <int kBy>
VIVACE_INLINE Words shift(Words bits) {
  if constexpr (kBy < 0) return bits >> -kBy;
  return bits << (kBy < 0 ? 0 : kBy);
}

// Quad j of lines of nibbles.
template <int j>
VIVACE_INLINE Words nibbles(const uint8_t* lines) {
  return load<Words>(lines + j / 2 * kLine) >> (j % 2 * 4) & 0x0f0f0f0fu;
}

// Quad j of lines of two bits.
template <int j>
VIVACE_INLINE Words bit_pairs(const uint8_t* lines) {
  return load<Words>(lines + j / 4 * kLine) >> (j % 4 * 2) & 0x03030303u;
}

// Quad j of one line of single bits, moved to bit kTo of each byte.
template <int j, int kTo>
VIVACE_INLINE Words single_bits(const uint8_t* line) {
  return shift<kTo - j>(load<Words>(line)) & (0x01010101u << kTo);
}

// Quad j of a line of high bits and lines of nibbles.
template <int j>
VIVACE_INLINE Words five_bits(const uint8_t* block) {
  return nibbles<j>(block + kLine) | single_bits<j, 4>(block);
}

// Field f of three lines of sixteen six-bit fields.
template <int f>
VIVACE_INLINE Words six_bits(const uint8_t* lines) {
  const auto word = [&](int w) __attribute__((always_inline)) { return load<Words>(lines + w * kLine); };
  if constexpr (f < 15) return word(f / 5) >> (f % 5 * 6) & 63u;
  return word(0) >> 30 | (word(1) >> 30) << 2 | (word(2) >> 30) << 4;
}

template <class Isa>
VIVACE_INLINE void half_scales(const uint8_t* head, int blocks, Scales<Form::kOffset>* scales) {
  for (int b = 0; b < blocks; ++b) scales[b][0] = Isa::halves(head + 32 * b);
}

// A scale and a minimum of the unit, each times a field of six bits for each of eight blocks.
template <class Isa>
VIVACE_INLINE void scales_and_minima(const uint8_t* head, Scales<Form::kMinimum>* scales) {
  const Floats d = Isa::halves(head), negative_dmin = -Isa::halves(head + 32);
  unroll<8>([&](auto b) __attribute__((always_inline)) {
    scales[b][0] = d * to_floats(as_ints(six_bits<b>(head + kLine)));
    scales[b][1] = negative_dmin * to_floats(as_ints(six_bits<b + 8>(head + kLine)));
  });
}

// The values of the codes of IQ4_NL and IQ4_XS, with 128 added.
constexpr uint8_t kNonLinear[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// A format: scales() reads the head of a unit of so many blocks; quad<j>() gives quad j of a block, kTop being the
// largest weight byte and kOffset what was added to each.

template <class Isa>
struct Q4_0 {
  static constexpr WeightType kType = WeightType::kQ4_0;
  static constexpr Form kForm = Form::kOffset;
  static constexpr int kTop = 15, kOffset = 8;
  VIVACE_INLINE static void scales(const uint8_t* head, int blocks, Scales<kForm>* scales) {
    half_scales<Isa>(head, blocks, scales);
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return nibbles<j>(block);
  }
};

template <class Isa>
struct Q4_1 {
  static constexpr WeightType kType = WeightType::kQ4_1;
  static constexpr Form kForm = Form::kMinimum;
  static constexpr int kTop = 15;
  VIVACE_INLINE static void scales(const uint8_t* head, int, Scales<kForm>* scales) {
    scales[0][0] = Isa::halves(head);
    scales[0][1] = Isa::halves(head + 32);
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return nibbles<j>(block);
  }
};

template <class Isa>
struct Q5_0 {
  static constexpr WeightType kType = WeightType::kQ5_0;
  static constexpr Form kForm = Form::kOffset;
  static constexpr int kTop = 31, kOffset = 16;
  VIVACE_INLINE static void scales(const uint8_t* head, int blocks, Scales<kForm>* scales) {
    half_scales<Isa>(head, blocks, scales);
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return five_bits<j>(block);
  }
};

template <class Isa>
struct Q5_1 : Q4_1<Isa> {
  static constexpr WeightType kType = WeightType::kQ5_1;
  static constexpr int kTop = 31;
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return five_bits<j>(block);
  }
};

template <class Isa>
struct Q8_0 {
  static constexpr WeightType kType = WeightType::kQ8_0;
  static constexpr Form kForm = Form::kOffset;
  static constexpr int kTop = 255, kOffset = 128;
  VIVACE_INLINE static void scales(const uint8_t* head, int blocks, Scales<kForm>* scales) {
    half_scales<Isa>(head, blocks, scales);
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return load<Words>(block + j * kLine);
  }
};

template <class Isa>
struct IQ4_NL {
  static constexpr WeightType kType = WeightType::kIQ4_NL;
  static constexpr Form kForm = Form::kOffset;
  static constexpr int kTop = 241, kOffset = 128;
  VIVACE_INLINE static void scales(const uint8_t* head, int blocks, Scales<kForm>* scales) {
    half_scales<Isa>(head, blocks, scales);
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return Isa::lookup(kNonLinear, nibbles<j>(block));
  }
};

template <class Isa>
struct Q2_K {
  static constexpr WeightType kType = WeightType::kQ2_K;
  static constexpr Form kForm = Form::kHalfMinima;
  static constexpr int kTop = 3, kOffset = 0;
  VIVACE_INLINE static void scales(const uint8_t* head, int, Scales<kForm>* scales) {
    const Floats d = Isa::halves(head), negative_dmin = -Isa::halves(head + 32);
    unroll<16>([&](auto s) __attribute__((always_inline)) {
      const Words pair = load<Words>(head + kLine + s / 4 * kLine) >> (s % 4 * 8);
      scales[s / 2][s % 2] = d * to_floats(as_ints(pair & 15u));
      scales[s / 2][2 + s % 2] = negative_dmin * to_floats(as_ints(pair >> 4 & 15u));
    });
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return bit_pairs<j>(block);
  }
};

template <class Isa>
struct Q3_K {
  static constexpr WeightType kType = WeightType::kQ3_K;
  static constexpr Form kForm = Form::kHalves;
  static constexpr int kTop = 7, kOffset = 4;
  VIVACE_INLINE static void scales(const uint8_t* head, int, Scales<kForm>* scales) {
    const Floats d = load<Floats>(head);
    unroll<16>([&](auto s) __attribute__((always_inline)) {
      scales[s / 2][s % 2] = d * to_floats(as_ints(six_bits<s>(head + kLine)) - 32);
    });
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return bit_pairs<j>(block + kLine) | single_bits<j, 2>(block);
  }
};

template <class Isa>
struct Q4_K {
  static constexpr WeightType kType = WeightType::kQ4_K;
  static constexpr Form kForm = Form::kMinimum;
  static constexpr int kTop = 15;
  VIVACE_INLINE static void scales(const uint8_t* head, int, Scales<kForm>* scales) {
    scales_and_minima<Isa>(head, scales);
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return nibbles<j>(block);
  }
};

template <class Isa>
struct Q5_K : Q4_K<Isa> {
  static constexpr WeightType kType = WeightType::kQ5_K;
  static constexpr int kTop = 31;
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return five_bits<j>(block);
  }
};

template <class Isa>
struct Q6_K {
  static constexpr WeightType kType = WeightType::kQ6_K;
  static constexpr Form kForm = Form::kHalves;
  static constexpr int kTop = 63, kOffset = 32;
  VIVACE_INLINE static void scales(const uint8_t* head, int, Scales<kForm>* scales) {
    const Floats d = load<Floats>(head);
    unroll<16>([&](auto s) __attribute__((always_inline)) {
      scales[s / 2][s % 2] = d * to_floats(Isa::widen(head + kLine + 16 * s));
    });
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    const uint8_t* half = block + j / 4 * 3 * kLine;
    constexpr int m = j % 4;
    return nibbles<m>(half + kLine) | (shift<4 - 2 * m>(load<Words>(half)) & 0x30303030u);
  }
};

template <class Isa>
struct IQ4_XS {
  static constexpr WeightType kType = WeightType::kIQ4_XS;
  static constexpr Form kForm = Form::kOffset;
  static constexpr int kTop = 241, kOffset = 128;
  VIVACE_INLINE static void scales(const uint8_t* head, int, Scales<kForm>* scales) {
    const Floats d = Isa::halves(head);
    const Words low = load<Words>(head + kLine);
    const Ints high[2] = {Isa::widen(head + 32), Isa::widen(head + 48)};
    unroll<8>([&](auto b) __attribute__((always_inline)) {
      const Ints top = b % 4 < 2 ? high[b / 4] << (4 - 2 * b % 8) : high[b / 4] >> (2 * b % 8 - 4);
      scales[b][0] = d * to_floats((as_ints(low >> 4 * b & 15u) | (top & 48)) - 32);
    });
  }
  template <int j>
  VIVACE_INLINE static Words quad(const uint8_t* block) {
    return Isa::lookup(kNonLinear, nibbles<j>(block));
  }
};

}  // namespace vivace::matmul_kernel

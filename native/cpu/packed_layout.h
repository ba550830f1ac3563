// Where the parts of a packed tile lie, for packing and for every instruction set.
//
// A *line* is 64 bytes: one 32-bit word per row of the tile. A *quad* is four consecutive columns, so a
// quad of bytes is one line, and a quad of nibbles half of one. Types with blocks of 32 columns:
//
//   tile = units, a unit = head (scales) then its blocks, in ascending column order
//   Q4_0, IQ4_NL  head: 16 half scales of block 0, 16 of block 1.    block: 4 lines of nibbles
//   Q5_0          head: as Q4_0.                                     block: 1 line of high bits, 4 of nibbles
//   Q8_0          head: as Q4_0.                                     block: 8 lines of bytes, 128 added
//   Q4_1          head: 16 half scales, 16 half minima.              block: as Q4_0
//   Q5_1          head: as Q4_1.                                     block: as Q5_0
//   Q2_K          head: 16 half scales, 16 half minima, 4 lines of stored bytes, each a scale and a minimum of 4 bits.
//                 block: 2 lines of bit pairs
//   Q3_K          head: 16 float scales, 3 lines of 6-bit fields.    block: 1 line of high bits, 2 of bit pairs
//   Q4_K          head: 16 half scales, 16 half minima, 3 lines of 6-bit fields.    block: as Q4_0
//   Q5_K          head: as Q4_K.                                     block: as Q5_0
//   Q6_K          head: 16 float scales, [16 sub-blocks][16 rows] signed byte scales.
//                 block: twice (1 line of high bit pairs, 2 of nibbles), each for 16 columns
//   IQ4_XS        head: 16 half scales, 2 x 16 bytes of the scales' high bits, 1 line of their low bits.
//                 block: as Q4_0
//
//   Line i of nibbles holds quad 2i in the low and quad 2i + 1 in the high nibbles; line i of bit pairs quads 4i to
//   4i + 3 from the lowest bits up. Bit j of a high-bit byte belongs to quad j; bits 2m, 2m + 1 of one of Q6_K to quad
//   m of its 16 columns. 6-bit fields are 8 scales then 8 minima, or 16 scales: field f < 15 is in word f / 5 at bit 6
//   (f % 5); the 16th is spread over the top two bits of the three words.
//
// Float types: F32 has one line per column. BF16 and F16 have one line per two columns (an odd last
// column is followed by zeros): BF16 as one word per row, F16 as 16 values of each column.
//
// Lines are thus first read in ascending order, which hardware prefetching rewards.
#pragma once
#include <cstdint>

#include "vivace/weights.h"

namespace vivace {

constexpr int kLine = 64;
constexpr int kBlockCols = 32;
// Columns of types with blocks: the factors of one row of activations must fit in a product's scratch memory.
constexpr int64_t kMostBlockCols = 1 << 19;

struct UnitLayout {
  int blocks;       // blocks of 32 columns a unit; 0: not a type with blocks
  int head_bytes;
  int block_bytes;

  constexpr int64_t bytes(int present) const { return head_bytes + int64_t{present} * block_bytes; }
};

constexpr UnitLayout unit_layout(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0: return {2, 64, 256};
    case WeightType::kQ4_1: return {1, 64, 256};
    case WeightType::kQ5_0: return {2, 64, 320};
    case WeightType::kQ5_1: return {1, 64, 320};
    case WeightType::kQ8_0: return {2, 64, 512};
    case WeightType::kQ2_K: return {8, 320, 128};
    case WeightType::kQ3_K: return {8, 256, 192};
    case WeightType::kQ4_K: return {8, 256, 256};
    case WeightType::kQ5_K: return {8, 256, 320};
    case WeightType::kQ6_K: return {8, 320, 384};
    case WeightType::kIQ4_NL: return {2, 64, 256};
    case WeightType::kIQ4_XS: return {8, 128, 256};
    default: return {0, 0, 0};
  }
}

}  // namespace vivace

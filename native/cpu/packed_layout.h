// Where the parts of a packed tile lie, for packing and for every instruction set.
//
// A *line* is 64 bytes: one 32-bit word per row of the tile. A *quad* is four consecutive columns, so a
// quad of bytes is one line, and a quad of nibbles half of one. Types with blocks of 32 columns:
//
//   tile = units, a unit = head (scales) then its blocks, in ascending column order
//   Q4_1  head: 16 half scales, 16 half minima.              block: 4 lines of nibbles
//   Q5_0  head: 16 half scales of block 0, 16 of block 1.    block: 1 line of high bits, 4 of nibbles
//   Q8_0  head: as Q5_0.                                     block: 8 lines of bytes, 128 added
//   Q4_K  head: 16 half scales, 16 half minima, 3 lines of 6-bit fields.         block: as Q4_1
//   Q6_K  head: 16 float scales, [16 sub-blocks][16 rows] signed byte scales.
//         block: twice (1 line of high bit pairs, 2 of nibbles), each for 16 columns
//
//   Line i of nibbles holds quad 2i in the low and quad 2i + 1 in the high nibbles. Bit j of a Q5_0 high-bit
//   byte belongs to quad j. Bits 2m, 2m + 1 of a Q6_K high-bit byte belong to quad m of its 16 columns.
//   Q4_K fields are 8 scales then 8 minima: field f < 15 is in word f / 5 at bit 6 (f % 5); the 16th is
//   spread over the top two bits of the three words.
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
    case WeightType::kQ4_1: return {1, 64, 256};
    case WeightType::kQ5_0: return {2, 64, 320};
    case WeightType::kQ8_0: return {2, 64, 512};
    case WeightType::kQ4_K: return {8, 256, 256};
    case WeightType::kQ6_K: return {8, 320, 384};
    default: return {0, 0, 0};
  }
}

}  // namespace vivace

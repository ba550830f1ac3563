// Stored rows to packed tiles.
#include <cstring>

#include "packed_layout.h"
#include "stored_blocks.h"

namespace vivace {
namespace {

using Line = uint32_t[kTileRows];
using Rows = const uint8_t* [kTileRows];

constexpr uint8_t kZeros[256] = {};

// The address of stored block `index` of each row.
void locate(const uint8_t* const rows[kTileRows], int64_t index, int bytes, Rows& at) {
  for (int r = 0; r < kTileRows; ++r) at[r] = rows[r] ? rows[r] + index * bytes : kZeros;
}

// lines[j][r] = word j of row r.
template <int kWords>
void transpose(const Rows& at, int offset, Line* lines) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int j = 0; j < kWords; ++j) lines[j][r] = load<uint32_t>(at[r] + offset + 4 * j);
  }
}

void pack_halves(const Rows& at, int offset, uint8_t* tile) {
  for (int r = 0; r < kTileRows; ++r) std::memcpy(tile + 2 * r, at[r] + offset, 2);
}

void pack_half_as_float(const Rows& at, int offset, uint8_t* tile) {
  for (int r = 0; r < kTileRows; ++r) {
    const float value = half_at(at[r] + offset);
    std::memcpy(tile + 4 * r, &value, 4);
  }
}

// Bytes a and b each hold a value of one block in their low and of another in their high nibbles.
void pair_low(const Line& a, const Line& b, uint8_t* out) {
  Line line;
  for (int r = 0; r < kTileRows; ++r) line[r] = (a[r] & 0x0f0f0f0fu) | (b[r] & 0x0f0f0f0fu) << 4;
  std::memcpy(out, line, kLine);
}

void pair_high(const Line& a, const Line& b, uint8_t* out) {
  Line line;
  for (int r = 0; r < kTileRows; ++r) line[r] = (a[r] >> 4 & 0x0f0f0f0fu) | (b[r] & 0xf0f0f0f0u);
  std::memcpy(out, line, kLine);
}

// 16 bytes a row whose low nibbles are quads 0-3 and whose high nibbles are quads 4-7.
void pack_nibbles(const Rows& at, int offset, uint8_t* out) {
  Line quads[4];
  transpose<4>(at, offset, quads);
  pair_low(quads[0], quads[1], out);
  pair_low(quads[2], quads[3], out + kLine);
  pair_high(quads[0], quads[1], out + 2 * kLine);
  pair_high(quads[2], quads[3], out + 3 * kLine);
}

// High bits of 32 columns: bit i of the stored word of a row belongs to column i.
void pack_high_bits(const Rows& at, int offset, uint8_t* out) {
  Line stored, high = {};
  transpose<1>(at, offset, &stored);
  for (int j = 0; j < 8; ++j) {
    for (int r = 0; r < kTileRows; ++r) {
      const uint32_t bits = stored[r] >> 4 * j & 15u;
      high[r] |= ((bits | bits << 7 | bits << 14 | bits << 21) & 0x01010101u) << j;
    }
  }
  std::memcpy(out, high, kLine);
}

// Q4_0 and IQ4_NL.
void pack_q4_0(const Rows& at, uint8_t* unit, int b) {
  pack_halves(at, 0, unit + 32 * b);
  pack_nibbles(at, 2, unit + unit_layout(WeightType::kQ4_0).bytes(b));
}

void pack_q4_1(const Rows& at, uint8_t* unit, int) {
  pack_halves(at, 0, unit);
  pack_halves(at, 2, unit + 32);
  pack_nibbles(at, 4, unit + 64);
}

void pack_q5_1(const Rows& at, uint8_t* unit, int) {
  pack_halves(at, 0, unit);
  pack_halves(at, 2, unit + 32);
  pack_high_bits(at, 4, unit + 64);
  pack_nibbles(at, 8, unit + 64 + kLine);
}

void pack_q5_0(const Rows& at, uint8_t* unit, int b) {
  pack_halves(at, 0, unit + 32 * b);
  uint8_t* block = unit + unit_layout(WeightType::kQ5_0).bytes(b);
  pack_high_bits(at, 2, block);
  pack_nibbles(at, 6, block + kLine);
}

void pack_q8_0(const Rows& at, uint8_t* unit, int b) {
  pack_halves(at, 0, unit + 32 * b);
  Line quads[8];
  transpose<8>(at, 2, quads);
  for (Line& quad : quads) {
    for (uint32_t& word : quad) word ^= 0x80808080u;  // adds 128 to each signed byte
  }
  std::memcpy(unit + unit_layout(WeightType::kQ8_0).bytes(b), quads, sizeof quads);
}

// Sixteen fields of six bits a row as three lines of words.
template <class Field>
void pack_six_bits(const Rows& at, Field&& field, uint8_t* out) {
  Line lines[3];
  for (int r = 0; r < kTileRows; ++r) {
    const uint32_t last = field(at[r], 15);
    for (int w = 0; w < 3; ++w) {
      uint32_t word = (last >> 2 * w) << 30;
      for (int f = 0; f < 5; ++f) word |= field(at[r], 5 * w + f) << 6 * f;
      lines[w][r] = word;
    }
  }
  std::memcpy(out, lines, sizeof lines);
}

void pack_scales_and_minima(const Rows& at, uint8_t* head) {
  pack_halves(at, 0, head);
  pack_halves(at, 2, head + 32);
  const auto field = [](const uint8_t* block, int f) {
    const ScaleMin pair = scale_min(block + 4, f % 8);
    return f < 8 ? pair.scale : pair.minimum;
  };
  pack_six_bits(at, field, head + kLine);
}

// Eight blocks of nibbles; in the 32 stored bytes of a pair of blocks the low nibbles are the first block.
void pack_pairs_of_blocks(const Rows& at, int offset, uint8_t* out, int block_bytes) {
  for (int pair = 0; pair < 4; ++pair, out += 2 * block_bytes) {
    Line quads[8];
    transpose<8>(at, offset + 32 * pair, quads);
    for (int i = 0; i < 4; ++i) {
      pair_low(quads[2 * i], quads[2 * i + 1], out + i * kLine);
      pair_high(quads[2 * i], quads[2 * i + 1], out + block_bytes + i * kLine);
    }
  }
}

// High bits of eight blocks of 32 columns: bit b of stored byte i belongs to column i of block b.
void pack_bit_planes(const Rows& at, int offset, uint8_t* out, int block_bytes) {
  Line stored[8];
  transpose<8>(at, offset, stored);
  for (int b = 0; b < 8; ++b, out += block_bytes) {
    Line high = {};
    for (int j = 0; j < 8; ++j) {
      for (int r = 0; r < kTileRows; ++r) high[r] |= (stored[j][r] >> b & 0x01010101u) << j;
    }
    std::memcpy(out, high, kLine);
  }
}

// Eight blocks of two-bit codes; block b of each four is in bits 2b, 2b + 1 of 32 stored bytes.
void pack_two_bits(const Rows& at, int offset, uint8_t* out, int block_bytes) {
  for (int b = 0; b < 8; ++b, out += block_bytes) {
    Line quads[8], lines[2] = {};
    transpose<8>(at, offset + 32 * (b / 4), quads);
    for (int j = 0; j < 8; ++j) {
      for (int r = 0; r < kTileRows; ++r) {
        lines[j / 4][r] |= (quads[j][r] >> b % 4 * 2 & 0x03030303u) << j % 4 * 2;
      }
    }
    std::memcpy(out, lines, sizeof lines);
  }
}

void pack_q2_k(const Rows& at, uint8_t* unit, int) {
  constexpr UnitLayout kLayout = unit_layout(WeightType::kQ2_K);
  pack_halves(at, 80, unit);
  pack_halves(at, 82, unit + 32);
  Line scales[4];
  transpose<4>(at, 0, scales);
  std::memcpy(unit + kLine, scales, sizeof scales);
  pack_two_bits(at, 16, unit + kLayout.head_bytes, kLayout.block_bytes);
}

void pack_q3_k(const Rows& at, uint8_t* unit, int) {
  constexpr UnitLayout kLayout = unit_layout(WeightType::kQ3_K);
  pack_half_as_float(at, 108, unit);
  pack_six_bits(at, [](const uint8_t* block, int f) { return q3_k_scale(block + 96, f); }, unit + kLine);
  pack_bit_planes(at, 0, unit + kLayout.head_bytes, kLayout.block_bytes);
  pack_two_bits(at, 32, unit + kLayout.head_bytes + kLine, kLayout.block_bytes);
}

void pack_q4_k(const Rows& at, uint8_t* unit, int) {
  constexpr UnitLayout kLayout = unit_layout(WeightType::kQ4_K);
  pack_scales_and_minima(at, unit);
  pack_pairs_of_blocks(at, 16, unit + kLayout.head_bytes, kLayout.block_bytes);
}

void pack_q5_k(const Rows& at, uint8_t* unit, int) {
  constexpr UnitLayout kLayout = unit_layout(WeightType::kQ5_K);
  pack_scales_and_minima(at, unit);
  pack_bit_planes(at, 16, unit + kLayout.head_bytes, kLayout.block_bytes);
  pack_pairs_of_blocks(at, 48, unit + kLayout.head_bytes + kLine, kLayout.block_bytes);
}

void pack_iq4_xs(const Rows& at, uint8_t* unit, int) {
  constexpr UnitLayout kLayout = unit_layout(WeightType::kIQ4_XS);
  pack_halves(at, 0, unit);
  for (int r = 0; r < kTileRows; ++r) {
    unit[32 + r] = at[r][2];
    unit[48 + r] = at[r][3];
  }
  Line low_scales;
  transpose<1>(at, 4, &low_scales);
  std::memcpy(unit + kLine, low_scales, kLine);
  for (int b = 0; b < 8; ++b) pack_nibbles(at, 8 + 16 * b, unit + kLayout.bytes(b));
}

void pack_q6_k(const Rows& at, uint8_t* unit, int) {
  pack_half_as_float(at, 208, unit);
  for (int r = 0; r < kTileRows; ++r) {
    for (int s = 0; s < 16; ++s) unit[64 + 16 * s + r] = at[r][192 + s];
  }
  constexpr UnitLayout kLayout = unit_layout(WeightType::kQ6_K);
  for (int half = 0; half < 2; ++half) {
    Line low[16], high[8];
    transpose<16>(at, 64 * half, low);
    transpose<8>(at, 128 + 32 * half, high);
    for (int b = 0; b < 4; ++b) {
      uint8_t* block = unit + kLayout.bytes(4 * half + b);
      const Line* nibbles = low + 8 * (b & 1);
      for (int part = 0; part < 2; ++part, block += 3 * kLine) {
        Line bits = {};
        for (int m = 0; m < 4; ++m) {
          for (int r = 0; r < kTileRows; ++r) {
            bits[r] |= (high[4 * part + m][r] >> 2 * b & 0x03030303u) << 2 * m;
          }
        }
        std::memcpy(block, bits, kLine);
        for (int i = 0; i < 2; ++i) {
          const Line* quads = nibbles + 4 * part + 2 * i;
          (b < 2 ? pair_low : pair_high)(quads[0], quads[1], block + (1 + i) * kLine);
        }
      }
    }
  }
}

using PackFn = void (*)(const Rows& at, uint8_t* unit, int block);

PackFn pack_function(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0: return pack_q4_0;
    case WeightType::kQ4_1: return pack_q4_1;
    case WeightType::kQ5_0: return pack_q5_0;
    case WeightType::kQ5_1: return pack_q5_1;
    case WeightType::kQ8_0: return pack_q8_0;
    case WeightType::kQ2_K: return pack_q2_k;
    case WeightType::kQ3_K: return pack_q3_k;
    case WeightType::kQ4_K: return pack_q4_k;
    case WeightType::kQ5_K: return pack_q5_k;
    case WeightType::kQ6_K: return pack_q6_k;
    case WeightType::kIQ4_NL: return pack_q4_0;
    case WeightType::kIQ4_XS: return pack_iq4_xs;
    default: return nullptr;
  }
}

void pack_float(WeightType type, const uint8_t* const rows[kTileRows], int64_t cols, uint8_t* tile) {
  const int64_t size = type == WeightType::kF32 ? 4 : 2;
  // Distance in the tile between rows, and between a column and the next of the same line.
  const int64_t row_step = type == WeightType::kBF16 ? 4 : size;
  const int64_t col_step = type == WeightType::kBF16 ? 2 : kTileRows * size;
  std::memset(tile, 0, packed_tile_bytes(type, cols));
  for (int r = 0; r < kTileRows; ++r) {
    if (!rows[r]) continue;
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t line_start = size == 4 ? k * kLine : k / 2 * kLine + k % 2 * col_step;
      std::memcpy(tile + line_start + r * row_step, rows[r] + k * size, size);
    }
  }
}

}  // namespace

int64_t packed_tile_bytes(WeightType type, int64_t cols) {
  if (stored_row_bytes(type, cols) == 0) return 0;
  if (type == WeightType::kF32) return cols * kLine;
  if (type == WeightType::kF16 || type == WeightType::kBF16) return (cols + 1) / 2 * kLine;
  const UnitLayout layout = unit_layout(type);
  if (layout.blocks == 0 || cols > kMostBlockCols) return 0;
  const int64_t blocks = cols / kBlockCols;
  const int64_t rest = blocks % layout.blocks;
  return blocks / layout.blocks * layout.bytes(layout.blocks) + (rest ? layout.bytes(static_cast<int>(rest)) : 0);
}

void pack_tile(WeightType type, const uint8_t* const rows[kTileRows], int64_t cols, uint8_t* tile) {
  const PackFn pack = pack_function(type);
  if (!pack) return pack_float(type, rows, cols, tile);
  const UnitLayout layout = unit_layout(type);
  const StoredBlock stored = stored_block(type);
  const int per_unit = layout.blocks * kBlockCols / stored.cols;  // stored blocks a unit
  const int64_t count = cols / stored.cols;
  Rows at;
  for (int64_t first = 0; first < count; first += per_unit) {
    for (int i = 0; i < per_unit && first + i < count; ++i) {
      locate(rows, first + i, stored.bytes, at);
      pack(at, tile, i);
    }
    if (first + per_unit > count) std::memset(tile + 32, 0, 32);  // scales of the absent second block
    tile += layout.bytes(layout.blocks);
  }
}

}  // namespace vivace

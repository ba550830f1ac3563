#include "vivace/weights.h"

#include <bit>
#include <cstring>

#include "half.h"
#include "packed_layout.h"

namespace vivace {
namespace {

struct Stored {
  int cols;   // columns of a stored block; 0: unknown type
  int bytes;
};

constexpr Stored stored_block(WeightType type) {
  switch (type) {
    case WeightType::kF32: return {1, 4};
    case WeightType::kF16: return {1, 2};
    case WeightType::kBF16: return {1, 2};
    case WeightType::kQ4_0: return {32, 18};
    case WeightType::kQ4_1: return {32, 20};
    case WeightType::kQ5_0: return {32, 22};
    case WeightType::kQ5_1: return {32, 24};
    case WeightType::kQ8_0: return {32, 34};
    case WeightType::kQ2_K: return {256, 84};
    case WeightType::kQ3_K: return {256, 110};
    case WeightType::kQ4_K: return {256, 144};
    case WeightType::kQ5_K: return {256, 176};
    case WeightType::kQ6_K: return {256, 210};
    case WeightType::kIQ4_NL: return {32, 18};
    case WeightType::kIQ4_XS: return {256, 136};
  }
  return {0, 0};
}

// Scale and minimum `i` of the twelve bytes of a Q4_K or Q5_K block.
struct ScaleMin {
  uint32_t scale;
  uint32_t minimum;
};

ScaleMin scale_min(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63u, packed[i + 4] & 63u};
  const uint32_t low = packed[i + 4], scale_top = packed[i - 4] >> 6, minimum_top = packed[i] >> 6;
  return {(low & 15) | scale_top << 4, low >> 4 | minimum_top << 4};
}

// ---- packing ----

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

void pack_q4_1(const Rows& at, uint8_t* unit, int) {
  pack_halves(at, 0, unit);
  pack_halves(at, 2, unit + 32);
  pack_nibbles(at, 4, unit + 64);
}

void pack_q5_0(const Rows& at, uint8_t* unit, int b) {
  pack_halves(at, 0, unit + 32 * b);
  uint8_t* block = unit + unit_layout(WeightType::kQ5_0).bytes(b);
  Line stored, high = {};
  transpose<1>(at, 2, &stored);
  for (int j = 0; j < 8; ++j) {
    for (int r = 0; r < kTileRows; ++r) {
      const uint32_t bits = stored[r] >> 4 * j & 15u;
      high[r] |= ((bits | bits << 7 | bits << 14 | bits << 21) & 0x01010101u) << j;
    }
  }
  std::memcpy(block, high, kLine);
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

void pack_q4_k(const Rows& at, uint8_t* unit, int) {
  pack_halves(at, 0, unit);
  pack_halves(at, 2, unit + 32);
  Line fields[3];
  for (int r = 0; r < kTileRows; ++r) {
    uint32_t field[16];
    for (int i = 0; i < 8; ++i) {
      const ScaleMin pair = scale_min(at[r] + 4, i);
      field[i] = pair.scale;
      field[i + 8] = pair.minimum;
    }
    for (int w = 0; w < 3; ++w) {
      uint32_t word = (field[15] >> 2 * w) << 30;
      for (int f = 0; f < 5; ++f) word |= field[5 * w + f] << 6 * f;
      fields[w][r] = word;
    }
  }
  std::memcpy(unit + 64, fields, sizeof fields);
  constexpr UnitLayout kLayout = unit_layout(WeightType::kQ4_K);
  for (int pair = 0; pair < 4; ++pair) {
    Line quads[8];  // low nibbles: block 2 pair, high nibbles: the one after
    transpose<8>(at, 16 + 32 * pair, quads);
    for (int i = 0; i < 4; ++i) {
      pair_low(quads[2 * i], quads[2 * i + 1], unit + kLayout.bytes(2 * pair) + i * kLine);
      pair_high(quads[2 * i], quads[2 * i + 1], unit + kLayout.bytes(2 * pair + 1) + i * kLine);
    }
  }
}

void pack_q6_k(const Rows& at, uint8_t* unit, int) {
  for (int r = 0; r < kTileRows; ++r) {
    const float scale = half_to_float(load<uint16_t>(at[r] + 208));
    std::memcpy(unit + 4 * r, &scale, 4);
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
    case WeightType::kQ4_1: return pack_q4_1;
    case WeightType::kQ5_0: return pack_q5_0;
    case WeightType::kQ8_0: return pack_q8_0;
    case WeightType::kQ4_K: return pack_q4_k;
    case WeightType::kQ6_K: return pack_q6_k;
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

// ---- de-quantising ----

float half_at(const uint8_t* at) { return half_to_float(load<uint16_t>(at)); }

void dequantise_q4_1(const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 15) + minimum;
    out[i + 16] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

void dequantise_q5_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const uint32_t high = load<uint32_t>(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int low_value = (block[6 + i] & 15) | static_cast<int>(high >> i & 1) << 4;
    const int high_value = (block[6 + i] >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(low_value - 16);
    out[i + 16] = scale * static_cast<float>(high_value - 16);
  }
}

void dequantise_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void dequantise_q4_k(const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int b = 0; b < 8; ++b) {
    const ScaleMin pair = scale_min(block + 4, b);
    const float block_scale = scale * static_cast<float>(pair.scale);
    const float block_minimum = minimum * static_cast<float>(pair.minimum);
    const uint8_t* bytes = block + 16 + 32 * (b / 2);
    for (int i = 0; i < 32; ++i) {
      const int value = bytes[i] >> 4 * (b & 1) & 15;
      out[32 * b + i] = block_scale * static_cast<float>(value) - block_minimum;
    }
  }
}

void dequantise_q6_k(const uint8_t* block, float* out) {
  const float scale = half_at(block + 208);
  for (int b = 0; b < 8; ++b) {
    const uint8_t* low = block + 64 * (b / 4) + 32 * (b & 1);
    const uint8_t* high = block + 128 + 32 * (b / 4);
    for (int i = 0; i < 32; ++i) {
      const int nibble = low[i] >> (b % 4 < 2 ? 0 : 4) & 15;
      const int value = (nibble | (high[i] >> 2 * (b % 4) & 3) << 4) - 32;
      const auto sub_scale = static_cast<int8_t>(block[192 + 2 * b + i / 16]);
      out[32 * b + i] = scale * static_cast<float>(sub_scale) * static_cast<float>(value);
    }
  }
}

using DequantiseFn = void (*)(const uint8_t* block, float* out);

DequantiseFn dequantise_function(WeightType type) {
  switch (type) {
    case WeightType::kF32: return [](const uint8_t* at, float* out) { *out = load<float>(at); };
    case WeightType::kF16: return [](const uint8_t* at, float* out) { *out = half_at(at); };
    case WeightType::kBF16:
      return [](const uint8_t* at, float* out) {
        *out = std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(at)) << 16);
      };
    case WeightType::kQ4_1: return dequantise_q4_1;
    case WeightType::kQ5_0: return dequantise_q5_0;
    case WeightType::kQ8_0: return dequantise_q8_0;
    case WeightType::kQ4_K: return dequantise_q4_k;
    case WeightType::kQ6_K: return dequantise_q6_k;
    default: return nullptr;
  }
}

}  // namespace

int64_t stored_row_bytes(WeightType type, int64_t cols) {
  const Stored stored = stored_block(type);
  if (stored.cols == 0 || cols < 0 || cols % stored.cols != 0) return 0;
  return cols / stored.cols * stored.bytes;
}

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
  const Stored stored = stored_block(type);
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

void dequantise_row(WeightType type, const uint8_t* row, int64_t cols, float* out) {
  const DequantiseFn dequantise = dequantise_function(type);
  const Stored stored = stored_block(type);
  if (!dequantise) return;
  for (int64_t k = 0; k < cols; k += stored.cols, row += stored.bytes) dequantise(row, out + k);
}

}  // namespace vivace

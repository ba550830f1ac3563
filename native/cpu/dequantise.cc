// Stored rows to floats.
#include <bit>

#include "stored_blocks.h"

namespace vivace {
namespace {

constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Value i of 32 nibbles in 16 bytes, the low ones first.
int nibble(const uint8_t* bytes, int i) { return bytes[i % 16] >> i / 16 * 4 & 15; }

// Value i of 32 nibbles whose fifth bits are in a word.
int five_bits(const uint8_t* high, const uint8_t* bytes, int i) {
  return nibble(bytes, i) | static_cast<int>(load<uint32_t>(high) >> i & 1) << 4;
}

void dequantise_q4_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(nibble(block + 2, i) - 8);
}

void dequantise_q4_1(const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(nibble(block + 4, i)) + minimum;
}

void dequantise_q5_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(five_bits(block + 2, block + 6, i) - 16);
}

void dequantise_q5_1(const uint8_t* block, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(five_bits(block + 4, block + 8, i)) + minimum;
}

void dequantise_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void dequantise_q2_k(const uint8_t* block, float* out) {
  const float scale = half_at(block + 80), minimum = half_at(block + 82);
  for (int s = 0; s < 16; ++s) {
    const float sub_scale = scale * static_cast<float>(block[s] & 15);
    const float sub_minimum = minimum * static_cast<float>(block[s] >> 4);
    const uint8_t* codes = block + 16 + 32 * (s / 8) + 16 * (s % 2);
    for (int i = 0; i < 16; ++i) {
      out[16 * s + i] = sub_scale * static_cast<float>(codes[i] >> s / 2 % 4 * 2 & 3) - sub_minimum;
    }
  }
}

void dequantise_q3_k(const uint8_t* block, float* out) {
  const float scale = half_at(block + 108);
  for (int s = 0; s < 16; ++s) {
    const float sub_scale = scale * static_cast<float>(static_cast<int>(q3_k_scale(block + 96, s)) - 32);
    const uint8_t* high = block + 16 * (s % 2);
    const uint8_t* low = block + 32 + 32 * (s / 8) + 16 * (s % 2);
    for (int i = 0; i < 16; ++i) {
      const int value = (low[i] >> s / 2 % 4 * 2 & 3) + (high[i] >> s / 2 & 1) * 4 - 4;
      out[16 * s + i] = sub_scale * static_cast<float>(value);
    }
  }
}

// Blocks with eight scales and minima: value(b, i) is column i of block b.
template <class Value>
void scale_values(const uint8_t* block, float* out, Value&& value) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int b = 0; b < 8; ++b) {
    const ScaleMin pair = scale_min(block + 4, b);
    const float block_scale = scale * static_cast<float>(pair.scale);
    const float block_minimum = minimum * static_cast<float>(pair.minimum);
    for (int i = 0; i < 32; ++i) out[32 * b + i] = block_scale * static_cast<float>(value(b, i)) - block_minimum;
  }
}

void dequantise_q4_k(const uint8_t* block, float* out) {
  scale_values(block, out, [&](int b, int i) { return block[16 + 32 * (b / 2) + i] >> 4 * (b & 1) & 15; });
}

void dequantise_q5_k(const uint8_t* block, float* out) {
  scale_values(block, out, [&](int b, int i) {
    return (block[48 + 32 * (b / 2) + i] >> 4 * (b & 1) & 15) | (block[16 + i] >> b & 1) << 4;
  });
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

void dequantise_iq4_nl(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(kNonLinear[nibble(block + 2, i)]);
}

void dequantise_iq4_xs(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const int high = load<uint16_t>(block + 2);
  for (int b = 0; b < 8; ++b) {
    const int field = (block[4 + b / 2] >> 4 * (b & 1) & 15) | (high >> 2 * b & 3) << 4;
    const float block_scale = scale * static_cast<float>(field - 32);
    for (int i = 0; i < 32; ++i) {
      out[32 * b + i] = block_scale * static_cast<float>(kNonLinear[nibble(block + 8 + 16 * b, i)]);
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
    case WeightType::kQ4_0: return dequantise_q4_0;
    case WeightType::kQ4_1: return dequantise_q4_1;
    case WeightType::kQ5_0: return dequantise_q5_0;
    case WeightType::kQ5_1: return dequantise_q5_1;
    case WeightType::kQ8_0: return dequantise_q8_0;
    case WeightType::kQ2_K: return dequantise_q2_k;
    case WeightType::kQ3_K: return dequantise_q3_k;
    case WeightType::kQ4_K: return dequantise_q4_k;
    case WeightType::kQ5_K: return dequantise_q5_k;
    case WeightType::kQ6_K: return dequantise_q6_k;
    case WeightType::kIQ4_NL: return dequantise_iq4_nl;
    case WeightType::kIQ4_XS: return dequantise_iq4_xs;
    default: return nullptr;
  }
}

}  // namespace

int64_t stored_row_bytes(WeightType type, int64_t cols) {
  const StoredBlock stored = stored_block(type);
  if (stored.cols == 0 || cols < 0 || cols % stored.cols != 0) return 0;
  return cols / stored.cols * stored.bytes;
}

void dequantise_row(WeightType type, const uint8_t* row, int64_t cols, float* out) {
  const DequantiseFn dequantise = dequantise_function(type);
  const StoredBlock stored = stored_block(type);
  if (!dequantise) return;
  for (int64_t k = 0; k < cols; k += stored.cols, row += stored.bytes) dequantise(row, out + k);
}

}  // namespace vivace

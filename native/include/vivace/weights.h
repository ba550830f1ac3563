// Weight matrices as the products read them: tiles of 16 output rows, blocks of K in stored order.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vivace {

// Values are the type ids of the GGUF format.
enum class WeightType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};

constexpr int kTileRows = 16;

// A packed matrix: ceil(rows / 16) tiles, each `tile_bytes` long, one after another. Tile rows past
// `rows` are zero weights. A tile holds 16 rows over all of K in the order in which a product reads it.
struct PackedMatrix {
  WeightType type;
  int32_t rows;
  int32_t cols;
  int64_t tile_bytes;
  const uint8_t* data;
};

// Bytes of one stored row of `cols` values; 0 when the type is unknown or cols is not a multiple of its block.
int64_t stored_row_bytes(WeightType type, int64_t cols);

// Bytes of one packed tile of `cols` columns, a multiple of 64; 0 when the type has no kernel.
int64_t packed_tile_bytes(WeightType type, int64_t cols);

// Packs 16 stored rows into one tile. `rows[i]` points at a stored row, or is null for a row of zeros.
void pack_tile(WeightType type, const uint8_t* const rows[kTileRows], int64_t cols, uint8_t* tile);

// De-quantises one stored row to `cols` floats (embedding look-up, reference).
void dequantise_row(WeightType type, const uint8_t* row, int64_t cols, float* out);

}  // namespace vivace

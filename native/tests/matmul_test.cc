// Checks packing, de-quantising and the matrix products of every instruction set this processor has:
// against a decoder and a double-precision product written apart, for any number of rows and any split into
// tiles, with guard zones around every buffer. Exits with 1 and a line per failure.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "vivace/kernels.h"
#include "vivace/weights.h"

using namespace vivace;

namespace {

int failures = 0;

void fail(const std::string& what) {
  std::printf("FAIL %s\n", what.c_str());
  ++failures;
}

// A 64-byte aligned buffer between two zones of a known byte, checked on destruction.
template <class T>
class Guarded {
 public:
  Guarded(std::string name, size_t count) : name_(std::move(name)), bytes_(count * sizeof(T)) {
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, (bytes_ + 2 * kZone + 63) / 64 * 64));
    std::memset(memory_, kByte, bytes_ + 2 * kZone);
  }
  ~Guarded() {
    for (size_t i = 0; i < kZone; ++i) {
      if (memory_[i] != kByte || memory_[kZone + bytes_ + i] != kByte) {
        fail(name_ + ": written outside the buffer");
        break;
      }
    }
    std::free(memory_);
  }
  Guarded(const Guarded&) = delete;
  T* data() { return reinterpret_cast<T*>(memory_ + kZone); }
  T& operator[](size_t i) { return data()[i]; }
  static constexpr uint8_t kByte = 0xa5;

 private:
  static constexpr size_t kZone = 256;
  std::string name_;
  size_t bytes_;
  uint8_t* memory_;
};

// ---- an independent reading of the formats: one value at a time, in double ----

double half(const uint8_t* at) {
  const int bits = at[0] | at[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

const int kCodes[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

double value_at(WeightType type, const uint8_t* row, int k) {
  const int in32 = k % 32, in256 = k % 256;
  const auto nibble = [&](const uint8_t* bytes) { return in32 < 16 ? bytes[in32] & 15 : bytes[in32 - 16] >> 4; };
  switch (type) {
    case WeightType::kF32: {
      float value;
      std::memcpy(&value, row + 4 * k, 4);
      return value;
    }
    case WeightType::kF16: return half(row + 2 * k);
    case WeightType::kBF16: {
      const uint32_t bits = uint32_t(row[2 * k] | row[2 * k + 1] << 8) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
    case WeightType::kQ4_0: {
      const uint8_t* block = row + k / 32 * 18;
      return half(block) * (nibble(block + 2) - 8);
    }
    case WeightType::kQ4_1: {
      const uint8_t* block = row + k / 32 * 20;
      return half(block) * nibble(block + 4) + half(block + 2);
    }
    case WeightType::kQ5_0: {
      const uint8_t* block = row + k / 32 * 22;
      const int fifth = block[2 + in32 / 8] >> in32 % 8 & 1;
      return half(block) * (nibble(block + 6) + 16 * fifth - 16);
    }
    case WeightType::kQ5_1: {
      const uint8_t* block = row + k / 32 * 24;
      const int fifth = block[4 + in32 / 8] >> in32 % 8 & 1;
      return half(block) * (nibble(block + 8) + 16 * fifth) + half(block + 2);
    }
    case WeightType::kQ8_0: {
      const uint8_t* block = row + k / 32 * 34;
      return half(block) * static_cast<int8_t>(block[2 + in32]);
    }
    case WeightType::kQ2_K: {
      const uint8_t* block = row + k / 256 * 84;
      const int byte = block[16 + in256 / 128 * 32 + in32], field = block[in256 / 16];
      const int q = byte / (1 << in256 % 128 / 32 * 2) % 4;
      return half(block + 80) * (field % 16) * q - half(block + 82) * (field / 16);
    }
    case WeightType::kQ3_K: {
      const uint8_t* block = row + k / 256 * 110;
      const uint8_t* f = block + 96;
      const int s = in256 / 16, b = in256 / 32;
      const int low_bits = s < 8 ? f[s] % 16 : f[s - 8] / 16;
      const int high_bits = f[8 + s % 4] >> 2 * (s / 4) & 3;
      const int low = block[32 + in256 / 128 * 32 + in32] >> 2 * (b % 4) & 3;
      const int q = block[in32] >> b & 1 ? low : low - 4;
      return half(block + 108) * (low_bits + 16 * high_bits - 32) * q;
    }
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: {
      const bool five = type == WeightType::kQ5_K;
      const uint8_t* block = row + k / 256 * (five ? 176 : 144);
      const uint8_t* f = block + 4;
      const int b = in256 / 32;
      const int scale = b < 4 ? f[b] % 64 : f[b + 4] % 16 + f[b - 4] / 64 * 16;
      const int minimum = b < 4 ? f[b + 4] % 64 : f[b + 4] / 16 + f[b] / 64 * 16;
      const int byte = block[(five ? 48 : 16) + b / 2 * 32 + in32];
      const int q = (b % 2 ? byte / 16 : byte % 16) + (five ? (block[16 + in32] >> b & 1) * 16 : 0);
      return half(block) * scale * q - half(block + 2) * minimum;
    }
    case WeightType::kQ6_K: {
      const uint8_t* block = row + k / 256 * 210;
      const int in128 = in256 % 128, part = in128 / 32;
      const int low = block[in256 / 128 * 64 + part % 2 * 32 + in32];
      const int high = block[128 + in256 / 128 * 32 + in32] >> 2 * part & 3;
      const int q = (part < 2 ? low % 16 : low / 16) + 16 * high - 32;
      return half(block + 208) * static_cast<int8_t>(block[192 + in256 / 16]) * q;
    }
    case WeightType::kIQ4_NL: {
      const uint8_t* block = row + k / 32 * 18;
      return half(block) * kCodes[nibble(block + 2)];
    }
    case WeightType::kIQ4_XS: {
      const uint8_t* block = row + k / 256 * 136;
      const int b = in256 / 32;
      const int scale = (block[4 + b / 2] >> b % 2 * 4) % 16 + (block[2 + b / 4] >> b % 4 * 2) % 4 * 16;
      return half(block) * (scale - 32) * kCodes[nibble(block + 8 + 16 * b)];
    }
  }
  return NAN;
}

struct TypeInfo {
  WeightType type;
  const char* name;
  int block;
  std::vector<int> half_offsets;  // of the scales in a stored block
  int block_bytes;
};

const TypeInfo kTypes[] = {
    {WeightType::kF32, "F32", 1, {}, 4},
    {WeightType::kF16, "F16", 1, {}, 2},
    {WeightType::kBF16, "BF16", 1, {}, 2},
    {WeightType::kQ4_0, "Q4_0", 32, {0}, 18},
    {WeightType::kQ4_1, "Q4_1", 32, {0, 2}, 20},
    {WeightType::kQ5_0, "Q5_0", 32, {0}, 22},
    {WeightType::kQ5_1, "Q5_1", 32, {0, 2}, 24},
    {WeightType::kQ8_0, "Q8_0", 32, {0}, 34},
    {WeightType::kQ2_K, "Q2_K", 256, {80, 82}, 84},
    {WeightType::kQ3_K, "Q3_K", 256, {108}, 110},
    {WeightType::kQ4_K, "Q4_K", 256, {0, 2}, 144},
    {WeightType::kQ5_K, "Q5_K", 256, {0, 2}, 176},
    {WeightType::kQ6_K, "Q6_K", 256, {208}, 210},
    {WeightType::kIQ4_NL, "IQ4_NL", 32, {0}, 18},
    {WeightType::kIQ4_XS, "IQ4_XS", 256, {0}, 136},
};

bool is_float(const TypeInfo& info) { return info.block == 1; }

std::mt19937_64 generator(7);

uint16_t random_half() {  // magnitude 2^-10 .. 2^-5, sometimes subnormal or zero
  const auto bits = static_cast<uint16_t>(generator());
  if (generator() % 64 == 0) return 0;
  if (generator() % 64 == 0) return bits & 0x83ff;
  return static_cast<uint16_t>((bits & 0x83ff) | (5 + bits % 5) << 10);
}

void fill_stored(const TypeInfo& info, uint8_t* row, int cols) {
  const int64_t bytes = stored_row_bytes(info.type, cols);
  if (is_float(info)) {
    for (int k = 0; k < cols; ++k) {
      const float value = std::normal_distribution<float>()(generator);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      const auto narrow = info.type == WeightType::kBF16 ? static_cast<uint16_t>(bits >> 16) : random_half();
      if (info.type == WeightType::kF32) {
        std::memcpy(row + 4 * k, &value, 4);
      } else {
        std::memcpy(row + 2 * k, &narrow, 2);
      }
    }
    return;
  }
  const int codes = static_cast<int>(generator() % 8);  // at times all the least or all the largest
  for (int64_t i = 0; i < bytes; ++i) row[i] = codes == 0 ? 0 : codes == 1 ? 255 : static_cast<uint8_t>(generator());
  for (int64_t block = 0; block < bytes; block += info.block_bytes) {
    for (int offset : info.half_offsets) {
      const uint16_t scale = random_half();
      std::memcpy(row + block + offset, &scale, 2);
    }
  }
}

struct Case {
  const TypeInfo& info;
  int outputs, cols, rows;
  std::string name;
  Guarded<uint8_t> stored, packed;
  Guarded<float> f, d, bias;
  Guarded<int8_t> q;
  Guarded<int32_t> z, s;
  PackedMatrix matrix;
  Activations activations;

  Case(const TypeInfo& type, int n, int k, int m)
      : info(type),
        outputs(n),
        cols(k),
        rows(m),
        name(std::string(type.name) + " " + std::to_string(n) + "x" + std::to_string(k) + " rows " + std::to_string(m)),
        stored(name + " stored", n * stored_row_bytes(type.type, k)),
        packed(name + " packed", (n + 15) / 16 * packed_tile_bytes(type.type, k)),
        f(name + " f", m * (k + 3)),
        d(name + " d", m * (k / 32)),
        bias(name + " bias", n),
        q(name + " q", m * k),
        z(name + " z", m * (k / 32)),
        s(name + " s", m * (k / 16)) {
    generator.seed(static_cast<uint64_t>(info.type) + 1000003u * n + 1009u * k + m);  // whatever ran before
    const int64_t row_bytes = stored_row_bytes(info.type, cols), tile_bytes = packed_tile_bytes(info.type, cols);
    if (tile_bytes % 64 != 0) fail(name + ": tile is not a multiple of 64 bytes");
    for (int i = 0; i < outputs; ++i) fill_stored(info, stored.data() + i * row_bytes, cols);
    for (int tile = 0; tile * 16 < outputs; ++tile) {
      const uint8_t* tile_rows[kTileRows];
      for (int i = 0; i < kTileRows; ++i) {
        const int row = tile * 16 + i;
        tile_rows[i] = row < outputs ? stored.data() + row * row_bytes : nullptr;
      }
      pack_tile(info.type, tile_rows, cols, packed.data() + tile * tile_bytes);
    }
    std::normal_distribution<float> normal;
    for (int i = 0; i < rows * (cols + 3); ++i) f[i] = normal(generator);
    for (int i = 0; i < rows * cols; ++i) q[i] = static_cast<int8_t>(generator());
    for (int i = 0; i < rows * (cols / 32); ++i) z[i] = static_cast<int>(generator() % 256) - 127;
    for (int i = 0; i < std::min(rows * cols, 64); ++i) q[i] = 127;  // the largest dot products
    for (int i = 0; i < std::min(rows * (cols / 32), 2); ++i) z[i] = 128;
    for (int i = 0; i < rows * (cols / 32); ++i) d[i] = std::abs(normal(generator)) * 0.01f;
    for (int i = 0; i < rows * (cols / 16); ++i) {
      s[i] = 16 * z[i / 2];
      for (int j = 0; j < 16; ++j) s[i] += q[16 * i + j];
    }
    for (int i = 0; i < outputs; ++i) bias[i] = normal(generator);
    matrix = {info.type, outputs, cols, tile_bytes, packed.data()};
    activations = {f.data(), cols + 3, {q.data(), d.data(), z.data(), s.data()}, rows, cols};
  }

  int tiles() const { return (outputs + 15) / 16; }

  double activation(int row, int k) {
    if (is_float(info)) return f[row * (cols + 3) + k];
    const int block = row * (cols / 32) + k / 32;
    return double{d[block]} * (q[row * cols + k] + z[block]);
  }

  Activations first_rows(int begin, int count) {
    Activations a = activations;
    a.f += begin * a.f_stride;
    a.quantised.q += begin * cols;
    a.quantised.d += begin * (cols / 32);
    a.quantised.z += begin * (cols / 32);
    a.quantised.s += begin * (cols / 16);
    a.rows = count;
    return a;
  }
};

using Result = std::vector<float>;

// Runs the product with tiles split at `cuts` and gives [rows][outputs]; gaps between rows must stay as they were.
Result run(MatmulFn matmul, Case& c, const Activations& a, std::vector<int> cuts, bool with_bias) {
  const int stride = c.outputs + 5;
  Guarded<float> out(c.name + " out", (a.rows - 1) * stride + c.outputs);
  Guarded<uint8_t> scratch(c.name + " scratch", kMatmulScratch);
  cuts.push_back(c.tiles());
  int begin = 0;
  for (int end : cuts) {
    matmul(c.matrix, a, begin, end, with_bias ? c.bias.data() : nullptr, out.data(), stride, scratch.data());
    begin = end;
  }
  Result result;
  for (int r = 0; r < a.rows; ++r) {
    result.insert(result.end(), &out[r * stride], &out[r * stride] + c.outputs);
    for (int i = c.outputs; r + 1 < a.rows && i < stride; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &out[r * stride + i], 4);
      if (bits != 0xa5a5a5a5u) {
        fail(c.name + ": written between two rows of the output");
        return result;
      }
    }
  }
  return result;
}

bool same_bits(const Result& a, const Result& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Implementation {
  const char* isa;
  MatmulFn (*matmul)(WeightType);
};

std::vector<Implementation> implementations() {
  std::vector<Implementation> found;
  for (const char* isa : kIsas) {
    if (const Kernels* kernels = select_kernels(isa)) found.push_back({isa, kernels->matmul});
  }
  return found;
}

void check_accuracy(const TypeInfo& info, int outputs, int cols, int rows) {
  Case c(info, outputs, cols, rows);
  double largest = 0;
  std::vector<double> weights(cols);
  std::vector<double> exact(rows * outputs);
  for (int n = 0; n < outputs; ++n) {
    for (int k = 0; k < cols; ++k) {
      weights[k] = value_at(info.type, c.stored.data() + n * stored_row_bytes(info.type, cols), k);
    }
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int k = 0; k < cols; ++k) sum += weights[k] * c.activation(r, k);
      exact[r * outputs + n] = sum;
      largest = std::max(largest, std::abs(sum));
    }
  }
  for (const Implementation& implementation : implementations()) {
    for (bool with_bias : {false, true}) {
      const Result result = run(implementation.matmul(info.type), c, c.activations, {}, with_bias);
      double worst = 0;
      for (size_t i = 0; i < result.size(); ++i) {
        const double error = std::abs(result[i] - exact[i] - (with_bias ? c.bias[i % outputs] : 0.0f));
        worst = error <= worst ? worst : error;  // NaN counts as an error
      }
      // Float weights round once a column, the others once a block. A bias adds one rounding of a result that
      // may exceed the largest product.
      const double roundings = is_float(info) ? std::max(1.0, std::sqrt(cols / 1024.0)) : 1;
      const double limit = 1e-6 * roundings * largest + (with_bias ? 5e-7 : 0);
      if (!(worst <= limit)) {
        fail(c.name + " " + implementation.isa + ": error " + std::to_string(worst / largest * 1e6) +
             "e-6 of the largest value");
      }
    }
  }
}

void check_invariance(const TypeInfo& info, int outputs, int cols, const Implementation& implementation,
                      const std::vector<int>& row_counts) {
  const int most = row_counts.back();
  Case c(info, outputs, cols, most);
  const MatmulFn matmul = implementation.matmul(info.type);
  Result single;
  for (int r = 0; r < most; ++r) {
    const Result row = run(matmul, c, c.first_rows(r, 1), {}, true);
    single.insert(single.end(), row.begin(), row.end());
  }
  for (int rows : row_counts) {
    const int begin = (most - rows) / 2;
    const Result expected(single.begin() + begin * outputs, single.begin() + (begin + rows) * outputs);
    if (!same_bits(run(matmul, c, c.first_rows(begin, rows), {}, true), expected)) {
      fail(c.name + " " + implementation.isa + ": " + std::to_string(rows) + " rows differ from rows alone");
    }
    if (!same_bits(run(matmul, c, c.first_rows(begin, rows), {0, 1, c.tiles() / 2}, true), expected)) {
      fail(c.name + " " + implementation.isa + ": " + std::to_string(rows) + " rows differ when tiles are split");
    }
  }
}

void check_dequantise(const TypeInfo& info) {
  const int cols = info.block * 5;
  Guarded<uint8_t> row("row", stored_row_bytes(info.type, cols));
  Guarded<float> out(std::string(info.name) + " values", cols);
  for (int trial = 0; trial < 200; ++trial) {
    fill_stored(info, row.data(), cols);
    dequantise_row(info.type, row.data(), cols, out.data());
    for (int k = 0; k < cols; ++k) {
      const double exact = value_at(info.type, row.data(), k);
      // Scale times minimum or value rounds at most twice; the terms are below 1/32 * 63 * 32.
      if (!(std::abs(out[k] - exact) <= 1.2e-7 * (std::abs(exact) + (info.half_offsets.size() == 2 ? 64 : 0)))) {
        return fail(std::string(info.name) + ": de-quantised value " + std::to_string(k) + " is " +
                    std::to_string(out[k]) + " instead of " + std::to_string(exact));
      }
    }
  }
}

void check_sizes() {
  if (stored_row_bytes(WeightType::kQ4_K, 640) != 0) fail("Q4_K rows of 640 columns must be refused");
  if (stored_row_bytes(static_cast<WeightType>(99), 256) != 0) fail("an unknown type must be refused");
  if (stored_row_bytes(WeightType::kQ5_0, -32) != 0) fail("negative columns must be refused");
  if (packed_tile_bytes(WeightType::kQ4_K, 1 << 20) != 0) fail("rows too long for the scratch memory must be refused");
  if (packed_tile_bytes(static_cast<WeightType>(16), 256) != 0) fail("a type without kernels must be refused");
  for (const TypeInfo& info : kTypes) {
    const int64_t stored = 16 * stored_row_bytes(info.type, 1536), packed = packed_tile_bytes(info.type, 1536);
    const double growth = info.type == WeightType::kQ3_K ? 1.02 : 1.01;  // wide scales
    if (packed < stored || packed > stored * growth) fail(std::string(info.name) + ": packing grows by too much");
  }
}

}  // namespace

int main() {
  const std::vector<int> all_rows{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 64, 65, 100, 512};
  check_sizes();
  for (const TypeInfo& info : kTypes) {
    check_dequantise(info);
    const int b = info.block;
    check_accuracy(info, 1, b, 1);
    check_accuracy(info, 37, b * 3, 3);
    check_accuracy(info, 16, b == 1 ? 577 : b * 5, 13);
    check_accuracy(info, 50, b == 256 ? 1536 : 896, 19);
    check_accuracy(info, 33, b == 256 ? 8960 : 4864, 9);
    for (const Implementation& implementation : implementations()) {
      const bool fast = std::string(implementation.isa) != "portable";
      const std::vector<int> rows = fast ? all_rows : std::vector<int>{1, 2, 3, 8, 17, 70};
      check_invariance(info, 37, b == 1 ? 129 : b == 32 ? 544 + 32 : 768, implementation, rows);
      check_invariance(info, 37, b == 1 ? 131 : b == 32 ? 17 * 32 : 256, implementation, rows);
      // Factors of 64 rows no longer fit in the scratch memory.
      if (b > 1) check_invariance(info, 21, 256 * 60, implementation, {1, 5, 16, 64});
    }
    std::printf("%s checked\n", info.name);
  }
  std::printf(failures ? "%d failures\n" : "all good\n", failures);
  return failures ? 1 : 0;
}

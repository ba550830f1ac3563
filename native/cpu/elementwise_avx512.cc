#include "elementwise_kernel.h"
#include "simd_avx512.h"

namespace vivace::avx512 {
namespace {

constexpr int kLanes = Simd::kLanes;

// The largest number of each of four vectors, as integers: throughout lane i of 128 bits that of vector i.
inline __m512i largest_of_each(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_max_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  const __m512i cd = _mm512_max_epi32(_mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee));
  __m512i top = _mm512_max_epi32(_mm512_shuffle_i64x2(ab, cd, 0x88), _mm512_shuffle_i64x2(ab, cd, 0xdd));
  top = _mm512_max_epi32(top, _mm512_shuffle_epi32(top, _MM_PERM_BADC));
  return _mm512_max_epi32(top, _mm512_shuffle_epi32(top, _MM_PERM_CDAB));
}

// x / step to the nearest integer. The remainder of a first guess corrects it to what a division would give.
inline __m512i divide(__m512 x, __m512 step, __m512 inverse, __mmask16 usable) {
  const __m512 guess = _mm512_mul_ps(x, inverse);
  const __m512 ratio = _mm512_fmadd_ps(_mm512_fnmadd_ps(guess, step, x), inverse, guess);
  return _mm512_maskz_cvtps_epi32(usable, ratio);
}

// Two blocks at a time; an odd last one goes with a block of zeros that is not stored. In vectors of 128-bit lanes
// the first two belong to the first block.
void quantise(const float* x, int32_t n, const Quantised& into) {
  const __m512i by_vector = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  const int32_t blocks = n / kQuantBlock;
  for (int32_t block = 0; block < blocks; block += 2) {
    const bool pair = block + 1 < blocks;
    __m512 values[4];
    __m512i above[2], below[2];  // magnitudes as integers order like floats, with NaN above infinity
    for (int i = 0; i < 2; ++i) {
      above[i] = below[i] = _mm512_setzero_si512();
      for (int j = 0; j < 2; ++j) {
        const int at = 2 * i + j;
        values[at] = _mm512_maskz_loadu_ps(i == 0 || pair ? 0xffff : 0, x + block * kQuantBlock + at * kLanes);
        const __m512i bits = _mm512_castps_si512(values[at]);
        above[i] = _mm512_max_epi32(above[i], bits);
        below[i] = _mm512_max_epi32(below[i], _mm512_xor_si512(bits, sign));
      }
    }
    const __m512 extents = _mm512_castsi512_ps(largest_of_each(above[0], below[0], above[1], below[1]));
    const __m512 parts = _mm512_div_ps(extents, _mm512_set1_ps(kLevels));
    __m512 step = _mm512_add_ps(parts, _mm512_shuffle_f32x4(parts, parts, 0xb1));
    const __mmask16 normal = _mm512_cmpge_epi32_mask(_mm512_castps_si512(step), _mm512_set1_epi32(kLeastScale));
    const __mmask16 usable =
        _mm512_mask_cmplt_epi32_mask(normal, _mm512_castps_si512(step), _mm512_set1_epi32(kInfinity));
    step = _mm512_maskz_mov_ps(normal, step);
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), step);
    const __m512i least = divide(_mm512_shuffle_f32x4(extents, extents, 0xf5), step, inverse, usable);
    const __m512i zero = _mm512_maskz_sub_epi32(usable, _mm512_set1_epi32(128), least);

    __m512i levels[4];
    for (int i = 0; i < 4; ++i) {
      const auto spread = [&](__m512 lanes) {
        return i < 2 ? _mm512_shuffle_f32x4(lanes, lanes, 0x00) : _mm512_shuffle_f32x4(lanes, lanes, 0xaa);
      };
      const __mmask16 all = usable >> (i < 2 ? 0 : 8) & 1 ? 0xffff : 0;
      levels[i] = _mm512_sub_epi32(divide(values[i], spread(step), spread(inverse), all),
                                   _mm512_castps_si512(spread(_mm512_castsi512_ps(zero))));
    }
    const __m512i bytes = _mm512_permutexvar_epi32(
        by_vector,
        _mm512_packs_epi16(_mm512_packs_epi32(levels[0], levels[1]), _mm512_packs_epi32(levels[2], levels[3])));
    _mm512_mask_storeu_epi8(into.q + block * kQuantBlock, pair ? ~__mmask64{0} : 0xffffffff, bytes);

    const auto one_of_each = [](__m512i lanes) {
      return _mm_unpacklo_epi32(_mm512_castsi512_si128(lanes), _mm512_extracti32x4_epi32(lanes, 2));
    };
    const __mmask8 stored = pair ? 3 : 1;
    _mm_mask_storeu_ps(into.d + block, stored, _mm_castsi128_ps(one_of_each(_mm512_castps_si512(step))));
    _mm_mask_storeu_epi32(into.z + block, stored, one_of_each(zero));

    // Each lane of 128 bits is one sum block, whose four numbers bring a quarter of its zero points each.
    __m512i sums = _mm512_dpbusd_epi32(_mm512_slli_epi32(zero, 2), _mm512_set1_epi8(1), bytes);
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
    const __m128i four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(by_vector, sums));
    _mm_mask_storeu_epi32(into.s + block * (kQuantBlock / kSumBlock), pair ? 0xf : 3, four);
  }
}

}  // namespace

void set_elementwise(Kernels& kernels) {
  set_elementwise_of<Simd>(kernels);
  kernels.quantise = quantise;
}

}  // namespace vivace::avx512

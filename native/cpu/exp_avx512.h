// Exponential and hyperbolic tangent of 16 floats.
#pragma once
#include "intrinsics.h"

namespace vivace::avx512 {

// Below 1 ulp for x <= 89; exact 1 at 0; 0 at -inf; NaN stays NaN.
static inline __m512 exp16_below(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // exp(-104) rounds to 0; a NaN as second operand stays
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts; the product of n with the first is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
  __m512 p = _mm512_set1_ps(0.0013926184f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00836317893f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0416665561f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.166665763f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// The same for any x; +inf above 88.7.
static inline __m512 exp16(__m512 x) { return exp16_below(_mm512_min_ps(_mm512_set1_ps(89.0f), x)); }

// Below 1.5 ulp; odd; NaN stays NaN.
static inline __m512 tanh16(__m512 x) {
  const __m512 size = _mm512_abs_ps(x);
  const __m512 square = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-0.00609671418f);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(0.0209971797f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-0.0538509078f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(0.133327693f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-0.333333284f));
  const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, square), x, x);
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 denominator = _mm512_add_ps(exp16(_mm512_add_ps(size, size)), one);
  const __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), denominator));
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  const __mmask16 is_large = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_GE_OQ);
  return _mm512_or_ps(_mm512_mask_mov_ps(small, is_large, large), sign);  // the sign of -0 too
}

}  // namespace vivace::avx512

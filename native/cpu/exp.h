// Exponential and hyperbolic tangent of a vector of floats.
#pragma once

namespace vivace {

// Below 1 ulp (2 without fused multiply-add) for x <= 89; exact 1 at 0; 0 at -inf; NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::Floats exp_below(typename V::Floats x) {
  x = V::max(V::set(-104.0f), x);  // exp(-104) rounds to 0; a NaN as second operand stays
  const auto n = V::round(x * V::set(0x1.715476p+0f));
  // ln 2 in two parts; the product of n with the first is exact.
  auto r = V::fnma(n, V::set(0x1.62e4p-1f), x);
  r = V::fnma(n, V::set(0x1.7f7d1cp-20f), r);
  auto p = V::set(0.0013926184f);
  p = V::fma(p, r, V::set(0.00836317893f));
  p = V::fma(p, r, V::set(0.0416665561f));
  p = V::fma(p, r, V::set(0.166665763f));
  p = V::fma(p, r, V::set(0.5f));
  p = V::fma(p, r, V::set(1.0f));
  p = V::fma(p, r, V::set(1.0f));
  return V::scale(p, n);
}

// The same for any x; +inf above 88.7.
template <class V>
[[gnu::always_inline]] inline typename V::Floats exp(typename V::Floats x) {
  return exp_below<V>(V::min(V::set(89.0f), x));
}

// Below 1.5 ulp; odd; NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::Floats tanh(typename V::Floats x) {
  const auto size = V::magnitude(x);
  const auto square = x * x;
  auto p = V::set(-0.00609671418f);
  p = V::fma(p, square, V::set(0.0209971797f));
  p = V::fma(p, square, V::set(-0.0538509078f));
  p = V::fma(p, square, V::set(0.133327693f));
  p = V::fma(p, square, V::set(-0.333333284f));
  const auto small = V::fma(p * square, x, x);
  const auto one = V::set(1.0f);
  const auto large = one - V::set(2.0f) / (exp<V>(size + size) + one);
  return V::with_sign_of(V::where_at_least(size, V::set(0.625f), large, small), x);  // the sign of -0 too
}

}  // namespace vivace

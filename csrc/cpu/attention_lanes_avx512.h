// What attention needs of sixteen fp32 lanes beyond vec_avx512.h.
#pragma once

#include "vec_avx512.h"

namespace xyserve {
namespace {

struct LanesAvx512 : VecAvx512 {
  static constexpr int kColumns = 4;
  static constexpr int kSubs = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static bool any_above(F v, float limit) {
    return _mm512_cmp_ps_mask(v, set1(limit), _CMP_GT_OQ) != 0;
  }
  // exp for x up to kSlack: without the upper clamp, and 2^n as one addition to the exponent.
  static F exp_below(F x) {
    x = _mm512_max_ps(set1(kExpMin), x);  // NaN stays
    const F magic = set1(0x1.8p23f);
    const F shifted = fma(x, set1(kLog2E), magic);
    const F n = sub(shifted, magic);
    F r = _mm512_fnmadd_ps(n, set1(kLn2Hi), x);
    r = _mm512_fnmadd_ps(n, set1(kLn2Lo), r);
    F p = fma(set1(kExpC6), r, set1(kExpC5));
    p = fma(p, r, set1(kExpC4));
    p = fma(p, r, set1(kExpC3));
    p = fma(p, r, set1(kExpC2));
    p = fma(p, mul(r, r), add(r, one()));
    const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
  }
  static float reduce_max(F v) { return _mm512_reduce_max_ps(v); }

  // See attention_lanes_scalar.h.
  static F load_even(const float* p, int64_t, int j) { return _mm512_loadu_ps(p + 16 * j); }
  static F load_odd(const float* p, int64_t count, int j) {
    return _mm512_loadu_ps(p + count + 16 * j);
  }
  static F load_even(const Bf16* p, int64_t, int j) { return VecAvx512::load_even(p + 32 * j); }
  static F load_odd(const Bf16* p, int64_t, int j) { return VecAvx512::load_odd(p + 32 * j); }
  static F load_even(const F16* p, int64_t, int j) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(p + 32 * j)));
  }
  static F load_odd(const F16* p, int64_t, int j) {
    const __m512i pairs = _mm512_loadu_si512(p + 32 * j);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
  }

  template <class T>
  static int64_t offset(int64_t d) {
    return sizeof(T) == 4 ? d : 2 * d;
  }
};

}  // namespace
}  // namespace xyserve

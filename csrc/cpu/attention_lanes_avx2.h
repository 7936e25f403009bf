// What attention needs of eight fp32 lanes beyond vec_avx2.h.
#pragma once

#include "vec_avx2.h"

namespace xyserve {
namespace {

struct LanesAvx2 : VecAvx2 {
  static constexpr int kColumns = 2;
  static constexpr int kSubs = 1;

  static F zero() { return _mm256_setzero_ps(); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static bool any_above(F v, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(v, set1(limit), _CMP_GT_OQ)) != 0;
  }
  // exp for x up to kSlack: without the upper clamp, and 2^n as one factor.
  static F exp_below(F x) {
    x = _mm256_max_ps(set1(kExpMin), x);  // NaN stays
    const F magic = set1(0x1.8p23f);
    const F shifted = fma(x, set1(kLog2E), magic);
    const F n = sub(shifted, magic);
    F r = _mm256_fnmadd_ps(n, set1(kLn2Hi), x);
    r = _mm256_fnmadd_ps(n, set1(kLn2Lo), r);
    F p = fma(set1(kExpC6), r, set1(kExpC5));
    p = fma(p, r, set1(kExpC4));
    p = fma(p, r, set1(kExpC3));
    p = fma(p, r, set1(kExpC2));
    p = fma(p, mul(r, r), add(r, one()));
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
  }
  static float reduce_max(F v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }

  // See attention_lanes_scalar.h.
  static F load_even(const float* p, int64_t, int j) { return _mm256_loadu_ps(p + 8 * j); }
  static F load_odd(const float* p, int64_t count, int j) {
    return _mm256_loadu_ps(p + count + 8 * j);
  }
  static F load_even(const Bf16* p, int64_t, int j) { return VecAvx2::load_even(p + 16 * j); }
  static F load_odd(const Bf16* p, int64_t, int j) { return VecAvx2::load_odd(p + 16 * j); }
  static F load_even(const F16* p, int64_t, int j) {
    return widen(_mm256_and_si256(pairs(p, j), _mm256_set1_epi32(0xFFFF)));
  }
  static F load_odd(const F16* p, int64_t, int j) {
    return widen(_mm256_srli_epi32(pairs(p, j), 16));
  }

  template <class T>
  static int64_t offset(int64_t d) {
    return sizeof(T) == 4 ? d : 2 * d;
  }

 private:
  static __m256i pairs(const F16* p, int j) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * j));
  }
  // Eight 32-bit lanes that hold fp16 bits.
  static F widen(__m256i lanes) {
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    return _mm256_cvtph_ps(packed);
  }
};

}  // namespace
}  // namespace xyserve

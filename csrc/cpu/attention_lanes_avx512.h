// What attention needs of sixteen fp32 lanes beyond vec_avx512.h.
#pragma once

#include "vec_avx512.h"

namespace xyserve {
namespace {

struct LanesAvx512 : VecAvx512 {
  // 4 rows x 4 vectors of sums, 2 x 4 widened operands and 2 broadcasts: 26 of 32 registers.
  static constexpr int kRows = 4;
  static constexpr int kColumns = 4;
  static constexpr int kSubs = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float v) { return _mm512_set1_ps(v); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static float reduce_max(F v) { return _mm512_reduce_max_ps(v); }

  // See attention_lanes_scalar.h.
  static void load_pair(const float* p, int64_t count, int j, F* even, F* odd) {
    *even = _mm512_loadu_ps(p + 16 * j);
    *odd = _mm512_loadu_ps(p + count + 16 * j);
  }
  static void load_pair(const Bf16* p, int64_t, int j, F* even, F* odd) {
    const __m512i pairs = _mm512_loadu_si512(p + 32 * j);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }
  static void load_pair(const F16* p, int64_t, int j, F* even, F* odd) {
    const __m512i pairs = _mm512_loadu_si512(p + 32 * j);
    *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
  }

  template <class T>
  static int64_t offset(int64_t d) {
    return sizeof(T) == 4 ? d : 2 * d;
  }
};

}  // namespace
}  // namespace xyserve

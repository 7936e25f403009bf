// What attention needs of eight fp32 lanes beyond vec_avx2.h.
#pragma once

#include "vec_avx2.h"

namespace xyserve {
namespace {

struct LanesAvx2 : VecAvx2 {
  // 4 rows x 2 vectors of sums, 2 x 2 widened operands and 2 broadcasts: 14 of 16 registers.
  static constexpr int kRows = 4;
  static constexpr int kColumns = 2;
  static constexpr int kSubs = 1;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float v) { return _mm256_set1_ps(v); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static float reduce_max(F v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }

  // See attention_lanes_scalar.h.
  static void load_pair(const float* p, int64_t count, int j, F* even, F* odd) {
    *even = _mm256_loadu_ps(p + 8 * j);
    *odd = _mm256_loadu_ps(p + count + 8 * j);
  }
  static void load_pair(const Bf16* p, int64_t, int j, F* even, F* odd) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * j));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }
  static void load_pair(const F16* p, int64_t, int j, F* even, F* odd) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * j));
    const __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF));
    *even = widen(low);
    *odd = widen(_mm256_srli_epi32(pairs, 16));
  }

  template <class T>
  static int64_t offset(int64_t d) {
    return sizeof(T) == 4 ? d : 2 * d;
  }

 private:
  // Eight 32-bit lanes that hold fp16 bits.
  static F widen(__m256i lanes) {
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    return _mm256_cvtph_ps(packed);
  }
};

}  // namespace
}  // namespace xyserve

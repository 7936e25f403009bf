// Eight fp32 lanes with AVX2, FMA and F16C. Internal linkage: see the note in vec_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "exp_poly.h"
#include "xyserve/dtype.h"

namespace xyserve {
namespace {

struct VecAvx2 {
  using F = __m256;
  static constexpr int64_t kWidth = 8;

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const Bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void store(Bf16* p, F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void store(F16* p, F v) {
    const __m128i half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  }

  static F set1(float v) { return _mm256_set1_ps(v); }
  static F broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  // Of two values that lie together per lane, the first or the second.
  static F load_even(const Bf16* p) {
    return even(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_odd(const Bf16* p) {
    return odd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static int32_t round_to_int(float v) { return _mm_cvtss_si32(_mm_set_ss(v)); }
  // round(v) + zero, kept within 0 to 255; to nearest even.
  static void store_quantized(uint8_t* p, F v, int32_t zero) {
    const F bound = _mm256_set1_ps(65536.0f);
    const F bounded = _mm256_max_ps(negate(bound), _mm256_min_ps(bound, v));
    const __m256i q = _mm256_add_epi32(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(zero));
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F one() { return _mm256_set1_ps(1.0f); }
  static F negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

  static F exp(F x) {
    // The constant comes first: with a NaN in either operand these return the second one.
    x = _mm256_max_ps(_mm256_set1_ps(kExpMin), x);
    x = _mm256_min_ps(_mm256_set1_ps(kExpMax), x);
    const F n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)),
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    F r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Hi), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Lo), r);
    F p = _mm256_fmadd_ps(_mm256_set1_ps(kExpC6), r, _mm256_set1_ps(kExpC5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC2));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, one());
    // 2^n in two factors, since 2^128 is no fp32 number but 2^128 * 0.99 may be the result.
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, pow2(half)), pow2(_mm256_sub_epi32(whole, half)));
  }

 private:
  static F even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static F odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }
  static F pow2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace
}  // namespace xyserve

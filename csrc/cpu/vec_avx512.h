// Sixteen fp32 lanes with AVX-512 (F, BW, DQ, VL). Internal linkage: see the note in vec_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "exp_poly.h"
#include "xyserve/dtype.h"

namespace xyserve {
namespace {

struct VecAvx512 {
  using F = __m512;
  static constexpr int64_t kWidth = 16;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const Bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store(Bf16* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(v));
  }
  static void store(F16* p, F v) {
    const __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  }

  static F set1(float v) { return _mm512_set1_ps(v); }
  static F broadcast(const float* p) { return _mm512_set1_ps(*p); }
  // Of two values that lie together per lane, the first or the second.
  static F load_even(const Bf16* p) { return even(_mm512_loadu_si512(p)); }
  static F load_odd(const Bf16* p) { return odd(_mm512_loadu_si512(p)); }

  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static int32_t round_to_int(float v) { return _mm_cvtss_si32(_mm_set_ss(v)); }
  // round(v) + zero, kept within 0 to 255; to nearest even.
  static void store_quantized(uint8_t* p, F v, int32_t zero) {
    // One bound is enough: what is below INT_MIN, and NaN, converts to INT_MIN and ends as 0.
    const F bounded = _mm512_min_ps(_mm512_set1_ps(65536.0f), v);
    const __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(bounded), _mm512_set1_epi32(zero));
    const __m512i positive = _mm512_max_epi32(q, _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(positive));
  }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F one() { return _mm512_set1_ps(1.0f); }
  static F negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }

  static F exp(F x) {
    // The constant comes first: with a NaN in either operand these return the second one.
    x = _mm512_max_ps(_mm512_set1_ps(kExpMin), x);
    x = _mm512_min_ps(_mm512_set1_ps(kExpMax), x);
    const F n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    F r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Hi), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Lo), r);
    F p = _mm512_fmadd_ps(_mm512_set1_ps(kExpC6), r, _mm512_set1_ps(kExpC5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC2));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, one());
    return _mm512_scalef_ps(p, n);
  }

  // To nearest even in integers; subnormals are kept and NaN is quieted.
  static __m256i round_to_bf16(F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }

 private:
  static F even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static F odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }
};

}  // namespace
}  // namespace xyserve

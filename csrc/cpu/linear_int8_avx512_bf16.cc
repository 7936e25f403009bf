#include "linear_int8.h"
#include "quantize_rows.h"
#include "vec_avx512_bf16.h"

namespace xyserve {
namespace {

// vpdpbusd: four products per lane and step (every CPU with AVX-512-BF16 has VNNI).
struct Int8Vnni {
  using V = VecAvx512Bf16;
  using Sum = __m512i;
  using A = __m512i;
  using B = __m512i;
  using X = uint8_t;
  static constexpr int kVecs = 2;
  static constexpr int kParts = 1;
  static constexpr int64_t kGroup = 32;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxRowsSingle = 12;
  static constexpr int64_t kPairedRows = INT64_MAX;

  static Sum zero() { return _mm512_setzero_si512(); }
  static A load_a(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  static B load_b(const int8_t* p, int v) {
    return _mm512_loadu_si512(p + v * V::kWidth * kInt8Step);
  }
  static void multiply_add(A a, B b, Sum* sum) { *sum = _mm512_dpbusd_epi32(*sum, a, b); }
  static V::F without_zero(const Sum* sum, int32_t zero, const int32_t* sums) {
    const __m512i shift = _mm512_mullo_epi32(_mm512_set1_epi32(zero), _mm512_loadu_si512(sums));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(*sum, shift));
  }
};

}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_INT8(Int8Vnni, VecAvx512Bf16, avx512_bf16)

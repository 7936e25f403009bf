#include "linear_int8.h"
#include "quantize_rows.h"
#include "vec_avx512.h"

namespace xyserve {
namespace {

// As in linear_int8_avx2.cc, twice as wide.
struct Int8Avx512 {
  using V = VecAvx512;
  using Sum = __m512i;
  using A = __m512i;
  using B = __m512i;
  using X = uint8_t;
  static constexpr int kVecs = 1;
  static constexpr int kParts = 2;
  static constexpr int64_t kGroup = 16;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxRowsSingle = 8;
  static constexpr int64_t kPairedRows = INT64_MAX;

  static Sum zero() { return _mm512_setzero_si512(); }
  static A load_a(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm512_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(four)));
  }
  static B load_b(const int8_t* p, int part) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + part));
  }
  static void multiply_add(A a, B b, Sum* sum) {
    *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(a, b));
  }
  static V::F without_zero(const Sum* sum, int32_t zero, const int32_t* sums) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i whole = _mm512_add_epi32(_mm512_permutex2var_epi32(sum[0], even, sum[1]),
                                           _mm512_permutex2var_epi32(sum[0], odd, sum[1]));
    const __m512i shift = _mm512_mullo_epi32(_mm512_set1_epi32(zero), _mm512_loadu_si512(sums));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(whole, shift));
  }
};

}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_INT8(Int8Avx512, VecAvx512, avx512)

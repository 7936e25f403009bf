#include "linear_int8.h"
#include "quantize_rows.h"
#include "vec_avx2.h"

namespace xyserve {
namespace {

// Widened to 16 bits for vpmaddwd: vpmaddubsw would saturate at 2 * 255 * 127. A column's sum is
// in two lanes until the end.
struct Int8Avx2 {
  using V = VecAvx2;
  struct Sum {
    __m256i low;
    __m256i high;
  };
  using A = __m256i;
  using B = Sum;
  static constexpr int kVecs = 1;
  static constexpr int64_t kGroup = 8;
  static constexpr int kMaxRows = 3;
  static constexpr int kMaxRowsSingle = 6;

  static Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static A load_a(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(four)));
  }
  static B load_b(const int8_t* p, int v) {
    const __m128i* half = reinterpret_cast<const __m128i*>(p + v * V::kWidth * kInt8Step);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(half)),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(half + 1))};
  }
  static void multiply_add(A a, const B& b, Sum* sum) {
    sum->low = _mm256_add_epi32(sum->low, _mm256_madd_epi16(a, b.low));
    sum->high = _mm256_add_epi32(sum->high, _mm256_madd_epi16(a, b.high));
  }
  static V::F without_zero(const Sum& sum, int32_t zero, const int32_t* sums) {
    const __m256i whole =
        _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum.low, sum.high), _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i shift = _mm256_mullo_epi32(
        _mm256_set1_epi32(zero), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(whole, shift));
  }
};

}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_INT8(Int8Avx2, VecAvx2, avx2)

#include "linear_int8.h"
#include "quantize_rows.h"
#include "vec_avx2.h"

namespace xyserve {
namespace {

// Widened to 16 bits for vpmaddwd: vpmaddubsw would saturate at 2 * 255 * 127. A column's sum is
// in two lanes until the end, so in two parts. Two column groups at once pay while rows are few.
struct Int8Avx2 {
  using V = VecAvx2;
  using Sum = __m256i;
  using X = int16_t;
  using A = __m256i;
  using B = __m256i;
  static constexpr int kVecs = 1;
  static constexpr int kParts = 2;
  static constexpr int64_t kGroup = 8;
  static constexpr int kMaxRows = 2;
  static constexpr int kMaxRowsSingle = 5;
  static constexpr int64_t kPairedRows = 2;

  static Sum zero() { return _mm256_setzero_si256(); }
  static A load_a(const int16_t* p) {
    int64_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi64x(four);
  }
  static B load_b(const int8_t* p, int part) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + part));
  }
  static void multiply_add(A a, B b, Sum* sum) {
    Sum total = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
    // In this order: GCC would compute the products of all rows first, and then keep a sum in
    // memory, where adding to it takes ten cycles a step.
    asm volatile("" : "+x"(total));
    *sum = total;
  }
  static V::F without_zero(const Sum* sum, int32_t zero, const int32_t* sums) {
    const __m256i whole =
        _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[0], sum[1]), _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i shift = _mm256_mullo_epi32(
        _mm256_set1_epi32(zero), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(whole, shift));
  }
};

}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_INT8(Int8Avx2, VecAvx2, avx2)

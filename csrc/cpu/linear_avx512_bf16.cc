#include "linear.h"
#include "vec_avx512_bf16.h"

namespace xyserve {
namespace {

// vdpbf16ps: two products per lane and step, summed in fp32 (subnormals count as zero).
struct DotAvx512Bf16 : DotBase<VecAvx512Bf16, Bf16> {
  using X = Bf16;
  using A = __m512bh;
  using B = __m512bh;
  static constexpr int64_t kStep = 2;
  static constexpr int kPhases = 1;

  static B load_b(const Bf16* p, int v, EvenPhase) {
    return bits(_mm512_loadu_si512(p + v * VecAvx512Bf16::kWidth * 2));
  }
  static A load_a(const Bf16* p, EvenPhase) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return bits(_mm512_set1_epi32(pair));
  }
  // What follows the last value of a row may be anything, NaN too: it is not read.
  static A load_last_a(const Bf16* p, EvenPhase) { return bits(_mm512_set1_epi32(p->bits)); }
  static F multiply_add(A a, B b, F sum) { return _mm512_dpbf16_ps(sum, a, b); }

 private:
  static __m512bh bits(__m512i value) {
    __m512bh result;
    __builtin_memcpy(&result, &value, sizeof(result));
    return result;
  }
};

}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_LINEAR(DotAvx512Bf16, avx512_bf16, bf16)

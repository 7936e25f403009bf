#include "linear_int8.h"
#include "quantize_rows.h"
#include "vec_scalar.h"

namespace xyserve {
namespace {

struct Int8Scalar {
  using V = VecScalar;
  using Sum = int32_t;
  using A = const uint8_t*;
  using B = const int8_t*;
  using X = uint8_t;
  static constexpr int kVecs = 8;
  static constexpr int kParts = 1;
  static constexpr int64_t kGroup = 8;
  static constexpr int kMaxRows = 2;
  static constexpr int kMaxRowsSingle = 2;
  static constexpr int64_t kPairedRows = INT64_MAX;

  static Sum zero() { return 0; }
  static A load_a(const uint8_t* p) { return p; }
  static B load_b(const int8_t* p, int v) { return p + v * kInt8Step; }
  static void multiply_add(A a, B b, Sum* sum) {
    for (int i = 0; i < kInt8Step; ++i) {
      *sum += static_cast<int32_t>(a[i]) * b[i];
    }
  }
  static float without_zero(const Sum* sum, int32_t zero, const int32_t* sums) {
    return static_cast<float>(*sum - zero * sums[0]);
  }
};

}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_INT8(Int8Scalar, VecScalar, scalar)

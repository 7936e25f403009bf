#include "linear.h"
#include "vec_avx2.h"

namespace xyserve {
namespace {
template <class T>
using DotAvx2 = Dot<VecAvx2, T>;
}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_LINEAR(DotAvx2<float>, avx2, f32)
XYSERVE_DEFINE_LINEAR(DotAvx2<Bf16>, avx2, bf16)
XYSERVE_DEFINE_LINEAR(DotAvx2<F16>, avx2, f16)

#include "linear.h"
#include "vec_avx512.h"

namespace xyserve {
namespace {
template <class T>
using DotAvx512 = Dot<VecAvx512, T>;
}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_LINEAR(DotAvx512<float>, avx512, f32)
XYSERVE_DEFINE_LINEAR(DotAvx512<Bf16>, avx512, bf16)
XYSERVE_DEFINE_LINEAR(DotAvx512<F16>, avx512, f16)

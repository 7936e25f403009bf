#include "linear.h"
#include "vec_scalar.h"

namespace xyserve {
namespace {
template <class T>
using DotScalar = Dot<VecScalar, T>;
}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_LINEAR(DotScalar<float>, scalar, f32)
XYSERVE_DEFINE_LINEAR(DotScalar<Bf16>, scalar, bf16)
XYSERVE_DEFINE_LINEAR(DotScalar<F16>, scalar, f16)

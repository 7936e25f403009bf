#include "attention_generic.h"
#include "attention_lanes_scalar.h"

namespace xyserve {
namespace {
using MicroF32 = MicroGeneric<LanesScalar, float>;
using MicroBf16 = MicroGeneric<LanesScalar, Bf16>;
using MicroF16 = MicroGeneric<LanesScalar, F16>;
}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_META_ATTENTION(MicroF32, scalar, f32)
XYSERVE_DEFINE_META_ATTENTION(MicroBf16, scalar, bf16)
XYSERVE_DEFINE_META_ATTENTION(MicroF16, scalar, f16)

#include "attention_generic.h"
#include "attention_lanes_avx2.h"

namespace xyserve {
namespace {
using MicroF32 = MicroGeneric<LanesAvx2, float>;
using MicroBf16 = MicroGeneric<LanesAvx2, Bf16>;
using MicroF16 = MicroGeneric<LanesAvx2, F16>;
}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_META_ATTENTION(MicroF32, avx2, f32)
XYSERVE_DEFINE_META_ATTENTION(MicroBf16, avx2, bf16)
XYSERVE_DEFINE_META_ATTENTION(MicroF16, avx2, f16)

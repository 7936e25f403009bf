#include "attention_generic.h"
#include "attention_lanes_avx512.h"

namespace xyserve {
namespace {
using MicroF32 = MicroGeneric<LanesAvx512, float>;
using MicroBf16 = MicroGeneric<LanesAvx512, Bf16>;
using MicroF16 = MicroGeneric<LanesAvx512, F16>;
}  // namespace
}  // namespace xyserve

XYSERVE_DEFINE_META_ATTENTION(MicroF32, avx512, f32)
XYSERVE_DEFINE_META_ATTENTION(MicroBf16, avx512, bf16)
XYSERVE_DEFINE_META_ATTENTION(MicroF16, avx512, f16)

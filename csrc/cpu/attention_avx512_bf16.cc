#include "attention_bf16.h"
#include "attention_generic.h"
#include "attention_lanes_avx512.h"

namespace xyserve {
namespace {

using MicroLanes = MicroGeneric<LanesAvx512, Bf16>;

// Where the dot product is half as fast, its 2 x 16 products take as long as four fused
// multiply-adds would (docs/meta-attention.md): it only wins while keys are widened for few rows.
constexpr int32_t kLanesFrom = 13;

}  // namespace

bool meta_attention_bf16_avx512_bf16(const AttentionArgs& args, AttentionPhase phase,
                                     int32_t core_begin, int32_t core_end) {
  if (!args.slow_bf16_dot) {
    return meta_attention_cores<MicroBf16, MicroBf16>(args, phase, core_begin, core_end, 0);
  }
  // One form for all rows in the invariant mode, since the two round weights differently.
  const bool invariant = (args.table->flags & kTableInvariant) != 0;
  return meta_attention_cores<MicroBf16, MicroLanes>(args, phase, core_begin, core_end,
                                                     invariant ? 0 : kLanesFrom);
}

}  // namespace xyserve

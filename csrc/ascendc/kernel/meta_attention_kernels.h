// Entry points of Meta-Attention, one per form and dtype: mixed launches, one cube core with its
// two vector cores per block. `sync_base` is the address of the hardware's flags between cores.
#pragma once

#include "ascendc/kernel/meta_attention.h"

#define XYSERVE_META_ATTENTION(name, T, form)                                        \
  extern "C" __global__ __mix__(1, 2) void xyserve_meta_attention_##name(            \
      uint64_t sync_base, xyserve::meta_attention::Args args) {                      \
    AscendC::SetSyncBaseAddr(sync_base);                                             \
    xyserve::meta_attention::MetaAttention<T, xyserve::meta_attention::form> kernel; \
    kernel.Run(args);                                                                \
  }
XYSERVE_META_ATTENTION(three_stage_f16, half, kThreeStage)
XYSERVE_META_ATTENTION(three_stage_bf16, bfloat16_t, kThreeStage)
XYSERVE_META_ATTENTION(four_stage_f16, half, kFourStage)
XYSERVE_META_ATTENTION(four_stage_bf16, bfloat16_t, kFourStage)
XYSERVE_META_ATTENTION(two_stage_f16, half, kTwoStage)
XYSERVE_META_ATTENTION(two_stage_bf16, bfloat16_t, kTwoStage)
#undef XYSERVE_META_ATTENTION

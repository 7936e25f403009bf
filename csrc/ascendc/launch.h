// Launches, defined in kernels.asc where the vendor's compiler sees them. `stream` is an
// aclrtStream; nothing here waits.
#pragma once

#include <cstdint>

#include "ascendc/host/meta_attention.h"
#include "ascendc/host/smooth_gemm.h"
#include "ascendc/kernel/cache_params.h"

namespace xyserve::ascend {

// blocks: cube cores. sync_base: aclrtGetHardwareSyncAddr, for the mixed forms.
void launch_smooth_gemm(GemmForm form, bool weight_nz, const SmoothGemmParams& params,
                        uint32_t blocks, uint64_t sync_base, void* stream);

// blocks: vector cores.
void launch_kv_write(const KvWriteParams& params, int32_t slot_bytes, uint32_t blocks,
                     void* stream);
void launch_block_copy(const BlockCopyParams& params, uint32_t blocks, void* stream);

// blocks: args.num_cores cube cores.
void launch_meta_attention(meta_attention::Form form, meta_attention::Dtype dtype,
                           const meta_attention::Args& args, uint64_t sync_base, void* stream);

}  // namespace xyserve::ascend

// The kernels' entry points: a name, a kind of core, a plain-data argument. The real tool chain
// compiles them in kernels.asc, the emulation in its tests.
//
// Mixed kernels take the address of the hardware's cross-core flags first.
#pragma once

#include "ascendc/kernel/block_copy.h"
#include "ascendc/kernel/kv_write.h"
#include "ascendc/kernel/smooth_gemm.h"
#include "ascendc/kernel/smooth_gemm_dequant.h"

namespace xyserve::ascend {

template <typename In, typename Out, bool kWeightNz>
__aicore__ inline void run_smooth_gemm(const SmoothGemmParams& params) {
  AscendC::TPipe pipe;
  SmoothGemmCube<In, Out, kWeightNz> cube(params, &pipe);
  cube.run();
}

template <typename Out, bool kWeightNz>
__aicore__ inline void run_smooth_gemm_mixed(uint64_t sync_base, const SmoothGemmParams& params) {
  AscendC::SetSyncBaseAddr(sync_base);
  if ASCEND_IS_AIC {
    run_smooth_gemm<int8_t, int32_t, kWeightNz>(params);
  }
  if ASCEND_IS_AIV {
    AscendC::TPipe pipe;
    SmoothGemmDequant<Out> vector(params, &pipe);
    vector.run();
  }
}

template <typename Slot>
__aicore__ inline void run_kv_write(const KvWriteParams& params) {
  AscendC::TPipe pipe;
  KvWrite<Slot> kernel(params, &pipe);
  kernel.run();
}

}  // namespace xyserve::ascend

#define XYSERVE_CUBE_KERNEL(name, In, Out, kWeightNz)                                  \
  extern "C" __global__ __cube__ void name(xyserve::ascend::SmoothGemmParams params) { \
    xyserve::ascend::run_smooth_gemm<In, Out, kWeightNz>(params);                      \
  }
XYSERVE_CUBE_KERNEL(xyserve_smooth_gemm_f16, half, half, false)
XYSERVE_CUBE_KERNEL(xyserve_smooth_gemm_f16_nz, half, half, true)
XYSERVE_CUBE_KERNEL(xyserve_smooth_gemm_bf16, bfloat16_t, bfloat16_t, false)
XYSERVE_CUBE_KERNEL(xyserve_smooth_gemm_bf16_nz, bfloat16_t, bfloat16_t, true)
XYSERVE_CUBE_KERNEL(xyserve_smooth_gemm_int8_static, int8_t, half, false)
XYSERVE_CUBE_KERNEL(xyserve_smooth_gemm_int8_static_nz, int8_t, half, true)
#undef XYSERVE_CUBE_KERNEL

#define XYSERVE_MIXED_KERNEL(name, Out, kWeightNz)                                          \
  extern "C" __global__ __mix__(1, 2) void name(uint64_t sync_base,                         \
                                                xyserve::ascend::SmoothGemmParams params) { \
    xyserve::ascend::run_smooth_gemm_mixed<Out, kWeightNz>(sync_base, params);              \
  }
XYSERVE_MIXED_KERNEL(xyserve_smooth_gemm_int8_f16, half, false)
XYSERVE_MIXED_KERNEL(xyserve_smooth_gemm_int8_f16_nz, half, true)
XYSERVE_MIXED_KERNEL(xyserve_smooth_gemm_int8_bf16, bfloat16_t, false)
XYSERVE_MIXED_KERNEL(xyserve_smooth_gemm_int8_bf16_nz, bfloat16_t, true)
#undef XYSERVE_MIXED_KERNEL

extern "C" __global__ __vector__ void xyserve_kv_write_i32(xyserve::ascend::KvWriteParams params) {
  xyserve::ascend::run_kv_write<int32_t>(params);
}
extern "C" __global__ __vector__ void xyserve_kv_write_i64(xyserve::ascend::KvWriteParams params) {
  xyserve::ascend::run_kv_write<int64_t>(params);
}
extern "C" __global__ __vector__ void xyserve_block_copy(xyserve::ascend::BlockCopyParams params) {
  AscendC::TPipe pipe;
  xyserve::ascend::BlockCopy kernel(params, &pipe);
  kernel.run();
}

// Host side of SmoothGEMM: arguments -> can_run -> tile -> workspace size -> parameters.
#pragma once

#include <cstdint>

#include "ascendc/host/can_run.h"
#include "ascendc/kernel/smooth_gemm_params.h"

namespace xyserve::ascend {

enum class GemmForm : int32_t {
  f16,          // fp16 x and weight, fp16 out
  bf16,         // the same in bf16
  int8_static,  // int8, one scale per column, fp16 out: dequantised in the Fixpipe
  int8_f16,     // int8, a scale per column and per row, fp16 out: through the workspace
  int8_bf16,    // the same with bf16 out
};

// Strides count elements; rows are contiguous. An NZ weight has n rounded up to 16 rows and k
// rounded up to C0 (16, or 32 for int8) columns.
struct GemmArgs {
  GemmForm form = GemmForm::f16;
  bool weight_nz = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t num_groups = 1;  // weights
  int64_t x_row_stride = 0;
  int64_t weight_row_stride = 0;
  int64_t weight_group_stride = 0;
  int64_t out_row_stride = 0;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;        // fp32; int8_static: int32
  const void* scales = nullptr;      // int8_static: uint64 (fixpipe_scale), else fp32
  const void* row_scales = nullptr;  // fp32
  const void* group_ends = nullptr;  // int64, device memory; null without groups
  void* out = nullptr;
};

// Zeros stand for the rule's choice.
struct GemmTuning {
  int32_t m_tile = 0;
  int32_t n_tile = 0;
  int32_t k_tile = 0;
  int32_t swizzle_direction = 0;
  int32_t swizzle_count = 0;
  int32_t last_split = 0;
};

bool is_int8(GemmForm form);
bool uses_workspace(GemmForm form);  // and with it the mixed kernel

// num_cores: cube cores of the device, or fewer.
CanRun smooth_gemm_can_run(const GemmArgs& args, const GemmTuning& tuning, int32_t num_cores);

// The tile that runs: tuned where set, by rule elsewhere. Only after can_run said yes.
GemmTuning smooth_gemm_tile(const GemmArgs& args, const GemmTuning& tuning, int32_t num_cores);

int64_t smooth_gemm_workspace_bytes(const GemmArgs& args, const GemmTuning& tile,
                                    int32_t num_cores);

SmoothGemmParams smooth_gemm_params(const GemmArgs& args, const GemmTuning& tile, void* workspace,
                                    int32_t num_cores);

// The Fixpipe's form of a scale: an fp32's bits in the low half of a word. The hardware keeps 10
// bits of the mantissa; they are cut here, so that host and device mean the same number.
uint64_t fixpipe_scale(float scale);

}  // namespace xyserve::ascend

// What the cube half and the vector half of SmoothGEMM share: types of each form, flags between
// cores, the ends of groups.
#pragma once

#include "ascendc/kernel/smooth_gemm_params.h"
#include "kernel_operator.h"

namespace xyserve::ascend {

// Acc: what the cube adds up in. kScaled: a scale per column in the Fixpipe. kHandsOver: tiles go
// to the workspace, where this core's vector cores take them (kernel/smooth_gemm_dequant.h).
template <typename In, typename Out>
struct GemmTypes;
template <>
struct GemmTypes<half, half> {
  using Acc = float;
  static constexpr bool kScaled = false;
  static constexpr bool kHandsOver = false;
};
template <>
struct GemmTypes<bfloat16_t, bfloat16_t> {
  using Acc = float;
  static constexpr bool kScaled = false;
  static constexpr bool kHandsOver = false;
};
template <>
struct GemmTypes<int8_t, half> {
  using Acc = int32_t;
  static constexpr bool kScaled = true;
  static constexpr bool kHandsOver = false;
};
template <>
struct GemmTypes<int8_t, int32_t> {
  using Acc = int32_t;
  static constexpr bool kScaled = false;
  static constexpr bool kHandsOver = true;
};

// Cross-core flags of the workspace's two tiles.
constexpr uint16_t kTileReady = 0;
constexpr uint16_t kTileFree = 2;

struct GroupEnds {
  AscendC::GlobalTensor<int64_t> ends;
  __aicore__ inline int64_t operator()(int32_t group) const { return ends.GetValue(group); }
};

__aicore__ inline GroupEnds group_ends_of(const SmoothGemmParams& params) {
  GroupEnds ends;
  ends.ends.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(params.group_ends));
  return ends;
}

}  // namespace xyserve::ascend

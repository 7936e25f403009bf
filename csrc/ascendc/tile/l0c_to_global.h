// L0C to global memory through the Fixpipe, as rows.
#pragma once

#include "ascendc/arch.h"
#include "kernel_operator.h"

namespace xyserve::tile {

// Conversion of the accumulator on its way out. This chip turns int32 into half, never into bf16.
template <typename Out, typename Acc>
struct Conversion;
template <>
struct Conversion<half, float> {
  static constexpr QuantMode_t kMode = QuantMode_t::F322F16;
};
template <>
struct Conversion<bfloat16_t, float> {
  static constexpr QuantMode_t kMode = QuantMode_t::F322BF16;
};
template <>
struct Conversion<float, float> {
  static constexpr QuantMode_t kMode = QuantMode_t::NoQuant;
};
template <>
struct Conversion<int32_t, int32_t> {
  static constexpr QuantMode_t kMode = QuantMode_t::NoQuant;
};
// One scale per column, from L1.
template <>
struct Conversion<half, int32_t> {
  static constexpr QuantMode_t kMode = QuantMode_t::VDEQF16;
};

// `cols` is a multiple of 16: the Fixpipe writes columns in sixteens. l0c_rows: rows that a column
// block of L0C has, a multiple of 16; only `rows` of them are written.
template <typename Out, typename Acc>
__aicore__ inline AscendC::FixpipeParamsV220 row_major_params(int32_t rows, int32_t cols,
                                                              int32_t l0c_rows,
                                                              int64_t row_stride) {
  AscendC::FixpipeParamsV220 p;
  p.nSize = static_cast<uint16_t>(cols);
  p.mSize = static_cast<uint16_t>(rows);
  p.srcStride = static_cast<uint16_t>(l0c_rows);
  p.dstStride = static_cast<uint32_t>(row_stride);
  p.quantPre = Conversion<Out, Acc>::kMode;
  p.deqScalar = 0;
  p.ndNum = 1;
  p.srcNdStride = 0;
  p.dstNdStride = 0;
  p.reluEn = false;
  p.unitFlag = 0;
  return p;
}

template <typename Out, typename Acc>
__aicore__ inline void store_rows(const AscendC::GlobalTensor<Out>& global,
                                  const AscendC::LocalTensor<Acc>& l0c, int32_t rows, int32_t cols,
                                  int32_t l0c_rows, int64_t row_stride) {
  AscendC::Fixpipe<Out, Acc, AscendC::CFG_ROW_MAJOR>(
      global, l0c, row_major_params<Out, Acc>(rows, cols, l0c_rows, row_stride));
}

// With a scale per column: the bits of an fp32 in the low half of each of `scales`, in L1.
__aicore__ inline void store_rows_dequantized(const AscendC::GlobalTensor<half>& global,
                                              const AscendC::LocalTensor<int32_t>& l0c,
                                              const AscendC::LocalTensor<uint64_t>& scales,
                                              int32_t rows, int32_t cols, int32_t l0c_rows,
                                              int64_t row_stride) {
  AscendC::Fixpipe<half, int32_t, AscendC::CFG_ROW_MAJOR>(
      global, l0c, scales, row_major_params<half, int32_t>(rows, cols, l0c_rows, row_stride));
}

}  // namespace xyserve::tile

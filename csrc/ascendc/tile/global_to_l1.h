// Global memory to L1, into the NZ layout that the cube loads want: element (r, c) of a tile with
// `l1_rows` rows lies at ((c / C0) * l1_rows + r) * C0 + c % C0.
#pragma once

#include "ascendc/arch.h"
#include "kernel_operator.h"

namespace xyserve::tile {

// rows x cols elements of a row-major matrix. The columns that fill up the last C0 are zeroed by
// the copy; the rows from `rows` to `l1_rows` stay as they are. row_stride counts elements.
template <typename T>
__aicore__ inline void load_rows(const AscendC::LocalTensor<T>& l1,
                                 const AscendC::GlobalTensor<T>& global, int32_t rows, int32_t cols,
                                 int64_t row_stride, int32_t l1_rows) {
  AscendC::Nd2NzParams p;
  p.ndNum = 1;
  p.nValue = static_cast<uint16_t>(rows);
  p.dValue = static_cast<uint16_t>(cols);
  p.srcNdMatrixStride = 0;
  p.srcDValue = static_cast<uint16_t>(row_stride);
  p.dstNzC0Stride = static_cast<uint16_t>(l1_rows);
  p.dstNzNStride = 1;
  p.dstNzMatrixStride = 0;
  if (row_stride <= arch::kMaxStride16) {
    AscendC::DataCopy(l1, global, p);
    return;
  }
  // The instruction keeps the stride in 16 bits, so wider rows go one by one.
  p.nValue = 1;
  p.srcDValue = static_cast<uint16_t>(cols);
  for (int32_t r = 0; r < rows; ++r) {
    AscendC::DataCopy(l1[r * arch::kC0<T>], global[r * row_stride], p);
  }
}

// Zeroes the rows [rows, l1_rows) of the first `cols` columns. Same pipe as the loads and other
// addresses, so that it needs no barrier.
template <typename T>
__aicore__ inline void zero_rows(const AscendC::LocalTensor<T>& l1, int32_t rows, int32_t cols,
                                 int32_t l1_rows) {
  if (rows == l1_rows) {
    return;
  }
  // uint16_t: the fill has no 8-bit form, and zero has one pattern.
  AscendC::InitConstValueParams<uint16_t> p;
  p.repeatTimes = static_cast<uint16_t>(arch::ceil_div(cols, arch::kC0<T>));
  p.blockNum = static_cast<uint16_t>(l1_rows - rows);
  p.dstGap = static_cast<uint16_t>(rows);
  p.initValue = 0;
  AscendC::InitConstValue(l1[rows * arch::kC0<T>].template ReinterpretCast<uint16_t>(), p);
}

// The same tile of a matrix that is NZ in global memory already, global_rows rows in all. `global`
// points at the first row of the tile's first C0 columns.
template <typename T>
__aicore__ inline void load_nz(const AscendC::LocalTensor<T>& l1,
                               const AscendC::GlobalTensor<T>& global, int32_t rows, int32_t cols,
                               int64_t global_rows, int32_t l1_rows) {
  const int32_t num_c0 = arch::ceil_div(cols, arch::kC0<T>);
  AscendC::DataCopyParams p;
  p.blockCount = static_cast<uint16_t>(num_c0);
  p.blockLen = static_cast<uint16_t>(rows);
  p.srcStride = static_cast<uint16_t>(global_rows - rows);
  p.dstStride = static_cast<uint16_t>(l1_rows - rows);
  if (global_rows - rows <= arch::kMaxStride16) {
    AscendC::DataCopy(l1, global, p);
    return;
  }
  p.blockCount = 1;
  p.srcStride = 0;
  p.dstStride = 0;
  for (int32_t c = 0; c < num_c0; ++c) {
    AscendC::DataCopy(l1[c * l1_rows * arch::kC0<T>], global[c * global_rows * arch::kC0<T>], p);
  }
}

// A plain vector: one row whose C0 blocks follow each other. Any global address will do, which a
// plain DataCopy of a ragged count would not.
template <typename T>
__aicore__ inline void load_vector(const AscendC::LocalTensor<T>& l1,
                                   const AscendC::GlobalTensor<T>& global, int32_t count) {
  load_rows(l1, global, 1, count, count, 1);
}

}  // namespace xyserve::tile

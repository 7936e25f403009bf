// Rows between global memory and UB. Rows of UB start on 32-byte blocks; global memory has no
// alignment and its strides count bytes. Lengths need not be multiples of 32 bytes.
#pragma once

#include "ascendc/arch.h"
#include "kernel_operator.h"

namespace xyserve::tile {

// ub_pitch: bytes from row to row in UB, a multiple of 32. A row that ends inside a block is filled
// up with zeros, so that whole blocks may be computed on.
template <typename T>
__aicore__ inline void load_to_ub(const AscendC::LocalTensor<T>& ub,
                                  const AscendC::GlobalTensor<T>& global, int32_t rows,
                                  int32_t row_bytes, int64_t global_pitch, int32_t ub_pitch) {
  AscendC::DataCopyExtParams p;
  p.blockCount = static_cast<uint16_t>(rows);
  p.blockLen = static_cast<uint32_t>(row_bytes);
  p.srcStride = static_cast<uint32_t>(global_pitch - row_bytes);
  p.dstStride = static_cast<uint32_t>((ub_pitch - arch::round_up(row_bytes, arch::kBlockBytes)) /
                                      arch::kBlockBytes);
  p.rsv = 0;
  AscendC::DataCopyPadExtParams<T> pad;
  pad.isPad = row_bytes % arch::kBlockBytes != 0;
  pad.rightPadding = static_cast<uint8_t>(
      (arch::round_up(row_bytes, arch::kBlockBytes) - row_bytes) / static_cast<int32_t>(sizeof(T)));
  AscendC::DataCopyPad(ub, global, p, pad);
}

template <typename T>
__aicore__ inline void store_from_ub(const AscendC::GlobalTensor<T>& global,
                                     const AscendC::LocalTensor<T>& ub, int32_t rows,
                                     int32_t row_bytes, int64_t global_pitch, int32_t ub_pitch) {
  AscendC::DataCopyExtParams p;
  p.blockCount = static_cast<uint16_t>(rows);
  p.blockLen = static_cast<uint32_t>(row_bytes);
  p.srcStride = static_cast<uint32_t>((ub_pitch - arch::round_up(row_bytes, arch::kBlockBytes)) /
                                      arch::kBlockBytes);
  p.dstStride = static_cast<uint32_t>(global_pitch - row_bytes);
  p.rsv = 0;
  AscendC::DataCopyPad(global, ub, p);
}

}  // namespace xyserve::tile

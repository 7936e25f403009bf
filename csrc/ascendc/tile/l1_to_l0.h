// L1 (NZ) to the cube's operands.
#pragma once

#include "ascendc/arch.h"
#include "kernel_operator.h"

namespace xyserve::tile {

// Columns [col_begin, col_begin + cols) of the left operand, `l1_rows` rows (a multiple of 16), to
// L0A: fractal (m, k) at m * K1 + k. col_begin is a multiple of C0.
template <typename T>
__aicore__ inline void load_a(const AscendC::LocalTensor<T>& l0a, const AscendC::LocalTensor<T>& l1,
                              int32_t l1_rows, int32_t col_begin, int32_t cols) {
  constexpr int32_t kFractal = arch::kFractalRows * arch::kC0<T>;
  const int32_t m1 = l1_rows / arch::kFractalRows;
  const int32_t k1 = arch::ceil_div(cols, arch::kC0<T>);
  const AscendC::LocalTensor<T> from = l1[col_begin * l1_rows];
  AscendC::LoadData2DParams p;
  p.ifTranspose = false;
  // One instruction per row or per column of fractals, whichever are fewer: the queue holds 32.
  if (m1 < k1) {
    p.repeatTimes = static_cast<uint8_t>(k1);
    p.srcStride = static_cast<uint16_t>(m1);
    p.dstGap = 0;
    for (int32_t m = 0; m < m1; ++m) {
      AscendC::LoadData(l0a[m * k1 * kFractal], from[m * kFractal], p);
    }
  } else {
    p.repeatTimes = static_cast<uint8_t>(m1);
    p.srcStride = 1;
    p.dstGap = static_cast<uint16_t>(k1 - 1);
    for (int32_t k = 0; k < k1; ++k) {
      AscendC::LoadData(l0a[k * kFractal], from[k * m1 * kFractal], p);
    }
  }
}

// Columns [col_begin, col_begin + cols) of an [n, k] matrix with `l1_rows` rows (a multiple of 16)
// as the right operand [k, n]: NZ in L1 has L0B's order of fractals already.
template <typename T>
__aicore__ inline void load_b(const AscendC::LocalTensor<T>& l0b, const AscendC::LocalTensor<T>& l1,
                              int32_t l1_rows, int32_t col_begin, int32_t cols) {
  constexpr int32_t kFractal = arch::kFractalRows * arch::kC0<T>;
  const int32_t fractals = arch::ceil_div(cols, arch::kC0<T>) * (l1_rows / arch::kFractalRows);
  const AscendC::LocalTensor<T> from = l1[col_begin * l1_rows];
  AscendC::LoadData2DParams p;
  p.ifTranspose = false;
  p.srcStride = 1;
  p.dstGap = 0;
  for (int32_t f = 0; f < fractals; f += arch::kMaxLoadRepeat) {
    p.repeatTimes = static_cast<uint8_t>(arch::min_of(fractals - f, arch::kMaxLoadRepeat));
    AscendC::LoadData(l0b[f * kFractal], from[f * kFractal], p);
  }
}

// A [k, n] matrix with `l1_rows` rows (a multiple of 16) as the right operand: columns
// [col_begin, col_begin + cols), each fractal turned over on the way. 16-bit elements only.
template <typename T>
__aicore__ inline void load_b_turned(const AscendC::LocalTensor<T>& l0b,
                                     const AscendC::LocalTensor<T>& l1, int32_t l1_rows,
                                     int32_t col_begin, int32_t cols) {
  static_assert(sizeof(T) == 2, "the load turns 16 x 16 elements");
  constexpr int32_t kFractal = arch::kFractalRows * arch::kC0<T>;
  const int32_t k1 = l1_rows / arch::kFractalRows;
  const int32_t n1 = cols / arch::kFractalRows;
  const AscendC::LocalTensor<T> from = l1[col_begin * l1_rows];
  AscendC::LoadData2DParams p;
  p.ifTranspose = true;
  p.repeatTimes = static_cast<uint8_t>(n1);
  p.srcStride = static_cast<uint16_t>(k1);
  p.dstGap = 0;
  for (int32_t k = 0; k < k1; ++k) {
    AscendC::LoadData(l0b[k * n1 * kFractal], from[k * kFractal], p);
  }
}

// `count` values, a multiple of 16, to the bias table.
template <typename Acc>
__aicore__ inline void load_bias(const AscendC::LocalTensor<Acc>& table,
                                 const AscendC::LocalTensor<Acc>& l1, int32_t count) {
  AscendC::DataCopyParams p;
  p.blockCount = 1;
  p.blockLen =
      static_cast<uint16_t>(count * static_cast<int32_t>(sizeof(Acc)) / arch::kBiasTableAlign);
  p.srcStride = 0;
  p.dstStride = 0;
  AscendC::DataCopy(table, l1, p);
}

}  // namespace xyserve::tile

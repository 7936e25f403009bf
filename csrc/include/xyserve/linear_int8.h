// Kernel interface of the int8 linear layer and of the quantisation of its activations.
#pragma once

#include <cstdint>

#include "xyserve/linear.h"

namespace xyserve {

// Int8 panels: 32 columns by groups of 4 values of K, as the dot-product instruction wants them.
inline constexpr int64_t kInt8Step = 4;
// 255 * 128 * K must stay below 2^31.
inline constexpr int64_t kInt8MaxK = 65536;

constexpr int64_t int8_padded_k(int64_t k) {
  return (k + kInt8Step - 1) / kInt8Step * kInt8Step;
}
constexpr int64_t packed_int8_elements(int64_t n, int64_t k) {
  return num_panels(n) * kPanelColumns * int8_padded_k(k);
}

// Rows as q = clamp(round(x / scale) + zero, 0, 255), so x is about (q - zero) * scale. Dynamic
// unless static_scale is set. out rows are int8_padded_k(k) bytes apart or more; bytes from k to
// there are zeros.
struct QuantizeRowsArgs {
  const void* x;
  uint8_t* out;
  float* scales;
  int32_t* zeros;
  int64_t k;
  int64_t x_row_stride;
  int64_t out_row_stride;
  bool symmetric;
  bool is_static;
  float static_scale;
  int32_t static_zero;
};
using QuantizeRowsFn = void(const QuantizeRowsArgs& args, int64_t row_begin, int64_t row_end);

// out[r, c] = (sum_k x[r, k] w[c, k] - x_zeros[r] * sums[c]) * (x_scales[r] * scales[c]) + bias[c].
// The parenthesis is exact in int32. sums: sum_k w[c, k], padded to whole panels. scales: one per
// column, or one for all (one_scale). out and bias: the kernel's dtype.
struct LinearInt8Args {
  void* out;
  const uint8_t* x;
  const float* x_scales;
  const int32_t* x_zeros;
  const int8_t* packed;
  const int32_t* sums;
  const float* scales;
  const void* bias;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t out_row_stride;
  int64_t x_row_stride;
  bool one_scale;
};
using LinearInt8Fn = void(const LinearInt8Args& args, const LinearPart& part);

void pack_linear_int8(int8_t* packed, int32_t* sums, const int8_t* weight,
                      int64_t weight_row_stride, int64_t n, int64_t k, int64_t panel_begin,
                      int64_t panel_end);

}  // namespace xyserve

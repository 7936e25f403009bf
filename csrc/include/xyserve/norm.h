// Kernel interface of the root-mean-square norm, with or without a residual added first.
#pragma once

#include <cstdint>

namespace xyserve {

// All of [num_rows, d] but weight, [d] or nullptr. s = x + residual, or x where residual is
// nullptr; out = s / sqrt(mean(s^2) + epsilon), rounded to the type of weight, times weight;
// residual = s. weight has the type of x, or is fp32. out may be x: each element is read before it
// is written. Row strides count elements; elements of a row are adjacent.
struct RmsNormArgs {
  void* out;
  const void* x;
  void* residual;
  const void* weight;
  bool weight_is_f32;
  float epsilon;
  int64_t d;
  int64_t out_row_stride;
  int64_t x_row_stride;
  int64_t residual_row_stride;
};

// Computes rows [row_begin, row_end). Arithmetic is fp32; a row depends on no other one.
using RmsNormFn = void(const RmsNormArgs& args, int64_t row_begin, int64_t row_end);

}  // namespace xyserve

// Kernel interface of the gated activation: out = silu(gate) * up.
#pragma once

#include <cstdint>

namespace xyserve {

// x: [num_rows, 2 * d], gate in the first half of a row and up in the second; out: [num_rows, d].
// Row strides count elements; elements of a row are adjacent. out and x do not overlap.
struct SiluAndMulArgs {
  void* out;
  const void* x;
  int64_t d;
  int64_t out_row_stride;
  int64_t x_row_stride;
};

// Computes rows [row_begin, row_end). Arithmetic is fp32, rounded once to nearest even.
using SiluAndMulFn = void(const SiluAndMulArgs& args, int64_t row_begin, int64_t row_end);

}  // namespace xyserve

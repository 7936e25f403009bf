// Kernel interface of the linear layer: out = epilogue(x * weight^T + bias), weights in panels.
#pragma once

#include <cstdint>

#include "xyserve/dtype.h"

namespace xyserve {

// A panel holds 32 output columns (rows of the weight) for all of K, K outermost, so that a kernel
// reads it front to back. bf16 keeps pairs of K adjacent, as the dot-product instruction wants
// them; a last odd K and the columns beyond N are zeros.
inline constexpr int64_t kPanelColumns = 32;

constexpr int64_t k_step(DType dtype) {
  return dtype == DType::bf16 ? 2 : 1;
}
constexpr int64_t num_panels(int64_t n) {
  return (n + kPanelColumns - 1) / kPanelColumns;
}
constexpr int64_t padded_k(DType dtype, int64_t k) {
  return (k + k_step(dtype) - 1) / k_step(dtype) * k_step(dtype);
}
constexpr int64_t packed_elements(DType dtype, int64_t n, int64_t k) {
  return num_panels(n) * kPanelColumns * padded_k(dtype, k);
}

// Where a weight has few panels (N up to 256), its sums over K are cut into segments, always and
// for any number of rows: threads can then take segments of one panel, and a row's bits do not
// depend on whether they did.
struct Segments {
  int64_t count;
  int64_t steps;  // of a segment; the last one has what is left, an odd K's last half step too
};

inline constexpr int64_t kEnoughPanels = 16;
inline constexpr int64_t kMinSegmentSteps = 256;

constexpr Segments segments_of(int64_t step, int64_t n, int64_t k) {
  const int64_t steps = k / step;
  const int64_t most = steps / kMinSegmentSteps;
  const int64_t wanted = kEnoughPanels / num_panels(n);
  const int64_t count = wanted < most ? wanted : most;
  if (count <= 1) {
    return {1, steps};
  }
  const int64_t length = (steps + count - 1) / count;
  return {(steps + length - 1) / length, length};
}

enum class Epilogue : int32_t { none, silu_mul, add };

// x: [m, k], out: [m, n_out], rows of one stride, elements of a row adjacent; strides count
// elements. packed: panels of an [n, k] weight. bias: n elements or nullptr. n_out is n, or n / 2
// with silu_mul (gate columns first, then up; n / 2 is a multiple of kPanelColumns).
// residual (only with add): [m, n_out]. All of the kernel's dtype; out overlaps nothing but
// residual, and that only element for element. sums: fp32 [segments, m, columns of all panels],
// only for calls that are split along K. tile_rows, block_steps: see LinearTuning; 0 leaves them to
// us.
struct LinearArgs {
  void* out;
  const void* x;
  const void* packed;
  const void* bias;
  const void* residual;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t out_row_stride;
  int64_t x_row_stride;
  int64_t residual_row_stride;
  Epilogue epilogue;
  float* sums;
  int64_t tile_rows;
  int64_t block_steps;
};

// Which part of the output a call computes: rows, and panels of output columns. With segments in
// [segment_begin, segment_end) only their sums are stored, each by itself; merge adds up the sums
// of all segments, in order, and writes the output. Else a call goes over all of K.
struct LinearPart {
  int64_t row_begin;
  int64_t row_end;
  int64_t panel_begin;
  int64_t panel_end;
  int64_t segment_begin = 0;
  int64_t segment_end = 0;
  bool merge = false;
};

// Sums run over rising k in fp32 (within segments, whose sums are added in order), whatever the
// part and however many rows: a row's bits do not depend on the other rows. Rounded once to nearest
// even.
using LinearFn = void(const LinearArgs& args, const LinearPart& part);

// Panels [panel_begin, panel_end) of the packed form of weight [n, k].
void pack_linear(DType dtype, void* packed, const void* weight, int64_t weight_row_stride,
                 int64_t n, int64_t k, int64_t panel_begin, int64_t panel_end);

}  // namespace xyserve

// The body of quantize_rows: float rows to unsigned 8-bit rows with a scale and a zero point each.
//
// [NOTE] Twin: quantize_rows in ops/reference/linear_int8.py. scale = range / 127 (255 if
// asymmetric), never below kMinScale, so a row of zeros gives zeros; q = round(x * (1 / scale)) to
// nearest even. A row with NaN or an infinity gets a NaN scale: its outputs are NaN, not garbage.
#pragma once

#include <cstdint>
#include <cstring>

#include "vec_partly.h"
#include "xyserve/linear_int8.h"

namespace xyserve {
namespace {

constexpr float kMinScale = 0x1p-100f;

template <class V, class T>
struct RowRange {
  float low = 0.0f;
  float high = 0.0f;
  float not_finite = 0.0f;  // 0, or NaN

  RowRange(const T* x, int64_t k) {
    typename V::F lows = V::set1(0.0f);
    typename V::F highs = lows;
    typename V::F bad = lows;
    for (int64_t i = 0; i < k; i += V::kWidth) {
      const typename V::F v = load_partly<V>(x + i, k - i);
      lows = V::min(v, lows);
      highs = V::max(v, highs);
      bad = V::fma(v, V::set1(0.0f), bad);
    }
    float values[3][V::kWidth];
    V::store(values[0], lows);
    V::store(values[1], highs);
    V::store(values[2], bad);
    for (int i = 0; i < V::kWidth; ++i) {
      low = values[0][i] < low ? values[0][i] : low;
      high = values[1][i] > high ? values[1][i] : high;
      not_finite += values[2][i];
    }
  }
};

template <class V, class T>
void quantize_row(const QuantizeRowsArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_row_stride;
  uint8_t* out = args.out + row * args.out_row_stride;
  float scale = args.static_scale;
  int32_t zero = args.static_zero;
  float inverse = 1.0f / scale;
  const RowRange<V, T> range(x, args.k);
  if (!args.is_static) {
    const float absmax = -range.low > range.high ? -range.low : range.high;
    scale = args.symmetric ? absmax / 127.0f : (range.high - range.low) / 255.0f;
    scale = scale > kMinScale ? scale : kMinScale;
    inverse = 1.0f / scale;
    zero = args.symmetric ? 128 : V::round_to_int(-range.low * inverse);
  }
  args.scales[row] = scale + range.not_finite;
  args.zeros[row] = zero;
  const typename V::F factor = V::set1(inverse);
  int64_t i = 0;
  for (; i + V::kWidth <= args.k; i += V::kWidth) {
    V::store_quantized(out + i, V::mul(V::load(x + i), factor), zero);
  }
  if (i < args.k) {
    uint8_t values[V::kWidth];
    V::store_quantized(values, V::mul(load_partly<V>(x + i, args.k - i), factor), zero);
    std::memcpy(out + i, values, static_cast<size_t>(args.k - i));
  }
  for (i = args.k; i < int8_padded_k(args.k); ++i) {
    out[i] = 0;
  }
}

template <class V, class T>
void quantize_rows(const QuantizeRowsArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    quantize_row<V, T>(args, row);
  }
}

}  // namespace
}  // namespace xyserve

// Defines the function behind one line of kernels.inc.
#define XYSERVE_DEFINE_QUANTIZE_ROWS(Vec, isa, dtype)                                 \
  namespace xyserve {                                                                 \
  void quantize_rows_##dtype##_##isa(const QuantizeRowsArgs& args, int64_t row_begin, \
                                     int64_t row_end) {                               \
    quantize_rows<Vec, ElementOf<DType::dtype>::type>(args, row_begin, row_end);      \
  }                                                                                   \
  }

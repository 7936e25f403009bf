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

template <class V>
struct Range {
  typename V::F low = V::set1(0.0f);
  typename V::F high = V::set1(0.0f);
  typename V::F bad = V::set1(0.0f);  // 0, or NaN where something was not finite

  void take(typename V::F v) {
    low = V::min(v, low);
    high = V::max(v, high);
    bad = V::fma(v, V::set1(0.0f), bad);
  }
};

struct RowRange {
  float low = 0.0f;
  float high = 0.0f;
  float not_finite = 0.0f;

  template <class V>
  void take(const Range<V>& range) {
    float lows[V::kWidth], highs[V::kWidth], bads[V::kWidth];
    V::store(lows, range.low);
    V::store(highs, range.high);
    V::store(bads, range.bad);
    for (int i = 0; i < V::kWidth; ++i) {
      low = lows[i] < low ? lows[i] : low;
      high = highs[i] > high ? highs[i] : high;
      not_finite += bads[i];
    }
  }
};

// Four chains: one alone would wait four cycles for each vector.
template <class V, class T>
RowRange row_range(const T* x, int64_t k) {
  constexpr int64_t kChains = 4;
  Range<V> ranges[kChains];
  int64_t i = 0;
  for (; i + kChains * V::kWidth <= k; i += kChains * V::kWidth) {
#pragma GCC unroll 4
    for (int64_t chain = 0; chain < kChains; ++chain) {
      ranges[chain].take(V::load(x + i + chain * V::kWidth));
    }
  }
  for (; i < k; i += V::kWidth) {
    ranges[0].take(load_partly<V>(x + i, k - i));
  }
  for (int64_t chain = 1; chain < kChains; ++chain) {
    ranges[0].take(ranges[chain].low);
    ranges[0].take(ranges[chain].high);
    ranges[0].bad = V::add(ranges[0].bad, ranges[chain].bad);
  }
  RowRange whole;
  whole.take(ranges[0]);
  return whole;
}

template <class V, class T>
void quantize_row(const QuantizeRowsArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_row_stride;
  uint8_t* out = args.out + row * args.out_row_stride;
  float scale = args.static_scale;
  int32_t zero = args.static_zero;
  const RowRange range = row_range<V>(x, args.k);
  if (!args.is_static) {
    const float absmax = -range.low > range.high ? -range.low : range.high;
    scale = args.symmetric ? absmax / 127.0f : (range.high - range.low) / 255.0f;
    scale = scale > kMinScale ? scale : kMinScale;
    zero = args.symmetric ? 128 : V::round_to_int(-range.low * (1.0f / scale));
  }
  args.scales[row] = scale + range.not_finite;
  args.zeros[row] = zero;
  const typename V::F factor = V::set1(1.0f / scale);
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

// The body of rms_norm, once for all instruction sets and element types.
//
// [NOTE] A row is read twice and x + residual added twice, since the sum must not be rounded before
// it is normalised; the second time it comes from the first-level cache.
#pragma once

#include <cstdint>

#include "vec_partly.h"
#include "xyserve/norm.h"

namespace xyserve {
namespace {

// A row of the arguments; residual and weight as there.
template <class T>
struct NormRow {
  T* out;
  const T* x;
  T* residual;
};

template <class V, class T>
inline typename V::F norm_sum(const NormRow<T>& row, int64_t i, int64_t count) {
  const typename V::F x = load_partly<V>(row.x + i, count);
  return row.residual == nullptr ? x : V::add(x, load_partly<V>(row.residual + i, count));
}

// Four chains: one alone waits for its own last multiply-add.
template <class V, class T>
inline float sum_of_squares(const NormRow<T>& row, int64_t d) {
  constexpr int64_t kChains = 4;
  constexpr int64_t kWidth = V::kWidth;
  typename V::F sums[kChains] = {V::set1(0.0f), V::set1(0.0f), V::set1(0.0f), V::set1(0.0f)};
  int64_t i = 0;
  for (; i + kChains * kWidth <= d; i += kChains * kWidth) {
    for (int64_t chain = 0; chain < kChains; ++chain) {
      const typename V::F s = norm_sum<V, T>(row, i + chain * kWidth, kWidth);
      sums[chain] = V::fma(s, s, sums[chain]);
    }
  }
  for (; i < d; i += kWidth) {
    const typename V::F s = norm_sum<V, T>(row, i, d - i);
    sums[0] = V::fma(s, s, sums[0]);
  }
  float lanes[kWidth];
  V::store(lanes, V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
  float total = 0.0f;
  for (const float lane : lanes) {
    total += lane;
  }
  return total;
}

// Rounded to T and back.
template <class V, class T>
inline typename V::F rounded(typename V::F value) {
  T stored[V::kWidth];
  V::store(stored, value);
  return V::load(stored);
}

template <class V, class T>
inline typename V::F times_weight(typename V::F normed, const RmsNormArgs& args, int64_t i,
                                  int64_t count) {
  if (args.weight == nullptr) {
    return normed;
  }
  if (args.weight_is_f32) {
    return V::mul(normed, load_partly<V>(static_cast<const float*>(args.weight) + i, count));
  }
  const T* weight = static_cast<const T*>(args.weight) + i;
  return V::mul(rounded<V, T>(normed), load_partly<V>(weight, count));
}

template <class V, class T>
void rms_norm_rows(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    T* residual = static_cast<T*>(args.residual);
    const NormRow<T> row{static_cast<T*>(args.out) + r * args.out_row_stride,
                         static_cast<const T*>(args.x) + r * args.x_row_stride,
                         residual == nullptr ? nullptr : residual + r * args.residual_row_stride};
    const float mean = sum_of_squares<V, T>(row, args.d) / static_cast<float>(args.d);
    const typename V::F scale = V::set1(1.0f / __builtin_sqrtf(mean + args.epsilon));
    for (int64_t i = 0; i < args.d; i += V::kWidth) {
      const int64_t count = args.d - i;
      const typename V::F s = norm_sum<V, T>(row, i, count);
      if (row.residual != nullptr) {
        store_partly<V>(row.residual + i, s, count);
      }
      store_partly<V>(row.out + i, times_weight<V, T>(V::mul(s, scale), args, i, count), count);
    }
  }
}

}  // namespace
}  // namespace xyserve

// Defines the function behind one line of kernels.inc.
#define XYSERVE_DEFINE_RMS_NORM(Vec, isa, dtype)                                               \
  namespace xyserve {                                                                          \
  void rms_norm_##dtype##_##isa(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) { \
    rms_norm_rows<Vec, ElementOf<DType::dtype>::type>(args, row_begin, row_end);               \
  }                                                                                            \
  }

// The body of silu_and_mul, once for all instruction sets and element types.
//
// [NOTE] silu(g) = g / (1 + e^-g), the form of the fp32 twin in ops/reference/activation.py: for
// g < -88.73 e^-g overflows and the quotient is -0, for g = -inf it is NaN, exactly as there.
#pragma once

#include <cstdint>
#include <cstring>

#include "xyserve/activation.h"

namespace xyserve {
namespace {

template <class V>
inline typename V::F silu_mul(typename V::F gate, typename V::F up) {
  const typename V::F denominator = V::add(V::one(), V::exp(V::negate(gate)));
  return V::mul(V::div(gate, denominator), up);
}

// The last num_left < kWidth elements go through buffers: nothing outside the row is read or
// written, and the unused lanes are zeros.
template <class V, class T>
inline void silu_and_mul_tail(T* out, const T* gate, const T* up, int64_t num_left) {
  T gates[V::kWidth] = {};
  T ups[V::kWidth] = {};
  T results[V::kWidth];
  const size_t num_bytes = static_cast<size_t>(num_left) * sizeof(T);
  std::memcpy(gates, gate, num_bytes);
  std::memcpy(ups, up, num_bytes);
  V::store(results, silu_mul<V>(V::load(gates), V::load(ups)));
  std::memcpy(out, results, num_bytes);
}

template <class V, class T>
void silu_and_mul_rows(const SiluAndMulArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const T* gate = static_cast<const T*>(args.x) + row * args.x_row_stride;
    const T* up = gate + args.d;
    T* out = static_cast<T*>(args.out) + row * args.out_row_stride;
    int64_t i = 0;
    for (; i + V::kWidth <= args.d; i += V::kWidth) {
      V::store(out + i, silu_mul<V>(V::load(gate + i), V::load(up + i)));
    }
    if (i < args.d) {
      silu_and_mul_tail<V, T>(out + i, gate + i, up + i, args.d - i);
    }
  }
}

}  // namespace
}  // namespace xyserve

// Defines the function behind one line of kernels.inc.
#define XYSERVE_DEFINE_SILU_AND_MUL(Vec, isa, dtype)                                 \
  namespace xyserve {                                                                \
  void silu_and_mul_##dtype##_##isa(const SiluAndMulArgs& args, int64_t row_begin,   \
                                    int64_t row_end) {                               \
    silu_and_mul_rows<Vec, ElementOf<DType::dtype>::type>(args, row_begin, row_end); \
  }                                                                                  \
  }

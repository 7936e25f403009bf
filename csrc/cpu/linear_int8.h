// The body of the int8 linear kernels: tiles as in linear.h, sums in int32 and therefore exact.
//
// [NOTE] Activations are unsigned (see quantize_rows.h), as vpdpbusd wants its first operand; what
// the zero point adds to a sum is taken off at the end, exactly.
#pragma once

#include <cstdint>

#include "vec_partly.h"
#include "xyserve/linear_int8.h"

namespace xyserve {
namespace {

struct Int8Tile {
  const LinearInt8Args* args;
  const uint8_t* x;
  const int8_t* b[2];
  int64_t column[2];
  int64_t row;
  const char* next[2];
  int64_t next_stride;
};

template <class D, class T, int R, int G>
inline void finish_int8(const Int8Tile& call, const typename D::Sum (&acc)[R][G * D::kVecs]) {
  using V = typename D::V;
  const LinearInt8Args& args = *call.args;
  const T* bias = static_cast<const T*>(args.bias);
  for (int g = 0; g < G; ++g) {
    for (int v = 0; v < D::kVecs; ++v) {
      const int64_t column = call.column[g] + v * V::kWidth;
      const int64_t left = args.n - column;
      const typename V::F scale =
          args.one_scale ? V::set1(args.scales[0]) : load_partly<V>(args.scales + column, left);
      const typename V::F shift =
          bias != nullptr ? load_partly<V>(bias + column, left) : V::set1(0.0f);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const int64_t row = call.row + r;
        const typename V::F value =
            D::without_zero(acc[r][g * D::kVecs + v], args.x_zeros[row], args.sums + column);
        const typename V::F factor = V::mul(V::set1(args.x_scales[row]), scale);
        T* out = static_cast<T*>(args.out) + row * args.out_row_stride;
        store_partly<V>(out + column, V::add(V::mul(value, factor), shift), left);
      }
    }
  }
}

template <class D, class T, int R, int G>
void run_int8_tile(const Int8Tile& call) {
  constexpr int kVecs = G * D::kVecs;
  constexpr int64_t kStepBytes = kPanelColumns * kInt8Step;
  constexpr int64_t kNear = 12;  // steps; as in linear.h
  typename D::Sum acc[R][kVecs];
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = D::zero();
    }
  }
  const int64_t stride = call.args->x_row_stride;
  const uint8_t* x = call.x;
  const int8_t* b0 = call.b[0];
  const int8_t* b1 = G == 2 ? call.b[1] : nullptr;
  const char* next0 = call.next[0];
  const char* next1 = G == 2 ? call.next[1] : nullptr;
  const int64_t num_steps = int8_padded_k(call.args->k) / kInt8Step;
  for (int64_t i = 0; i < num_steps; ++i) {
    for (int64_t line = 0; line < D::kGroup * kInt8Step; line += 64) {
      __builtin_prefetch(b0 + kNear * kStepBytes + line);
      if constexpr (G == 2) {
        __builtin_prefetch(b1 + kNear * kStepBytes + line);
      }
    }
    __builtin_prefetch(next0, 0, 2);
    next0 += call.next_stride;
    if constexpr (G == 2) {
      __builtin_prefetch(next1, 0, 2);
      next1 += call.next_stride;
    }
    typename D::B b[kVecs];
#pragma GCC unroll 32
    for (int v = 0; v < D::kVecs; ++v) {
      b[v] = D::load_b(b0, v);
      if constexpr (G == 2) {
        b[D::kVecs + v] = D::load_b(b1, v);
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
      const typename D::A a = D::load_a(x + r * stride);
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        D::multiply_add(a, b[v], &acc[r][v]);
      }
    }
    x += kInt8Step;
    b0 += kStepBytes;
    if constexpr (G == 2) {
      b1 += kStepBytes;
    }
  }
  finish_int8<D, T, R, G>(call, acc);
}

template <class D, class T, int R, int G>
struct Int8Table {
  static void run(int rows, const Int8Tile& call) {
    if (rows == R) {
      run_int8_tile<D, T, R, G>(call);
    } else if constexpr (R > 1) {
      Int8Table<D, T, R - 1, G>::run(rows, call);
    }
  }
};

template <class D, class T, int kMaxRows, int G>
inline void run_int8_rows(Int8Tile call, const LinearPart& part) {
  constexpr int64_t kStepBytes = kPanelColumns * kInt8Step;
  const int64_t num_rows = part.row_end - part.row_begin;
  const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
  const int64_t num_steps = int8_padded_k(call.args->k) / kInt8Step;
  call.next_stride = num_tiles > 1 ? kStepBytes / num_tiles : 0;
  int64_t row = part.row_begin;
  for (int64_t i = 0; i < num_tiles; ++i) {
    const int64_t rows = num_rows / num_tiles + (i < num_rows % num_tiles ? 1 : 0);
    call.row = row;
    call.x = call.args->x + row * call.args->x_row_stride;
    for (int g = 0; g < G; ++g) {
      call.next[g] = reinterpret_cast<const char*>(call.b[g]) +
                     (num_tiles > 1 ? G * kStepBytes + i * call.next_stride : 0) * num_steps;
    }
    Int8Table<D, T, kMaxRows, G>::run(static_cast<int>(rows), call);
    row += rows;
  }
}

template <class D, class T>
void linear_int8_part(const LinearInt8Args& args, const LinearPart& part) {
  constexpr int64_t kGroupsPerPanel = kPanelColumns / D::kGroup;
  const int64_t panel_bytes = int8_padded_k(args.k) * kPanelColumns;
  Int8Tile call{};
  call.args = &args;
  const int64_t end = part.panel_end * kGroupsPerPanel;
  for (int64_t group = part.panel_begin * kGroupsPerPanel; group < end; group += 2) {
    const int count = group + 1 < end ? 2 : 1;
    for (int g = 0; g < count; ++g) {
      call.column[g] = (group + g) * D::kGroup;
      call.b[g] = args.packed + (group + g) / kGroupsPerPanel * panel_bytes +
                  (group + g) % kGroupsPerPanel * D::kGroup * kInt8Step;
    }
    if (count == 2) {
      run_int8_rows<D, T, D::kMaxRows, 2>(call, part);
    } else {
      run_int8_rows<D, T, D::kMaxRowsSingle, 1>(call, part);
    }
  }
}

}  // namespace
}  // namespace xyserve

// Defines the functions behind the lines of kernels.inc.
#define XYSERVE_DEFINE_LINEAR_INT8(Dot, isa, dtype)                                      \
  namespace xyserve {                                                                    \
  void linear_int8_##dtype##_##isa(const LinearInt8Args& args, const LinearPart& part) { \
    linear_int8_part<Dot, ElementOf<DType::dtype>::type>(args, part);                    \
  }                                                                                      \
  }
#define XYSERVE_DEFINE_INT8(Dot, Vec, isa)     \
  XYSERVE_DEFINE_LINEAR_INT8(Dot, isa, f32)    \
  XYSERVE_DEFINE_LINEAR_INT8(Dot, isa, bf16)   \
  XYSERVE_DEFINE_LINEAR_INT8(Dot, isa, f16)    \
  XYSERVE_DEFINE_QUANTIZE_ROWS(Vec, isa, f32)  \
  XYSERVE_DEFINE_QUANTIZE_ROWS(Vec, isa, bf16) \
  XYSERVE_DEFINE_QUANTIZE_ROWS(Vec, isa, f16)

// The body of the int8 linear kernels: tiles as in linear.h, sums in int32 and therefore exact.
//
// [NOTE] Activations are unsigned (see quantize_rows.h), as vpdpbusd wants its first operand; what
// the zero point adds to a sum is taken off at the end, exactly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "scratch.h"
#include "vec_partly.h"
#include "xyserve/linear_int8.h"

namespace xyserve {
namespace {

// D, an instruction set: kGroup columns are kVecs vectors of floats and, as sums, kParts registers
// for each of these. X is the type that it reads rows in; up to kPairedRows rows take two groups at
// once. x: such rows, x_row_stride elements apart.
template <class D>
struct Int8Tile {
  const LinearInt8Args* args;
  const typename D::X* x;
  int64_t x_row_stride;
  const int8_t* b[2];
  int64_t column[2];
  int64_t row;
  const char* next[2];
  int64_t next_stride;
};

template <class D, class T, int R, int G>
inline void finish_int8(const Int8Tile<D>& call,
                        const typename D::Sum (&acc)[R][G * D::kVecs * D::kParts]) {
  using V = typename D::V;
  const LinearInt8Args& args = *call.args;
  const T* bias = static_cast<const T*>(args.bias);
#pragma GCC unroll 2
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
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
        const typename V::F value = D::without_zero(&acc[r][(g * D::kVecs + v) * D::kParts],
                                                    args.x_zeros[row], args.sums + column);
        const typename V::F factor = V::mul(V::set1(args.x_scales[row]), scale);
        T* out = static_cast<T*>(args.out) + row * args.out_row_stride;
        store_partly<V>(out + column, V::add(V::mul(value, factor), shift), left);
      }
    }
  }
}

template <class D, class T, int R, int G>
void run_int8_tile(const Int8Tile<D>& call) {
  constexpr int kOfGroup = D::kVecs * D::kParts;
  constexpr int kVecs = G * kOfGroup;
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
  const int64_t stride = call.x_row_stride;
  const typename D::X* x = call.x;
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
    for (int v = 0; v < kOfGroup; ++v) {
      b[v] = D::load_b(b0, v);
      if constexpr (G == 2) {
        b[kOfGroup + v] = D::load_b(b1, v);
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
  // A copy for what follows, as in linear.h: sums that a loop indexes live in memory.
  typename D::Sum sums[R][kVecs];
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = acc[r][v];
    }
  }
  finish_int8<D, T, R, G>(call, sums);
}

template <class D, class T, int R, int G>
struct Int8Table {
  static void run(int rows, const Int8Tile<D>& call) {
    if (rows == R) {
      run_int8_tile<D, T, R, G>(call);
    } else if constexpr (R > 1) {
      Int8Table<D, T, R - 1, G>::run(rows, call);
    }
  }
};

template <class D, class T, int kMaxRows, int G>
inline void run_int8_rows(Int8Tile<D> call, const LinearPart& part) {
  constexpr int64_t kStepBytes = kPanelColumns * kInt8Step;
  const int64_t num_rows = part.row_end - part.row_begin;
  const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
  const int64_t num_steps = int8_padded_k(call.args->k) / kInt8Step;
  call.next_stride = num_tiles > 1 ? kStepBytes / num_tiles : 0;
  int64_t row = part.row_begin;
  const typename D::X* x = call.x;
  for (int64_t i = 0; i < num_tiles; ++i) {
    const int64_t rows = num_rows / num_tiles + (i < num_rows % num_tiles ? 1 : 0);
    call.row = row;
    call.x = x;
    for (int g = 0; g < G; ++g) {
      call.next[g] = reinterpret_cast<const char*>(call.b[g]) +
                     (num_tiles > 1 ? G * kStepBytes + i * call.next_stride : 0) * num_steps;
    }
    Int8Table<D, T, kMaxRows, G>::run(static_cast<int>(rows), call);
    row += rows;
    x += rows * call.x_row_stride;
  }
}

// call.x: the part's first row.
template <class D, class T>
void run_int8_part(Int8Tile<D> call, const LinearPart& part) {
  constexpr int64_t kGroupsPerPanel = kPanelColumns / D::kGroup;
  const LinearInt8Args& args = *call.args;
  const int64_t panel_bytes = int8_padded_k(args.k) * kPanelColumns;
  const int64_t end = part.panel_end * kGroupsPerPanel;
  const bool in_pairs = part.row_end - part.row_begin <= D::kPairedRows;
  int count = 1;
  for (int64_t group = part.panel_begin * kGroupsPerPanel; group < end; group += count) {
    count = in_pairs && group + 1 < end ? 2 : 1;
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

// A part whose rows are widened to 16 bits first, a few at a time: inside a tile that took three
// instructions for every four products and sums.
template <class D, class T>
void run_int8_widened(Int8Tile<D> call, const LinearPart& part) {
  constexpr int64_t kMostValues = int64_t{1} << 18;  // 512 KB for each thread, or one tile's rows
  constexpr int64_t kWideRows = 96;                  // as for float rows: see linear.h
  const LinearInt8Args& args = *call.args;
  const int64_t stride = int8_padded_k(args.k);
  const int64_t most =
      std::clamp<int64_t>(kMostValues / std::max<int64_t>(stride, 1), D::kMaxRowsSingle, kWideRows);
  const int64_t num_rows = part.row_end - part.row_begin;
  const int64_t num_chunks = (num_rows + most - 1) / most;
  static thread_local Scratch<int16_t> scratch;
  int16_t* wide = scratch.at_least(std::min(most, num_rows) * stride);
  LinearPart chunk = part;
  for (int64_t i = 0; i < num_chunks; ++i, chunk.row_begin = chunk.row_end) {
    const int64_t rows = num_rows / num_chunks + (i < num_rows % num_chunks ? 1 : 0);
    chunk.row_end = chunk.row_begin + rows;
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t* from = args.x + (chunk.row_begin + row) * args.x_row_stride;
      for (int64_t k = 0; k < stride; ++k) {
        wide[row * stride + k] = from[k];
      }
    }
    call.x = wide;
    call.x_row_stride = stride;
    run_int8_part<D, T>(call, chunk);
  }
}

template <class D, class T>
void linear_int8_part(const LinearInt8Args& args, const LinearPart& part) {
  Int8Tile<D> call{};
  call.args = &args;
  if constexpr (std::is_same_v<typename D::X, uint8_t>) {
    call.x = args.x + part.row_begin * args.x_row_stride;
    call.x_row_stride = args.x_row_stride;
    run_int8_part<D, T>(call, part);
  } else {
    run_int8_widened<D, T>(call, part);
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

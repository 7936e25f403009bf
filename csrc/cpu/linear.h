// The body of the linear kernels, once for all instruction sets and element types.
//
// [NOTE] A tile is R rows by up to two column groups of D::kGroup columns; its sums stay in
// registers over all of a K block. Every row count up to the maximum has a tile of its own, and
// the rows are dealt to tiles evenly: no row is ever computed for padding. Internal linkage: see
// the note in vec_scalar.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "linear_dot.h"
#include "scratch.h"
#include "vec_partly.h"
#include "xyserve/linear.h"

namespace xyserve {
namespace {

// One call of a tile. b: the column groups at the first step of the K block. column: the output
// column of each group. partial: fp32 sums between K blocks, [R][groups][kGroup].
template <class D>
struct TileCall {
  using T = typename D::T;
  const LinearArgs* args;
  const typename D::X* x;
  int64_t x_row_stride;
  const T* b[2];
  const T* after[2];  // what later tiles read next of each group
  int64_t column[2];
  int64_t row;
  int64_t num_steps;
  float* partial;
  float* sums;  // where the sums of a segment go, [m, columns of all panels]; nullptr: not split
  int64_t sums_stride;
  bool odd_k;  // one more step of which only the first half exists
  bool first;
  bool last;
  bool segmented;       // a block's sum starts from zero and is added to those before it
  const char* next[2];  // what to fetch of it meanwhile, and how many bytes per step
  int64_t next_stride;
};

template <class V>
inline typename V::F gated(typename V::F gate, typename V::F up) {
  const typename V::F denominator = V::add(V::one(), V::exp(V::negate(gate)));
  return V::mul(V::div(gate, denominator), up);
}

template <class D, int R, int G>
inline void finish_tile(const TileCall<D>& call, typename D::F (&acc)[R][G * D::kVecs]) {
  using V = typename D::V;
  using T = typename D::T;
  const LinearArgs& args = *call.args;
  const T* bias = static_cast<const T*>(args.bias);
  const int64_t n_out = args.epilogue == Epilogue::silu_mul ? args.n / 2 : args.n;
  for (int r = 0; r < R; ++r) {
    T* out = static_cast<T*>(args.out) + (call.row + r) * args.out_row_stride;
    for (int g = 0; g < G; ++g) {
      for (int v = 0; v < D::kVecs; ++v) {
        const int64_t column = call.column[g] + v * V::kWidth;
        typename D::F sum = acc[r][g * D::kVecs + v];
        if (bias != nullptr) {
          sum = V::add(sum, load_partly<V>(bias + column, args.n - column));
        }
        if (args.epilogue == Epilogue::add) {
          const T* residual =
              static_cast<const T*>(args.residual) + (call.row + r) * args.residual_row_stride;
          sum = V::add(sum, load_partly<V>(residual + column, args.n - column));
        }
        acc[r][g * D::kVecs + v] = sum;
        if (args.epilogue != Epilogue::silu_mul) {
          store_partly<V>(out + column, sum, n_out - column);
        }
      }
    }
    if constexpr (G == 2) {
      if (args.epilogue == Epilogue::silu_mul) {
        for (int v = 0; v < D::kVecs; ++v) {
          V::store(out + call.column[0] + v * V::kWidth, gated<V>(acc[r][v], acc[r][D::kVecs + v]));
        }
      }
    }
  }
}

template <class D, int R, int G>
inline void store_sums(const TileCall<D>& call, const typename D::F (&acc)[R][G * D::kVecs]) {
  for (int r = 0; r < R; ++r) {
    float* row = call.sums + (call.row + r) * call.sums_stride;
    for (int g = 0; g < G; ++g) {
      for (int v = 0; v < D::kVecs; ++v) {
        D::V::store(row + call.column[g] + v * D::V::kWidth, acc[r][g * D::kVecs + v]);
      }
    }
  }
}

// How far ahead of its use a line is fetched, in steps. AVX-512: at 12 the best of 8 to 40, by a
// little. AVX2 with half the bytes a step: at 32, 5 to 10 % faster than at 12 up to M = 6.
template <class D>
constexpr int64_t kNear = D::V::kWidth == 16 ? 12 : 32;

template <class D, int64_t kSteps>
inline void fetch_ahead(const typename D::T* b) {
  constexpr int64_t kBytes = D::kGroup * D::kStep * static_cast<int64_t>(sizeof(typename D::T));
  const char* line = reinterpret_cast<const char*>(b + kSteps * kPanelColumns * D::kStep);
  for (int64_t i = 0; i < kBytes; i += 64) {
    __builtin_prefetch(line + i);
  }
}

template <class D, int R, int G>
void run_tile(const TileCall<D>& call) {
  using F = typename D::F;
  using T = typename D::T;
  constexpr int kVecs = G * D::kVecs;
  constexpr int64_t kStepElements = kPanelColumns * D::kStep;
  F acc[R][kVecs];
  if (call.first || call.segmented) {
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = D::zero();
      }
    }
  } else {
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = D::V::load(call.partial + (r * kVecs + v) * D::V::kWidth);
      }
    }
  }
  using X = typename D::X;
  const int64_t stride = call.x_row_stride;
  const X* x = call.x;
  const T* b0 = call.b[0];
  const T* b1 = G == 2 ? call.b[1] : nullptr;
  const char* next0 = call.next[0];
  const char* next1 = G == 2 ? call.next[1] : nullptr;
  const int64_t next_stride = call.next_stride;
  auto pass = [&](auto phase, auto load_a) __attribute__((always_inline)) {
    typename D::B b[kVecs];
#pragma GCC unroll 32
    for (int v = 0; v < D::kVecs; ++v) {
      b[v] = D::load_b(b0, v, phase);
      if constexpr (G == 2) {
        b[D::kVecs + v] = D::load_b(b1, v, phase);
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
      const typename D::A a = load_a(x + r * stride, phase);
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = D::multiply_add(a, b[v], acc[r][v]);
      }
    }
  };
  auto step = [&](auto load_a) __attribute__((always_inline)) {
    pass(EvenPhase{}, load_a);
    if constexpr (D::kPhases == 2) {
      pass(OddPhase{}, load_a);
    }
    x += D::kStep;
    b0 += kStepElements;
    if constexpr (G == 2) {
      b1 += kStepElements;
    }
  };
  for (int64_t i = 0; i < call.num_steps; ++i) {
    fetch_ahead<D, kNear<D>>(b0);
    __builtin_prefetch(next0, 0, 2);
    next0 += next_stride;
    if constexpr (G == 2) {
      fetch_ahead<D, kNear<D>>(b1);
      __builtin_prefetch(next1, 0, 2);
      next1 += next_stride;
    }
    step([](const X* p, auto phase) __attribute__((always_inline)) { return D::load_a(p, phase); });
  }
  if (call.odd_k) {
    step([](const X* p, auto phase)
             __attribute__((always_inline)) { return D::load_last_a(p, phase); });
  }
  // A copy for what follows: its loops are not unrolled, and sums that they index would be written
  // to memory in every step (AVX2, fp32: twice the time).
  F sums[R][kVecs];
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = acc[r][v];
    }
  }
  if (call.sums != nullptr) {
    store_sums<D, R, G>(call, sums);
    return;
  }
  if (call.segmented && !call.first) {
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 32
      for (int v = 0; v < kVecs; ++v) {
        sums[r][v] =
            D::V::add(D::V::load(call.partial + (r * kVecs + v) * D::V::kWidth), sums[r][v]);
      }
    }
  }
  if (!call.last) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kVecs; ++v) {
        D::V::store(call.partial + (r * kVecs + v) * D::V::kWidth, sums[r][v]);
      }
    }
    return;
  }
  finish_tile<D, R, G>(call, sums);
}

template <class D, int R, int G>
struct TileTable {
  static void run(int rows, const TileCall<D>& call) {
    if (rows == R) {
      run_tile<D, R, G>(call);
    } else if constexpr (R > 1) {
      TileTable<D, R - 1, G>::run(rows, call);
    }
  }
};

template <int kMaxRows>
inline int64_t most_rows(const LinearArgs& args) {
  return args.tile_rows > 0 && args.tile_rows < kMaxRows ? args.tile_rows : kMaxRows;
}

// Rows [begin, end) in tiles of nearly equal height, none above the most.
template <class D, int kMaxRows, int G>
inline void run_rows(TileCall<D> call, int64_t begin, int64_t end, const typename D::X* x) {
  const int64_t num_rows = end - begin;
  const int64_t max_rows = most_rows<kMaxRows>(*call.args);
  const int64_t num_tiles = (num_rows + max_rows - 1) / max_rows;
  float* partial = call.partial;
  constexpr int64_t kStepBytes =
      kPanelColumns * D::kStep * static_cast<int64_t>(sizeof(typename D::T));
  call.next_stride = num_tiles == 1 ? 0 : kStepBytes / num_tiles;
  for (int64_t i = 0, row = begin; i < num_tiles; ++i) {
    const int64_t rows = num_rows / num_tiles + (i < num_rows % num_tiles ? 1 : 0);
    call.row = row;
    for (int g = 0; g < G; ++g) {
      call.next[g] =
          reinterpret_cast<const char*>(call.after[g]) + i * call.next_stride * call.num_steps;
    }
    call.x = x + row * call.x_row_stride;
    call.partial = partial + (row - begin) * G * D::kGroup;
    TileTable<D, kMaxRows, G>::run(static_cast<int>(rows), call);
    row += rows;
  }
}

// How a call walks along K: blocks of `block` steps from `begin` to `end`.
struct Walk {
  int64_t begin;
  int64_t end;
  int64_t block;
  int64_t longest;  // a K of no more steps is taken in one go, as are rows of a single tile
};

template <class D>
inline Walk walk_of(const LinearArgs& args, const LinearPart& part, const Segments& segments) {
  const int64_t num_steps = args.k / D::kStep;
  if (segments.count > 1) {
    const int64_t end = part.segment_end * segments.steps;
    return {part.segment_begin * segments.steps, end > 0 && end < num_steps ? end : num_steps,
            segments.steps, 0};
  }
  const int64_t block = args.block_steps > 0 ? args.block_steps : D::kBlockSteps;
  return {0, num_steps, block, args.block_steps > 0 ? block : 2 * block};
}

// One column group or two (neighbours, or a gate and its up) for all rows. A long K is cut into
// blocks that stay in the second-level cache while all rows pass; sums wait in `partial`, in fp32
// and therefore without a change of their bits. Segments are such blocks too, each with a sum of
// its own.
template <class D, int kMaxRows, int G>
void run_columns(TileCall<D> call, const LinearPart& part, int64_t panel_elements) {
  constexpr int64_t kBlockRows = 192;
  using T = typename D::T;
  const LinearArgs& args = *call.args;
  const Segments segments = segments_of(D::kStep, args.n, args.k);
  const Walk walk = walk_of<D>(args, part, segments);
  const int64_t num_steps = args.k / D::kStep;
  const bool odd_k = args.k % D::kStep != 0;
  const bool split = part.segment_end > 0;
  const typename D::X* x = call.x;
  alignas(64) float partial[kBlockRows * G * D::kGroup];
  call.partial = partial;
  call.segmented = segments.count > 1;
  call.sums_stride = num_panels(args.n) * kPanelColumns;
  const T* b[2] = {call.b[0], call.b[1]};
  for (int64_t row = part.row_begin; row < part.row_end;) {
    const int64_t left = part.row_end - row;
    const bool whole = num_steps <= walk.longest ||
                       (!call.segmented && left <= most_rows<kMaxRows>(args)) || num_steps == 0;
    const int64_t block_steps = whole ? num_steps : walk.block;
    const int64_t rows = whole || left <= kBlockRows ? left : kBlockRows;
    for (int64_t i = walk.begin;; i += block_steps) {
      call.first = i == 0;
      call.last = i + block_steps >= num_steps;
      call.num_steps = call.last ? num_steps - i : block_steps;
      call.odd_k = call.last && odd_k;
      call.sums = split ? args.sums + i / segments.steps * args.m * call.sums_stride : nullptr;
      for (int g = 0; g < G; ++g) {
        call.b[g] = b[g] + i * kPanelColumns * D::kStep;
        // After the last block, the panels of the next call.
        call.after[g] = call.last ? b[g] + G * panel_elements
                                  : call.b[g] + call.num_steps * kPanelColumns * D::kStep;
      }
      run_rows<D, kMaxRows, G>(call, row, row + rows, x + i * D::kStep);
      if (i + block_steps >= walk.end) {
        break;
      }
    }
    row += rows;
  }
}

// The outputs of a call that was split along K: the sums of its segments, added in order.
template <class D, int G>
void merge_columns(TileCall<D> call, const LinearPart& part) {
  const LinearArgs& args = *call.args;
  const int64_t count = segments_of(D::kStep, args.n, args.k).count;
  const int64_t stride = num_panels(args.n) * kPanelColumns;
  for (call.row = part.row_begin; call.row < part.row_end; ++call.row) {
    typename D::F acc[1][G * D::kVecs];
    for (int i = 0; i < G * D::kVecs; ++i) {
      const float* sums =
          args.sums + call.row * stride + call.column[i / D::kVecs] + i % D::kVecs * D::V::kWidth;
      acc[0][i] = D::V::load(sums);
      for (int64_t segment = 1; segment < count; ++segment) {
        acc[0][i] = D::V::add(acc[0][i], D::V::load(sums + segment * args.m * stride));
      }
    }
    finish_tile<D, 1, G>(call, acc);
  }
}

template <class D, int kMaxRows, int G>
inline void run_or_merge(const TileCall<D>& call, const LinearPart& part, int64_t panel_elements) {
  if (part.merge) {
    merge_columns<D, G>(call, part);
  } else {
    run_columns<D, kMaxRows, G>(call, part, panel_elements);
  }
}

// All panels of a part, for its rows. call: x and its stride are set.
template <class D>
void run_part(TileCall<D> call, const LinearPart& part) {
  using T = typename D::T;
  constexpr int64_t kGroupsPerPanel = kPanelColumns / D::kGroup;
  const LinearArgs& args = *call.args;
  const int64_t panel_elements = (args.k + D::kStep - 1) / D::kStep * D::kStep * kPanelColumns;
  const T* packed = static_cast<const T*>(args.packed);
  auto set_group = [&](int g, int64_t group) {
    call.column[g] = group * D::kGroup;
    call.b[g] = packed + group / kGroupsPerPanel * panel_elements +
                group % kGroupsPerPanel * D::kGroup * D::kStep;
  };
  const bool paired = args.epilogue == Epilogue::silu_mul;
  const int64_t up_groups = args.n / 2 / D::kGroup;
  const int64_t end = part.panel_end * kGroupsPerPanel;
  for (int64_t group = part.panel_begin * kGroupsPerPanel; group < end;) {
    set_group(0, group);
    if (paired || group + 1 < end) {
      set_group(1, paired ? group + up_groups : group + 1);
      run_or_merge<D, D::kMaxRows, 2>(call, part, panel_elements);
      group += paired ? 1 : 2;
    } else {
      run_or_merge<D, D::kMaxRowsSingle, 1>(call, part, panel_elements);
      group += 1;
    }
  }
}

// Values [begin, end) of K of `rows` rows, widened to fp32.
template <class D>
void widen_rows(const typename D::T* x, int64_t x_row_stride, int64_t rows, int64_t begin,
                int64_t end, float* wide, int64_t wide_row_stride) {
  using V = typename D::V;
  for (int64_t row = 0; row < rows; ++row) {
    const typename D::T* from = x + row * x_row_stride;
    float* to = wide + row * wide_row_stride;
    for (int64_t i = begin; i < end; i += V::kWidth) {
      store_partly<V>(to + i, load_partly<V>(from + i, end - i), end - i);
    }
  }
}

// A part whose x is widened to fp32 first, a few rows at a time. Inside a tile a value of x would
// be widened once for every two column groups, at up to three instructions for two multiplications
// (AVX2, 48 rows of 4096 x 4096: bf16 43 GFLOP/s, fp16 51, so 8x).
template <class D>
void run_widened(TileCall<D> call, const LinearPart& part) {
  using T = typename D::T;
  constexpr int64_t kMostValues = int64_t{1} << 18;  // 1 MB for each thread, or one tile's rows
  // 192 rows of K = 576 leave no room for weights in a second-level cache of 512 KB: 4 % slower.
  constexpr int64_t kWideRows = 96;
  const LinearArgs& args = *call.args;
  const T* x = static_cast<const T*>(args.x);
  const Walk walk = walk_of<D>(args, part, segments_of(D::kStep, args.n, args.k));
  const int64_t begin = walk.begin * D::kStep;
  const int64_t end = walk.end == args.k / D::kStep ? args.k : walk.end * D::kStep;
  const int64_t stride = (args.k + 15) / 16 * 16;
  const int64_t most =
      std::clamp<int64_t>(kMostValues / std::max<int64_t>(stride, 1), D::kMaxRows, kWideRows);
  const int64_t num_rows = part.row_end - part.row_begin;
  const int64_t num_chunks = (num_rows + most - 1) / most;
  static thread_local Scratch<float> scratch;
  float* wide = scratch.at_least(std::min(most, num_rows) * stride);
  for (int64_t i = 0, row = part.row_begin; i < num_chunks; ++i) {
    const int64_t rows = num_rows / num_chunks + (i < num_rows % num_chunks ? 1 : 0);
    widen_rows<D>(x + row * args.x_row_stride, args.x_row_stride, rows, begin, end, wide, stride);
    LinearPart chunk = part;
    chunk.row_begin = row;
    chunk.row_end = row + rows;
    call.x = wide - row * stride;
    call.x_row_stride = stride;
    run_part<D>(call, chunk);
    row += rows;
  }
}

template <class D>
void linear_part(const LinearArgs& args, const LinearPart& part) {
  using X = typename D::X;
  TileCall<D> call{};
  call.args = &args;
  if constexpr (!std::is_same_v<X, typename D::T>) {
    if (!part.merge) {
      run_widened<D>(call, part);
      return;
    }
  } else {
    call.x = static_cast<const X*>(args.x);
    call.x_row_stride = args.x_row_stride;
  }
  run_part<D>(call, part);
}

}  // namespace
}  // namespace xyserve

// Defines the function behind one line of kernels.inc.
#define XYSERVE_DEFINE_LINEAR(Dot, isa, dtype)                                  \
  namespace xyserve {                                                           \
  void linear_##dtype##_##isa(const LinearArgs& args, const LinearPart& part) { \
    linear_part<Dot>(args, part);                                               \
  }                                                                             \
  }

// Vector operations on a matrix of fp32 rows in UB. Scalars of a row live in a 32-byte block each,
// eight times the same value, so that any row can be addressed and be a broadcast operand.
#pragma once

#include "kernel_operator.h"

#include "ascendc/kernel/meta_attention_args.h"

namespace xyserve::meta_attention {

constexpr int32_t kLanes = 64;  // fp32 of a repeat
constexpr int32_t kPerBlock = 8;
// Scores that do not count, far below any score yet finite; and what a row's maximum is at least,
// so that a row without keys has exp(kHidden - kLowest) = 0 everywhere.
constexpr float kHidden = -3.0e38f;
constexpr float kLowest = -1.0e38f;
constexpr float kTiniest = 1.0e-30f;

using Floats = AscendC::LocalTensor<float>;

enum class RowOp { kAdd, kSub, kMul };

__aicore__ inline void apply(RowOp op, Floats dst, Floats a, Floats b, uint64_t lanes,
                             int32_t repeat, const AscendC::BinaryRepeatParams& strides) {
  if (op == RowOp::kAdd) {
    AscendC::Add(dst, a, b, lanes, repeat, strides);
  } else if (op == RowOp::kSub) {
    AscendC::Sub(dst, a, b, lanes, repeat, strides);
  } else {
    AscendC::Mul(dst, a, b, lanes, repeat, strides);
  }
}

// dst[r][c] = a[r][c] op scalar of row r. Rows are `stride` floats apart. Few long rows take one
// instruction each, many short ones an instruction per 64 columns.
__aicore__ inline void row_scalar(RowOp op, Floats dst, int32_t dst_stride, Floats a,
                                  int32_t stride, Floats scalars, int32_t rows, int32_t columns) {
  const int32_t full = columns / kLanes, rest = columns % kLanes;
  if (rows < full) {  // only score rows, which are multiples of 64 and at most 255 * 64
    for (int32_t row = 0; row < rows; ++row) {
      apply(op, dst[row * dst_stride], a[row * stride], scalars[row * kPerBlock], kLanes, full,
            AscendC::BinaryRepeatParams(1, 1, 0, 8, 8, 0));
    }
    if (rest == 0) {
      return;
    }
  }
  const AscendC::BinaryRepeatParams strides(1, 1, 0, dst_stride / kPerBlock, stride / kPerBlock, 1);
  for (int32_t block = rows < full ? full : 0; block < full; ++block) {
    apply(op, dst[block * kLanes], a[block * kLanes], scalars, kLanes, rows, strides);
  }
  if (rest > 0) {
    apply(op, dst[full * kLanes], a[full * kLanes], scalars, rest, rows, strides);
  }
}

// sum[r][c] += a[r][c] for rows that are differently far apart.
__aicore__ inline void add_rows(Floats sum, int32_t sum_stride, Floats a, int32_t stride,
                                int32_t rows, int32_t columns) {
  const AscendC::BinaryRepeatParams strides(1, 1, 1, sum_stride / kPerBlock, sum_stride / kPerBlock,
                                            stride / kPerBlock);
  for (int32_t column = 0; column < columns; column += kLanes) {
    AscendC::Add(sum[column], sum[column], a[column], arch::min_of(kLanes, columns - column), rows,
                 strides);
  }
}

enum class Reduction { kMax, kSum };

template <Reduction kOp>
__aicore__ inline void reduce_repeats(Floats dst, Floats src, int32_t repeats, int32_t stride) {
  if constexpr (kOp == Reduction::kMax) {
    AscendC::WholeReduceMax<float>(dst, src, kLanes, repeats, 1, 1, stride / kPerBlock,
                                   AscendC::ReduceOrder::ORDER_ONLY_VALUE);
  } else {
    AscendC::WholeReduceSum<float>(dst, src, kLanes, repeats, 1, 1, stride / kPerBlock);
  }
}

template <Reduction kOp>
__aicore__ inline void combine(Floats dst, Floats a, Floats b, int32_t rows,
                               const AscendC::BinaryRepeatParams& strides) {
  if constexpr (kOp == Reduction::kMax) {
    AscendC::Max(dst, a, b, kLanes, rows, strides);
  } else {
    AscendC::Add(dst, a, b, kLanes, rows, strides);
  }
}

// Floats of scratch that reduce_rows needs for a set of at most kScoreSet scores and kMaxSetRows
// rows: 64 partial results per row in the one way; in the other, of rows < columns / 64, which are
// fewer than sqrt(kScoreSet / 64), 64 again, or 192 for two rows of 65 to 192 repeats.
constexpr int32_t kReduceScratch = kMaxSetRows * kLanes;
static_assert(kScoreSet / kLanes <= arch::kMaxVectorRepeat, "a row is one instruction");

// dst[r] = max or sum over row r; dst needs no alignment of rows. columns is a multiple of 64.
template <Reduction kOp>
__aicore__ inline void reduce_rows(Floats dst, Floats src, Floats scratch, int32_t rows,
                                   int32_t columns) {
  int32_t repeats = columns / kLanes, stride = columns;
  Floats from = src;
  Floats partial = scratch;
  if (rows < repeats) {
    const int32_t width = arch::round_up(repeats, kLanes);
    AscendC::Duplicate(scratch, kOp == Reduction::kMax ? kHidden : 0.0f, rows * width);
    AscendC::PipeBarrier<PIPE_V>();
    for (int32_t row = 0; row < rows; ++row) {
      reduce_repeats<kOp>(scratch[row * width], src[row * stride], repeats, kLanes);
    }
    AscendC::PipeBarrier<PIPE_V>();
    from = scratch;
    partial = scratch;  // block 0 of each row takes the others: same rows, same stride
    stride = width;
    repeats = width / kLanes;
    for (int32_t block = 1; block < repeats; ++block) {
      const AscendC::BinaryRepeatParams same(1, 1, 1, width / kPerBlock, width / kPerBlock,
                                             width / kPerBlock);
      combine<kOp>(scratch, scratch, scratch[block * kLanes], rows, same);
      AscendC::PipeBarrier<PIPE_V>();
    }
    reduce_repeats<kOp>(dst, scratch, rows, width);
    return;
  }
  if (repeats == 1) {
    reduce_repeats<kOp>(dst, from, rows, stride);
    return;
  }
  const AscendC::BinaryRepeatParams first(1, 1, 1, 8, stride / kPerBlock, stride / kPerBlock);
  const AscendC::BinaryRepeatParams next(1, 1, 1, 8, 8, stride / kPerBlock);
  combine<kOp>(partial, from, from[kLanes], rows, first);
  AscendC::PipeBarrier<PIPE_V>();
  for (int32_t block = 2; block < repeats; ++block) {
    combine<kOp>(partial, partial, from[block * kLanes], rows, next);
    AscendC::PipeBarrier<PIPE_V>();
  }
  reduce_repeats<kOp>(dst, partial, rows, kLanes);
}

// blocks[r][0..8) = values[r]; both are written in multiples of 8 rows.
__aicore__ inline void broadcast_rows(Floats blocks, Floats values, int32_t rows) {
  AscendC::Brcb(blocks, values, arch::ceil_div(rows, kPerBlock),
                AscendC::BrcbRepeatParams(1, kPerBlock));
}

// Lanes [from, 64) of a repeat, as a mask.
__aicore__ inline uint64_t lanes_from(int32_t from) {
  return from <= 0 ? ~uint64_t{0} : from >= kLanes ? 0 : ~uint64_t{0} << from;
}

__aicore__ inline void hide_lanes(Floats at, uint64_t lanes, int32_t repeat, int32_t stride) {
  if (lanes != 0) {
    uint64_t mask[2] = {lanes, 0};
    AscendC::Duplicate(at, kHidden, mask, repeat, 1, stride / kPerBlock);
  }
}

// Columns [begin, end) of one row; end is a multiple of 64 or shares begin's repeat.
__aicore__ inline void hide_columns(Floats row, int32_t begin, int32_t end) {
  if (begin >= end) {
    return;
  }
  const int32_t first = begin / kLanes, last = end / kLanes;
  if (first == last) {
    hide_lanes(row[first * kLanes], lanes_from(begin % kLanes) & ~lanes_from(end % kLanes), 1, 8);
    return;
  }
  int32_t full = first;
  if (begin % kLanes != 0) {
    hide_lanes(row[first * kLanes], lanes_from(begin % kLanes), 1, 8);
    ++full;
  }
  if (full < last) {
    AscendC::Duplicate(row[full * kLanes], kHidden, static_cast<uint64_t>(kLanes), last - full, 1,
                       8);
  }
  if (end % kLanes != 0) {
    hide_lanes(row[last * kLanes], ~lanes_from(end % kLanes), 1, 8);
  }
}

}  // namespace xyserve::meta_attention

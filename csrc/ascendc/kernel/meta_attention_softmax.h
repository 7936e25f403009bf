// A vector core's work in UB: the softmax of a set of score rows, and the running state of a unit.
#pragma once

#include "ascendc/bound.h"
#include "ascendc/kernel/meta_attention_rows.h"
#include "ascendc/kernel/meta_attention_table.h"

namespace xyserve::meta_attention {

// Bytes in UB, from the start: in slots, out slots, accumulator, state, what is kept of a set, and
// in the two-stage form the keys. An out slot serves reductions as scratch before it takes results.
struct RowsLayout {
  static constexpr int32_t kSlots = 2;
  // Of a set: four times eight floats per row, and a value per row.
  static constexpr int32_t kSmallBytes = kMaxSetRows * kPerBlock * 4;
  static constexpr int32_t kSmalls = 4;
  static constexpr int32_t kValueBytes = kMaxSetRows * 4;
  static constexpr int32_t kSetBytes = kSmalls * kSmallBytes + kValueBytes;
  // Eight floats per row: maximum and sum of two units, the factors of two items.
  static constexpr int32_t kStates = 6;
};

template <Form kForm>
struct VectorLayout;

template <>
struct VectorLayout<kThreeStage> : RowsLayout {
  static constexpr int32_t kSet = kScoreSet;
  static constexpr int32_t kInBytes = kSet * 4;
  static constexpr int32_t kOutBytes = kSet * 2;
  static constexpr int32_t kAccBytes = 0;
  static constexpr int32_t kStateBytes = 0;
  static constexpr int32_t kKeyBytes = 0;
};

template <>
struct VectorLayout<kFourStage> : RowsLayout {
  static constexpr int32_t kSet = kChunkSet;
  static constexpr int32_t kInBytes = kSet * 4;
  static constexpr int32_t kOutBytes = kSet * 2;
  static constexpr int32_t kAccBytes = kHalfRows * kMaxHeadDim * 4;
  static constexpr int32_t kStateBytes = kHalfRows * kPerBlock * 4;
  static constexpr int32_t kKeyBytes = 0;
};

template <>
struct VectorLayout<kTwoStage> : RowsLayout {
  static constexpr int32_t kSet = kTwoStageMaxGroup * kTwoStageMaxKeys;
  static constexpr int32_t kInBytes = kChunkSet * 4;
  static constexpr int32_t kOutBytes = kMaxSetRows * kMaxHeadDim * 2;
  static constexpr int32_t kAccBytes = kTwoStageMaxGroup * kMaxHeadDim * 4;
  static constexpr int32_t kStateBytes = kTwoStageMaxGroup * kPerBlock * 4;
  // Keys of one step in fp32, their products with a query, 64 per key; scores; the queries.
  static constexpr int32_t kWideBytes = kChunkSet * 4;
  static constexpr int32_t kStepKeys = 64;
  static constexpr int32_t kProductBytes = kStepKeys * kLanes * 4;
  static constexpr int32_t kScoreBytes = kSet * 4;
  static constexpr int32_t kQueryBytes = kTwoStageMaxGroup * kMaxHeadDim * 4;
  static constexpr int32_t kKeyBytes =
      kWideBytes + kProductBytes + kScoreBytes + kQueryBytes + kQueryBytes / 2;
};

template <Form kForm>
struct VectorPlaces : VectorLayout<kForm> {
  using Layout = VectorLayout<kForm>;
  static constexpr int32_t kOut = Layout::kSlots * Layout::kInBytes;
  static constexpr int32_t kAcc = kOut + Layout::kSlots * Layout::kOutBytes;
  static constexpr int32_t kState = kAcc + Layout::kAccBytes;
  static constexpr int32_t kSmall = kState + Layout::kStates * Layout::kStateBytes;
  static constexpr int32_t kValue = kSmall + Layout::kSmalls * Layout::kSmallBytes;
  static constexpr int32_t kKeys = kValue + Layout::kValueBytes;
  static constexpr int32_t kTotal = kKeys + Layout::kKeyBytes;
  static_assert(kTotal <= arch::kUbUsable, "UB");
  static_assert(Layout::kOutBytes >= 4 * kReduceScratch, "scratch");
};
static_assert(VectorPlaces<kThreeStage>::kTotal > 0, "UB");
static_assert(VectorPlaces<kFourStage>::kTotal > 0, "UB");
static_assert(VectorPlaces<kTwoStage>::kTotal > 0, "UB");
static_assert(kMaxSetRows * kMaxHeadDim <= kChunkSet, "a set of output rows");

// The scores of a set: rows of `width` floats, of which `columns` are keys from `key0` on.
struct ScoreSet {
  int32_t row;  // of the tile
  int32_t rows;
  int32_t columns;
  int32_t width;  // multiple of 64
  int32_t key0;
};

// Scores that a query must not see become kHidden, each row by its own bounds: no mask tensor.
class Mask {
 public:
  __aicore__ inline void Init(const Args& args, bool causal) {
    causal_ = causal;
    tree_.SetGlobalBuffer(reinterpret_cast<__gm__ uint64_t*>(args.tree_mask));
    has_tree_ = args.tree_mask != 0;
  }

  __aicore__ inline void Apply(const Unit& unit, const ScoreSet& set, Floats scores) {
    for (int32_t i = 0; i < set.rows; ++i) {
      const int32_t row = set.row + i;
      const int32_t query = unit.num_queries == 1 ? 0 : row % unit.num_queries;
      const int32_t position = unit.position + query;
      int32_t begin = unit.begin, end = set.key0 + set.columns;
      // A single query sees up to the unit's end.
      if (causal_ && unit.num_queries > 1) {
        end = XYSERVE_BOUNDED(end, position + 1);
      }
      if (unit.window > 0) {
        begin = arch::max_of(begin, position - unit.window + 1);
      }
      if (unit.window > 0 && !causal_) {
        end = XYSERVE_BOUNDED(end, position + unit.window);
      }
      begin = arch::max_of(begin - set.key0, 0);
      end = arch::max_of(end - set.key0, 0);
      const Floats at = scores[i * set.width];
      if (begin >= end) {
        hide_columns(at, 0, set.width);
        continue;
      }
      hide_columns(at, 0, begin);
      hide_columns(at, end, set.width);
      if (has_tree_ && unit.mask_offset >= 0) {
        HideBranches(unit, set, at, unit.query_begin + query, begin, end);
      }
    }
  }

 private:
  // The row's new tokens that are not on the query's branch, within columns [begin, end).
  __aicore__ inline void HideBranches(const Unit& unit, const ScoreSet& set, Floats row,
                                      int32_t query, int32_t begin, int32_t end) {
    const int32_t start = unit.history - set.key0;  // column of the first new token
    const int32_t words = arch::ceil_div(unit.query_len, kLanes);
    const int64_t from = unit.mask_offset + int64_t{query} * words;
    for (int32_t block = arch::max_of(start, begin) / kLanes; block * kLanes < end; ++block) {
      const int32_t column = block * kLanes;
      uint64_t hidden = ~Bits(from, words, column - start);
      hidden &= lanes_from(begin - column) & ~lanes_from(end - column);
      hide_lanes(row[column], hidden, 1, 8);
    }
  }

  // 64 bits of a mask row from `token` on, ones before its start.
  __aicore__ inline uint64_t Bits(int64_t row, int32_t words, int32_t token) {
    if (token < 0) {
      return tree_.GetValue(row) << -token | ~(~uint64_t{0} << -token);
    }
    const int32_t word = token / kLanes, shift = token % kLanes;
    uint64_t bits = word < words ? tree_.GetValue(row + word) >> shift : 0;
    if (shift != 0 && word + 1 < words) {
      bits |= tree_.GetValue(row + word + 1) << (kLanes - shift);
    }
    return bits;
  }

  AscendC::GlobalTensor<uint64_t> tree_;
  bool causal_;
  bool has_tree_;
};

// scores = softcap * tanh(scores * scale / softcap), by tanh(x) = (e^2x - 1) / (e^2x + 1).
// scratch: half as many floats.
__aicore__ inline void cap_scores(Floats scores, Floats scratch, int32_t count, float scale,
                                  float softcap) {
  AscendC::Muls(scores, scores, 2.0f * scale / softcap, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Mins(scores, scores, 30.0f, count);  // tanh(15) is 1 in fp32
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Maxs(scores, scores, -30.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Exp(scores, scores, count);
  AscendC::PipeBarrier<PIPE_V>();
  const int32_t half_count = count / 2;  // counts are multiples of 64
  for (int32_t part = 0; part < 2; ++part) {
    const Floats at = scores[part * half_count];
    AscendC::Adds(scratch, at, 1.0f, half_count);
    AscendC::Adds(at, at, -1.0f, half_count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Div(at, at, scratch, half_count);
    AscendC::PipeBarrier<PIPE_V>();
  }
  AscendC::Muls(scores, scores, softcap, count);
  AscendC::PipeBarrier<PIPE_V>();
}

// lse = maximum * factor + ln(sum), -inf for rows without keys. Eight floats per row; `scratch`
// too. sum is at least kTiniest.
__aicore__ inline void log_sum_exp(Floats lse, Floats maximum, Floats sum, Floats scratch,
                                   float factor, int32_t rows) {
  const int32_t count = rows * kPerBlock;
  AscendC::Muls(scratch, maximum, factor, count);
  AscendC::Ln(lse, sum, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Add(lse, lse, scratch, count);
  // 0 where there is a key; kLowest * factor, and then -inf, where there is none.
  AscendC::Adds(scratch, scratch, 1.0e30f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Mins(scratch, scratch, 0.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Muls(scratch, scratch, 1.0e30f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Add(lse, lse, scratch, count);
}

}  // namespace xyserve::meta_attention

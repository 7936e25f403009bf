// The vector cores' half of Meta-Attention: each of the two takes half of a tile's rows.
#pragma once

#include "ascendc/bound.h"
#include "ascendc/kernel/meta_attention_softmax.h"

namespace xyserve::meta_attention {

template <typename T, Form kForm>
class Vector {
 protected:
  using Layout = VectorPlaces<kForm>;
  static constexpr int32_t kStoreEvent = 2;  // small results on their way out
  static constexpr int32_t kAccEvent = 3;    // accumulator on its way out
  static constexpr int32_t kElementsPerBlock = arch::kC0<T>;
  // Rows with their LSE that an in slot holds.
  static constexpr int32_t kCombinedRows = kChunkSet / (kMaxHeadDim + kPerBlock);
  static_assert(kCombinedRows <= kMaxSetRows, "what is kept of a set");

 public:
  __aicore__ inline void Init(AscendC::TPipe* pipe, const Args& args, bool causal,
                              uint64_t score_slots, int64_t score_slot_bytes) {
    args_ = args;
    score_slots_ = score_slots;
    score_slot_bytes_ = score_slot_bytes;
    capped_ = args.softcap > 0.0f;
    factor_ = capped_ ? 1.0f : args.scale;  // of scores in the exponent
    mask_.Init(args, causal);
    pipe->InitBuffer(ub_, Layout::kTotal);
    for (int32_t i = 0; i < Layout::kSlots; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
    }
    for (int32_t i = 0; i < Layout::kSlots; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(i);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kAccEvent);
    // Broadcasts read whole blocks of values.
    AscendC::Duplicate(Values(), 0.0f, kMaxSetRows);
  }

  __aicore__ inline void Finish() {
    for (int32_t i = 0; i < Layout::kSlots; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
    }
    for (int32_t i = 0; i < Layout::kSlots; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(i);
    }
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kAccEvent);
  }

  // This core's rows of a unit: [RowBegin, RowEnd). In two stages the cores share keys, not rows.
  __aicore__ inline static int32_t RowBegin(const Unit& unit) {
    return kForm == kTwoStage || AscendC::GetSubBlockIdx() == 0 ? 0 : (unit.rows + 1) / 2;
  }
  __aicore__ inline static int32_t RowEnd(const Unit& unit) {
    return kForm == kTwoStage || AscendC::GetSubBlockIdx() != 0 ? unit.rows : (unit.rows + 1) / 2;
  }

  // Probabilities of an item in place of its scores. Three stages: of whole rows, normalised. Else
  // relative to the maximum so far, with the unit's state brought up to date.
  __aicore__ inline void Probabilities(const Item& item) {
    const Unit& unit = item.unit;
    ScoreSet set = SetOf(item);
    const int32_t most = XYSERVE_BOUNDED(kMaxSetRows, Layout::kSet / set.width);
    const int32_t begin = RowBegin(unit), end = RowEnd(unit);
    for (set.row = begin; set.row < end; set.row += set.rows) {
      set.rows = XYSERVE_BOUNDED(most, end - set.row);
      const int32_t in = in_count_++ % Layout::kSlots;
      const int32_t out = out_count_++ % Layout::kSlots;
      LoadScores(item, set, in);
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(out);
      SoftmaxSet(item, set, In(in), out, set.row - begin);
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(in);
      StoreProbabilities(set, out, ScoreSlot(item), 2 * score_stride(set.columns));
    }
  }

  // Output rows of a unit that sees no key: zeros.
  __aicore__ inline void Empty(const Unit& unit) {
    const int32_t begin = RowBegin(unit), end = RowEnd(unit);
    const int32_t dim = args_.head_dim;
    const int32_t most = XYSERVE_BOUNDED(kMaxSetRows, Layout::kOutBytes / 4 / dim);
    for (int32_t row = begin; row < end; row += most) {
      const int32_t rows = XYSERVE_BOUNDED(most, end - row);
      const int32_t out = out_count_++ % Layout::kSlots;
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(out);
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
      EmptyRows(Scratch(out), rows);
      AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(out);
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(out);
      if (unit.partial >= 0) {
        StorePartial(args_.partials, unit.partial, unit, row, rows, Scratch(out));
      } else {
        StoreRows(unit, row, rows, Out(out));
        StoreLse(unit, row, rows);
      }
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(out);
    }
  }

  // The last stage: the unit's output so far, rescaled, plus an item's. from: its slot.
  __aicore__ inline void Update(const Item& item, uint64_t from) {
    const Unit& unit = item.unit;
    const int32_t begin = RowBegin(unit), end = RowEnd(unit);
    if (item.first) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kAccEvent);
    }
    for (int32_t row = begin; row < end; row += kMaxSetRows) {
      const int32_t rows = XYSERVE_BOUNDED(kMaxSetRows, end - row);
      AddOutput(item, from, row, rows, row - begin);
      if (item.last) {
        FinishRows(item, row, rows, row - begin);
      }
    }
    if (item.last) {
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kAccEvent);
    }
  }

  // Combines the splits of a tile.
  __aicore__ inline void Combine(const Merge& merge, int32_t token) {
    const int32_t rows = merge.num_queries * merge.num_heads * args_.group_size;
    const Parts parts{args_.partials, merge.first_partial, rows, merge.num_splits};
    const int32_t half_rows = (rows + 1) / 2;
    const int32_t begin = AscendC::GetSubBlockIdx() == 0 ? 0 : half_rows;
    const int32_t end = AscendC::GetSubBlockIdx() == 0 ? half_rows : rows;
    for (int32_t row = begin; row < end; row += kCombinedRows) {
      const int32_t count = XYSERVE_BOUNDED(kCombinedRows, end - row);
      CombineRows(parts, row, count);
      StoreCombined(merge, token, row, count);
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
    }
  }

 protected:
  enum SmallRow { kTop = 0, kSum = 1, kLse = 2, kTemp = 3 };

  __aicore__ inline Floats At(int32_t byte) { return ub_.template Get<float>()[byte / 4]; }
  __aicore__ inline Floats In(int32_t slot) { return At(slot * Layout::kInBytes); }
  __aicore__ inline Floats Scratch(int32_t out) {
    return At(Layout::kOut + out * Layout::kOutBytes);
  }
  __aicore__ inline AscendC::LocalTensor<T> Out(int32_t slot) {
    return Scratch(slot).template ReinterpretCast<T>();
  }
  __aicore__ inline Floats Accumulator() { return At(Layout::kAcc); }
  __aicore__ inline Floats State(int32_t index, int32_t row) {
    return At(Layout::kState + index * Layout::kStateBytes)[row * kPerBlock];
  }
  __aicore__ inline Floats Maximum(const Item& item, int32_t row) {
    return State(item.unit_number % 2, row);
  }
  __aicore__ inline Floats Sum(const Item& item, int32_t row) {
    return State(2 + item.unit_number % 2, row);
  }
  __aicore__ inline Floats Factors(const Item& item, int32_t row) {
    return State(4 + item.number % 2, row);
  }
  __aicore__ inline Floats Small(SmallRow which) {
    return At(Layout::kSmall + which * Layout::kSmallBytes);
  }
  __aicore__ inline Floats Values() { return At(Layout::kValue); }

  __aicore__ inline uint64_t ScoreSlot(const Item& item) {
    return score_slots_ + (item.number % kSlots) * score_slot_bytes_;
  }
  __aicore__ inline static ScoreSet SetOf(const Item& item) {
    const int32_t columns = item.key1 - item.key0;
    return {0, 0, columns, arch::round_up(columns, kLanes), item.key0};
  }

  // Whole blocks of 16 columns, as the cube wrote them.
  __aicore__ inline void LoadScores(const Item& item, const ScoreSet& set, int32_t in) {
    const int32_t stride = score_stride(set.columns), columns = arch::round_up(set.columns, 16);
    AscendC::GlobalTensor<float> from;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(ScoreSlot(item)));
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(in);
    AscendC::DataCopy(
        In(in), from[int64_t{set.row} * stride],
        AscendC::DataCopyParams(set.rows, columns / kPerBlock, (stride - columns) / kPerBlock,
                                (set.width - columns) / kPerBlock));
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(in);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(in);
  }

  // rows: address of the tile's probabilities, `stride` elements apart. Zeros fill up the last 16
  // columns, which the cube multiplies.
  __aicore__ inline void StoreProbabilities(const ScoreSet& set, int32_t out, uint64_t rows,
                                            int32_t stride) {
    const int32_t columns = arch::round_up(set.columns, 16);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(out);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(out);
    AscendC::GlobalTensor<T> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(rows));
    AscendC::DataCopy(to[int64_t{set.row} * stride], Out(out),
                      AscendC::DataCopyParams(set.rows, columns / kElementsPerBlock,
                                              (set.width - columns) / kElementsPerBlock,
                                              (stride - columns) / kElementsPerBlock));
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(out);
  }

  __aicore__ inline void SoftmaxSet(const Item& item, const ScoreSet& set, Floats scores,
                                    int32_t out, int32_t local) {
    const int32_t count = set.rows * set.width;
    if (capped_) {
      PadColumns(set, scores);
      cap_scores(scores, Scratch(out), count, args_.scale, args_.softcap);
    }
    mask_.Apply(item.unit, set, scores);
    AscendC::PipeBarrier<PIPE_V>();
    reduce_rows<Reduction::kMax>(Values(), scores, Scratch(out), set.rows, set.width);
    AscendC::PipeBarrier<PIPE_V>();
    broadcast_rows(Small(kTop), Values(), set.rows);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Maxs(Small(kTop), Small(kTop), kLowest, set.rows * kPerBlock);
    AscendC::PipeBarrier<PIPE_V>();
    if constexpr (kForm != kThreeStage) {
      RaiseMaximum(item, local, set.rows);
    }
    row_scalar(RowOp::kSub, scores, set.width, scores, set.width, Small(kTop), set.rows, set.width);
    AscendC::PipeBarrier<PIPE_V>();
    if (!capped_) {
      AscendC::Muls(scores, scores, factor_, count);
      AscendC::PipeBarrier<PIPE_V>();
    }
    AscendC::Exp(scores, scores, count);
    AscendC::PipeBarrier<PIPE_V>();
    reduce_rows<Reduction::kSum>(Values(), scores, Scratch(out), set.rows, set.width);
    AscendC::PipeBarrier<PIPE_V>();
    broadcast_rows(Small(kSum), Values(), set.rows);
    AscendC::PipeBarrier<PIPE_V>();
    if constexpr (kForm == kThreeStage) {
      Normalise(item.unit, set, scores);
    } else {
      AddSum(item, local, set.rows);
    }
    AscendC::Cast(Out(out), scores, AscendC::RoundMode::CAST_RINT, count);
  }

  // What lies between the last key and the next multiple of 64 has not been loaded.
  __aicore__ inline void PadColumns(const ScoreSet& set, Floats scores) {
    if (set.columns < set.width) {
      for (int32_t row = 0; row < set.rows; ++row) {
        hide_columns(scores[row * set.width], set.columns, set.width);
      }
      AscendC::PipeBarrier<PIPE_V>();
    }
  }

  // Zeros, of either element size, and -inf into kLse.
  __aicore__ inline void EmptyRows(Floats values, int32_t rows) {
    AscendC::Duplicate(values, 0.0f, rows * args_.head_dim);
    AscendC::Duplicate(Small(kLse).template ReinterpretCast<int32_t>(),
                       static_cast<int32_t>(0xff800000), rows * kPerBlock);
  }

  // from: fp32 rows of the tile's output; `local`: place of the first one in the accumulator.
  __aicore__ inline void AddOutput(const Item& item, uint64_t from, int32_t row, int32_t rows,
                                   int32_t local) {
    const int32_t dim = args_.head_dim, in = in_count_++ % Layout::kSlots;
    AscendC::GlobalTensor<float> chunk;
    chunk.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(from));
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(in);
    AscendC::DataCopy(In(in), chunk[int64_t{row} * dim], rows * dim);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(in);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(in);
    const Floats sum = Accumulator()[local * dim];
    if (item.first) {
      AscendC::DataCopy(sum, In(in), rows * dim);
    } else {
      row_scalar(RowOp::kMul, sum, dim, sum, dim, Factors(item, local), rows, dim);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(sum, sum, In(in), rows * dim);
    }
    AscendC::PipeBarrier<PIPE_V>();  // two of them in a row end a core's list
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(in);
  }

  // The maximum so far into kTop and into the state; what is there already loses a factor.
  __aicore__ inline void RaiseMaximum(const Item& item, int32_t local, int32_t rows) {
    const int32_t count = rows * kPerBlock;
    const Floats top = Small(kTop), maximum = Maximum(item, local), factors = Factors(item, local);
    if (!item.first) {
      AscendC::Max(top, top, maximum, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Sub(factors, maximum, top, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Muls(factors, factors, factor_, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Exp(factors, factors, count);
    }
    AscendC::DataCopy(maximum, top, count);
  }

  __aicore__ inline void AddSum(const Item& item, int32_t local, int32_t rows) {
    const int32_t count = rows * kPerBlock;
    const Floats sum = Sum(item, local);
    if (item.first) {
      AscendC::DataCopy(sum, Small(kSum), count);
    } else {
      AscendC::Mul(sum, sum, Factors(item, local), count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(sum, sum, Small(kSum), count);
    }
  }

  // to = 1 / sum. The barrier within also orders what was computed before.
  __aicore__ inline void Invert(Floats to, Floats sum, int32_t rows) {
    AscendC::Duplicate(to, 1.0f, rows * kPerBlock);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Div(to, to, sum, rows * kPerBlock);
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void Normalise(const Unit& unit, const ScoreSet& set, Floats scores) {
    AscendC::Maxs(Small(kSum), Small(kSum), kTiniest, set.rows * kPerBlock);
    AscendC::PipeBarrier<PIPE_V>();
    if (args_.lse != 0) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
      log_sum_exp(Small(kLse), Small(kTop), Small(kSum), Small(kTemp), factor_, set.rows);
      AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kStoreEvent);
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kStoreEvent);
      StoreLse(unit, set.row, set.rows);
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
    }
    Invert(Small(kTemp), Small(kSum), set.rows);
    row_scalar(RowOp::kMul, scores, set.width, scores, set.width, Small(kTemp), set.rows,
               set.width);
    AscendC::PipeBarrier<PIPE_V>();
  }

  // The last item of a unit has been added: normalised values stay in the accumulator, the LSE in
  // kLse. kStoreEvent is taken.
  __aicore__ inline void CloseRows(const Item& item, int32_t rows, int32_t local) {
    const int32_t dim = args_.head_dim;
    const Floats sum = Sum(item, local), values = Accumulator()[local * dim];
    AscendC::Maxs(sum, sum, kTiniest, rows * kPerBlock);
    Invert(Small(kTemp), sum, rows);
    row_scalar(RowOp::kMul, values, dim, values, dim, Small(kTemp), rows, dim);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
    log_sum_exp(Small(kLse), Maximum(item, local), sum, Small(kTemp), factor_, rows);
  }

  __aicore__ inline void FinishRows(const Item& item, int32_t row, int32_t rows, int32_t local) {
    CloseRows(item, rows, local);
    StoreResult(item.unit, row, rows, Accumulator()[local * args_.head_dim]);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
  }

  // Rows of a unit with their LSE, to where the table says.
  __aicore__ inline void StoreResult(const Unit& unit, int32_t row, int32_t rows, Floats values) {
    if (unit.partial < 0) {
      StoreFinal(unit, row, rows, values);
      return;
    }
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kStoreEvent);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kStoreEvent);
    StorePartial(args_.partials, unit.partial, unit, row, rows, values);
  }

  __aicore__ inline void StoreFinal(const Unit& unit, int32_t row, int32_t rows, Floats values) {
    const int32_t out = out_count_++ % Layout::kSlots;
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(out);
    AscendC::Cast(Out(out), values, AscendC::RoundMode::CAST_RINT, rows * args_.head_dim);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(out);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(out);
    StoreRows(unit, row, rows, Out(out));
    StoreLse(unit, row, rows);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(out);
  }

  // Rows [row, row + rows) of a tile fall into runs of one query head, whose rows are equally far
  // apart in memory.
  struct Run {
    int32_t rows;
    int32_t query;
    int32_t head;  // within the group
  };
  __aicore__ inline static Run RunAt(const Unit& unit, int32_t row, int32_t rows) {
    if (unit.num_queries == 1) {
      return {rows, 0, row};
    }
    const int32_t query = row % unit.num_queries;
    return {XYSERVE_BOUNDED(rows, unit.num_queries - query), query, row / unit.num_queries};
  }

  __aicore__ inline void StoreRows(const Unit& unit, int32_t row, int32_t rows,
                                   AscendC::LocalTensor<T> values) {
    const int32_t dim = args_.head_dim;
    const int64_t apart = unit.num_queries == 1 ? dim : args_.out_token_stride;
    AscendC::GlobalTensor<T> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(args_.out));
    for (int32_t done = 0; done < rows;) {
      const Run run = RunAt(unit, row + done, rows - done);
      const int64_t at = (unit.token + run.query) * args_.out_token_stride +
                         (int64_t{unit.head} * args_.group_size + run.head) * dim;
      AscendC::DataCopy(to[at], values[done * dim],
                        AscendC::DataCopyParams(run.rows, dim / kElementsPerBlock, 0,
                                                (apart - dim) / kElementsPerBlock));
      done += run.rows;
    }
  }

  __aicore__ inline void StoreLse(const Unit& unit, int32_t row, int32_t rows) {
    if (args_.lse == 0) {
      return;
    }
    const int32_t heads = args_.num_kv_heads * args_.group_size;
    const uint32_t gap = unit.num_queries == 1 ? 0 : (heads - 1) * 4;
    AscendC::GlobalTensor<float> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(args_.lse));
    for (int32_t done = 0; done < rows;) {
      const Run run = RunAt(unit, row + done, rows - done);
      const int64_t at =
          int64_t{unit.token + run.query} * heads + unit.head * args_.group_size + run.head;
      AscendC::DataCopyPad(to[at], Small(kLse)[done * kPerBlock],
                           AscendC::DataCopyExtParams(run.rows, 4, 0, gap, 0));
      done += run.rows;
    }
  }

  // A partial row: head_dim values, eight times the LSE, eight floats of nothing. Rows are ordered
  // by query, then head, as the table says.
  __aicore__ inline void StorePartial(uint64_t partials, int32_t first, const Unit& unit,
                                      int32_t row, int32_t rows, Floats values) {
    const int32_t dim = args_.head_dim, length = dim + kPartialTail;
    const int32_t apart = unit.num_queries == 1 ? length : length * args_.group_size;
    AscendC::GlobalTensor<float> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(partials));
    for (int32_t done = 0; done < rows;) {
      const Run run = RunAt(unit, row + done, rows - done);
      const int64_t at = (int64_t{first} + run.query * args_.group_size + run.head) * length;
      AscendC::DataCopy(
          to[at], values[done * dim],
          AscendC::DataCopyParams(run.rows, dim / kPerBlock, 0, (apart - dim) / kPerBlock));
      AscendC::DataCopy(to[at + dim], Small(kLse)[done * kPerBlock],
                        AscendC::DataCopyParams(run.rows, 1, 0, apart / kPerBlock - 1));
      done += run.rows;
    }
  }

  // Results of equally many rows each that belong to the same rows of a tile.
  struct Parts {
    uint64_t rows;  // address of partial rows
    int64_t first;
    int32_t rows_per_part;
    int32_t count;
  };

  // `floats` of each of some rows of a part, from `first_float` on.
  __aicore__ inline void LoadPart(const Parts& parts, int32_t part, int32_t row, int32_t rows,
                                  int32_t first_float, int32_t floats, int32_t in) {
    const int32_t length = args_.head_dim + kPartialTail;
    const int64_t at = (parts.first + int64_t{part} * parts.rows_per_part + row) * length;
    AscendC::GlobalTensor<float> from;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(parts.rows));
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(in);
    AscendC::DataCopy(
        In(in), from[at + first_float],
        AscendC::DataCopyParams(rows, floats / kPerBlock, (length - floats) / kPerBlock, 0));
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(in);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(in);
  }

  // Where combined rows are added up: the accumulator, or what the last keys left.
  __aicore__ inline Floats Combined() {
    return At(kForm == kTwoStage ? Layout::kKeys : Layout::kAcc);
  }

  // Combines rows of all parts in the order of the parts, whoever computed them; the LSE goes to
  // kLse. kStoreEvent is taken.
  __aicore__ inline void CombineRows(const Parts& parts, int32_t row, int32_t rows) {
    const int32_t dim = args_.head_dim, length = dim + kPerBlock, count = rows * kPerBlock;
    const Floats top = Small(kTop), sum = Small(kSum), weight = Small(kTemp), total = Combined();
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kStoreEvent);
    AscendC::Duplicate(top, kLowest, count);
    AscendC::PipeBarrier<PIPE_V>();
    for (int32_t part = 0; part < parts.count; ++part) {
      const int32_t in = in_count_++ % Layout::kSlots;
      LoadPart(parts, part, row, rows, dim, kPerBlock, in);
      AscendC::Max(top, top, In(in), count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(in);
    }
    for (int32_t part = 0; part < parts.count; ++part) {
      const int32_t in = in_count_++ % Layout::kSlots;
      LoadPart(parts, part, row, rows, 0, length, in);
      AscendC::Sub(weight, In(in)[dim], top, static_cast<uint64_t>(kPerBlock), rows,
                   AscendC::BinaryRepeatParams(1, 1, 1, 1, length / kPerBlock, 1));
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Exp(weight, weight, count);
      AscendC::PipeBarrier<PIPE_V>();
      if (part == 0) {
        AscendC::DataCopy(sum, weight, count);
        row_scalar(RowOp::kMul, total, dim, In(in), length, weight, rows, dim);
      } else {
        AscendC::Add(sum, sum, weight, count);
        row_scalar(RowOp::kMul, In(in), length, In(in), length, weight, rows, dim);
        AscendC::PipeBarrier<PIPE_V>();
        add_rows(total, dim, In(in), length, rows, dim);
      }
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(in);
    }
    AscendC::Maxs(sum, sum, kTiniest, count);
    Invert(weight, sum, rows);
    row_scalar(RowOp::kMul, total, dim, total, dim, weight, rows, dim);
    log_sum_exp(Small(kLse), top, sum, weight, 1.0f, rows);
  }

  // Merged rows are ordered by KV head, query, head of the group; the last run together in memory.
  __aicore__ inline void StoreCombined(const Merge& merge, int32_t token, int32_t row,
                                       int32_t rows) {
    const int32_t dim = args_.head_dim, group = args_.group_size;
    const int32_t heads = args_.num_kv_heads * group;
    const int32_t out = out_count_++ % Layout::kSlots;
    AscendC::GlobalTensor<T> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(args_.out));
    AscendC::GlobalTensor<float> lse;
    lse.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(args_.lse));
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(out);
    AscendC::Cast(Out(out), Combined(), AscendC::RoundMode::CAST_RINT, rows * dim);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(out);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(out);
    for (int32_t done = 0; done < rows;) {
      const int32_t at = row + done, in_group = at % group;
      const int32_t query = at / group % merge.num_queries;
      const int32_t head = (merge.head_begin + at / group / merge.num_queries) * group + in_group;
      const int32_t run = XYSERVE_BOUNDED(group - in_group, rows - done);
      const int64_t to_token = token + query;
      AscendC::DataCopy(to[to_token * args_.out_token_stride + int64_t{head} * dim],
                        Out(out)[done * dim], run * dim);
      if (args_.lse != 0) {
        AscendC::DataCopyPad(lse[to_token * heads + head], Small(kLse)[done * kPerBlock],
                             AscendC::DataCopyExtParams(run, 4, 0, 0, 0));
      }
      done += run;
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(out);
  }

  Args args_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> ub_;
  Mask mask_;
  uint64_t score_slots_;
  int64_t score_slot_bytes_;
  float factor_;
  bool capped_;
  int32_t in_count_ = 0, out_count_ = 0;
};

}  // namespace xyserve::meta_attention

// The two-stage form's first stage on the vector cores: Q K^T for a few query heads, then the
// softmax. Each of the two cores takes half of an item's pages and all of its heads.
#pragma once

#include "ascendc/bound.h"
#include "ascendc/kernel/meta_attention_vector.h"

namespace xyserve::meta_attention {

// The sibling has left its result.
constexpr uint16_t kResultReady = 3;

template <typename T>
class DecodeVector : public Vector<T, kTwoStage> {
  using Base = Vector<T, kTwoStage>;
  using Layout = typename Base::Layout;
  static constexpr int32_t kQueryEvent = 2;  // MTE2_V and back
  static constexpr int32_t kWideEvent = 4;   // MTE3_V, beside the base's

 public:
  __aicore__ inline void Open(Table* table, uint64_t exchange) {
    table_ = table;
    exchange_ = exchange;
    sub_block_ = AscendC::GetSubBlockIdx();
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kQueryEvent);
  }

  __aicore__ inline void Close() { AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kQueryEvent); }

  __aicore__ inline int32_t status() const { return status_; }

  // A unit without keys: the first core writes its rows.
  __aicore__ inline void Empty(const Unit& unit) {
    if (sub_block_ == 0) {
      Base::Empty(unit);
    }
  }

  // Probabilities of this core's half of an item, relative to its own maximum so far.
  __aicore__ inline void Probabilities(const Item& item) {
    if (item.first) {
      LoadQuery(item.unit);
    }
    const Item half = half_of(item, sub_block_);
    if (half.key1 <= half.key0) {
      return;
    }
    ScoreSet set = Base::SetOf(half);
    set.rows = half.unit.rows;
    for (int32_t key = half.key0; key < half.key1;) {
      const int32_t stop = XYSERVE_BOUNDED((key / kPage + 1) * kPage, half.key1);
      ScorePage(half, set, key, stop - key);
      key = stop;
    }
    const int32_t out = Base::out_count_++ % Layout::kSlots;
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(out);
    Base::SoftmaxSet(half, set, Scores(), out, 0);
    Base::StoreProbabilities(set, out, Base::ScoreSlot(item) + sub_block_ * kTwoStageProbBytes,
                             score_stride(set.columns));
  }

  // The second stage is the cube's. from: its output slots, one per vector core.
  __aicore__ inline void Update(const Item& item, uint64_t from) {
    const Item half = half_of(item, sub_block_);
    if (item.first) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(Base::kAccEvent);
    }
    if (half.key1 > half.key0) {
      Base::AddOutput(half, from + sub_block_ * two_stage_output_bytes(Base::args_.head_dim), 0,
                      item.unit.rows, 0);
    }
    if (item.last) {
      Exchange(item, !item.first || half.key1 > half.key0);
    }
  }

 private:
  __aicore__ inline Floats Wide() { return Base::At(Layout::kKeys); }
  __aicore__ inline Floats Products() { return Base::At(Layout::kKeys + Layout::kWideBytes); }
  __aicore__ inline Floats Scores() {
    return Base::At(Layout::kKeys + Layout::kWideBytes + Layout::kProductBytes);
  }
  __aicore__ inline Floats Query() {
    return Base::At(Layout::kKeys + Layout::kWideBytes + Layout::kProductBytes +
                    Layout::kScoreBytes);
  }
  __aicore__ inline AscendC::LocalTensor<T> NarrowQuery() {
    return Query()[Layout::kQueryBytes / 4].template ReinterpretCast<T>();
  }

  __aicore__ inline void LoadQuery(const Unit& unit) {
    const int32_t dim = Base::args_.head_dim, count = unit.rows * dim;
    AscendC::GlobalTensor<T> query;
    query.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(Base::args_.query));
    const int64_t from = unit.token * Base::args_.query_token_stride +
                         int64_t{unit.head} * Base::args_.group_size * dim;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kQueryEvent);
    AscendC::DataCopy(NarrowQuery(), query[from], count);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kQueryEvent);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kQueryEvent);
    AscendC::Cast(Query(), NarrowQuery(), AscendC::RoundMode::CAST_NONE, count);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kQueryEvent);
  }

  // Scores of keys [key, key + count) of one page, as many at a time as the slot holds.
  __aicore__ inline void ScorePage(const Item& half, const ScoreSet& set, int32_t key,
                                   int32_t count) {
    const int32_t dim = Base::args_.head_dim;
    const int32_t token_stride = Base::args_.num_kv_heads * dim;
    int64_t page = table_->Page(half.unit.batch_row, key / kPage);
    if (page < 0) {
      status_ |= kWrongPage;
      page = 0;
    }
    AscendC::GlobalTensor<T> keys;
    keys.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(Base::args_.key_cache));
    const int64_t from = page * Base::args_.key_block_stride + int64_t{key % kPage} * token_stride +
                         int64_t{half.unit.head} * dim;
    const int32_t most = dim > kPage ? kPage / 2 : kPage;
    for (int32_t done = 0; done < count; done += most) {
      const int32_t rows = XYSERVE_BOUNDED(most, count - done);
      const int32_t in = Base::in_count_++ % Layout::kSlots;
      const AscendC::LocalTensor<T> narrow = Base::In(in).template ReinterpretCast<T>();
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(in);
      AscendC::DataCopy(narrow, keys[from + int64_t{done} * token_stride],
                        AscendC::DataCopyParams(rows, dim / Base::kElementsPerBlock,
                                                (token_stride - dim) / Base::kElementsPerBlock, 0));
      AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(in);
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(in);
      ScoreKeys(half.unit, narrow, set, key + done - half.key0, rows);
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(in);
    }
  }

  __aicore__ inline void ScoreKeys(const Unit& unit, AscendC::LocalTensor<T> narrow,
                                   const ScoreSet& set, int32_t column, int32_t rows) {
    const int32_t dim = Base::args_.head_dim;
    const int32_t most = dim > kPage ? Layout::kStepKeys / 2 : Layout::kStepKeys;
    for (int32_t done = 0; done < rows; done += most) {
      const int32_t step = XYSERVE_BOUNDED(most, rows - done);
      AscendC::Cast(Wide(), narrow[done * dim], AscendC::RoundMode::CAST_NONE, step * dim);
      AscendC::PipeBarrier<PIPE_V>();
      for (int32_t head = 0; head < unit.rows; ++head) {
        Multiply(Query()[head * dim], step);
        AscendC::WholeReduceSum<float>(Scores()[head * set.width + column + done], Products(),
                                       kLanes, step, 1, 1, kPerBlock);
        AscendC::PipeBarrier<PIPE_V>();
      }
    }
  }

  // 64 partial sums per key: products of the head's 64s, added up.
  __aicore__ inline void Multiply(Floats query, int32_t step) {
    const int32_t dim = Base::args_.head_dim;
    const AscendC::BinaryRepeatParams strides(1, 1, 1, kPerBlock, dim / kPerBlock, 0);
    AscendC::Mul(Products(), Wide(), query, static_cast<uint64_t>(kLanes), step, strides);
    AscendC::PipeBarrier<PIPE_V>();
    for (int32_t at = kLanes; at < dim; at += kLanes) {
      const uint64_t lanes = arch::min_of(kLanes, dim - at);
      AscendC::MulAddDst(Products(), Wide()[at], query[at], lanes, step, strides);
      AscendC::PipeBarrier<PIPE_V>();
    }
  }

  // Both cores' results of a unit become one: the first core combines them. Two places, used in
  // turn: the cube waits for both cores with each item, so that none is two units ahead.
  __aicore__ inline void Exchange(const Item& item, bool any) {
    const int32_t rows = item.unit.rows;
    const int64_t row_bytes = (Base::args_.head_dim + kPartialTail) * 4;
    const uint64_t place =
        exchange_ + item.unit_number % kSlots * arch::kAivPerAic * kTwoStageMaxGroup * row_bytes;
    const uint64_t own = place + sub_block_ * kTwoStageMaxGroup * row_bytes;
    if (any) {
      Base::CloseRows(item, rows, 0);
    } else {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(Base::kStoreEvent);
      Base::EmptyRows(Base::Accumulator(), rows);
    }
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(Base::kStoreEvent);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(Base::kStoreEvent);
    Base::StorePartial(own, 0, item.unit, 0, rows, Base::Accumulator());
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(Base::kStoreEvent);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(Base::kAccEvent);
    AscendC::CrossCoreSetFlag<1, PIPE_MTE3>(kResultReady);
    AscendC::CrossCoreWaitFlag(kResultReady);
    if (sub_block_ == 0) {
      const typename Base::Parts parts{place, 0, kTwoStageMaxGroup, arch::kAivPerAic};
      Base::CombineRows(parts, 0, rows);
      Base::StoreResult(item.unit, 0, rows, Base::Combined());
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(Base::kStoreEvent);
      // The next keys are widened where the sum may still be on its way out.
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kWideEvent);
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kWideEvent);
    }
  }

  Table* table_;
  uint64_t exchange_;
  int32_t sub_block_;
  int32_t status_ = kOk;
};

}  // namespace xyserve::meta_attention

// The cube core's half of Meta-Attention: scores Q K^T and outputs P V of one item, page by page.
//
//   GM -> L1 (MTE2)          Q once per unit, K or V page by page, P beside its V page
//   L1 -> L0A, L0B (MTE1)    at most 128 x 128 each
//   L0A x L0B -> L0C (M)     128 x 128 fp32
//   L0C -> GM (FIX)          scores and partial outputs fp32, final outputs in the model's dtype
//
// Every buffer is a ring; a buffer has one flag for "filled" and one for "free".
#pragma once

#include "ascendc/bound.h"
#include "ascendc/kernel/meta_attention_table.h"
#include "ascendc/tile/global_to_l1.h"
#include "ascendc/tile/l0c_to_global.h"
#include "ascendc/tile/l1_to_l0.h"

namespace xyserve::meta_attention {

constexpr int32_t kTile = 128;  // largest side of what a single Mmad takes

struct CubeLayout {
  static constexpr int32_t kQuerySlots = 2;
  static constexpr int32_t kPageSlots = 3;
  static constexpr int32_t kL0Slots = 2;
  static constexpr int32_t kL0cSlots = 2;
  static constexpr int32_t kQueryBytes = kMaxRows * kMaxHeadDim * 2;
  static constexpr int32_t kPageBytes = kPage * kMaxHeadDim * 2;
  static constexpr int32_t kProbBytes = kMaxRows * kPage * 2;
  static constexpr int32_t kPageBegin = kQuerySlots * kQueryBytes;
  static constexpr int32_t kProbBegin = kPageBegin + kPageSlots * kPageBytes;
  static constexpr int32_t kL1Total = kProbBegin + kPageSlots * kProbBytes;
  static constexpr int32_t kL0Bytes = kTile * kTile * 2;
  static constexpr int32_t kL0cBytes = kTile * kTile * 4;
  // Flags: pages follow the queries.
  static constexpr int32_t kPageEvent = kQuerySlots;
};
static_assert(CubeLayout::kL1Total <= arch::kL1Usable, "L1");
static_assert(CubeLayout::kL0Slots * CubeLayout::kL0Bytes <= arch::kL0aBytes, "L0A");
static_assert(CubeLayout::kL0Slots * CubeLayout::kL0Bytes <= arch::kL0bBytes, "L0B");
static_assert(CubeLayout::kL0cSlots * CubeLayout::kL0cBytes <= arch::kL0cBytes, "L0C");
static_assert(CubeLayout::kL0cBytes % arch::kMmadOutAlign == 0, "Mmad's output");
static_assert(CubeLayout::kPageEvent + CubeLayout::kPageSlots <= arch::kNumEvents, "flags");
static_assert(arch::kFirstMToMte1Event + CubeLayout::kL0Slots <= arch::kNumEvents, "flags");
static_assert(2 * kTile >= kMaxHeadDim, "a head is cut into two parts at most");

template <typename T>
class Cube {
 public:
  __aicore__ inline void Init(AscendC::TPipe* pipe, const Args& args, Table* table,
                              uint64_t score_slots, int64_t score_slot_bytes) {
    args_ = args;
    table_ = table;
    score_slots_ = score_slots;
    score_slot_bytes_ = score_slot_bytes;
    num_parts_ = args.head_dim > kTile ? 2 : 1;
    part_dim_ = args.head_dim / num_parts_;
    pipe->InitBuffer(l1_, CubeLayout::kL1Total);
    pipe->InitBuffer(l0a_, CubeLayout::kL0Slots * CubeLayout::kL0Bytes);
    pipe->InitBuffer(l0b_, CubeLayout::kL0Slots * CubeLayout::kL0Bytes);
    pipe->InitBuffer(l0c_, CubeLayout::kL0cSlots * CubeLayout::kL0cBytes);
    for (int32_t i = 0; i < CubeLayout::kQuerySlots + CubeLayout::kPageSlots; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(i);
    }
    for (int32_t i = 0; i < CubeLayout::kL0Slots; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(arch::kFirstMToMte1Event + i);
    }
    for (int32_t i = 0; i < CubeLayout::kL0cSlots; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }

  __aicore__ inline void Finish() {
    for (int32_t i = 0; i < CubeLayout::kQuerySlots + CubeLayout::kPageSlots; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(i);
    }
    for (int32_t i = 0; i < CubeLayout::kL0Slots; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(arch::kFirstMToMte1Event + i);
    }
    for (int32_t i = 0; i < CubeLayout::kL0cSlots; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }

  __aicore__ inline int32_t status() const { return status_; }

  // S = Q K^T of an item into its score slot: fp32 [rows, score_stride], unscaled.
  __aicore__ inline void Scores(const Item& item) {
    const Unit& unit = item.unit;
    const int32_t query_slot = item.unit_number % CubeLayout::kQuerySlots;
    const int32_t padded = arch::round_up(unit.rows, 16);
    if (item.first) {
      LoadQuery(unit, query_slot, padded);
    }
    for (int32_t key = item.key0; key < item.key1;) {
      const int32_t stop = XYSERVE_BOUNDED((key / kPage + 1) * kPage, item.key1);
      ScorePage(item, query_slot, padded, key, stop - key);
      key = stop;
    }
    if (item.last) {
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(query_slot);
    }
  }

  // O = P V of an item, final.
  __aicore__ inline void FinalOutput(const Item& item) {
    Output(item, ScoreSlot(item), ProbStride(item));
    for (int32_t part = 0; part < num_parts_; ++part) {
      const int32_t slot = TakeOutput(part);
      StoreFinal(item.unit, part, slot);
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(slot);
    }
    l0c_count_ += num_parts_;
  }

  // The same of some keys as fp32 [rows, head_dim] at an address of the workspace.
  __aicore__ inline void ChunkOutput(const Item& item, uint64_t to) {
    ChunkOutput(item, ScoreSlot(item), ProbStride(item), to);
  }

  // probs: address of P, whose rows are prob_stride elements apart.
  __aicore__ inline void ChunkOutput(const Item& item, uint64_t probs, int32_t prob_stride,
                                     uint64_t to) {
    Output(item, probs, prob_stride);
    const int32_t rows = item.unit.rows;
    AscendC::GlobalTensor<float> out;
    out.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(to));
    for (int32_t part = 0; part < num_parts_; ++part) {
      const int32_t slot = TakeOutput(part);
      tile::store_rows<float, float>(out[part * part_dim_], L0c(slot), rows, part_dim_,
                                     arch::round_up(rows, 16), args_.head_dim);
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(slot);
    }
    l0c_count_ += num_parts_;
  }

 private:
  __aicore__ inline AscendC::LocalTensor<T> L1(int32_t byte) {
    return l1_.template Get<T>()[byte / static_cast<int32_t>(sizeof(T))];
  }
  __aicore__ inline AscendC::LocalTensor<T> Query(int32_t slot) {
    return L1(slot * CubeLayout::kQueryBytes);
  }
  __aicore__ inline AscendC::LocalTensor<T> Page(int32_t slot) {
    return L1(CubeLayout::kPageBegin + slot * CubeLayout::kPageBytes);
  }
  __aicore__ inline AscendC::LocalTensor<T> Probs(int32_t slot) {
    return L1(CubeLayout::kProbBegin + slot * CubeLayout::kProbBytes);
  }
  __aicore__ inline AscendC::LocalTensor<T> L0a(int32_t slot) {
    return l0a_.template Get<T>()[slot * kTile * kTile];
  }
  __aicore__ inline AscendC::LocalTensor<T> L0b(int32_t slot) {
    return l0b_.template Get<T>()[slot * kTile * kTile];
  }
  __aicore__ inline AscendC::LocalTensor<float> L0c(int32_t slot) {
    return l0c_.template Get<float>()[slot * kTile * kTile];
  }

  __aicore__ inline uint64_t ScoreSlot(const Item& item) {
    return score_slots_ + (item.number % kSlots) * score_slot_bytes_;
  }
  // Probabilities lie in the place of the scores: their rows are as many bytes apart.
  __aicore__ inline int32_t ProbStride(const Item& item) {
    return ScoreStride(item) * static_cast<int32_t>(sizeof(float) / sizeof(T));
  }
  __aicore__ inline int32_t ScoreStride(const Item& item) {
    return score_stride(item.key1 - item.key0);
  }

  __aicore__ inline void LoadQuery(const Unit& unit, int32_t slot, int32_t padded) {
    const int32_t dim = args_.head_dim;
    AscendC::GlobalTensor<T> query;
    query.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(args_.query));
    const int64_t from =
        unit.token * args_.query_token_stride + int64_t{unit.head} * args_.group_size * dim;
    AscendC::Nd2NzParams load;
    load.ndNum = unit.num_queries == 1 ? 1 : args_.group_size;
    load.nValue = unit.num_queries == 1 ? unit.rows : unit.num_queries;
    load.dValue = dim;
    load.srcNdMatrixStride = unit.num_queries == 1 ? 0 : dim;
    load.srcDValue = unit.num_queries == 1 ? dim : args_.query_token_stride;
    load.dstNzC0Stride = padded;
    load.dstNzNStride = 1;
    load.dstNzMatrixStride = unit.num_queries * 16;
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(slot);
    AscendC::DataCopy(Query(slot), query[from], load);
    // Pads are zero on chip: all that the cube multiplies has been written, and is no NaN.
    tile::zero_rows(Query(slot), unit.rows, dim, padded);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(slot);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(slot);
  }

  // Keys or values [key, key + count) of a row, within one page. Slots beyond are not read: they
  // may hold NaN.
  __aicore__ inline void LoadPage(const Unit& unit, uint64_t cache, int64_t block_stride,
                                  int32_t slot, int32_t key, int32_t count) {
    int64_t page = table_->Page(unit.batch_row, key / kPage);
    if (page < 0) {
      status_ |= kWrongPage;
      page = 0;
    }
    const int32_t dim = args_.head_dim;
    const int32_t token_stride = args_.num_kv_heads * dim;
    AscendC::GlobalTensor<T> from;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(cache));
    const int64_t offset =
        page * block_stride + int64_t{key % kPage} * token_stride + int64_t{unit.head} * dim;
    const int32_t padded = arch::round_up(count, 16);
    tile::load_rows(Page(slot), from[offset], count, dim, token_stride, padded);
    tile::zero_rows(Page(slot), count, dim, padded);
  }

  __aicore__ inline void ScorePage(const Item& item, int32_t query_slot, int32_t padded,
                                   int32_t key, int32_t count) {
    const int32_t slot = page_count_++ % CubeLayout::kPageSlots;
    const int32_t event = CubeLayout::kPageEvent + slot;
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(event);
    LoadPage(item.unit, args_.key_cache, args_.key_block_stride, slot, key, count);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(event);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(event);

    const int32_t l0c = l0c_count_++ % CubeLayout::kL0cSlots;
    const int32_t columns = arch::round_up(count, 16);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(l0c);
    for (int32_t part = 0; part < num_parts_; ++part) {
      const int32_t l0 = BeginL0();
      tile::load_a(L0a(l0), Query(query_slot), padded, part * part_dim_, part_dim_);
      tile::load_b(L0b(l0), Page(slot), columns, part * part_dim_, part_dim_);
      Multiply(l0, l0c, padded, columns, part_dim_, part == 0);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(event);

    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(l0c);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(l0c);
    AscendC::GlobalTensor<float> scores;
    scores.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(ScoreSlot(item)));
    tile::store_rows<float, float>(scores[key - item.key0], L0c(l0c), item.unit.rows, columns,
                                   padded, ScoreStride(item));
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(l0c);
  }

  // P V into the next L0C slots, one per part of the head.
  __aicore__ inline void Output(const Item& item, uint64_t probs, int32_t prob_stride) {
    for (int32_t part = 0; part < num_parts_; ++part) {
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>((l0c_count_ + part) % CubeLayout::kL0cSlots);
    }
    for (int32_t key = item.key0; key < item.key1;) {
      const int32_t stop = XYSERVE_BOUNDED((key / kPage + 1) * kPage, item.key1);
      OutputPage(item, probs, prob_stride, key, stop - key);
      key = stop;
    }
    for (int32_t part = 0; part < num_parts_; ++part) {
      AscendC::SetFlag<AscendC::HardEvent::M_FIX>((l0c_count_ + part) % CubeLayout::kL0cSlots);
    }
  }

  __aicore__ inline void OutputPage(const Item& item, uint64_t prob_rows, int32_t prob_stride,
                                    int32_t key, int32_t count) {
    const int32_t rows = item.unit.rows, padded = arch::round_up(rows, 16);
    const int32_t keys = arch::round_up(count, 16);
    const int32_t slot = page_count_++ % CubeLayout::kPageSlots;
    const int32_t event = CubeLayout::kPageEvent + slot;
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(event);
    LoadPage(item.unit, args_.value_cache, args_.value_block_stride, slot, key, count);
    AscendC::GlobalTensor<T> probs;
    probs.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(prob_rows));
    tile::load_rows(Probs(slot), probs[key - item.key0], rows, keys, prob_stride, padded);
    tile::zero_rows(Probs(slot), rows, keys, padded);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(event);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(event);

    for (int32_t part = 0; part < num_parts_; ++part) {
      const int32_t l0 = BeginL0();
      tile::load_a(L0a(l0), Probs(slot), padded, 0, keys);
      tile::load_b_turned(L0b(l0), Page(slot), keys, part * part_dim_, part_dim_);
      Multiply(l0, (l0c_count_ + part) % CubeLayout::kL0cSlots, padded, part_dim_, keys,
               key == item.key0);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(event);
  }

  __aicore__ inline int32_t BeginL0() {
    const int32_t l0 = l0_count_++ % CubeLayout::kL0Slots;
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(arch::kFirstMToMte1Event + l0);
    return l0;
  }

  __aicore__ inline void Multiply(int32_t l0, int32_t l0c, int32_t m, int32_t n, int32_t k,
                                  bool first) {
    AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(l0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(l0);
    // Small products are not ordered with the one that they add to.
    if (!first && (m / 16) * (n / 16) < arch::kMmadSelfOrdering) {
      AscendC::PipeBarrier<PIPE_M>();
    }
    AscendC::MmadParams product;
    product.m = m;
    product.n = n;
    product.k = k;
    product.cmatrixInitVal = first;
    AscendC::Mmad(L0c(l0c), L0a(l0), L0b(l0), product);
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(arch::kFirstMToMte1Event + l0);
  }

  __aicore__ inline int32_t TakeOutput(int32_t part) {
    const int32_t slot = (l0c_count_ + part) % CubeLayout::kL0cSlots;
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(slot);
    return slot;
  }

  // Rows of a query head are as far apart as the tokens; a row of L0C is 16 elements of each block.
  __aicore__ inline void StoreFinal(const Unit& unit, int32_t part, int32_t slot) {
    const int32_t dim = args_.head_dim, padded = arch::round_up(unit.rows, 16);
    AscendC::GlobalTensor<T> out;
    out.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(args_.out));
    const int64_t to = unit.token * args_.out_token_stride +
                       int64_t{unit.head} * args_.group_size * dim + part * part_dim_;
    const bool one = unit.num_queries == 1;
    const int32_t heads = one ? 1 : args_.group_size;
    const int32_t rows = one ? unit.rows : unit.num_queries;
    for (int32_t head = 0; head < heads; ++head) {
      tile::store_rows<T, float>(out[to + int64_t{head} * dim], L0c(slot)[head * rows * 16], rows,
                                 part_dim_, padded, one ? dim : args_.out_token_stride);
    }
  }

  Args args_;
  Table* table_;
  AscendC::TBuf<AscendC::TPosition::A1> l1_;
  AscendC::TBuf<AscendC::TPosition::A2> l0a_;
  AscendC::TBuf<AscendC::TPosition::B2> l0b_;
  AscendC::TBuf<AscendC::TPosition::CO1> l0c_;
  uint64_t score_slots_;
  int64_t score_slot_bytes_;
  int32_t num_parts_, part_dim_;
  int32_t page_count_ = 0, l0_count_ = 0, l0c_count_ = 0;
  int32_t status_ = kOk;
};

}  // namespace xyserve::meta_attention

// KV write: rows of new keys and values into the paged caches, by slot mapping. Vector cores only.
//
// [NOTE] A core has consecutive tokens. A batch of them is loaded, one transfer per span of tokens
// that have a slot, and stored, one transfer per run of adjacent slots within a block: a prefill
// moves whole stretches, a decode one row per token. Two batches in UB, so that MTE2 loads beside
// MTE3's stores. Rows of skipped tokens are not read.
#pragma once

#include "ascendc/arch.h"
#include "ascendc/bound.h"
#include "ascendc/kernel/cache_params.h"
#include "ascendc/tile/global_ub.h"
#include "kernel_operator.h"

namespace xyserve::ascend {

template <typename Slot>
class KvWrite {
  using Event = AscendC::HardEvent;

 public:
  __aicore__ inline KvWrite(const KvWriteParams& params, AscendC::TPipe* pipe) : p_(params) {
    slots_.SetGlobalBuffer(reinterpret_cast<__gm__ Slot*>(p_.slot_mapping));
    key_rows_.SetGlobalBuffer(p_.key.rows);
    key_cache_.SetGlobalBuffer(p_.key.cache);
    value_rows_.SetGlobalBuffer(p_.value.rows);
    value_cache_.SetGlobalBuffer(p_.value.cache);
    pipe->InitBuffer(buffer_, 2 * KvWriteBuffers::kBatch);
  }

  __aicore__ inline void run() {
    const int64_t core = AscendC::GetBlockIdx();
    const int64_t first = core * p_.tokens_per_core;
    const auto end =
        static_cast<int32_t>(XYSERVE_BOUNDED(first + p_.tokens_per_core, int64_t{p_.num_tokens}));
    AscendC::SetFlag<Event::MTE3_MTE2>(0);
    AscendC::SetFlag<Event::MTE3_MTE2>(1);
    int32_t stage = 0;
    for (auto begin = static_cast<int32_t>(first); begin < end; begin += p_.batch) {
      const int32_t stop = XYSERVE_BOUNDED(begin + p_.batch, end);
      AscendC::WaitFlag<Event::MTE3_MTE2>(stage);
      load(begin, stop, stage);
      AscendC::SetFlag<Event::MTE2_MTE3>(stage);
      AscendC::WaitFlag<Event::MTE2_MTE3>(stage);
      store(begin, stop, stage);
      AscendC::SetFlag<Event::MTE3_MTE2>(stage);
      stage = 1 - stage;
    }
    AscendC::WaitFlag<Event::MTE3_MTE2>(0);
    AscendC::WaitFlag<Event::MTE3_MTE2>(1);
  }

 private:
  // -1 where the token has none.
  __aicore__ inline int64_t slot_of(int32_t token) const {
    const auto slot = static_cast<int64_t>(slots_.GetValue(token));
    return slot < p_.num_slots ? slot : -1;
  }

  __aicore__ inline void load(int32_t begin, int32_t end, int32_t stage) {
    int32_t token = begin;
    while (token < end) {
      if (slot_of(token) < 0) {
        ++token;
        continue;
      }
      int32_t count = 1;
      while (token + count < end && slot_of(token + count) >= 0) {
        ++count;
      }
      tile::load_to_ub(keys(stage, token - begin), key_rows_[token * p_.key.token_stride], count,
                       p_.key.row_bytes, p_.key.token_stride, p_.key.ub_pitch);
      tile::load_to_ub(values(stage, token - begin), value_rows_[token * p_.value.token_stride],
                       count, p_.value.row_bytes, p_.value.token_stride, p_.value.ub_pitch);
      token += count;
    }
  }

  __aicore__ inline void store(int32_t begin, int32_t end, int32_t stage) {
    int32_t token = begin;
    while (token < end) {
      const int64_t slot = slot_of(token);
      if (slot < 0) {
        ++token;
        continue;
      }
      const int64_t block = slot / p_.block_size;
      const int64_t offset = slot - block * p_.block_size;
      const auto room = static_cast<int32_t>(p_.block_size - offset);
      const int32_t most = XYSERVE_BOUNDED(room, end - token);
      int32_t count = 1;
      while (count < most && slot_of(token + count) == slot + count) {
        ++count;
      }
      tile::store_from_ub(key_cache_[block * p_.key.block_stride + offset * p_.key.row_bytes],
                          keys(stage, token - begin), count, p_.key.row_bytes, p_.key.row_bytes,
                          p_.key.ub_pitch);
      tile::store_from_ub(value_cache_[block * p_.value.block_stride + offset * p_.value.row_bytes],
                          values(stage, token - begin), count, p_.value.row_bytes,
                          p_.value.row_bytes, p_.value.ub_pitch);
      token += count;
    }
  }

  __aicore__ inline AscendC::LocalTensor<uint8_t> keys(int32_t stage, int32_t index) {
    return at(stage, index * p_.key.ub_pitch);
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> values(int32_t stage, int32_t index) {
    return at(stage, p_.batch * p_.key.ub_pitch + index * p_.value.ub_pitch);
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> at(int32_t stage, int32_t offset) {
    return buffer_.GetWithOffset<uint8_t>(KvWriteBuffers::kBatch - offset,
                                          stage * KvWriteBuffers::kBatch + offset);
  }

  const KvWriteParams& p_;
  AscendC::GlobalTensor<Slot> slots_;
  AscendC::GlobalTensor<uint8_t> key_rows_;
  AscendC::GlobalTensor<uint8_t> key_cache_;
  AscendC::GlobalTensor<uint8_t> value_rows_;
  AscendC::GlobalTensor<uint8_t> value_cache_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> buffer_;
};

}  // namespace xyserve::ascend

// Block copy for copy-on-write: whole blocks of both caches, source to target. Vector cores only.
//
// [NOTE] A block is copied in chunks through UB; the chunks of all pairs and both tensors are dealt
// to the cores one by one, so that a single copied block (the usual case) still uses every core.
// Four chunks are under way per core. No target may be another pair's source: chunks run in any
// order.
#pragma once

#include "ascendc/arch.h"
#include "ascendc/bound.h"
#include "ascendc/kernel/cache_params.h"
#include "ascendc/tile/global_ub.h"
#include "kernel_operator.h"

namespace xyserve::ascend {

class BlockCopy {
  using Event = AscendC::HardEvent;
  using Sizes = BlockCopyBuffers;

 public:
  __aicore__ inline BlockCopy(const BlockCopyParams& params, AscendC::TPipe* pipe) : p_(params) {
    pairs_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(p_.pairs));
    cache_[0].SetGlobalBuffer(p_.sides[0].cache);
    cache_[1].SetGlobalBuffer(p_.sides[1].cache);
    pipe->InitBuffer(buffer_, Sizes::kStages * Sizes::kChunk);
  }

  __aicore__ inline void run() {
    for (int32_t i = 0; i < Sizes::kStages; ++i) {
      AscendC::SetFlag<Event::MTE3_MTE2>(i);
    }
    const int64_t key_chunks = chunks_of(0);
    const int64_t chunks = key_chunks + chunks_of(1);
    for (int64_t i = AscendC::GetBlockIdx(); i < chunks * p_.num_pairs; i += p_.num_cores) {
      const int64_t pair = i / chunks;
      const int64_t chunk = i - pair * chunks;
      if (chunk < key_chunks) {
        copy(pair, 0, chunk * Sizes::kChunk);
      } else {
        copy(pair, 1, (chunk - key_chunks) * Sizes::kChunk);
      }
    }
    for (int32_t i = 0; i < Sizes::kStages; ++i) {
      AscendC::WaitFlag<Event::MTE3_MTE2>(i);
    }
  }

 private:
  __aicore__ inline int64_t chunks_of(int32_t side) const {
    return arch::ceil_div(p_.sides[side].block_bytes, int64_t{Sizes::kChunk});
  }

  __aicore__ inline void copy(int64_t pair, int32_t side, int64_t offset) {
    const int64_t source = pairs_.GetValue(2 * pair);
    const int64_t target = pairs_.GetValue(2 * pair + 1);
    if (source < 0 || target < 0 || source >= p_.num_blocks || target >= p_.num_blocks) {
      return;
    }
    const BlockCopySide& s = p_.sides[side];
    const auto bytes =
        static_cast<int32_t>(XYSERVE_BOUNDED(int64_t{Sizes::kChunk}, s.block_bytes - offset));
    const AscendC::LocalTensor<uint8_t> ub =
        buffer_.GetWithOffset<uint8_t>(Sizes::kChunk, stage_ * Sizes::kChunk);
    AscendC::WaitFlag<Event::MTE3_MTE2>(stage_);
    tile::load_to_ub(ub, cache_[side][source * s.block_stride + offset], 1, bytes, bytes,
                     Sizes::kChunk);
    AscendC::SetFlag<Event::MTE2_MTE3>(stage_);
    AscendC::WaitFlag<Event::MTE2_MTE3>(stage_);
    tile::store_from_ub(cache_[side][target * s.block_stride + offset], ub, 1, bytes, bytes,
                        Sizes::kChunk);
    AscendC::SetFlag<Event::MTE3_MTE2>(stage_);
    stage_ = stage_ + 1 == Sizes::kStages ? 0 : stage_ + 1;
  }

  const BlockCopyParams& p_;
  int32_t stage_ = 0;
  AscendC::GlobalTensor<int64_t> pairs_;
  AscendC::GlobalTensor<uint8_t> cache_[2];
  AscendC::TBuf<AscendC::TPosition::VECCALC> buffer_;
};

}  // namespace xyserve::ascend

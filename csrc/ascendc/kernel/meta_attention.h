// Meta-Attention: one launch for any mix of prefill, decode and verify rows, driven by the task
// table. docs/ascend.md has a drawing of each form's pipeline.
#pragma once

#include "ascendc/kernel/meta_attention_cube.h"
#include "ascendc/kernel/meta_attention_vector.h"

namespace xyserve::meta_attention {

// Flags between a cube core and its two vector cores. One of each kind is enough: both sides walk
// the same items, and at most two are on their way.
constexpr uint16_t kScoresReady = 0;
constexpr uint16_t kProbsReady = 1;
constexpr uint16_t kOutputReady = 2;

template <typename T, Form kForm>
class MetaAttention {
 public:
  __aicore__ inline void Run(const Args& args) {
    args_ = args;
    core_ = AscendC::GetBlockIdx();
    if ASCEND_IS_AIV {
      core_ /= arch::kAivPerAic;
    }
    table_.Init(args);
    int32_t status = AscendC::GetBlockNum() == args.num_cores ? table_.Check(kForm) : kWrongTable;
    if (status == kOk) {
      cursor_.Init(&table_, args, kForm, core_);
      FindSlots();
      if ASCEND_IS_AIC {
        status = RunCube();
      }
      if ASCEND_IS_AIV {
        status = RunVector();
      }
    }
    Report(status);
  }

 private:
  __aicore__ inline void FindSlots() {
    score_slot_bytes_ = score_slot_bytes(kForm, args_.max_rows, args_.max_keys);
    output_slot_bytes_ = output_slot_bytes(kForm, args_.max_rows, args_.head_dim);
    const uint64_t slots = args_.workspace + status_bytes(args_.num_cores);
    score_slots_ = slots + core_ * kSlots * score_slot_bytes_;
    output_slots_ =
        slots + args_.num_cores * kSlots * score_slot_bytes_ + core_ * kSlots * output_slot_bytes_;
  }

  __aicore__ inline uint64_t OutputSlot(const Item& item) {
    return output_slots_ + (item.number % kSlots) * output_slot_bytes_;
  }

  // Scores of the next item are computed while the vector cores work on the one before.
  __aicore__ inline int32_t RunCube() {
    Cube<T> cube;
    cube.Init(&pipe_, args_, &table_, score_slots_, score_slot_bytes_);
    Item item, before;
    bool pending = false;
    while (cursor_.Next(item)) {
      if (item.key1 <= item.key0) {
        continue;
      }
      cube.Scores(item);
      AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kScoresReady);
      if (pending) {
        CubeOutput(cube, before);
      }
      before = item;
      pending = true;
    }
    if (pending) {
      CubeOutput(cube, before);
    }
    cube.Finish();
    return cube.status() | cursor_.status();
  }

  __aicore__ inline void CubeOutput(Cube<T>& cube, const Item& item) {
    AscendC::CrossCoreWaitFlag(kProbsReady);
    if constexpr (kForm == kThreeStage) {
      cube.FinalOutput(item);
    } else {
      cube.ChunkOutput(item, OutputSlot(item));
      AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kOutputReady);
    }
  }

  __aicore__ inline int32_t RunVector() {
    Vector<T, kForm> vector;
    vector.Init(&pipe_, args_, table_.causal(), score_slots_, score_slot_bytes_);
    Item item, before;
    bool pending = false;
    while (cursor_.Next(item)) {
      if (item.key1 <= item.key0) {
        vector.Empty(item.unit);
        continue;
      }
      AscendC::CrossCoreWaitFlag(kScoresReady);
      vector.Softmax(item);
      AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kProbsReady);
      if constexpr (kForm != kThreeStage) {
        if (pending) {
          VectorUpdate(vector, before);
        }
        before = item;
        pending = true;
      }
    }
    if (pending) {
      VectorUpdate(vector, before);
    }
    if constexpr (kForm != kThreeStage) {
      RunMerges(vector);
    }
    vector.Finish();
    return cursor_.status();
  }

  __aicore__ inline void VectorUpdate(Vector<T, kForm>& vector, const Item& item) {
    if constexpr (kForm != kThreeStage) {
      AscendC::CrossCoreWaitFlag(kOutputReady);
      vector.Update(item, OutputSlot(item));
    }
  }

  // When all tasks of all cores are done.
  __aicore__ inline void RunMerges(Vector<T, kForm>& vector) {
    if (!table_.HasMerges()) {
      return;
    }
    AscendC::PipeBarrier<PIPE_ALL>();
    AscendC::SyncAll<true>();
    const int32_t end = table_.MergeBegin(core_ + 1);
    for (int32_t index = table_.MergeBegin(core_); index < end; ++index) {
      Merge merge;
      table_.Load(index, merge);
      if (merge.num_queries > 0) {
        Segment segment;
        table_.Load(merge.segment, segment);
        vector.Combine(merge, segment.query_start + merge.query_begin);
      }
    }
  }

  // A cache line per core: lines are written back whole.
  __aicore__ inline void Report(int32_t status) {
    int32_t line = core_ * kStatusLines;
    if ASCEND_IS_AIV {
      line += 1 + AscendC::GetSubBlockIdx();
    }
    AscendC::GlobalTensor<int32_t> words;
    words.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(args_.workspace));
    const int32_t at = line * (arch::kCacheLine / 4);
    words.SetValue(at, status);
    AscendC::DataCacheCleanAndInvalid<int32_t, AscendC::CacheLine::SINGLE_CACHE_LINE,
                                      AscendC::DcciDst::CACHELINE_OUT>(words[at]);
  }

  AscendC::TPipe pipe_;
  Args args_;
  Table table_;
  Cursor cursor_;
  uint64_t score_slots_, output_slots_;
  int64_t score_slot_bytes_, output_slot_bytes_;
  int32_t core_;
};

}  // namespace xyserve::meta_attention

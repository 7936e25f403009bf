// Meta-Attention: one launch for any mix of prefill, decode and verify rows, driven by the task
// table. docs/ascend.md has a drawing of each form's pipeline.
#pragma once

#include "ascendc/kernel/meta_attention_cube.h"
#include "ascendc/kernel/meta_attention_decode.h"

namespace xyserve::meta_attention {

// Flags between a cube core and its two vector cores; kResultReady is the vector cores' own. One of
// each kind is enough: both sides walk the same items, and at most two are on their way.
constexpr uint16_t kScoresReady = 0;
constexpr uint16_t kProbsReady = 1;
constexpr uint16_t kOutputReady = 2;
static_assert(kResultReady > kOutputReady && kResultReady < arch::kNumCrossFlags, "flags");

// What a core's cube and vector cores hand each other, in global memory.
struct Slots {
  uint64_t scores;
  uint64_t outputs;
  uint64_t exchange;
  int64_t score_bytes;
  int64_t output_bytes;

  __aicore__ inline uint64_t Scores(const Item& item) const {
    return scores + item.number % kSlots * score_bytes;
  }
  __aicore__ inline uint64_t Outputs(const Item& item) const {
    return outputs + item.number % kSlots * output_bytes;
  }
};

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
    slots_.score_bytes = score_slot_bytes(kForm, args_.max_rows, args_.max_keys);
    slots_.output_bytes = output_slot_bytes(kForm, args_.max_rows, args_.head_dim);
    const uint64_t scores = args_.workspace + status_bytes(args_.num_cores);
    const uint64_t outputs = scores + args_.num_cores * kSlots * slots_.score_bytes;
    const uint64_t exchange = outputs + args_.num_cores * kSlots * slots_.output_bytes;
    slots_.scores = scores + core_ * kSlots * slots_.score_bytes;
    slots_.outputs = outputs + core_ * kSlots * slots_.output_bytes;
    slots_.exchange = exchange + core_ * exchange_bytes(kForm);
  }

  // ---- Cube core. Scores of the next item are computed while the vector cores work on the one
  // before.
  __aicore__ inline int32_t RunCube() {
    Cube<T> cube;
    cube.Init(&pipe_, args_, &table_, slots_.scores, slots_.score_bytes);
    Item item, before;
    bool pending = false;
    while (cursor_.Next(item)) {
      if (item.key1 <= item.key0) {
        continue;
      }
      if constexpr (kForm == kTwoStage) {
        CubeOutput(cube, item);
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
      return;
    }
    if constexpr (kForm == kFourStage) {
      cube.ChunkOutput(item, slots_.Outputs(item));
    }
    if constexpr (kForm == kTwoStage) {
      // Both vector cores' probabilities, each with its own values.
      for (int32_t sub_block = 0; sub_block < arch::kAivPerAic; ++sub_block) {
        const Item half = half_of(item, sub_block);
        if (half.key1 > half.key0) {
          cube.ChunkOutput(
              half, slots_.Scores(item) + sub_block * kTwoStageProbBytes,
              score_stride(half.key1 - half.key0),
              slots_.Outputs(item) + sub_block * two_stage_output_bytes(args_.head_dim));
        }
      }
    }
    AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kOutputReady);
  }

  // ---- Vector cores. Their first stage of the next item comes before the last one of the item
  // before.
  __aicore__ inline int32_t RunVector() {
    if constexpr (kForm == kTwoStage) {
      DecodeVector<T> vector;
      vector.Init(&pipe_, args_, table_.causal(), slots_.scores, slots_.score_bytes);
      vector.Open(&table_, slots_.exchange);
      RunItems(vector);
      RunMerges(vector);
      vector.Close();
      vector.Finish();
      return vector.status() | cursor_.status();
    } else {
      Vector<T, kForm> vector;
      vector.Init(&pipe_, args_, table_.causal(), slots_.scores, slots_.score_bytes);
      RunItems(vector);
      if constexpr (kForm == kFourStage) {
        RunMerges(vector);
      }
      vector.Finish();
      return cursor_.status();
    }
  }

  template <typename V>
  __aicore__ inline void RunItems(V& vector) {
    Item item, before;
    bool pending = false;
    while (cursor_.Next(item)) {
      if (item.key1 <= item.key0) {
        vector.Empty(item.unit);
        continue;
      }
      if constexpr (kForm != kTwoStage) {
        AscendC::CrossCoreWaitFlag(kScoresReady);
      }
      vector.Probabilities(item);
      AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kProbsReady);
      if constexpr (kForm != kThreeStage) {
        if (pending) {
          AscendC::CrossCoreWaitFlag(kOutputReady);
          vector.Update(before, slots_.Outputs(before));
        }
        before = item;
        pending = true;
      }
    }
    if constexpr (kForm != kThreeStage) {
      if (pending) {
        AscendC::CrossCoreWaitFlag(kOutputReady);
        vector.Update(before, slots_.Outputs(before));
      }
    }
  }

  // When all tasks of all cores are done.
  template <typename V>
  __aicore__ inline void RunMerges(V& vector) {
    if (!table_.HasMerges()) {
      return;
    }
    AscendC::SyncAll<true>();  // waits for all pipes first
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
  Slots slots_;
  int32_t core_;
};

}  // namespace xyserve::meta_attention

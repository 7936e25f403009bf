// Arguments of the Meta-Attention kernels and the sizes that host and kernels share. Plain data and
// constant across graph replays: addresses, strides, capacities. Lengths and the task table are
// read from device memory.
#pragma once

#include <cstdint>

#include "ascendc/arch.h"

namespace xyserve::meta_attention {

// ---- Shapes
constexpr int32_t kPage = 128;  // tokens of a KV block, as vllm-ascend lays them out
constexpr int32_t kMaxRows = 128;
constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kPartialTail = 16;  // floats of a partial row beyond its values; the first 8: LSE
constexpr int32_t kScoreAlign = 128;  // columns; 512 bytes of fp32

enum Form : int32_t { kThreeStage = 0, kFourStage = 1, kTwoStage = 2 };

constexpr int32_t kTwoStageMaxGroup = 4;  // query heads per KV head of the two-stage form

// Pages that a tile of so many rows takes at a time in the four-stage form: large enough that a
// vector core has some 16 K scores to work on, small enough that all cores' slots stay in L2.
XYSERVE_HOST_DEVICE constexpr int32_t chunk_pages(int32_t rows) {
  return rows > 64 ? 4 : rows > 32 ? 8 : 16;
}
constexpr int32_t kMaxChunkScores = kMaxRows * 4 * kPage;
static_assert(64 * chunk_pages(64) * kPage == kMaxChunkScores &&
                  32 * chunk_pages(32) * kPage == kMaxChunkScores,
              "a slot of scores holds the chunk of every tile size");

// ---- Vector core: what lies in UB
constexpr int32_t kScoreSet = 12288;  // fp32 scores that are worked on at a time, three-stage form
constexpr int32_t kChunkSet = 8192;   // the same in the other forms, which keep an accumulator too
constexpr int32_t kMaxSetRows = 32;
constexpr int32_t kHalfRows = kMaxRows / arch::kAivPerAic;
// The three-stage form works on whole rows.
// Up to 15 keys in front of the first one are read with it, and rows are padded to 64.
constexpr int32_t kThreeStageMaxKeys = kScoreSet - 64;

// ---- Workspace
constexpr int32_t kSlots = 2;                           // items in flight per core
constexpr int32_t kStatusLines = 1 + arch::kAivPerAic;  // per core; first word of each: Status bits
constexpr int64_t kWorkspaceAlign = 512;

enum Status : int32_t {
  kOk = 0,
  kWrongTable = 1,    // magic, version, cores, head geometry, or splits in the three-stage form
  kOverCapacity = 2,  // keys or partial rows beyond what the launch provides for
  kWrongPage = 4,     // a block table names a page outside of the cache
};

struct Args {
  // Addresses of device memory.
  uint64_t out;          // [tokens, query heads, head_dim], fp16 or bf16
  uint64_t query;        // the same shape
  uint64_t key_cache;    // [num_blocks, 128, kv_heads, head_dim]
  uint64_t value_cache;  // the same shape
  uint64_t block_table;  // int32 [batch rows, block_table_stride]
  uint64_t seq_lens;     // int32 [batch rows]
  uint64_t table;        // TableHeader, completed
  uint64_t partials;     // fp32 [max_partial_rows, head_dim + kPartialTail], or 0
  uint64_t tree_mask;    // uint64 bit rows, or 0
  uint64_t lse;          // fp32 [tokens, query heads], or 0
  uint64_t workspace;    // of workspace_bytes()
  // Strides in elements; the heads of a token are adjacent.
  int64_t out_token_stride;
  int64_t query_token_stride;
  int64_t key_block_stride;
  int64_t value_block_stride;
  int64_t block_table_stride;
  int64_t num_blocks;
  int64_t max_partial_rows;
  int32_t num_cores;
  int32_t num_kv_heads;
  int32_t group_size;
  int32_t head_dim;
  int32_t max_rows;  // of a tile
  int32_t max_keys;  // of a row; of them and max_rows slots of the workspace are made
  float scale;       // > 0
  float softcap;     // 0: none
};
static_assert(sizeof(Args) % 8 == 0, "plain data");

// ---- Two stages: both vector cores of a core take half of an item's keys each, all query heads
constexpr int32_t kTwoStageMaxKeys = chunk_pages(16) / arch::kAivPerAic * kPage;
constexpr int32_t kTwoStageProbBytes = kTwoStageMaxGroup * kTwoStageMaxKeys * 2;
// Results that a vector core leaves for its sibling: of two units, from both of them.
constexpr int32_t kExchangeBytes =
    kSlots * arch::kAivPerAic * kTwoStageMaxGroup * (kMaxHeadDim + kPartialTail) * 4;
static_assert(kExchangeBytes % kWorkspaceAlign == 0, "slots begin on whole lines");

// ---- Workspace layout: status lines | per core: score slots | output slots | exchange
XYSERVE_HOST_DEVICE constexpr int64_t status_bytes(int32_t num_cores) {
  return arch::round_up<int64_t>(int64_t{num_cores} * kStatusLines * arch::kCacheLine,
                                 kWorkspaceAlign);
}
XYSERVE_HOST_DEVICE constexpr int64_t score_slot_bytes(Form form, int32_t max_rows,
                                                       int32_t max_keys) {
  // Scores begin on a multiple of 16 keys at or before the first one that counts.
  return form == kThreeStage  ? int64_t{max_rows} * arch::round_up(max_keys + 15, kScoreAlign) * 4
         : form == kFourStage ? int64_t{kMaxChunkScores} * 4
                              : int64_t{arch::kAivPerAic} * kTwoStageProbBytes;
}
XYSERVE_HOST_DEVICE constexpr int64_t two_stage_output_bytes(int32_t head_dim) {
  return int64_t{kTwoStageMaxGroup} * head_dim * 4;
}
XYSERVE_HOST_DEVICE constexpr int64_t output_slot_bytes(Form form, int32_t max_rows,
                                                        int32_t head_dim) {
  return form == kThreeStage  ? 0
         : form == kFourStage ? int64_t{max_rows} * head_dim * 4
                              : arch::kAivPerAic * two_stage_output_bytes(head_dim);
}
XYSERVE_HOST_DEVICE constexpr int64_t exchange_bytes(Form form) {
  return form == kTwoStage ? kExchangeBytes : 0;
}

}  // namespace xyserve::meta_attention

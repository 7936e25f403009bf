// What the host tells a KV-write or block-copy launch. Plain C++. The caches of keys and values are
// separate tensors [blocks, block_size, KV heads, head size]; their kernels move bytes, so element
// types do not matter. Strides, sizes and pitches count bytes.
#pragma once

#include <cstdint>

#include "ascendc/kernel/smooth_gemm_params.h"

namespace xyserve::ascend {

// One of the two tensors of a KV write: new rows [tokens, row] and the cache that they go to.
struct KvWriteSide {
  GmAddress rows;
  GmAddress cache;
  int64_t token_stride;
  int64_t block_stride;
  int32_t row_bytes;
  int32_t ub_pitch;  // row_bytes up to whole 32-byte blocks
};

struct KvWriteParams {
  KvWriteSide key;
  KvWriteSide value;
  GmAddress slot_mapping;  // [tokens]: block * block_size + offset; negative: skip
  int64_t num_slots;       // slots from here on are skipped, too: nothing outside is written
  int32_t num_tokens;
  int32_t tokens_per_core;  // consecutive ones
  int32_t block_size;
  int32_t batch;  // tokens that one UB buffer holds
};

struct KvWriteBuffers {
  static constexpr int32_t kBatch = 80 * 1024;  // keys and values of a batch of tokens
};
static_assert(2 * KvWriteBuffers::kBatch <= arch::kUbUsable, "two batches");

struct BlockCopySide {
  GmAddress cache;
  int64_t block_stride;
  int64_t block_bytes;
};

struct BlockCopyParams {
  BlockCopySide sides[2];  // keys, values
  GmAddress pairs;         // [num_pairs, 2] int64 (source, target); outside [0, num_blocks): skip
  int64_t num_blocks;
  int32_t num_pairs;
  int32_t num_cores;
};

struct BlockCopyBuffers {
  static constexpr int32_t kChunk = 32 * 1024;
  static constexpr int32_t kStages = 4;
};
static_assert(BlockCopyBuffers::kStages * BlockCopyBuffers::kChunk <= arch::kUbUsable, "chunks");
static_assert(BlockCopyBuffers::kChunk >= arch::kFullSpeedTransfer, "full bandwidth");
static_assert(BlockCopyBuffers::kStages <= arch::kNumEvents, "a flag per chunk");

}  // namespace xyserve::ascend

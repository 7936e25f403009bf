// Host side of KV write and block copy: arguments -> can_run -> parameters. Neither needs a
// workspace.
#pragma once

#include <cstdint>

#include "ascendc/host/can_run.h"
#include "ascendc/kernel/cache_params.h"

namespace xyserve::ascend {

// One of key and value. Strides count bytes; a token's row and a block's rows are contiguous.
struct CacheTensor {
  const void* rows = nullptr;  // [tokens, row]; KV write only
  void* cache = nullptr;       // [blocks, block_size, row]
  int64_t row_bytes = 0;       // KV heads * head size * element size
  int64_t token_stride = 0;
  int64_t block_stride = 0;
};

struct KvWriteArgs {
  CacheTensor key;
  CacheTensor value;
  const void* slot_mapping = nullptr;
  int32_t slot_bytes = 4;  // int32 or int64
  int64_t num_tokens = 0;
  int64_t num_blocks = 0;
  int64_t block_size = 128;
};

struct BlockCopyArgs {
  CacheTensor key;
  CacheTensor value;
  const void* pairs = nullptr;  // [num_pairs, 2] int64
  int64_t num_pairs = 0;
  int64_t num_blocks = 0;
  int64_t block_size = 128;
};

// num_cores: vector cores of the launch.
CanRun kv_write_can_run(const KvWriteArgs& args, int32_t num_cores);
KvWriteParams kv_write_params(const KvWriteArgs& args, int32_t num_cores);

CanRun block_copy_can_run(const BlockCopyArgs& args, int32_t num_cores);
BlockCopyParams block_copy_params(const BlockCopyArgs& args, int32_t num_cores);

}  // namespace xyserve::ascend

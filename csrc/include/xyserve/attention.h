// Kernel interface of Meta-Attention and of the KV write in front of it.
//
// [NOTE] The inside of a KV page, one (block, KV head): K half, then V half, block_size * head_size
// elements each. Tokens lie in sub-blocks of 16, so one layout serves every block size.
//   16-bit elements: K [block_size / 16][D / 2][16 tokens][2], V [block_size / 2][D][2]
//   fp32:            K [block_size / 16][D][16 tokens],        V [block_size][D]
// It depends on the element size alone: every instruction set reads what any other wrote.
#pragma once

#include <cstdint>

#include "xyserve/task_table.h"

namespace xyserve {

constexpr int32_t kSubBlock = 16;  // tokens; block sizes are multiples of it
constexpr int32_t kMaxHeadSize = 512;
// Floats of a partial row beyond its head_size values: the LSE, padded to a cache line.
constexpr int32_t kPartialTail = 16;

// Strides count elements; the elements of a head are adjacent.
struct AttentionArgs {
  void* out;                   // [tokens, query heads, head_size]
  const void* query;           // [tokens, query heads, head_size]
  const void* kv_cache;        // [blocks] pages of every KV head
  const int32_t* block_table;  // [rows, blocks of a row]
  const int32_t* seq_lens;     // [rows], tokens of a row with this step's
  const TableHeader* table;
  float* partials;            // [num_partial_rows, head_size + kPartialTail]
  const uint64_t* tree_mask;  // bit rows, or nullptr
  const float* alibi_slopes;  // [query heads], or nullptr
  const float* sinks;         // [query heads], or nullptr
  int64_t out_token_stride, out_head_stride;
  int64_t query_token_stride, query_head_stride;
  int64_t block_stride, page_stride;
  int64_t block_table_stride;
  int64_t num_blocks;
  int32_t block_size, head_size;
  float scale, softcap;  // softcap 0: none
  bool slow_bf16_dot;    // cpu_has_slow_bf16_dot()
};

enum class AttentionPhase : int32_t { tiles, merges };

// Runs one phase of the lists of cores [core_begin, core_end). False if a page index that is needed
// lies outside of the cache; that tile's rows are then left unwritten.
using MetaAttentionFn = bool(const AttentionArgs& args, AttentionPhase phase, int32_t core_begin,
                             int32_t core_end);

struct KvWriteArgs {
  void* kv_cache;
  const void* key;              // [tokens, KV heads, head_size]
  const void* value;            // the same
  const int64_t* slot_mapping;  // [tokens]: block * block_size + offset; negative: skip
  int64_t key_token_stride, key_head_stride;
  int64_t value_token_stride, value_head_stride;
  int64_t block_stride, page_stride;
  int32_t block_size, head_size, num_kv_heads;
};

// Writes tokens [token_begin, token_end), all heads.
using KvWriteFn = void(const KvWriteArgs& args, int64_t token_begin, int64_t token_end);

}  // namespace xyserve

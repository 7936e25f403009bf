// Host side of Meta-Attention: whether a launch is possible, which form it takes, how much
// workspace it needs, and the kernel's arguments. Plain C++, for the torch_npu binding, the
// planner's side and the tests alike.
#pragma once

#include <cstdint>
#include <string>

#include "ascendc/kernel/meta_attention_args.h"

namespace xyserve::meta_attention {

enum class Dtype : int32_t { kFloat16 = 0, kBfloat16 = 1 };

// What is known when a graph is captured, and stays the same while it is replayed.
struct Problem {
  Dtype dtype;
  int32_t num_cores;  // cube cores of the launch; the task table's number
  int32_t num_kv_heads;
  int32_t group_size;  // query heads per KV head
  int32_t head_dim;
  int32_t block_size;
  int32_t max_keys;   // longest context that a replay may have
  int32_t tile_rows;  // largest query tile of the table
  bool decode_only;   // no row has more than one query
  bool splits;        // tables may split the keys of a tile
  float scale;
  float softcap;
  int64_t out_token_stride;  // elements
  int64_t query_token_stride;
  int64_t key_block_stride;
  int64_t value_block_stride;
  int64_t block_table_stride;
  int64_t num_blocks;
  int64_t max_partial_rows;
};

// What a choice of form rests on.
struct Selection {
  int64_t cache_bytes = 192 << 20;  // L2 of the 910B
  // Share of the cache that scores may fill is 1 / alpha. The paper gives the rule,
  // CacheSize > alpha * sum over cores of SeqLen * tileSize, but no value: 2 leaves half for K and
  // V.
  double alpha = 2.0;
  // Query heads per KV head up to which the vector cores keep up with the cube core on QK^T. A page
  // of 128 keys of 128 elements, K and V, takes a core 0.9 to 1.6 us to read at its share of the
  // bandwidth; two vector cores need 0.4 us per head for it.
  int32_t two_stage_group = 2;
};

// Bytes of scores that are in flight on all cores in the three-stage form: fp32, two tiles per
// core, whole rows.
int64_t three_stage_score_bytes(int32_t num_cores, int32_t tile_rows, int32_t max_keys);

// Why the kernel of this form cannot run the problem, empty if it can. Form three needs tables
// whose tiles are not split and scores that stay in the cache.
std::string can_run(const Problem& problem, Form form, const Selection& selection = {});

// The form for a problem: part of a graph's key, since a replay cannot change it. Raises nothing;
// whether it can run is can_run's to say.
Form select_form(const Problem& problem, const Selection& selection = {});

int64_t workspace_bytes(const Problem& problem, Form form);
// Floats of `partials` for a table's num_partial_rows.
int64_t partial_floats(const Problem& problem, int64_t num_partial_rows);

// The constant part of the arguments; the caller fills in the addresses.
Args make_args(const Problem& problem);

}  // namespace xyserve::meta_attention

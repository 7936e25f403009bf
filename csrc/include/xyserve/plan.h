// The planner: rows of a step in, task table out. No torch, no threads, integers only, so that its
// NumPy twin in vllm_xyserve/plan writes the same bytes.
#pragma once

#include <cstdint>
#include <memory>

#include "xyserve/task_table.h"

namespace xyserve {

// Fields as in vllm_xyserve/plan/spec.py, which checks them; vllm_xyserve/plan/native.py mirrors
// the layout. All int32, no padding.
struct PlanParams {
  int32_t num_cores;
  int32_t num_kv_heads;
  int32_t group_size;
  int32_t head_dim;
  int32_t window;  // 0: none
  int32_t causal;
  int32_t invariant;
  int32_t split_span;
  int32_t split_quantum;
  int32_t min_split_keys;
  int32_t max_splits;
  int32_t dealing;  // Dealing
  int32_t levels;
  int32_t cost_task_ps;
  int32_t cost_key_ps;
  int32_t cost_pair_ps;
  int32_t cost_partial_ps;
  int32_t num_tile_classes;
  int32_t tile_rows[kMaxTileClasses];
};

// Columns of num_rows values each. kind and mask_offset may be null: one query is a decode, more
// are a prefill, and no row has a mask.
struct PlanRows {
  int32_t num_rows;
  const int32_t* query_len;
  const int32_t* key_len;
  const int32_t* kind;
  const int32_t* mask_offset;
};

enum PlanError : int32_t {
  kPlanTooManySplits = -1,  // an invariant row has more than 32,767: use a larger split_span
  kPlanTooLarge = -2,       // the table would exceed 2 GiB, or the partial buffer 2^31 rows
};

// Keeps its memory from one step to the next. Not thread safe: one per thread.
class Planner {
 public:
  explicit Planner(const PlanParams& params);
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Plans and returns the size of the table in bytes, or a PlanError. The rows must stay where they
  // are until write() returns.
  int64_t plan(const PlanRows& rows);
  // Writes the table planned last. `out` has as many bytes as plan() returned and lies on a 64-byte
  // boundary.
  void write(int32_t step, void* out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xyserve

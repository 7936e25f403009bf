// The task table: which core computes which attention tile, in one packed buffer. This is its only
// declaration; vllm_xyserve/plan/layout.py mirrors it and a test compares sizes and offsets.
//
// Little endian. Indices are int32: a kernel widens them before it multiplies (K3). Sections start
// on 64-byte boundaries of the buffer, and so does each core's slice of the tasks and the merges,
// so that no two cores share a cache line. Entries that only fill a slice up have num_queries == 0;
// a core skips them.
//
//   Header | core_begin[num_cores + 1] | merge_begin[num_cores + 1] | Segment[] | Task[] | Merge[]
//
// Core c runs the tasks core_begin[c] .. core_begin[c + 1] in order. When all tasks of all cores
// are done it runs the merges merge_begin[c] .. merge_begin[c + 1].
#pragma once

#include <cstddef>
#include <cstdint>

// What a device compiler needs in front of the helpers below, such as __aicore__.
#ifndef XYSERVE_TABLE_FN
#define XYSERVE_TABLE_FN inline
#endif

namespace xyserve {

constexpr int32_t kTableMagic = 0x54545958;  // "XYTT"
constexpr int32_t kTableVersion = 1;
constexpr int32_t kTableAlign = 64;
constexpr int32_t kMaxTileClasses = 8;

enum TableFlag : int32_t {
  kTableCausal = 1,
  kTableInvariant = 2,  // splits depend on key positions alone
};

enum TableForm : int32_t {
  kFormMixed = 0,
  kFormDecode = 1,  // no row has more than one query
};

enum RowKind : int16_t { kPrefill = 0, kDecode = 1, kVerify = 2 };

enum TaskFlag : int8_t { kTaskTreeMask = 1 };  // the row has a tree mask

enum Dealing : int32_t { kPlain = 0, kSnake = 1, kRounds = 2, kLpt = 3, kFit = 4 };

struct TableHeader {
  int32_t magic;
  int32_t version;
  int32_t num_bytes;  // of the whole table
  int32_t num_cores;  // a kernel refuses a table of another number of cores

  int32_t form;
  int32_t flags;
  int32_t num_kv_heads;
  int32_t group_size;  // query heads per KV head; folded into a tile's rows

  int32_t head_dim;
  int32_t window;  // keys that a query sees, itself included; 0: all
  int32_t split_quantum;
  int32_t dealing;

  int32_t step;  // the scheduler's number of the step, to tell tables apart
  int32_t num_segments;
  int32_t num_tasks;   // with those that fill up
  int32_t num_merges;  // with those that fill up

  int32_t num_real_tasks;
  int32_t num_real_merges;
  int32_t num_partial_rows;  // capacity that the kernel's partial buffer needs, in rows
  int32_t max_splits;        // of any tile here

  int32_t core_begin_offset;  // in bytes from the start of the buffer
  int32_t merge_begin_offset;
  int32_t segments_offset;
  int32_t tasks_offset;
  int32_t merges_offset;

  // What the planner assumed, so that statistics need the buffer alone. Picoseconds.
  int32_t cost_task_ps;
  int32_t cost_key_ps;
  int32_t cost_pair_ps;
  int32_t cost_partial_ps;

  int32_t num_tile_classes;
  int32_t num_query_tokens;
  int32_t split_span;                  // keys per split of an invariant table
  int32_t tile_rows[kMaxTileClasses];  // query x group rows of each tile class
  int32_t reserved[64 - 32 - kMaxTileClasses];
};
static_assert(sizeof(TableHeader) == 256, "four cache lines");

// One per plan row, also for rows without queries. The worker fills in batch_row and query_start;
// everything else stays as the scheduler wrote it.
struct Segment {
  int32_t plan_row;
  int32_t batch_row;    // -1 until completed
  int32_t query_start;  // first query token in the batch; -1 until completed
  int32_t query_len;
  int32_t key_len;      // bound: the device's own length may be smaller
  int32_t mask_offset;  // of the row's tree mask, in the unit of the kernel; -1: none
  int32_t window;
  int16_t kind;  // RowKind: a statistic, results never depend on it
  int16_t flags;
};
static_assert(sizeof(Segment) == 32 && kTableAlign % sizeof(Segment) == 0, "packed");

struct Task {
  int32_t segment;
  int32_t query_begin;  // within the row
  int32_t key_begin;    // within the row's context, in tokens
  int32_t key_end;
  int32_t partial;      // first row in the partial buffer; -1: writes the final result
  int16_t num_queries;  // 0: fills the slice up
  int16_t head_begin;   // KV heads
  int16_t num_heads;
  int16_t split;
  int16_t num_splits;
  int8_t tile_class;  // index into tile_rows
  int8_t flags;
};
static_assert(sizeof(Task) == 32 && kTableAlign % sizeof(Task) == 0, "packed");

// Combines num_splits partial results of a tile. Split s of a task with n = num_queries * num_heads
// * group_size rows starts at row first_partial + s * n; within a split rows are ordered by KV
// head, then query, then query head of the group. An empty split has LSE = -inf and its values are
// not read.
struct Merge {
  int32_t segment;
  int32_t query_begin;
  int32_t first_partial;
  int16_t num_queries;  // 0: fills the slice up
  int16_t head_begin;
  int16_t num_heads;
  int16_t num_splits;
  int32_t reserved[3];
};
static_assert(sizeof(Merge) == 32 && kTableAlign % sizeof(Merge) == 0, "packed");

struct KeyRange {
  int32_t begin;
  int32_t end;
};

// The keys that a task reads, given the row's exact key length on the device, which may be below
// the bound that the table was planned with. Then the causal end moves down, and with a window the
// first split has to begin earlier, too. end <= begin: no keys.
XYSERVE_TABLE_FN KeyRange task_keys(const Segment& segment, const Task& task, bool causal,
                                    int32_t key_len) {
  const int32_t history = key_len - segment.query_len;
  int32_t end = task.key_end < key_len ? task.key_end : key_len;
  int32_t begin = task.key_begin;
  if (causal) {
    const int32_t last = history + task.query_begin + task.num_queries;
    end = last < end ? last : end;
  }
  if (segment.window > 0 && task.split == 0) {
    const int32_t first = history + task.query_begin - segment.window + 1;
    begin = first < begin ? (first < 0 ? 0 : first) : begin;
  }
  return {begin, end};
}

// Addresses of the sections of a table.
template <typename T>
XYSERVE_TABLE_FN const T* table_section(const TableHeader* table, int32_t offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(table) + offset);
}

}  // namespace xyserve

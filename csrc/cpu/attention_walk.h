// Meta-Attention's walk over the task table, once for all instruction sets: lists, pages, masks,
// online softmax state, splits and merges. `Micro` computes one step: a group of rows against 64
// keys.
//
// [NOTE] A row is a (query, query head) pair; the heads that share a KV head are rows of one tile.
// Steps lie on multiples of 64 keys of the row's own context, whatever the tile or the split begins
// with, and each row's arithmetic in a step is its own. So a row's bits depend on nothing but its
// query, its keys and where its context is split.
//
// [NOTE] The running maximum is a reference, not the true maximum: it is raised only when a score
// exceeds it by Micro::kSlack (then e^8 at most), so that the accumulator is hardly ever rescaled.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>

#include "xyserve/attention.h"

namespace xyserve {
namespace {

constexpr int32_t kStepKeys = 64;
constexpr int32_t kStepSubs = kStepKeys / kSubBlock;
// Rows that share one pass over the keys: their accumulators (48 KiB at 128) stay in L2.
constexpr int32_t kMaxRows = 192;
constexpr float kLn2 = 0.693147181f;

// What a row carries along its keys.
struct RowState {
  float max;      // reference, in the unit of Micro's scores; -inf: no key seen
  int32_t begin;  // keys that the row sees, before a tree mask
  int32_t end;
  int32_t position;  // of the query in the context
  int32_t query;     // within the batch row
  int32_t head;      // query head
  float alibi;
};

// One step of 64 keys. Pointers of sub-blocks without a needed key repeat a needed one.
template <class T>
struct Step {
  const T* key[kStepSubs];
  const T* value[kStepSubs];
  const T* next_key[kStepSubs];  // of the following step, to prefetch; or nullptr
  const T* next_value[kStepSubs];
  int32_t first;  // key of lane 0
  int32_t subs;   // sub-blocks up to the last needed one
};

// Scratch of one thread: the rows of a pass.
template <class Query>
struct alignas(64) Scratch {
  float acc[kMaxRows * kMaxHeadSize];
  float sum[kMaxRows * 16];
  Query query[kMaxRows * kMaxHeadSize];
  RowState row[kMaxRows];
  float scores[8 * kStepKeys];
};

// Keys of a step that a group multiplies, and each row's visible ones.
struct StepMask {
  bool full;         // every row sees every key: the rest is not set
  int32_t pv_begin;  // lanes whose values are multiplied; others may hold anything
  int32_t pv_end;
  uint64_t visible[8];
};

inline uint64_t lanes_below(int32_t count) {
  return count <= 0 ? 0 : count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

template <class Micro>
class Walk {
  using T = typename Micro::Element;
  using Work = Scratch<typename Micro::Query>;

 public:
  explicit Walk(const AttentionArgs& args) : args_(args), table_(*args.table) {
    static thread_local Work work;
    work_ = &work;
    causal_ = (table_.flags & kTableCausal) != 0;
    general_ = args.softcap != 0.0f || args.alibi_slopes != nullptr || !(args.scale > 0.0f);
  }

  void merges(int32_t core) {
    const int32_t* begin = table_section<int32_t>(&table_, table_.merge_begin_offset);
    const Merge* list = table_section<Merge>(&table_, table_.merges_offset);
    for (int32_t i = begin[core]; i < begin[core + 1]; ++i) {
      if (list[i].num_queries > 0) {
        merge(list[i]);
      }
    }
  }

  struct Pass {
    const Segment* segment;
    int32_t kv_head;
    int32_t first_row;  // within the task
    int32_t num_rows;
    int32_t key_len;
    int64_t partial;  // row in the partial buffer, -1: final
  };

  // False if a needed block is outside of the cache.
  bool tile(const Task& task) {
    const Segment& segment = segment_at(task.segment);
    const int32_t key_len = args_.seq_lens[segment.batch_row];
    const KeyRange keys = task_keys(segment, task, causal_, key_len);
    const int32_t num_rows = task.num_queries * table_.group_size;
    bool ok = true;
    for (int32_t h = 0; h < task.num_heads; ++h) {
      for (int32_t row = 0; row < num_rows; row += kMaxRows) {
        Pass pass{&segment, task.head_begin + h, row, num_rows - row, key_len, -1};
        pass.num_rows = pass.num_rows < kMaxRows ? pass.num_rows : kMaxRows;
        if (task.partial >= 0) {
          pass.partial = int64_t{task.partial} + int64_t{h} * num_rows + row;
        }
        start_rows(task, pass, keys);
        if (attend(pass)) {
          finish_rows(pass);
        } else {
          ok = false;
        }
      }
    }
    return ok;
  }

 private:
  const Segment& segment_at(int32_t index) const {
    return table_section<Segment>(&table_, table_.segments_offset)[index];
  }

  int64_t partial_stride() const { return int64_t{args_.head_size} + kPartialTail; }

  void start_rows(const Task& task, const Pass& pass, KeyRange keys) {
    const int32_t history = pass.key_len - pass.segment->query_len;
    const int32_t window = pass.segment->window;
    for (int32_t i = 0; i < pass.num_rows; ++i) {
      RowState& row = work_->row[i];
      const int32_t index = pass.first_row + i;
      row.query = task.query_begin + index / table_.group_size;
      row.head = pass.kv_head * table_.group_size + index % table_.group_size;
      row.position = history + row.query;
      row.begin = keys.begin;
      row.end = keys.end;
      if (causal_ && row.position + 1 < row.end) {
        row.end = row.position + 1;
      }
      if (window > 0 && row.position - window + 1 > row.begin) {
        row.begin = row.position - window + 1;
      }
      if (window > 0 && row.position + window < row.end) {
        row.end = row.position + window;
      }
      row.max = -INFINITY;
      row.alibi = args_.alibi_slopes != nullptr ? args_.alibi_slopes[row.head] : 0.0f;
      const T* query = static_cast<const T*>(args_.query) +
                       (int64_t{pass.segment->query_start} + row.query) * args_.query_token_stride +
                       int64_t{row.head} * args_.query_head_stride;
      Micro::load_query(work_->query + int64_t{i} * args_.head_size, query, args_.head_size);
    }
    std::memset(work_->sum, 0, sizeof(float) * 16 * static_cast<size_t>(pass.num_rows));
    std::memset(
        work_->acc, 0,
        sizeof(float) * static_cast<size_t>(pass.num_rows) * static_cast<size_t>(args_.head_size));
  }

  // Rows rise in position: the first one's begin and the last one's end bound all.
  bool attend(const Pass& pass) {
    const int32_t begin = work_->row[0].begin;
    const int32_t end = work_->row[pass.num_rows - 1].end;
    if (begin >= end) {
      return true;
    }
    Step<T> steps[2];
    int32_t current = 0;
    if (!load_step(pass, begin / kStepKeys * kStepKeys, begin, end, &steps[0])) {
      return false;
    }
    for (;;) {
      Step<T>& step = steps[current];
      Step<T>& next = steps[1 - current];
      const int32_t following = step.first + kStepKeys;
      const bool more = following < end;
      if (more && !load_step(pass, following, begin, end, &next)) {
        return false;
      }
      for (int32_t i = 0; i < kStepSubs; ++i) {
        step.next_key[i] = more ? next.key[i] : step.key[i];
        step.next_value[i] = more ? next.value[i] : step.value[i];
      }
      groups(pass, step);
      if (!more) {
        return true;
      }
      current = 1 - current;
    }
  }

  bool load_step(const Pass& pass, int32_t first, int32_t begin, int32_t end, Step<T>* step) {
    const int32_t* blocks =
        args_.block_table + int64_t{pass.segment->batch_row} * args_.block_table_stride;
    const int64_t half = int64_t{args_.block_size} * args_.head_size;
    const T* base = static_cast<const T*>(args_.kv_cache) + pass.kv_head * args_.page_stride;
    int32_t some = -1;
    step->first = first;
    step->subs = 0;
    for (int32_t i = 0; i < kStepSubs; ++i) {
      const int32_t key = first + i * kSubBlock;
      step->key[i] = nullptr;
      if (key + kSubBlock <= begin || key >= end) {
        continue;
      }
      const int64_t block = blocks[key / args_.block_size];
      if (block < 0 || block >= args_.num_blocks) {
        return false;
      }
      const int64_t offset = int64_t{key % args_.block_size} * args_.head_size;
      step->key[i] = base + block * args_.block_stride + offset;
      step->value[i] = step->key[i] + half;
      step->subs = i + 1;
      some = i;
    }
    for (int32_t i = 0; i < kStepSubs; ++i) {
      if (step->key[i] == nullptr) {
        step->key[i] = step->key[some];
        step->value[i] = step->value[some];
      }
    }
    return true;
  }

  void groups(const Pass& pass, const Step<T>& step) {
    // Equal groups: 8 rows are 4 + 4, since every group reads the keys again.
    const int32_t num_groups = (pass.num_rows + Micro::kRows - 1) / Micro::kRows;
    const bool widened = Micro::prepare(args_, step, num_groups);
    StepMask mask;
    for (int32_t g = 0, row = 0; g < num_groups; ++g) {
      const int32_t count = (pass.num_rows - row + num_groups - g - 1) / (num_groups - g);
      if (num_groups > 1) {
        prefetch_next(step, g, num_groups);
      }
      if (find_mask(pass, step, row, count, &mask)) {
        Micro::step(args_, general_, *work_, row, count, step, mask, num_groups, widened);
      }
      row += count;
    }
  }

  // Each group asks for its share of the next step: what the first one reads is then in L2. Blocks
  // lie anywhere, so the hardware's own prefetch finds no stream (a third of the time went to it).
  void prefetch_next(const Step<T>& step, int32_t group, int32_t num_groups) const {
    constexpr int32_t kLine = 64 / static_cast<int32_t>(sizeof(T));
    const int32_t lines = kSubBlock * args_.head_size / kLine;
    const int32_t end = lines * (group + 1) / num_groups * kLine;
    for (int32_t at = lines * group / num_groups * kLine; at < end; at += kLine) {
      for (int32_t sub = 0; sub < kStepSubs; ++sub) {
        __builtin_prefetch(step.next_key[sub] + at, 0, 2);
        __builtin_prefetch(step.next_value[sub] + at, 0, 2);
      }
    }
  }

  // False if no row of the group sees a key of the step.
  bool find_mask(const Pass& pass, const Step<T>& step, int32_t row, int32_t count,
                 StepMask* mask) const {
    const RowState& top = work_->row[row];
    const RowState& low = work_->row[row + count - 1];
    const int32_t last = step.first + kStepKeys;
    if (top.begin >= last || low.end <= step.first) {
      return false;
    }
    const bool tree = args_.tree_mask != nullptr && pass.segment->mask_offset >= 0 &&
                      last > pass.key_len - pass.segment->query_len;
    mask->full = !tree && low.begin <= step.first && top.end >= last;
    if (mask->full) {
      return true;
    }
    uint64_t any = 0;
    for (int32_t i = 0; i < count; ++i) {
      const RowState& state = work_->row[row + i];
      uint64_t bits = lanes_below(state.end - step.first) & ~lanes_below(state.begin - step.first);
      if (tree) {
        bits &= tree_bits(pass, state.query, step.first);
      }
      mask->visible[i] = bits;
      any |= bits;
    }
    if (any == 0) {
      return false;
    }
    mask->pv_begin = __builtin_ctzll(any);
    mask->pv_end = 64 - __builtin_clzll(any);
    return true;
  }

  // Bits of 64 keys from `first` on in a query's mask row; history is visible.
  uint64_t tree_bits(const Pass& pass, int32_t query, int32_t first) const {
    const int32_t length = pass.segment->query_len;
    const int64_t words = (int64_t{length} + 63) / 64;
    const uint64_t* row = args_.tree_mask + pass.segment->mask_offset + query * words;
    const int32_t token = first - (pass.key_len - length);  // may be negative: history
    uint64_t bits = token < 0 ? lanes_below(-token) : 0;
    for (int32_t i = token < 0 ? -token : 0; i < 64 && token + i < length; ++i) {
      bits |= (row[(token + i) / 64] >> ((token + i) % 64) & 1) << i;
    }
    return bits;
  }

  void finish_rows(const Pass& pass) {
    const int32_t size = args_.head_size;
    for (int32_t i = 0; i < pass.num_rows; ++i) {
      const RowState& row = work_->row[i];
      float* acc = work_->acc + int64_t{i} * size;
      float total = 0.0f;
      for (int32_t lane = 0; lane < 16; ++lane) {
        total += work_->sum[i * 16 + lane];
      }
      // With NaN scores alone the reference was never raised, but the sum is NaN: not empty.
      const bool empty = row.max == -INFINITY && total == 0.0f;
      const float lse = empty ? -INFINITY : Micro::to_nat(args_, general_, row.max) + ::logf(total);
      if (pass.partial >= 0) {
        float* partial = args_.partials + (pass.partial + i) * partial_stride();
        const float factor = empty ? 0.0f : 1.0f / total;
        for (int32_t d = 0; d < size; ++d) {
          partial[d] = acc[d] * factor;
        }
        partial[size] = lse;
        continue;
      }
      float factor = empty ? 0.0f : 1.0f / total;
      if (args_.sinks != nullptr && !empty) {
        // In the order of a split row (partial, then merge), so that both give the same bits.
        for (int32_t d = 0; d < size; ++d) {
          acc[d] *= factor;
        }
        factor = sink_share(row.head, lse);
      }
      store_row(*pass.segment, row.query, row.head, acc, factor);
    }
  }

  // What the sink leaves for the keys: overflow of the exponential gives 0.
  float sink_share(int32_t head, float lse) const {
    return 1.0f / (1.0f + ::expf(args_.sinks[head] - lse));
  }

  void store_row(const Segment& segment, int32_t query, int32_t head, const float* values,
                 float factor) {
    T* out = static_cast<T*>(args_.out) +
             (int64_t{segment.query_start} + query) * args_.out_token_stride +
             int64_t{head} * args_.out_head_stride;
    Micro::store_scaled(out, values, factor, args_.head_size);
  }

  void merge(const Merge& merge) {
    const Segment& segment = segment_at(merge.segment);
    const int32_t rows_per_head = merge.num_queries * table_.group_size;
    const int32_t num_rows = merge.num_heads * rows_per_head;
    for (int32_t i = 0; i < num_rows; ++i) {
      const int32_t query = merge.query_begin + i % rows_per_head / table_.group_size;
      const int32_t head =
          (merge.head_begin + i / rows_per_head) * table_.group_size + i % table_.group_size;
      merge_row(merge, segment, int64_t{merge.first_partial} + i, num_rows, query, head);
    }
  }

  void merge_row(const Merge& merge, const Segment& segment, int64_t first, int64_t num_rows,
                 int32_t query, int32_t head) {
    const int32_t size = args_.head_size;
    float top = -INFINITY;
    for (int32_t s = 0; s < merge.num_splits; ++s) {
      const float lse = args_.partials[(first + s * num_rows) * partial_stride() + size];
      top = lse > top || lse != lse ? lse : top;
    }
    float* acc = work_->acc;
    std::memset(acc, 0, sizeof(float) * static_cast<size_t>(size));
    float total = 0.0f;
    for (int32_t s = 0; s < merge.num_splits; ++s) {
      const float* partial = args_.partials + (first + s * num_rows) * partial_stride();
      if (partial[size] == -INFINITY) {
        continue;
      }
      const float weight = ::expf(partial[size] - top);
      total += weight;
      for (int32_t d = 0; d < size; ++d) {
        acc[d] += weight * partial[d];
      }
    }
    float factor = top == -INFINITY ? 0.0f : 1.0f / total;
    if (args_.sinks != nullptr && top != -INFINITY) {
      factor *= sink_share(head, top + ::logf(total));
    }
    store_row(segment, query, head, acc, factor);
  }

  const AttentionArgs& args_;
  const TableHeader& table_;
  Work* work_;
  bool causal_;
  bool general_;
};

// Few and Many: Micros for tiles of less, and of at least `many_rows` rows. One type: one of them.
template <class Few, class Many>
bool meta_attention_cores(const AttentionArgs& args, AttentionPhase phase, int32_t core_begin,
                          int32_t core_end, int32_t many_rows) {
  Walk<Few> few(args);
  Walk<Many> many(args);
  const TableHeader* table = args.table;
  const int32_t* begin = table_section<int32_t>(table, table->core_begin_offset);
  const Task* tasks = table_section<Task>(table, table->tasks_offset);
  if (phase == AttentionPhase::merges) {
    for (int32_t core = core_begin; core < core_end; ++core) {
      few.merges(core);
    }
    return true;
  }
  bool ok = true;
  for (int32_t i = begin[core_begin]; i < begin[core_end]; ++i) {
    const int32_t num_rows = tasks[i].num_queries * table->group_size;
    if (num_rows > 0) {
      ok = (num_rows < many_rows ? few.tile(tasks[i]) : many.tile(tasks[i])) && ok;
    }
  }
  return ok;
}

}  // namespace
}  // namespace xyserve

// Defines the function behind one line of kernels.inc.
#define XYSERVE_DEFINE_META_ATTENTION(Micro, isa, dtype)                               \
  namespace xyserve {                                                                  \
  bool meta_attention_##dtype##_##isa(const AttentionArgs& args, AttentionPhase phase, \
                                      int32_t core_begin, int32_t core_end) {          \
    return meta_attention_cores<Micro, Micro>(args, phase, core_begin, core_end, 0);   \
  }                                                                                    \
  }

// A core's way through its slice of the task table. Cube and vector cores walk it alike, each by
// scalar loads: the cube core has no flag between its scalar unit and anything else.
#pragma once

#include "kernel_operator.h"

#ifndef XYSERVE_TABLE_FN
#define XYSERVE_TABLE_FN __aicore__ inline
#endif
#include "ascendc/bound.h"
#include "ascendc/kernel/meta_attention_args.h"
#include "xyserve/task_table.h"

namespace xyserve::meta_attention {

// What one core computes without interruption: rows x keys of one KV head. Row r of a tile of n
// queries is query r % n of query head r / n of the group; where n is 1 the rows are the heads.
struct Unit {
  int32_t token;  // of the batch, of the tile's first query
  int32_t num_queries;
  int32_t rows;
  int32_t head;      // KV head
  int32_t begin;     // keys, in the row's context
  int32_t end;       // <= begin: none
  int32_t position;  // of the first query in the row's context
  int32_t history;   // the row's keys in front of this step's
  int32_t query_begin;
  int32_t query_len;
  int32_t mask_offset;  // -1: no tree
  int32_t window;
  int32_t partial;  // row of the partial buffer; -1: writes the final result
  int32_t batch_row;
};

// A unit's keys [key0, key1), key0 a multiple of 16; what travels through the pipeline at a time.
struct Item {
  Unit unit;
  int32_t key0;
  int32_t key1;
  int32_t number;       // of the core's items with keys
  int32_t unit_number;  // of its units with keys
  bool first;           // of its unit
  bool last;
};

__aicore__ inline int32_t score_stride(int32_t columns) {
  return arch::round_up(columns, kScoreAlign);
}

// The keys of an item that one of the two vector cores takes in the two-stage form: whole pages,
// the first half to the first one.
__aicore__ inline Item half_of(const Item& item, int32_t sub_block) {
  const int32_t first = item.key0 / kPage;
  const int32_t pages = arch::ceil_div(item.key1, kPage) - first;
  const int32_t middle = XYSERVE_BOUNDED((first + (pages + 1) / 2) * kPage, item.key1);
  Item half = item;
  half.key0 = sub_block == 0 ? item.key0 : middle;
  half.key1 = sub_block == 0 ? middle : item.key1;
  return half;
}

struct Words8 {
  int32_t word[8];
};

__aicore__ inline int32_t low_half(int32_t word) {
  return static_cast<int16_t>(word & 0xffff);
}
__aicore__ inline int32_t high_half(int32_t word) {
  return word >> 16;
}

class Table {
 public:
  __aicore__ inline void Init(const Args& args) {
    args_ = args;
    words_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(args.table));
    seq_lens_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(args.seq_lens));
    block_table_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(args.block_table));
    causal_ = (Header(offsetof(TableHeader, flags)) & kTableCausal) != 0;
    segments_ = Header(offsetof(TableHeader, segments_offset)) / 4;
    tasks_ = Header(offsetof(TableHeader, tasks_offset)) / 4;
    merges_ = Header(offsetof(TableHeader, merges_offset)) / 4;
  }

  // Every core reads the same header and comes to the same answer.
  __aicore__ inline int32_t Check(Form form) {
    const bool geometry = Header(offsetof(TableHeader, num_cores)) == args_.num_cores &&
                          Header(offsetof(TableHeader, num_kv_heads)) == args_.num_kv_heads &&
                          Header(offsetof(TableHeader, group_size)) == args_.group_size &&
                          Header(offsetof(TableHeader, head_dim)) == args_.head_dim;
    const bool decode = Header(offsetof(TableHeader, form)) == kFormDecode;
    const bool whole = Header(offsetof(TableHeader, max_splits)) <= 1;
    if (Header(offsetof(TableHeader, magic)) != kTableMagic ||
        Header(offsetof(TableHeader, version)) != kTableVersion || !geometry ||
        (form == kThreeStage && !whole) || (form == kTwoStage && !decode)) {
      return kWrongTable;
    }
    const bool fits = Header(offsetof(TableHeader, num_partial_rows)) <= args_.max_partial_rows;
    return fits ? kOk : kOverCapacity;
  }

  __aicore__ inline bool causal() const { return causal_; }
  __aicore__ inline bool HasMerges() { return Header(offsetof(TableHeader, num_real_merges)) > 0; }
  __aicore__ inline int32_t TaskBegin(int32_t core) {
    return words_.GetValue(Header(offsetof(TableHeader, core_begin_offset)) / 4 + core);
  }
  __aicore__ inline int32_t MergeBegin(int32_t core) {
    return words_.GetValue(Header(offsetof(TableHeader, merge_begin_offset)) / 4 + core);
  }

  __aicore__ inline void Load(int32_t index, Task& task) {
    const Words8 raw = Entry(tasks_, index);
    task.segment = raw.word[0];
    task.query_begin = raw.word[1];
    task.key_begin = raw.word[2];
    task.key_end = raw.word[3];
    task.partial = raw.word[4];
    task.num_queries = static_cast<int16_t>(low_half(raw.word[5]));
    task.head_begin = static_cast<int16_t>(high_half(raw.word[5]));
    task.num_heads = static_cast<int16_t>(low_half(raw.word[6]));
    task.split = static_cast<int16_t>(high_half(raw.word[6]));
    task.num_splits = static_cast<int16_t>(low_half(raw.word[7]));
    task.tile_class = static_cast<int8_t>(raw.word[7] >> 16 & 0xff);
    task.flags = static_cast<int8_t>(raw.word[7] >> 24 & 0xff);
  }

  __aicore__ inline void Load(int32_t index, Segment& segment) {
    const Words8 raw = Entry(segments_, index);
    segment.plan_row = raw.word[0];
    segment.batch_row = raw.word[1];
    segment.query_start = raw.word[2];
    segment.query_len = raw.word[3];
    segment.key_len = raw.word[4];
    segment.mask_offset = raw.word[5];
    segment.window = raw.word[6];
    segment.kind = static_cast<int16_t>(low_half(raw.word[7]));
    segment.flags = static_cast<int16_t>(high_half(raw.word[7]));
  }

  __aicore__ inline void Load(int32_t index, Merge& merge) {
    const Words8 raw = Entry(merges_, index);
    merge.segment = raw.word[0];
    merge.query_begin = raw.word[1];
    merge.first_partial = raw.word[2];
    merge.num_queries = static_cast<int16_t>(low_half(raw.word[3]));
    merge.head_begin = static_cast<int16_t>(high_half(raw.word[3]));
    merge.num_heads = static_cast<int16_t>(low_half(raw.word[4]));
    merge.num_splits = static_cast<int16_t>(high_half(raw.word[4]));
  }

  __aicore__ inline int32_t SeqLen(int32_t batch_row) { return seq_lens_.GetValue(batch_row); }

  // Page of a row's context, -1 if the block table leads outside of the cache.
  __aicore__ inline int64_t Page(int32_t batch_row, int32_t index) {
    const int64_t page = block_table_.GetValue(batch_row * args_.block_table_stride + index);
    return page >= 0 && page < args_.num_blocks ? page : -1;
  }

 private:
  __aicore__ inline int32_t Header(uint64_t offset) { return words_.GetValue(offset / 4); }

  __aicore__ inline Words8 Entry(int64_t section, int64_t index) {
    Words8 raw;
    for (int32_t i = 0; i < 8; ++i) {
      raw.word[i] = words_.GetValue(section + index * 8 + i);
    }
    return raw;
  }

  Args args_;
  AscendC::GlobalTensor<int32_t> words_;
  AscendC::GlobalTensor<int32_t> seq_lens_;
  AscendC::GlobalTensor<int32_t> block_table_;
  int64_t segments_, tasks_, merges_;
  bool causal_;
};

// Units and items of one core in order.
class Cursor {
 public:
  __aicore__ inline void Init(Table* table, const Args& args, Form form, int32_t core) {
    table_ = table;
    form_ = form;
    group_ = args.group_size;
    max_rows_ = args.max_rows;
    max_keys_ = args.max_keys;
    task_index_ = table->TaskBegin(core);
    task_end_ = table->TaskBegin(core + 1);
    head_ = num_heads_ = 0;
    status_ = kOk;
    item_number_ = unit_number_ = 0;
    key_ = unit_.end = 0;
  }

  // The next item, those of units without keys included: key1 <= key0 there.
  __aicore__ inline bool Next(Item& item) {
    const bool first = key_ >= unit_.end;
    if (first) {
      if (!NextUnit()) {
        return false;
      }
      key_ = unit_.begin / 16 * 16;
    }
    item.unit = unit_;
    item.key0 = key_;
    item.first = first;
    item.number = item_number_;
    item.unit_number = unit_number_;
    if (unit_.end <= unit_.begin) {
      item.key1 = item.key0;
      item.last = true;
      key_ = unit_.end;
      return true;
    }
    item.key1 = unit_.end;
    if (form_ != kThreeStage) {
      const int32_t stop = (key_ / kPage + chunk_pages(unit_.rows)) * kPage;
      item.key1 = XYSERVE_BOUNDED(stop, unit_.end);
    }
    key_ = item.key1;
    item.last = key_ >= unit_.end;
    ++item_number_;
    unit_number_ += item.last ? 1 : 0;
    return true;
  }

  __aicore__ inline int32_t status() const { return status_; }

 private:
  __aicore__ inline bool NextUnit() {
    while (head_ >= num_heads_) {
      if (task_index_ >= task_end_) {
        return false;
      }
      table_->Load(task_index_++, task_);
      head_ = 0;
      num_heads_ = task_.num_queries > 0 ? task_.num_heads : 0;
      if (num_heads_ > 0) {
        OpenTask();
      }
    }
    unit_.head = task_.head_begin + head_;
    unit_.partial = task_.partial < 0 ? -1 : task_.partial + head_ * unit_.rows;
    ++head_;
    return true;
  }

  __aicore__ inline void OpenTask() {
    Segment segment;
    table_->Load(task_.segment, segment);
    const int32_t key_len = table_->SeqLen(segment.batch_row);
    const KeyRange keys = task_keys(segment, task_, table_->causal(), key_len);
    unit_.token = segment.query_start + task_.query_begin;
    unit_.num_queries = task_.num_queries;
    unit_.rows = task_.num_queries * group_;
    unit_.begin = keys.begin;
    unit_.end = keys.end > keys.begin ? keys.end : keys.begin;
    unit_.history = key_len - segment.query_len;
    unit_.position = unit_.history + task_.query_begin;
    unit_.query_begin = task_.query_begin;
    unit_.query_len = segment.query_len;
    unit_.mask_offset = (task_.flags & kTaskTreeMask) != 0 ? segment.mask_offset : -1;
    unit_.window = segment.window;
    unit_.batch_row = segment.batch_row;
    const bool long_row = form_ == kThreeStage && unit_.end - unit_.begin > max_keys_;
    if (long_row || unit_.rows > max_rows_) {
      status_ |= kOverCapacity;
      unit_.end = unit_.begin;
    }
  }

  Table* table_;
  Task task_;
  Unit unit_;
  Form form_;
  int32_t group_, max_rows_, max_keys_;
  int32_t task_index_, task_end_;
  int32_t head_, num_heads_;
  int32_t key_;
  int32_t item_number_, unit_number_;
  int32_t status_;
};

}  // namespace xyserve::meta_attention

// The torch operations of Meta-Attention: argument checks, threads, and the buffer of partials.

#include <atomic>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "bind_tensor.h"

namespace xyserve {
namespace {

void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType dtype) {
  if (tensor.scalar_type() != dtype) {
    refuse(op, ": require ", name, " of dtype ", dtype_text(dtype), ", got ",
           dtype_text(tensor.scalar_type()));
  }
}

void check_dim(const char* op, const char* name, const Tensor& tensor, int64_t dim) {
  if (tensor.dim() != dim) {
    refuse(op, ": require ", name, " with ", dim, " dimensions, got ", shape_text(tensor));
  }
}

// [tokens, heads, head_size] with adjacent elements of a head.
void check_heads(const char* op, const char* name, const Tensor& tensor, ScalarType dtype) {
  check_dtype(op, name, tensor, dtype);
  check_dim(op, name, tensor, 3);
  if (tensor.size(2) > 1 && tensor.stride(2) != 1) {
    refuse(op, ": require ", name, " with adjacent elements in the last dimension, got stride ",
           tensor.stride(2), "; call .contiguous()");
  }
}

void check_vector(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                  int64_t at_least) {
  check_dtype(op, name, tensor, dtype);
  check_dim(op, name, tensor, 1);
  if (tensor.size(0) < at_least || (tensor.size(0) > 1 && tensor.stride(0) != 1)) {
    refuse(op, ": require ", name, " contiguous with at least ", at_least, " elements, got ",
           shape_text(tensor));
  }
}

struct CacheShape {
  int64_t num_blocks, num_kv_heads, block_size, head_size;
};

// vLLM's page shape; the inside of a page is ours (xyserve/attention.h).
CacheShape check_cache(const char* op, const Tensor& cache) {
  check_dim(op, "kv_cache", cache, 4);
  const CacheShape shape{cache.size(0), cache.size(1), cache.size(2), cache.size(3) / 2};
  if (cache.size(3) % 2 != 0 || shape.head_size % 16 != 0 || shape.head_size < 16 ||
      shape.head_size > kMaxHeadSize || shape.block_size % kSubBlock != 0 ||
      shape.block_size < kSubBlock) {
    refuse(op,
           ": require kv_cache [num_blocks, num_kv_heads, block_size, 2 * head_size] with a block",
           " size that is a multiple of 16 and a head size that is a multiple of 16 up to ",
           kMaxHeadSize, ", got ", shape_text(cache));
  }
  if (cache.stride(3) != 1 || cache.stride(2) != cache.size(3)) {
    refuse(op, ": require kv_cache with contiguous pages (the last two dimensions)");
  }
  return shape;
}

void check_environment() {
  if (const char* error = isa_environment_error()) {
    refuse(error);
  }
}

// 64 tokens x 3 heads x 64 elements take about 2 us: a chunk of less is not worth waking a thread.
constexpr int64_t kWriteElementsPerThread = 24576;

void kv_write(const Tensor key, const Tensor value, Tensor kv_cache, const Tensor slot_mapping) {
  constexpr const char* kOp = "kv_write";
  check_environment();
  const CacheShape shape = check_cache(kOp, kv_cache);
  const DType dtype = float_type(kOp, "kv_cache", kv_cache.scalar_type());
  check_heads(kOp, "key", key, kv_cache.scalar_type());
  check_heads(kOp, "value", value, kv_cache.scalar_type());
  check_vector(kOp, "slot_mapping", slot_mapping, ScalarType::Long, 0);
  const int64_t num_tokens = slot_mapping.size(0);
  for (const Tensor* tensor : {&key, &value}) {
    if (tensor->size(0) < num_tokens || tensor->size(1) != shape.num_kv_heads ||
        tensor->size(2) != shape.head_size) {
      refuse(kOp, ": require key and value [>= ", num_tokens, ", ", shape.num_kv_heads, ", ",
             shape.head_size, "] for kv_cache ", shape_text(kv_cache), " and ", num_tokens,
             " slots, got ", shape_text(*tensor));
    }
  }
  KvWriteArgs args{};
  args.kv_cache = kv_cache.mutable_data_ptr();
  args.key = key.const_data_ptr();
  args.value = value.const_data_ptr();
  args.slot_mapping = static_cast<const int64_t*>(slot_mapping.const_data_ptr());
  args.key_token_stride = key.stride(0);
  args.key_head_stride = key.stride(1);
  args.value_token_stride = value.stride(0);
  args.value_head_stride = value.stride(1);
  args.block_stride = kv_cache.stride(0);
  args.page_stride = kv_cache.stride(1);
  args.block_size = static_cast<int32_t>(shape.block_size);
  args.head_size = static_cast<int32_t>(shape.head_size);
  args.num_kv_heads = static_cast<int32_t>(shape.num_kv_heads);
  const int64_t num_slots = shape.num_blocks * shape.block_size;
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (args.slot_mapping[i] >= num_slots) {
      refuse(kOp, ": require slots below ", num_slots, " for kv_cache ", shape_text(kv_cache),
             ", got ", args.slot_mapping[i], " at ", i);
    }
  }
  KvWriteFn* kernel = dispatch<Op::kv_write>(dtype);
  if (kernel == nullptr) {
    refuse(kOp, ": no kernel for ", dtype_name(dtype));
  }
  const int64_t per_token = 2 * shape.num_kv_heads * shape.head_size;
  if (num_tokens * per_token <= kWriteElementsPerThread) {
    kernel(args, 0, num_tokens);
    return;
  }
  const int64_t grain = (kWriteElementsPerThread + per_token - 1) / per_token;
  torch::stable::parallel_for(0, num_tokens, grain, [&args, kernel](int64_t begin, int64_t end) {
    kernel(args, begin, end);
  });
}

const TableHeader* check_table(const char* op, const Tensor& table) {
  check_dim(op, "table", table, 1);
  const ScalarType dtype = table.scalar_type();
  if (dtype != ScalarType::Byte && dtype != ScalarType::Int) {
    refuse(op, ": require table of dtype uint8 or int32, got ", dtype_text(dtype));
  }
  const int64_t num_bytes = table.size(0) * (dtype == ScalarType::Int ? 4 : 1);
  const auto* header = static_cast<const TableHeader*>(table.const_data_ptr());
  if (num_bytes < static_cast<int64_t>(sizeof(TableHeader)) || header->magic != kTableMagic ||
      header->version != kTableVersion || header->num_bytes > num_bytes) {
    refuse(op, ": require a task table of version ", kTableVersion, " (plan.layout), got ",
           num_bytes, " bytes that are none or are cut short");
  }
  if (reinterpret_cast<uintptr_t>(header) % 16 != 0) {
    refuse(op, ": require a task table that starts on a multiple of 16 bytes");
  }
  return header;
}

struct BatchShape {
  int64_t num_tokens, num_heads, num_rows, max_blocks;
};

void check_table_shape(const char* op, const TableHeader& table, const CacheShape& cache,
                       const BatchShape& batch) {
  if (table.num_kv_heads != cache.num_kv_heads || table.head_dim != cache.head_size ||
      int64_t{table.num_kv_heads} * table.group_size != batch.num_heads) {
    refuse(op, ": the task table was planned for ", table.num_kv_heads, " KV heads, ",
           table.group_size, " query heads each and head size ", table.head_dim, "; got ",
           cache.num_kv_heads, " KV heads, ", batch.num_heads, " query heads and head size ",
           cache.head_size);
  }
  if (table.num_cores < 1) {
    refuse(op, ": require a task table for at least one core, got ", table.num_cores);
  }
}

// Every segment names a row of this batch and the lengths that the batch has now.
void check_segments(const char* op, const AttentionArgs& args, const BatchShape& batch,
                    const int32_t* query_start_loc) {
  const TableHeader& table = *args.table;
  const Segment* segments = table_section<Segment>(&table, table.segments_offset);
  for (int32_t i = 0; i < table.num_segments; ++i) {
    const Segment& segment = segments[i];
    const int64_t row = segment.batch_row;
    if (row < 0 || row >= batch.num_rows) {
      refuse(op, ": segment ", i, " of the task table names batch row ", row, ", the batch has ",
             batch.num_rows, "; complete the table first");
    }
    const int32_t length = query_start_loc[row + 1] - query_start_loc[row];
    if (segment.query_start != query_start_loc[row] || segment.query_len != length ||
        query_start_loc[row] < 0 || query_start_loc[row + 1] > batch.num_tokens) {
      refuse(op, ": segment ", i, " of the task table has queries ", segment.query_start, " + ",
             segment.query_len, ", row ", row, " of the batch has ", query_start_loc[row], " + ",
             length, "; the table was planned for another batch");
    }
    const int32_t key_len = args.seq_lens[row];
    if (length > 0 && (key_len < length || key_len > segment.key_len ||
                       key_len > batch.max_blocks * args.block_size)) {
      refuse(op, ": require seq_lens[", row, "] between its ", length, " queries, the ",
             segment.key_len, " keys of the task table and the ", batch.max_blocks,
             " blocks of the block table, got ", key_len);
    }
  }
}

const float* optional_heads(const char* op, const char* name, const std::optional<Tensor>& tensor,
                            int64_t num_heads) {
  if (!tensor.has_value()) {
    return nullptr;
  }
  check_vector(op, name, *tensor, ScalarType::Float, num_heads);
  if (tensor->size(0) != num_heads) {
    refuse(op, ": require ", name, " of ", num_heads, " elements, got ", shape_text(*tensor));
  }
  return static_cast<const float*>(tensor->const_data_ptr());
}

// Bit rows of 64-bit words: query_len rows of ceil(query_len / 64) words at a segment's
// mask_offset.
const uint64_t* check_tree_mask(const char* op, const std::optional<Tensor>& mask,
                                const TableHeader& table) {
  const int64_t num_words = mask.has_value() ? mask->size(0) : 0;
  if (mask.has_value()) {
    check_vector(op, "tree_mask", *mask, ScalarType::Long, 0);
  }
  const Segment* segments = table_section<Segment>(&table, table.segments_offset);
  for (int32_t i = 0; i < table.num_segments; ++i) {
    const Segment& segment = segments[i];
    if (segment.mask_offset < 0) {
      continue;
    }
    const int64_t length = segment.query_len;
    const int64_t needed = length * ((length + 63) / 64);
    if (segment.mask_offset + needed > num_words) {
      refuse(op, ": segment ", i, " of the task table needs ", needed, " words of tree_mask from ",
             segment.mask_offset, " on (", length, " rows of ", (length + 63) / 64, "), got ",
             num_words);
    }
  }
  return mask.has_value() ? static_cast<const uint64_t*>(mask->const_data_ptr()) : nullptr;
}

// The caller's buffer, or one that this thread keeps and only ever grows.
float* partial_buffer(const char* op, const std::optional<Tensor>& workspace, int64_t num_floats) {
  if (workspace.has_value()) {
    check_vector(op, "workspace", *workspace, ScalarType::Float, num_floats);
    return static_cast<float*>(workspace->mutable_data_ptr());
  }
  static thread_local std::vector<float> buffer;
  if (static_cast<int64_t>(buffer.size()) < num_floats) {
    buffer.resize(static_cast<size_t>(num_floats));
  }
  return buffer.data();
}

void run_table(const char* op, const AttentionArgs& args, MetaAttentionFn* kernel) {
  // One chunk per core of the table; where fewer threads turn up, one walks several lists. The end
  // of parallel_for is the barrier between tiles and merges.
  std::atomic<bool> ok{true};
  const auto phase = [&](AttentionPhase which) {
    torch::stable::parallel_for(0, args.table->num_cores, 1, [&](int64_t begin, int64_t end) {
      if (!kernel(args, which, static_cast<int32_t>(begin), static_cast<int32_t>(end))) {
        ok.store(false, std::memory_order_relaxed);
      }
    });
  };
  phase(AttentionPhase::tiles);
  if (args.table->num_merges > 0) {
    phase(AttentionPhase::merges);
  }
  if (!ok.load()) {
    refuse(op, ": block_table names a block outside of the ", args.num_blocks,
           " of kv_cache for a key that is needed");
  }
}

void meta_attention(Tensor out, const Tensor query, const Tensor kv_cache, const Tensor block_table,
                    const Tensor seq_lens, const Tensor query_start_loc, const Tensor table,
                    double scale, double softcap, std::optional<Tensor> alibi_slopes,
                    std::optional<Tensor> sinks, std::optional<Tensor> tree_mask,
                    std::optional<Tensor> workspace) {
  constexpr const char* kOp = "meta_attention";
  check_environment();
  const CacheShape cache = check_cache(kOp, kv_cache);
  const DType dtype = float_type(kOp, "kv_cache", kv_cache.scalar_type());
  check_heads(kOp, "out", out, kv_cache.scalar_type());
  check_heads(kOp, "query", query, kv_cache.scalar_type());
  check_dtype(kOp, "block_table", block_table, ScalarType::Int);
  check_dim(kOp, "block_table", block_table, 2);
  const BatchShape batch{query.size(0), query.size(1), block_table.size(0), block_table.size(1)};
  check_vector(kOp, "seq_lens", seq_lens, ScalarType::Int, batch.num_rows);
  check_vector(kOp, "query_start_loc", query_start_loc, ScalarType::Int, batch.num_rows + 1);
  if (out.size(0) < query.size(0) || out.size(1) != query.size(1) || out.size(2) != query.size(2) ||
      query.size(2) != cache.head_size || (batch.max_blocks > 1 && block_table.stride(1) != 1)) {
    refuse(kOp, ": require query and out [tokens, heads, ", cache.head_size, "] for kv_cache ",
           shape_text(kv_cache), " and block_table with adjacent entries, got query ",
           shape_text(query), " and out ", shape_text(out));
  }
  const TableHeader* header = check_table(kOp, table);
  check_table_shape(kOp, *header, cache, batch);
  AttentionArgs args{};
  args.table = header;
  args.seq_lens = static_cast<const int32_t*>(seq_lens.const_data_ptr());
  args.block_size = static_cast<int32_t>(cache.block_size);
  check_segments(kOp, args, batch, static_cast<const int32_t*>(query_start_loc.const_data_ptr()));
  args.out = out.mutable_data_ptr();
  args.query = query.const_data_ptr();
  args.kv_cache = kv_cache.const_data_ptr();
  args.block_table = static_cast<const int32_t*>(block_table.const_data_ptr());
  args.tree_mask = check_tree_mask(kOp, tree_mask, *header);
  args.alibi_slopes = optional_heads(kOp, "alibi_slopes", alibi_slopes, batch.num_heads);
  args.sinks = optional_heads(kOp, "sinks", sinks, batch.num_heads);
  args.out_token_stride = out.stride(0);
  args.out_head_stride = out.stride(1);
  args.query_token_stride = query.stride(0);
  args.query_head_stride = query.stride(1);
  args.block_stride = kv_cache.stride(0);
  args.page_stride = kv_cache.stride(1);
  args.block_table_stride = block_table.stride(0);
  args.num_blocks = cache.num_blocks;
  args.head_size = static_cast<int32_t>(cache.head_size);
  args.scale = static_cast<float>(scale);
  args.softcap = static_cast<float>(softcap);
  args.slow_bf16_dot = cpu_has_slow_bf16_dot();
  args.partials = partial_buffer(
      kOp, workspace, int64_t{header->num_partial_rows} * (cache.head_size + kPartialTail));
  MetaAttentionFn* kernel = dispatch<Op::meta_attention>(dtype);
  if (kernel == nullptr) {
    refuse(kOp, ": no kernel for ", dtype_name(dtype));
  }
  run_table(kOp, args, kernel);
}

}  // namespace
}  // namespace xyserve

STABLE_TORCH_LIBRARY_FRAGMENT(xyserve, library) {
  library.def("kv_write(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping) -> ()");
  library.def(
      "meta_attention(Tensor(a!) out, Tensor query, Tensor kv_cache, Tensor block_table, "
      "Tensor seq_lens, Tensor query_start_loc, Tensor table, float scale, float softcap, "
      "Tensor? alibi_slopes, Tensor? sinks, Tensor? tree_mask, Tensor(b!)? workspace) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(xyserve, CPU, library) {
  library.impl("kv_write", TORCH_BOX(&xyserve::kv_write));
  library.impl("meta_attention", TORCH_BOX(&xyserve::meta_attention));
}

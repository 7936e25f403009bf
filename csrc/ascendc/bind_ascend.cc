// The Ascend kernels for torch: namespace _C_xyserve, device PrivateUse1 (torch_npu), and Meta so
// that graphs can be traced. Only this file sees torch; everything that can be checked without a
// device is checked by host/.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "acl/acl.h"
#include "ascendc/host/cache.h"
#include "ascendc/host/meta_attention.h"
#include "ascendc/host/smooth_gemm.h"
#include "ascendc/launch.h"
#include "tiling/platform/platform_ascendc.h"
#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace xyserve::ascend {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

int32_t num_cube_cores() {
  static const auto cores = static_cast<int32_t>(
      platform_ascendc::PlatformAscendCManager::GetInstance()->GetCoreNumAic());
  return cores;
}

uint64_t sync_base() {
  void* address = nullptr;
  TORCH_CHECK(aclrtGetHardwareSyncAddr(&address) == ACL_SUCCESS,
              "aclrtGetHardwareSyncAddr failed: mixed kernels cannot be launched");
  return reinterpret_cast<uint64_t>(address);
}

void* current_stream() {
  return c10_npu::getCurrentNPUStream().stream(false);
}

const void* pointer(const OptionalTensor& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr() : nullptr;
}

void require(const char* op, const CanRun& answer) {
  TORCH_CHECK(answer.ok, "xyserve ", op, ": ", answer.reason);
}

void require_dtype(const char* op, const char* name, const OptionalTensor& tensor,
                   at::ScalarType dtype) {
  TORCH_CHECK(!tensor.has_value() || (tensor->scalar_type() == dtype && tensor->is_contiguous()),
              "xyserve ", op, ": require ", name, " contiguous and ", dtype);
}

GemmTuning tuning_of(at::IntArrayRef values) {
  TORCH_CHECK(values.empty() || values.size() == 6,
              "xyserve smooth_gemm: tuning is [m_tile, n_tile, k_tile, swizzle_direction, "
              "swizzle_count, last_split] or empty, got ",
              values.size(), " values");
  GemmTuning tuning;
  if (!values.empty()) {
    int32_t* fields[] = {&tuning.m_tile,        &tuning.n_tile,
                         &tuning.k_tile,        &tuning.swizzle_direction,
                         &tuning.swizzle_count, &tuning.last_split};
    for (size_t i = 0; i < 6; ++i) {
      *fields[i] = static_cast<int32_t>(values[i]);
    }
  }
  return tuning;
}

// x [..., k] as rows. Weight [n, k] or [groups, n, k] in rows; an NZ weight is a tensor of any
// shape whose storage holds round_up(n, 16) x round_up(k, C0) elements per group.
GemmArgs gemm_args(const at::Tensor& x, const at::Tensor& weight, int64_t n, bool weight_nz,
                   const OptionalTensor& group_ends, GemmForm form) {
  const char* op = "smooth_gemm";
  TORCH_CHECK(x.dim() >= 1 && x.is_contiguous() && weight.is_contiguous(), "xyserve ", op,
              ": require x and weight contiguous");
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "xyserve ", op,
              ": require x and weight of one dtype, got ", x.scalar_type(), " and ",
              weight.scalar_type());
  require_dtype(op, "group_ends", group_ends, at::kLong);
  GemmArgs args;
  args.form = form;
  args.weight_nz = weight_nz;
  args.k = x.size(-1);
  args.m = args.k == 0 ? 0 : x.numel() / args.k;
  args.n = n;
  args.num_groups = group_ends.has_value() ? group_ends->numel() : 1;
  const int64_t c0 = is_int8(form) ? 32 : 16;
  const int64_t elements =
      weight_nz ? arch::round_up(n, int64_t{16}) * arch::round_up(args.k, c0) : n * args.k;
  TORCH_CHECK(weight.numel() == args.num_groups * elements, "xyserve ", op, ": require ",
              args.num_groups, " weights of ", elements, " elements, got ", weight.numel());
  args.x_row_stride = args.k;
  args.weight_row_stride = args.k;
  args.weight_group_stride = elements;
  args.out_row_stride = n;
  args.x = x.const_data_ptr();
  args.weight = weight.const_data_ptr();
  // One group's end is the number of rows; the kernel needs no list for it.
  args.group_ends = args.num_groups > 1 ? pointer(group_ends) : nullptr;
  return args;
}

at::Tensor empty_out(const at::Tensor& x, int64_t n, at::ScalarType dtype) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = n;
  return at::empty(shape, x.options().dtype(dtype));
}

void run_gemm(GemmArgs args, at::IntArrayRef values, const at::Tensor& x, at::Tensor& out) {
  const int32_t cores = num_cube_cores();
  const GemmTuning tuning = tuning_of(values);
  args.out = out.mutable_data_ptr();
  if (args.m == 0) {
    return;
  }
  require("smooth_gemm", smooth_gemm_can_run(args, tuning, cores));
  const GemmTuning tile = smooth_gemm_tile(args, tuning, cores);
  const int64_t bytes = smooth_gemm_workspace_bytes(args, tile, cores);
  // The caching allocator orders its reuse with the stream, so it may go when this returns.
  const at::Tensor workspace = at::empty({bytes}, x.options().dtype(at::kByte));
  const SmoothGemmParams params =
      smooth_gemm_params(args, tile, bytes == 0 ? nullptr : workspace.mutable_data_ptr(), cores);
  launch_smooth_gemm(args.form, args.weight_nz, params, static_cast<uint32_t>(cores),
                     uses_workspace(args.form) ? sync_base() : 0, current_stream());
}

at::Tensor smooth_gemm(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                       int64_t n, bool weight_nz, const OptionalTensor& group_ends,
                       at::IntArrayRef tuning) {
  const auto dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kHalf || dtype == at::kBFloat16,
              "xyserve smooth_gemm: require fp16 or bf16, got ", dtype);
  require_dtype("smooth_gemm", "bias", bias, at::kFloat);
  GemmArgs args = gemm_args(x, weight, n, weight_nz, group_ends,
                            dtype == at::kHalf ? GemmForm::f16 : GemmForm::bf16);
  args.bias = pointer(bias);
  at::Tensor out = empty_out(x, n, dtype);
  run_gemm(args, tuning, x, out);
  return out;
}

// scales int64: the Fixpipe's words (fixpipe_scale), static form, int32 bias. fp32: through the
// workspace, with row_scales if given, fp32 bias.
at::Tensor smooth_gemm_int8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scales,
                            const OptionalTensor& row_scales, const OptionalTensor& bias,
                            at::ScalarType out_dtype, int64_t n, bool weight_nz,
                            const OptionalTensor& group_ends, at::IntArrayRef tuning) {
  const char* op = "smooth_gemm_int8";
  const bool is_static = scales.scalar_type() == at::kLong;
  TORCH_CHECK(x.scalar_type() == at::kChar, "xyserve ", op, ": require int8, got ",
              x.scalar_type());
  TORCH_CHECK(out_dtype == at::kHalf || (out_dtype == at::kBFloat16 && !is_static), "xyserve ", op,
              ": require fp16 out, or bf16 with fp32 scales, got ", out_dtype);
  require_dtype(op, "scales", scales, is_static ? at::kLong : at::kFloat);
  require_dtype(op, "row_scales", row_scales, at::kFloat);
  require_dtype(op, "bias", bias, is_static ? at::kInt : at::kFloat);
  const GemmForm form = is_static                ? GemmForm::int8_static
                        : out_dtype == at::kHalf ? GemmForm::int8_f16
                                                 : GemmForm::int8_bf16;
  GemmArgs args = gemm_args(x, weight, n, weight_nz, group_ends, form);
  TORCH_CHECK(scales.numel() == args.num_groups * n, "xyserve ", op, ": require ",
              args.num_groups * n, " scales, got ", scales.numel());
  TORCH_CHECK(!row_scales.has_value() || row_scales->numel() == args.m, "xyserve ", op,
              ": require a row scale for each of ", args.m, " rows");
  args.bias = pointer(bias);
  args.scales = scales.const_data_ptr();
  args.row_scales = pointer(row_scales);
  at::Tensor out = empty_out(x, n, out_dtype);
  run_gemm(args, tuning, x, out);
  return out;
}

// cache [blocks, block_size, heads, head_size] with contiguous blocks.
CacheTensor cache_tensor(const char* op, const at::Tensor& cache) {
  TORCH_CHECK(cache.dim() == 4 && cache[0].is_contiguous(), "xyserve ", op,
              ": require caches [blocks, block_size, KV heads, head size] with contiguous blocks");
  CacheTensor t;
  t.cache = cache.mutable_data_ptr();
  t.row_bytes = cache.size(2) * cache.size(3) * cache.element_size();
  t.block_stride = cache.stride(0) * cache.element_size();
  return t;
}

void add_rows(const char* op, CacheTensor& t, const at::Tensor& rows, const at::Tensor& cache) {
  TORCH_CHECK(rows.dim() == 3 && rows.scalar_type() == cache.scalar_type() &&
                  rows.size(1) == cache.size(2) && rows.size(2) == cache.size(3) &&
                  rows.stride(2) == 1 && rows.stride(1) == rows.size(2),
              "xyserve ", op,
              ": require new rows [tokens, KV heads, head size] like the cache's, heads adjacent");
  t.rows = rows.const_data_ptr();
  t.token_stride = rows.stride(0) * rows.element_size();
}

void kv_write(const at::Tensor& key, const at::Tensor& value, at::Tensor key_cache,
              at::Tensor value_cache, const at::Tensor& slot_mapping) {
  const char* op = "kv_write";
  KvWriteArgs args;
  args.key = cache_tensor(op, key_cache);
  args.value = cache_tensor(op, value_cache);
  add_rows(op, args.key, key, key_cache);
  add_rows(op, args.value, value, value_cache);
  TORCH_CHECK(slot_mapping.is_contiguous() && slot_mapping.numel() <= key.size(0) &&
                  slot_mapping.numel() <= value.size(0) &&
                  key_cache.size(0) == value_cache.size(0) &&
                  key_cache.size(1) == value_cache.size(1),
              "xyserve ", op, ": require a slot per token and caches of the same blocks");
  args.slot_mapping = slot_mapping.const_data_ptr();
  args.slot_bytes = static_cast<int32_t>(slot_mapping.element_size());
  args.num_tokens = slot_mapping.numel();
  args.num_blocks = key_cache.size(0);
  args.block_size = key_cache.size(1);
  const int32_t cores = num_cube_cores() * arch::kAivPerAic;
  require(op, kv_write_can_run(args, cores));
  if (args.num_tokens > 0) {
    launch_kv_write(kv_write_params(args, cores), args.slot_bytes, static_cast<uint32_t>(cores),
                    current_stream());
  }
}

void copy_blocks(at::Tensor key_cache, at::Tensor value_cache, const at::Tensor& pairs) {
  const char* op = "copy_blocks";
  TORCH_CHECK(pairs.dim() == 2 && pairs.size(1) == 2 && pairs.scalar_type() == at::kLong &&
                  pairs.is_contiguous(),
              "xyserve ", op, ": require pairs [n, 2] int64, contiguous");
  BlockCopyArgs args;
  args.key = cache_tensor(op, key_cache);
  args.value = cache_tensor(op, value_cache);
  args.pairs = pairs.const_data_ptr();
  args.num_pairs = pairs.size(0);
  args.num_blocks = std::min(key_cache.size(0), value_cache.size(0));
  args.block_size = key_cache.size(1);
  const int32_t cores = num_cube_cores() * arch::kAivPerAic;
  require(op, block_copy_can_run(args, cores));
  if (args.num_pairs > 0) {
    launch_block_copy(block_copy_params(args, cores), static_cast<uint32_t>(cores),
                      current_stream());
  }
}

// Everything that a graph keeps: shapes, capacities, form. Tables, lengths and data may change
// under it. table: uint8, a completed task table within its first num_bytes. max_keys, tile_rows:
// of any table that a replay may bring.
meta_attention::Problem attention_problem(const at::Tensor& out, const at::Tensor& query,
                                          const at::Tensor& key_cache,
                                          const at::Tensor& value_cache,
                                          const at::Tensor& block_table,
                                          const OptionalTensor& partials, int64_t num_cores,
                                          int64_t max_keys, int64_t tile_rows, bool decode_only,
                                          bool splits, double scale, double softcap) {
  const char* op = "meta_attention";
  for (const at::Tensor* rows : {&out, &query}) {
    TORCH_CHECK(rows->dim() == 3 && rows->stride(2) == 1 && rows->stride(1) == rows->size(2),
                "xyserve ", op,
                ": require query and out [tokens, heads, head size], heads adjacent");
  }
  for (const at::Tensor* cache : {&key_cache, &value_cache}) {
    TORCH_CHECK(cache->dim() == 4 && (*cache)[0].is_contiguous() &&
                    cache->scalar_type() == query.scalar_type() &&
                    cache->size(3) == query.size(2) && cache->size(2) > 0,
                "xyserve ", op,
                ": require caches [blocks, 128, KV heads, head size] of the query's ",
                "dtype with contiguous blocks");
  }
  TORCH_CHECK(query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16, "xyserve ",
              op, ": require fp16 or bf16, got ", query.scalar_type());
  TORCH_CHECK(out.sizes() == query.sizes() && out.scalar_type() == query.scalar_type(), "xyserve ",
              op, ": require out like query");
  TORCH_CHECK(query.size(1) % key_cache.size(2) == 0, "xyserve ", op, ": require ", query.size(1),
              " query heads to be a multiple of ", key_cache.size(2), " KV heads");
  require_dtype(op, "partials", partials, at::kFloat);
  meta_attention::Problem problem{};
  problem.dtype = query.scalar_type() == at::kHalf ? meta_attention::Dtype::kFloat16
                                                   : meta_attention::Dtype::kBfloat16;
  problem.num_cores = static_cast<int32_t>(num_cores);
  problem.num_kv_heads = static_cast<int32_t>(key_cache.size(2));
  problem.group_size = static_cast<int32_t>(query.size(1) / key_cache.size(2));
  problem.head_dim = static_cast<int32_t>(query.size(2));
  problem.block_size = static_cast<int32_t>(key_cache.size(1));
  problem.max_keys = static_cast<int32_t>(max_keys);
  problem.tile_rows = static_cast<int32_t>(tile_rows);
  problem.decode_only = decode_only;
  problem.splits = splits;
  problem.scale = static_cast<float>(scale);
  problem.softcap = static_cast<float>(softcap);
  problem.out_token_stride = out.stride(0);
  problem.query_token_stride = query.stride(0);
  problem.key_block_stride = key_cache.stride(0);
  problem.value_block_stride = value_cache.stride(0);
  problem.block_table_stride = block_table.stride(0);
  problem.num_blocks = std::min(key_cache.size(0), value_cache.size(0));
  problem.max_partial_rows =
      partials.has_value() ? partials->numel() / meta_attention::partial_floats(problem, 1) : 0;
  return problem;
}

void meta_attention_run(at::Tensor out, const at::Tensor& query, const at::Tensor& key_cache,
                        const at::Tensor& value_cache, const at::Tensor& block_table,
                        const at::Tensor& seq_lens, const at::Tensor& table, at::Tensor workspace,
                        const OptionalTensor& partials, const OptionalTensor& tree_mask,
                        const OptionalTensor& lse, int64_t form, int64_t num_cores,
                        int64_t max_keys, int64_t tile_rows, bool decode_only, bool splits,
                        double scale, double softcap) {
  const char* op = "meta_attention";
  TORCH_CHECK(form >= 0 && form <= 2, "xyserve ", op, ": require form 0, 1 or 2, got ", form);
  TORCH_CHECK(
      block_table.dim() == 2 && block_table.scalar_type() == at::kInt && block_table.stride(1) == 1,
      "xyserve ", op, ": require block_table int32 [rows, blocks]");
  require_dtype(op, "seq_lens", seq_lens, at::kInt);
  require_dtype(op, "table", table, at::kByte);
  require_dtype(op, "tree_mask", tree_mask, at::kLong);
  require_dtype(op, "lse", lse, at::kFloat);
  const auto chosen = static_cast<meta_attention::Form>(form);
  const meta_attention::Problem problem =
      attention_problem(out, query, key_cache, value_cache, block_table, partials, num_cores,
                        max_keys, tile_rows, decode_only, splits, scale, softcap);
  const std::string reason = meta_attention::can_run(problem, chosen);
  TORCH_CHECK(reason.empty(), "xyserve ", op, ": ", reason);
  TORCH_CHECK(num_cores <= num_cube_cores(), "xyserve ", op, ": require a table of at most ",
              num_cube_cores(), " cores, got ", num_cores);
  const int64_t bytes = meta_attention::workspace_bytes(problem, chosen);
  TORCH_CHECK(workspace.is_contiguous() && workspace.nbytes() >= static_cast<uint64_t>(bytes),
              "xyserve ", op, ": require a workspace of ", bytes, " bytes, got ",
              workspace.nbytes());
  const auto address = [](const void* data) { return reinterpret_cast<uint64_t>(data); };
  meta_attention::Args args = meta_attention::make_args(problem);
  args.out = address(out.mutable_data_ptr());
  args.query = address(query.const_data_ptr());
  args.key_cache = address(key_cache.const_data_ptr());
  args.value_cache = address(value_cache.const_data_ptr());
  args.block_table = address(block_table.const_data_ptr());
  args.seq_lens = address(seq_lens.const_data_ptr());
  args.table = address(table.const_data_ptr());
  args.partials = address(pointer(partials));
  args.tree_mask = address(pointer(tree_mask));
  args.lse = address(pointer(lse));
  args.workspace = address(workspace.mutable_data_ptr());
  launch_meta_attention(chosen, problem.dtype, args, sync_base(), current_stream());
}

// Bytes of the workspace that meta_attention asks for, so that it can be made before a capture.
int64_t meta_attention_workspace(const at::Tensor& query, const at::Tensor& key_cache, int64_t form,
                                 int64_t num_cores, int64_t max_keys, int64_t tile_rows) {
  meta_attention::Problem problem{};
  problem.num_cores = static_cast<int32_t>(num_cores);
  problem.head_dim = static_cast<int32_t>(key_cache.size(3));
  problem.max_keys = static_cast<int32_t>(max_keys);
  problem.tile_rows = static_cast<int32_t>(tile_rows);
  TORCH_CHECK(query.dim() == 3 && query.size(2) == key_cache.size(3),
              "xyserve meta_attention_workspace: require query [tokens, heads, head size]");
  return meta_attention::workspace_bytes(problem, static_cast<meta_attention::Form>(form));
}

void meta_attention_meta(at::Tensor, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor,
                         const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                         int64_t, int64_t, int64_t, int64_t, bool, bool, double, double) {}

at::Tensor smooth_gemm_meta(const at::Tensor& x, const at::Tensor&, const OptionalTensor&,
                            int64_t n, bool, const OptionalTensor&, at::IntArrayRef) {
  return empty_out(x, n, x.scalar_type());
}

at::Tensor smooth_gemm_int8_meta(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                                 const OptionalTensor&, const OptionalTensor&,
                                 at::ScalarType out_dtype, int64_t n, bool, const OptionalTensor&,
                                 at::IntArrayRef) {
  return empty_out(x, n, out_dtype);
}

void kv_write_meta(const at::Tensor&, const at::Tensor&, at::Tensor, at::Tensor,
                   const at::Tensor&) {}

void copy_blocks_meta(at::Tensor, at::Tensor, const at::Tensor&) {}

}  // namespace
}  // namespace xyserve::ascend

TORCH_LIBRARY_FRAGMENT(_C_xyserve, m) {
  m.def(
      "smooth_gemm(Tensor x, Tensor weight, Tensor? bias, int n, bool weight_nz=False, "
      "Tensor? group_ends=None, int[] tuning=[]) -> Tensor");
  m.def(
      "smooth_gemm_int8(Tensor x, Tensor weight, Tensor scales, Tensor? row_scales, Tensor? bias, "
      "ScalarType out_dtype, int n, bool weight_nz=False, Tensor? group_ends=None, "
      "int[] tuning=[]) -> Tensor");
  m.def(
      "kv_write(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping) -> ()");
  m.def("copy_blocks(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor pairs) -> ()");
  m.def(
      "meta_attention(Tensor(a!) out, Tensor query, Tensor key_cache, Tensor value_cache, "
      "Tensor block_table, Tensor seq_lens, Tensor table, Tensor(b!) workspace, "
      "Tensor(c!)? partials, Tensor? tree_mask, Tensor(d!)? lse, int form, int num_cores, "
      "int max_keys, int tile_rows, bool decode_only, bool splits, float scale, float softcap) "
      "-> ()");
  m.def(
      "meta_attention_workspace(Tensor query, Tensor key_cache, int form, int num_cores, "
      "int max_keys, int tile_rows) -> int");
}

TORCH_LIBRARY_IMPL(_C_xyserve, PrivateUse1, m) {
  m.impl("smooth_gemm", xyserve::ascend::smooth_gemm);
  m.impl("smooth_gemm_int8", xyserve::ascend::smooth_gemm_int8);
  m.impl("kv_write", xyserve::ascend::kv_write);
  m.impl("copy_blocks", xyserve::ascend::copy_blocks);
  m.impl("meta_attention", xyserve::ascend::meta_attention_run);
  m.impl("meta_attention_workspace", xyserve::ascend::meta_attention_workspace);
}

TORCH_LIBRARY_IMPL(_C_xyserve, Meta, m) {
  m.impl("smooth_gemm", xyserve::ascend::smooth_gemm_meta);
  m.impl("smooth_gemm_int8", xyserve::ascend::smooth_gemm_int8_meta);
  m.impl("kv_write", xyserve::ascend::kv_write_meta);
  m.impl("copy_blocks", xyserve::ascend::copy_blocks_meta);
  m.impl("meta_attention", xyserve::ascend::meta_attention_meta);
  m.impl("meta_attention_workspace", xyserve::ascend::meta_attention_workspace);
}

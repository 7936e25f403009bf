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
}

TORCH_LIBRARY_IMPL(_C_xyserve, PrivateUse1, m) {
  m.impl("smooth_gemm", xyserve::ascend::smooth_gemm);
  m.impl("smooth_gemm_int8", xyserve::ascend::smooth_gemm_int8);
  m.impl("kv_write", xyserve::ascend::kv_write);
  m.impl("copy_blocks", xyserve::ascend::copy_blocks);
}

TORCH_LIBRARY_IMPL(_C_xyserve, Meta, m) {
  m.impl("smooth_gemm", xyserve::ascend::smooth_gemm_meta);
  m.impl("smooth_gemm_int8", xyserve::ascend::smooth_gemm_int8_meta);
  m.impl("kv_write", xyserve::ascend::kv_write_meta);
  m.impl("copy_blocks", xyserve::ascend::copy_blocks_meta);
}

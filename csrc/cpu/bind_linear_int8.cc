// The int8 linear operations for torch: argument checks, quantisation of activations, threads.

#include <algorithm>
#include <tuple>

#include "bind_deal.h"
#include "bind_tensor.h"

namespace xyserve {
namespace {

// As kWorkPerThread of the float layers; a core does four times as many int8 products.
constexpr int64_t kInt8WorkPerThread = 800000;
// Elements that one core quantises in about 5 us.
constexpr int64_t kQuantizePerThread = 32768;

void require_cpu_environment() {
  if (const char* error = isa_environment_error()) {
    refuse(error);
  }
}

void check_vector(const char* op, const char* name, const Tensor& tensor, int64_t elements,
                  ScalarType dtype) {
  if (tensor.scalar_type() != dtype || tensor.numel() != elements || !tensor.is_contiguous()) {
    refuse(op, ": require contiguous ", name, " of ", elements, " elements and dtype ",
           dtype_text(dtype), ", got ", shape_text(tensor), " of dtype ",
           dtype_text(tensor.scalar_type()));
  }
}

// Activations as rows: `x` is replaced by a copy where its rows have no single stride.
Rows rows_of(const char* op, Tensor* x) {
  if (x->dim() < 1 || x->dim() > kMaxDim) {
    refuse(op, ": require x with 1 to ", kMaxDim, " dimensions, got ", shape_text(*x));
  }
  Rows rows;
  if (!fold_rows(*x, &rows)) {
    *x = torch::stable::contiguous(*x);
    fold_rows(*x, &rows);
  }
  return rows;
}

void quantize(DType type, const QuantizeRowsArgs& args, int64_t num_rows) {
  QuantizeRowsFn* kernel = dispatch<Op::quantize_rows>(type);
  if (num_rows * args.k <= kQuantizePerThread) {
    kernel(args, 0, num_rows);
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kQuantizePerThread / std::max<int64_t>(args.k, 1));
  torch::stable::parallel_for(0, num_rows, grain,
                              [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

// (rows as uint8, scale per row, zero point per row), x about (rows - zero) * scale.
std::tuple<Tensor, Tensor, Tensor> quantize_rows(const Tensor x, bool symmetric) {
  constexpr const char* kOp = "quantize_rows";
  require_cpu_environment();
  Tensor input = x;
  const Rows rows = rows_of(kOp, &input);
  const DType type = float_type(kOp, "x", input.scalar_type());
  // Rows are stored a multiple of four apart, as the kernel wants them; the tensor shows K of them.
  const int64_t stored[2] = {rows.num_rows, int8_padded_k(rows.num_columns)};
  const int64_t count = rows.num_rows;
  Tensor out = empty_cpu(stored, 2, ScalarType::Byte);
  Tensor scales = empty_cpu(&count, 1, ScalarType::Float);
  Tensor zeros = empty_cpu(&count, 1, ScalarType::Int);
  QuantizeRowsArgs args{};
  args.x = input.const_data_ptr();
  args.out = static_cast<uint8_t*>(out.mutable_data_ptr());
  args.scales = static_cast<float*>(scales.mutable_data_ptr());
  args.zeros = static_cast<int32_t*>(zeros.mutable_data_ptr());
  args.k = rows.num_columns;
  args.x_row_stride = rows.row_stride;
  args.out_row_stride = stored[1];
  args.symmetric = symmetric;
  if (count > 0) {
    quantize(type, args, count);
  }
  return {torch::stable::narrow(out, 1, 0, rows.num_columns), scales, zeros};
}

std::tuple<Tensor, Tensor> linear_pack_int8(const Tensor weight, const Tensor scale) {
  constexpr const char* kOp = "linear_pack_int8";
  if (weight.dim() != 2 || weight.scalar_type() != ScalarType::Char) {
    refuse(kOp, ": require weight [N, K] of dtype int8, got ", shape_text(weight), " of dtype ",
           dtype_text(weight.scalar_type()));
  }
  Tensor source = weight;
  const Rows rows = rows_of(kOp, &source);
  const int64_t n = rows.num_rows;
  const int64_t k = rows.num_columns;
  check_vector(kOp, "scale", scale, scale.numel() == 1 ? 1 : n, ScalarType::Float);
  if (k > kInt8MaxK) {
    refuse(kOp, ": require K of at most ", kInt8MaxK, " (more can overflow int32), got ", k);
  }
  const int64_t size = packed_int8_elements(n, k);
  const int64_t columns = num_panels(n) * kPanelColumns;
  Tensor packed = empty_packed(size, ScalarType::Char);
  Tensor sums = empty_cpu(&columns, 1, ScalarType::Int);
  int8_t* to = static_cast<int8_t*>(packed.mutable_data_ptr());
  int32_t* sums_to = static_cast<int32_t*>(sums.mutable_data_ptr());
  const int8_t* from = static_cast<const int8_t*>(source.const_data_ptr());
  torch::stable::parallel_for(0, num_panels(n), 8, [&](int64_t begin, int64_t end) {
    pack_linear_int8(to, sums_to, from, rows.row_stride, n, k, begin, end);
  });
  return {packed, sums};
}

void set_static(QuantizeRowsArgs* args, const Tensor& scale, const std::optional<Tensor>& zero) {
  constexpr const char* kOp = "linear_int8";
  check_vector(kOp, "input_scale", scale, 1, ScalarType::Float);
  args->is_static = true;
  args->static_scale = *static_cast<const float*>(scale.const_data_ptr());
  args->static_zero = 128;
  if (!(args->static_scale > 0.0f)) {
    refuse(kOp, ": require a positive input_scale, got ", args->static_scale);
  }
  if (zero.has_value()) {
    check_vector(kOp, "input_zero_point", *zero, 1, ScalarType::Int);
    const int32_t value = *static_cast<const int32_t*>(zero->const_data_ptr());
    if (value < -128 || value > 127) {
      refuse(kOp, ": require an input_zero_point from -128 to 127, got ", value);
    }
    args->static_zero += value;
  }
}

void check_weight(const Tensor& packed, const Tensor& scale, const Tensor& sums, int64_t n,
                  int64_t k) {
  constexpr const char* kOp = "linear_int8";
  if (n <= 0) {
    refuse(kOp, ": require n above 0, got ", n);
  }
  check_vector(kOp, "packed weight (from linear_pack_int8)", packed, packed_int8_elements(n, k),
               ScalarType::Char);
  check_vector(kOp, "sums (from linear_pack_int8)", sums, num_panels(n) * kPanelColumns,
               ScalarType::Int);
  check_vector(kOp, "scale", scale, scale.numel() == 1 ? 1 : n, ScalarType::Float);
}

Tensor linear_int8(const Tensor x, const Tensor packed, const Tensor scale, const Tensor sums,
                   std::optional<Tensor> bias, std::optional<Tensor> input_scale,
                   std::optional<Tensor> input_zero_point, int64_t n, bool symmetric) {
  constexpr const char* kOp = "linear_int8";
  require_cpu_environment();
  Tensor input = x;
  const Rows rows = rows_of(kOp, &input);
  const ScalarType dtype = input.scalar_type();
  const DType type = float_type(kOp, "x", dtype);
  check_weight(packed, scale, sums, n, rows.num_columns);
  if (bias.has_value()) {
    check_vector(kOp, "bias", *bias, n, dtype);
  }
  QuantizeRowsArgs quant{};
  quant.symmetric = symmetric;
  if (input_scale.has_value()) {
    set_static(&quant, *input_scale, input_zero_point);
  } else if (input_zero_point.has_value()) {
    refuse(kOp, ": require input_scale with input_zero_point; dynamic zero points are computed");
  }
  Tensor out = empty_like_rows(input, n, dtype);
  const int64_t m = rows.num_rows;
  if (m == 0) {
    return out;
  }
  // One scratch for scales, zero points and quantised rows.
  const int64_t row_bytes = int8_padded_k(rows.num_columns);
  const int64_t head = (m * 8 + 63) / 64 * 64;
  const int64_t bytes = head + m * row_bytes;
  Tensor scratch = empty_cpu(&bytes, 1, ScalarType::Byte);
  uint8_t* base = static_cast<uint8_t*>(scratch.mutable_data_ptr());
  quant.x = input.const_data_ptr();
  quant.scales = reinterpret_cast<float*>(base);
  quant.zeros = reinterpret_cast<int32_t*>(base + m * 4);
  quant.out = base + head;
  quant.k = rows.num_columns;
  quant.x_row_stride = rows.row_stride;
  quant.out_row_stride = row_bytes;
  quantize(type, quant, m);
  LinearInt8Args args{};
  args.out = out.mutable_data_ptr();
  args.x = quant.out;
  args.x_scales = quant.scales;
  args.x_zeros = quant.zeros;
  args.packed = static_cast<const int8_t*>(packed.const_data_ptr());
  args.sums = static_cast<const int32_t*>(sums.const_data_ptr());
  args.scales = static_cast<const float*>(scale.const_data_ptr());
  args.bias = bias.has_value() ? bias->const_data_ptr() : nullptr;
  args.m = m;
  args.n = n;
  args.k = rows.num_columns;
  args.out_row_stride = n;
  args.x_row_stride = row_bytes;
  args.one_scale = scale.numel() == 1;
  LinearInt8Fn* kernel = dispatch<Op::linear_int8>(type);
  const int64_t work = n * rows.num_columns * std::max<int64_t>(m / 4, 1);
  const Deal deal = choose_deal({}, m, num_panels(n), work / kInt8WorkPerThread, 1);
  deal_parts(deal, m, num_panels(n), [&](const LinearPart& part) { kernel(args, part); });
  return out;
}

}  // namespace
}  // namespace xyserve

STABLE_TORCH_LIBRARY_FRAGMENT(xyserve, library) {
  library.def("linear_pack_int8(Tensor weight, Tensor scale) -> (Tensor, Tensor)");
  library.def("quantize_rows(Tensor x, bool symmetric=True) -> (Tensor, Tensor, Tensor)");
  library.def(
      "linear_int8(Tensor x, Tensor packed, Tensor scale, Tensor sums, Tensor? bias, "
      "Tensor? input_scale, Tensor? input_zero_point, int n, bool symmetric=True) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(xyserve, CPU, library) {
  library.impl("linear_pack_int8", TORCH_BOX(&xyserve::linear_pack_int8));
  library.impl("quantize_rows", TORCH_BOX(&xyserve::quantize_rows));
  library.impl("linear_int8", TORCH_BOX(&xyserve::linear_int8));
}

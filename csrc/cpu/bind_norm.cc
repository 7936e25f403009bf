// rms_norm for torch.

#include <optional>

#include "bind_tensor.h"

namespace xyserve {
namespace {

constexpr const char* kOp = "rms_norm";

bool same_shape(const Tensor& one, const Tensor& two) {
  bool same = one.dim() == two.dim();
  for (int64_t i = 0; same && i < one.dim(); ++i) {
    same = one.size(i) == two.size(i);
  }
  return same;
}

Rows folded(const char* name, const Tensor& tensor, const Tensor& x) {
  Rows rows{};
  if (!same_shape(tensor, x) || tensor.scalar_type() != x.scalar_type()) {
    refuse(kOp, ": require ", name, " of the shape and dtype of x, ", shape_text(x), " ",
           dtype_text(x.scalar_type()), ", got ", shape_text(tensor), " ",
           dtype_text(tensor.scalar_type()));
  }
  if (!fold_rows(tensor, &rows)) {
    refuse(kOp, ": require ", name, " whose leading dimensions fold into rows of adjacent ",
           "elements, got shape ", shape_text(tensor), "; call .contiguous()");
  }
  return rows;
}

Rows folded_out(const char* name, const Tensor& tensor, const Tensor& x) {
  const Rows rows = folded(name, tensor, x);
  require_apart(kOp, name, rows);
  return rows;
}

void set_weight(RmsNormArgs* args, const Tensor& weight, const Tensor& x) {
  args->weight_is_f32 = weight.scalar_type() == ScalarType::Float;
  const bool fits = weight.dim() == 1 && weight.size(0) == args->d &&
                    (args->d <= 1 || weight.stride(0) == 1) &&
                    (args->weight_is_f32 || weight.scalar_type() == x.scalar_type());
  if (!fits) {
    refuse(kOp, ": require weight [", args->d, "] with adjacent elements of float32 or of ",
           dtype_text(x.scalar_type()), ", got ", shape_text(weight), " ",
           dtype_text(weight.scalar_type()));
  }
  args->weight = weight.const_data_ptr();
}

void rms_norm(Tensor out, const Tensor x, std::optional<Tensor> residual,
              std::optional<Tensor> weight, double epsilon) {
  if (const char* error = isa_environment_error()) {
    refuse(error);
  }
  if (x.dim() < 1) {
    refuse(kOp, ": require x of shape [..., d], got ", shape_text(x));
  }
  const DType dtype = float_type(kOp, "x", x.scalar_type());
  const Rows rows = folded("x", x, x);
  RmsNormArgs args{};
  args.d = rows.num_columns;
  args.epsilon = static_cast<float>(epsilon);
  args.x_row_stride = rows.row_stride;
  args.out_row_stride = folded_out("out", out, x).row_stride;
  if (residual.has_value()) {
    args.residual_row_stride = folded_out("residual", *residual, x).row_stride;
    args.residual = residual->mutable_data_ptr();
  }
  if (weight.has_value()) {
    set_weight(&args, *weight, x);
  }
  if (rows.num_rows == 0 || args.d == 0) {
    return;
  }
  args.out = out.mutable_data_ptr();
  args.x = x.const_data_ptr();
  RmsNormFn* kernel = dispatch<Op::rms_norm>(dtype);
  if (kernel == nullptr) {
    refuse(kOp, ": no kernel for ", dtype_name(dtype));
  }
  run_rows(kernel, args, rows.num_rows);
}

}  // namespace
}  // namespace xyserve

STABLE_TORCH_LIBRARY_FRAGMENT(xyserve, library) {
  library.def(
      "rms_norm(Tensor(a!) out, Tensor x, Tensor(b!)? residual, Tensor? weight, float epsilon)"
      " -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(xyserve, CPU, library) {
  library.impl("rms_norm", TORCH_BOX(&xyserve::rms_norm));
}

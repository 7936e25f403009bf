// silu_and_mul and the state of dispatch for torch, on its stable ABI. Only bind_*.cc see torch.

#include <optional>
#include <sstream>
#include <string>

#include "bind_tensor.h"

namespace xyserve {
namespace {

// Elements between consecutive rows when all leading dimensions are folded into one.
int64_t row_stride(const char* op, const char* name, const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  if (tensor.size(last) > 1 && tensor.stride(last) != 1) {
    refuse(op, ": require ", name, " with adjacent elements in the last dimension, got stride ",
           tensor.stride(last), "; call .contiguous()");
  }
  int64_t inner_stride = tensor.size(last);
  int64_t expected = -1;
  for (int64_t i = last - 1; i >= 0; --i) {
    if (tensor.size(i) == 1) {
      continue;
    }
    if (expected < 0) {
      inner_stride = tensor.stride(i);
    } else if (tensor.stride(i) != expected) {
      refuse(op, ": require leading dimensions of ", name,
             " that fold into rows of one stride, got ", "stride ", tensor.stride(i),
             " instead of ", expected, " in dimension ", i, " of ", shape_text(tensor),
             "; call .contiguous()");
    }
    expected = tensor.stride(i) * tensor.size(i);
  }
  return inner_stride;
}

int64_t check_silu_and_mul_shapes(const Tensor& out, const Tensor& x) {
  constexpr const char* kOp = "silu_and_mul";
  const int64_t dim = x.dim();
  bool same = dim >= 1 && out.dim() == dim && x.size(dim - 1) == 2 * out.size(dim - 1);
  int64_t num_rows = 1;
  for (int64_t i = 0; same && i + 1 < dim; ++i) {
    same = out.size(i) == x.size(i);
    num_rows *= x.size(i);
  }
  if (!same) {
    refuse(kOp, ": require x of shape [..., 2 * d] and out of shape [..., d], got x ",
           shape_text(x), " and out ", shape_text(out));
  }
  if (out.scalar_type() != x.scalar_type()) {
    refuse(kOp, ": require out and x of one dtype, got out ", dtype_text(out.scalar_type()),
           " and x ", dtype_text(x.scalar_type()));
  }
  return num_rows;
}

void silu_and_mul(Tensor out, const Tensor x) {
  constexpr const char* kOp = "silu_and_mul";
  if (const char* error = isa_environment_error()) {
    refuse(error);
  }
  const int64_t num_rows = check_silu_and_mul_shapes(out, x);
  const DType dtype = float_type(kOp, "x", x.scalar_type());
  SiluAndMulArgs args{};
  args.d = out.size(out.dim() - 1);
  if (num_rows == 0 || args.d == 0) {
    return;  // before the strides: those of an empty tensor mean nothing
  }
  args.out_row_stride = row_stride(kOp, "out", out);
  args.x_row_stride = row_stride(kOp, "x", x);
  require_apart(kOp, "out", {num_rows, args.d, args.out_row_stride});
  args.out = out.mutable_data_ptr();
  args.x = x.const_data_ptr();
  SiluAndMulFn* kernel = dispatch<Op::silu_and_mul>(dtype);
  if (kernel == nullptr) {
    refuse(kOp, ": no kernel for ", dtype_name(dtype));
  }
  run_rows(kernel, args, num_rows);
}

void append_kernel(std::ostringstream& json, const Kernel& kernel) {
  const bool chosen = chosen_kernel(kernel.op, kernel.dtype) == &kernel;
  json << "{\"op\":\"" << op_name(kernel.op) << "\",\"name\":\"" << kernel.name << "\",\"isa\":\""
       << isa_name(kernel.isa) << "\",\"dtype\":\"" << dtype_name(kernel.dtype)
       << "\",\"available\":" << (isa_available(kernel.isa) ? "true" : "false")
       << ",\"chosen\":" << (chosen ? "true" : "false")
       << ",\"calls\":" << kernel.calls.load(std::memory_order_relaxed) << '}';
}

// The registry and the state of dispatch as JSON (names need no escaping).
std::string describe() {
  std::ostringstream json;
  const char* error = isa_environment_error();
  json << "{\"isa\":\"" << isa_name(isa_cap()) << "\",\"available\":[";
  for (int i = 0, written = 0; i < kNumIsas; ++i) {
    if (isa_available(static_cast<Isa>(i))) {
      json << (written++ == 0 ? "\"" : ",\"") << isa_name(static_cast<Isa>(i)) << '"';
    }
  }
  json << "],\"amx_bf16\":" << (cpu_has_amx_bf16() ? "true" : "false")
       << ",\"isa_misconfigured\":" << (error != nullptr ? "true" : "false") << ",\"kernels\":[";
  for (int i = 0; i < num_kernels(); ++i) {
    json << (i == 0 ? "" : ",");
    append_kernel(json, kernel_at(i));
  }
  json << "]}";
  return json.str();
}

// Caps the instruction set for later calls, for tests and benchmarks; returns the previous cap.
std::string set_isa(std::string name) {
  Isa isa = Isa::scalar;
  if (!isa_from_name(name.c_str(), &isa) || !isa_available(isa)) {
    refuse("set_isa: require an instruction set that this CPU has, got '", name, "'");
  }
  const std::string previous = isa_name(isa_cap());
  set_isa_cap(isa);
  return previous;
}

std::string isa_error() {
  const char* error = isa_environment_error();
  return error == nullptr ? "" : error;
}

}  // namespace
}  // namespace xyserve

STABLE_TORCH_LIBRARY(xyserve, library) {
  library.def("silu_and_mul(Tensor(a!) out, Tensor x) -> ()");
  library.def("describe() -> str");
  library.def("isa_error() -> str");
  library.def("set_isa(str name) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(xyserve, CPU, library) {
  library.impl("silu_and_mul", TORCH_BOX(&xyserve::silu_and_mul));
}

// Operations without a tensor have no device to be dispatched on.
STABLE_TORCH_LIBRARY_IMPL(xyserve, CompositeExplicitAutograd, library) {
  library.impl("describe", TORCH_BOX(&xyserve::describe));
  library.impl("isa_error", TORCH_BOX(&xyserve::isa_error));
  library.impl("set_isa", TORCH_BOX(&xyserve::set_isa));
}

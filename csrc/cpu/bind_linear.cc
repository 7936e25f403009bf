// The linear operations for torch: argument checks and outputs.

#include <algorithm>

#include "bind_deal.h"
#include "bind_tensor.h"

namespace xyserve {
namespace {

// Below this many multiplications a call stays on one thread: waking a second one costs about
// 5 us, and this is what one core does in that time from its second-level cache.
constexpr int64_t kWorkPerThread = 150000;

int64_t check_packed(const char* op, const Tensor& packed, ScalarType dtype, DType type, int64_t n,
                     int64_t k) {
  if (packed.scalar_type() != dtype) {
    refuse(op, ": require packed weight of x's dtype ", dtype_text(dtype), ", got ",
           dtype_text(packed.scalar_type()));
  }
  const int64_t need = packed_elements(type, n, k);
  if (n <= 0 || packed.dim() != 1 || packed.size(0) != need) {
    refuse(op, ": require the result of linear_pack on a weight [", n, ", ", k, "], which has ",
           need, " elements; got ", shape_text(packed));
  }
  return need;
}

void check_bias(const char* op, const std::optional<Tensor>& bias, ScalarType dtype, int64_t n) {
  if (!bias.has_value()) {
    return;
  }
  if (bias->dim() != 1 || bias->size(0) != n || bias->scalar_type() != dtype ||
      (n > 1 && bias->stride(0) != 1)) {
    refuse(op, ": require contiguous bias [", n, "] of dtype ", dtype_text(dtype), ", got ",
           shape_text(*bias), " of dtype ", dtype_text(bias->scalar_type()));
  }
}

struct Call {
  LinearArgs args;
  DType type;
  ScalarType dtype;
};

void describe_input(const char* op, Call* call, Tensor* x, const Tensor& packed,
                    const std::optional<Tensor>& bias, int64_t n) {
  if (const char* error = isa_environment_error()) {
    refuse(error);
  }
  const int64_t dim = x->dim();
  if (dim < 1 || dim > kMaxDim) {
    refuse(op, ": require x with 1 to ", kMaxDim, " dimensions, got ", shape_text(*x));
  }
  Rows rows;
  if (!fold_rows(*x, &rows)) {
    *x = torch::stable::contiguous(*x);
    fold_rows(*x, &rows);
  }
  call->dtype = x->scalar_type();
  call->type = float_type(op, "x", call->dtype);
  check_packed(op, packed, call->dtype, call->type, n, rows.num_columns);
  check_bias(op, bias, call->dtype, n);
  LinearArgs& args = call->args;
  args.x = x->const_data_ptr();
  args.packed = packed.const_data_ptr();
  args.bias = bias.has_value() ? bias->const_data_ptr() : nullptr;
  args.m = rows.num_rows;
  args.n = n;
  args.k = rows.num_columns;
  args.x_row_stride = rows.row_stride;
}

// The measured choice for a call, or one that leaves everything to the rule.
LinearTuning tuning_of(const Call& call) {
  const Kernel* kernel = has_tuned() ? chosen_kernel(Op::linear, call.type) : nullptr;
  if (kernel == nullptr) {
    return {};
  }
  const TunedKey key{call.type, kernel->isa, torch::stable::get_num_threads(), call.args.n,
                     call.args.k};
  const LinearTuning* found = find_tuned(key, call.args.m);
  return found == nullptr ? LinearTuning{} : *found;
}

void launch(const char* op, Call& call) {
  if (call.args.m == 0) {
    return;
  }
  LinearFn* kernel = dispatch<Op::linear>(call.type);
  if (kernel == nullptr) {
    refuse(op, ": no kernel for ", dtype_name(call.type));
  }
  LinearArgs& args = call.args;
  const LinearTuning tuning = tuning_of(call);
  args.tile_rows = tuning.tile_rows;
  args.block_steps = tuning.block_steps;
  const int64_t panels = num_panels(args.epilogue == Epilogue::silu_mul ? args.n / 2 : args.n);
  const int64_t work = args.n * args.k * std::max<int64_t>(args.m / 4, 1);
  const int64_t segments = segments_of(k_step(call.type), args.n, args.k).count;
  const Deal deal = choose_deal(tuning, args.m, panels, work / kWorkPerThread, segments);
  auto run = [&](const LinearPart& part) { kernel(args, part); };
  if (!deal.split) {
    deal_parts(deal, args.m, panels, run);
    return;
  }
  const int64_t size = segments * args.m * num_panels(args.n) * kPanelColumns;
  Tensor sums = empty_cpu(&size, 1, ScalarType::Float);
  args.sums = static_cast<float*>(sums.mutable_data_ptr());
  deal_segments(deal, args.m, panels, segments, run);
}

void check_same_leading(const char* op, const char* name, const Tensor& tensor, const Tensor& x,
                        int64_t n_out, ScalarType dtype) {
  const int64_t dim = x.dim();
  bool same = tensor.dim() == dim && tensor.size(dim - 1) == n_out;
  for (int64_t i = 0; same && i + 1 < dim; ++i) {
    same = tensor.size(i) == x.size(i);
  }
  if (!same || tensor.scalar_type() != dtype) {
    refuse(op, ": require ", name, " with the leading dimensions of x ", shape_text(x),
           ", last dimension ", n_out, " and dtype ", dtype_text(dtype), "; got ",
           shape_text(tensor), " of dtype ", dtype_text(tensor.scalar_type()));
  }
}

Tensor linear(const Tensor x, const Tensor packed, std::optional<Tensor> bias, int64_t n) {
  Tensor input = x;
  Call call{};
  describe_input("linear", &call, &input, packed, bias, n);
  Tensor out = empty_like_rows(input, n, call.dtype);
  call.args.out = out.mutable_data_ptr();
  call.args.out_row_stride = n;
  launch("linear", call);
  return out;
}

void linear_out(Tensor out, const Tensor x, const Tensor packed, std::optional<Tensor> bias,
                int64_t n) {
  constexpr const char* kOp = "linear_out";
  Tensor input = x;
  Call call{};
  describe_input(kOp, &call, &input, packed, bias, n);
  check_same_leading(kOp, "out", out, input, n, call.dtype);
  Rows rows;
  if (!fold_rows(out, &rows) || (rows.num_rows > 1 && rows.row_stride < n)) {
    refuse(kOp, ": require out with adjacent elements in the last dimension and leading ",
           "dimensions that fold into rows that do not overlap, got ", shape_text(out));
  }
  call.args.out = out.mutable_data_ptr();
  call.args.out_row_stride = rows.row_stride;
  launch(kOp, call);
}

Tensor linear_silu_mul(const Tensor x, const Tensor packed, std::optional<Tensor> bias, int64_t n) {
  constexpr const char* kOp = "linear_silu_mul";
  Tensor input = x;
  Call call{};
  describe_input(kOp, &call, &input, packed, bias, n);
  if (n % 2 != 0) {
    refuse(kOp, ": require an even number of output columns (gate and up), got ", n);
  }
  const int64_t d = n / 2;
  Tensor out = empty_like_rows(input, d, call.dtype);
  call.args.out = out.mutable_data_ptr();
  call.args.out_row_stride = d;
  if (d % kPanelColumns == 0) {
    call.args.epilogue = Epilogue::silu_mul;
    launch(kOp, call);
    return out;
  }
  // Gate and up columns share a panel: two passes.
  Tensor both = empty_like_rows(input, n, call.dtype);
  call.args.out = both.mutable_data_ptr();
  call.args.out_row_stride = n;
  launch(kOp, call);
  const SiluAndMulArgs gated{out.mutable_data_ptr(), both.const_data_ptr(), d, d, n};
  dispatch<Op::silu_and_mul>(call.type)(gated, 0, call.args.m);
  return out;
}

Tensor linear_add(const Tensor x, const Tensor packed, std::optional<Tensor> bias, int64_t n,
                  const Tensor residual) {
  constexpr const char* kOp = "linear_add";
  Tensor input = x;
  Tensor addend = residual;
  Call call{};
  describe_input(kOp, &call, &input, packed, bias, n);
  check_same_leading(kOp, "residual", residual, input, n, call.dtype);
  Rows rows;
  if (!fold_rows(addend, &rows)) {
    addend = torch::stable::contiguous(addend);
    fold_rows(addend, &rows);
  }
  Tensor out = empty_like_rows(input, n, call.dtype);
  call.args.out = out.mutable_data_ptr();
  call.args.out_row_stride = n;
  call.args.residual = addend.const_data_ptr();
  call.args.residual_row_stride = rows.row_stride;
  call.args.epilogue = Epilogue::add;
  launch(kOp, call);
  return out;
}

Tensor linear_pack(const Tensor weight) {
  constexpr const char* kOp = "linear_pack";
  if (weight.dim() != 2) {
    refuse(kOp, ": require weight [N, K], got ", shape_text(weight));
  }
  Tensor source = weight;
  Rows rows;
  if (!fold_rows(source, &rows)) {
    source = torch::stable::contiguous(source);
    fold_rows(source, &rows);
  }
  const DType type = float_type(kOp, "weight", source.scalar_type());
  const int64_t n = rows.num_rows;
  const int64_t k = rows.num_columns;
  const int64_t size = packed_elements(type, n, k);
  Tensor packed = empty_packed(size, source.scalar_type());
  void* to = packed.mutable_data_ptr();
  const void* from = source.const_data_ptr();
  torch::stable::parallel_for(0, num_panels(n), 8, [&](int64_t begin, int64_t end) {
    pack_linear(type, to, from, rows.row_stride, n, k, begin, end);
  });
  return packed;
}

// One row of the table per entry; the columns are TUNED_COLUMNS of ops/linear_tuned.py.
constexpr int64_t kTunedColumns = 14;

TunedEntry tuned_entry(const int64_t* row) {
  TunedEntry entry{};
  if (row[0] < 0 || row[0] >= kNumDTypes || row[1] < 0 || row[1] >= kNumIsas) {
    refuse("linear_set_tuned: require dtype from 0 to ", kNumDTypes - 1,
           " and instruction set from 0 to ", kNumIsas - 1, ", got ", row[0], " and ", row[1]);
  }
  for (int64_t i = 2; i < kTunedColumns; ++i) {
    if (row[i] < 0) {
      refuse("linear_set_tuned: require columns of at least 0, got ", row[i], " in column ", i);
    }
  }
  entry.key = {static_cast<DType>(row[0]), static_cast<Isa>(row[1]), row[2], row[3], row[4]};
  entry.m_first = row[5];
  entry.m_last = row[6];
  entry.tuning = {row[7], row[8], row[9], row[10], row[11], row[12], row[13]};
  return entry;
}

void linear_set_tuned(const Tensor table) {
  if (table.dim() != 2 || table.size(1) != kTunedColumns || !table.is_contiguous() ||
      table.scalar_type() != ScalarType::Long) {
    refuse("linear_set_tuned: require contiguous int64 [entries, ", kTunedColumns, "], got ",
           shape_text(table), " of dtype ", dtype_text(table.scalar_type()));
  }
  const int64_t* rows = static_cast<const int64_t*>(table.const_data_ptr());
  std::vector<TunedEntry> entries;
  for (int64_t i = 0; i < table.size(0); ++i) {
    entries.push_back(tuned_entry(rows + i * kTunedColumns));
  }
  set_tuned(entries.data(), static_cast<int64_t>(entries.size()));
}

int64_t linear_tuned_calls() {
  return static_cast<int64_t>(tuned_calls());
}

}  // namespace
}  // namespace xyserve

STABLE_TORCH_LIBRARY_FRAGMENT(xyserve, library) {
  library.def("linear_pack(Tensor weight) -> Tensor");
  library.def("linear_set_tuned(Tensor table) -> ()");
  library.def("linear_tuned_calls() -> int");
  library.def("linear(Tensor x, Tensor packed, Tensor? bias, int n) -> Tensor");
  library.def("linear_out(Tensor(a!) out, Tensor x, Tensor packed, Tensor? bias, int n) -> ()");
  library.def("linear_silu_mul(Tensor x, Tensor packed, Tensor? bias, int n) -> Tensor");
  library.def(
      "linear_add(Tensor x, Tensor packed, Tensor? bias, int n, Tensor residual) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(xyserve, CPU, library) {
  library.impl("linear_pack", TORCH_BOX(&xyserve::linear_pack));
  library.impl("linear_set_tuned", TORCH_BOX(&xyserve::linear_set_tuned));
  library.impl("linear", TORCH_BOX(&xyserve::linear));
  library.impl("linear_out", TORCH_BOX(&xyserve::linear_out));
  library.impl("linear_silu_mul", TORCH_BOX(&xyserve::linear_silu_mul));
  library.impl("linear_add", TORCH_BOX(&xyserve::linear_add));
}

STABLE_TORCH_LIBRARY_IMPL(xyserve, CompositeExplicitAutograd, library) {
  library.impl("linear_tuned_calls", TORCH_BOX(&xyserve::linear_tuned_calls));
}

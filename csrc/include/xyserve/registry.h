// The one table of kernels. Dispatch, tests, benchmarks and `doctor` all read it.
#pragma once

#include <atomic>
#include <cstdint>

#include "xyserve/activation.h"
#include "xyserve/attention.h"
#include "xyserve/dtype.h"
#include "xyserve/isa.h"
#include "xyserve/linear.h"
#include "xyserve/linear_int8.h"
#include "xyserve/norm.h"

namespace xyserve {

enum class Op : int32_t {
  silu_and_mul,
  kv_write,
  meta_attention,
  linear,
  linear_int8,
  quantize_rows,
  rms_norm
};
inline constexpr int kNumOps = 7;

// The signature that every kernel of an operation has.
template <Op>
struct KernelFn;
template <>
struct KernelFn<Op::silu_and_mul> {
  using type = SiluAndMulFn;
};
template <>
struct KernelFn<Op::kv_write> {
  using type = KvWriteFn;
};
template <>
struct KernelFn<Op::meta_attention> {
  using type = MetaAttentionFn;
};
template <>
struct KernelFn<Op::linear> {
  using type = LinearFn;
};
template <>
struct KernelFn<Op::linear_int8> {
  using type = LinearInt8Fn;
};
template <>
struct KernelFn<Op::quantize_rows> {
  using type = QuantizeRowsFn;
};
template <>
struct KernelFn<Op::rms_norm> {
  using type = RmsNormFn;
};

struct Kernel {
  Op op;
  Isa isa;
  DType dtype;
  const char* name;
  void (*fn)();  // a KernelFn<op>::type*, checked where the table is filled
  std::atomic<uint64_t> calls{0};
};

const char* op_name(Op op);
const char* dtype_name(DType dtype);

int num_kernels();
Kernel& kernel_at(int index);

// The kernel of the highest allowed instruction set, or nullptr if there is none.
Kernel* chosen_kernel(Op op, DType dtype);

// Highest instruction set that dispatch may use. Starts at XYSERVE_ISA, or at the best available.
Isa isa_cap();
void set_isa_cap(Isa isa);
// nullptr, or why XYSERVE_ISA cannot be obeyed. Operations refuse to run while it is set.
const char* isa_environment_error();

// Picks the kernel for one call and counts it. One table look-up: no feature test per call.
template <Op op>
typename KernelFn<op>::type* dispatch(DType dtype) {
  Kernel* kernel = chosen_kernel(op, dtype);
  if (kernel == nullptr) {
    return nullptr;
  }
  kernel->calls.fetch_add(1, std::memory_order_relaxed);
  return reinterpret_cast<typename KernelFn<op>::type*>(kernel->fn);
}

}  // namespace xyserve

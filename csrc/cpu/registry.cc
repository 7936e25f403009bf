#include "xyserve/registry.h"

#include <cstdlib>
#include <string>

namespace xyserve {

#define XYSERVE_KERNEL(op, isa, dtype) KernelFn<Op::op>::type op##_##dtype##_##isa;
#include "kernels.inc"
#undef XYSERVE_KERNEL

namespace {

// The typed pointer first: a kernel with another signature than its operation does not compile.
template <Op op>
void (*erase(typename KernelFn<op>::type* fn))() {
  return reinterpret_cast<void (*)()>(fn);
}

Kernel kKernels[] = {
#define XYSERVE_KERNEL(op, isa, dtype) \
  {Op::op, Isa::isa, DType::dtype, #op "_" #dtype "_" #isa, erase<Op::op>(&op##_##dtype##_##isa)},
#include "kernels.inc"
#undef XYSERVE_KERNEL
};
constexpr int kNumKernels = sizeof(kKernels) / sizeof(kKernels[0]);

Kernel* find_best(Op op, DType dtype, Isa cap) {
  Kernel* best = nullptr;
  for (Kernel& kernel : kKernels) {
    const bool usable = kernel.isa <= cap && isa_available(kernel.isa);
    if (kernel.op == op && kernel.dtype == dtype && usable &&
        (best == nullptr || kernel.isa > best->isa)) {
      best = &kernel;
    }
  }
  return best;
}

// State of dispatch, built once when the library is loaded and changed only by set_isa_cap.
struct Dispatch {
  std::atomic<Isa> cap;
  std::atomic<Kernel*> chosen[kNumOps][kNumDTypes];
  std::string environment_error;

  Dispatch() : cap(best_available_isa()) {
    if (const char* wanted = std::getenv("XYSERVE_ISA"); wanted != nullptr && *wanted != '\0') {
      apply_environment(wanted);
    }
    fill();
  }

  void apply_environment(const std::string& wanted) {
    std::string allowed;
    for (int i = 0; i < kNumIsas; ++i) {
      const Isa isa = static_cast<Isa>(i);
      if (isa_available(isa)) {
        allowed += (allowed.empty() ? "" : ", ") + std::string(isa_name(isa));
      }
    }
    Isa isa = Isa::scalar;
    if (!isa_from_name(wanted.c_str(), &isa)) {
      environment_error = "XYSERVE_ISA=" + wanted + " is not an instruction set";
    } else if (!isa_available(isa)) {
      environment_error = "XYSERVE_ISA=" + wanted + " is not available on this CPU";
    } else {
      cap.store(isa, std::memory_order_relaxed);
      return;
    }
    environment_error += "; allowed here: " + allowed + ", or unset for the best one";
  }

  void fill() {
    const Isa limit = cap.load(std::memory_order_relaxed);
    for (int op = 0; op < kNumOps; ++op) {
      for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
        chosen[op][dtype].store(find_best(static_cast<Op>(op), static_cast<DType>(dtype), limit),
                                std::memory_order_relaxed);
      }
    }
  }
};

Dispatch& state() {
  static Dispatch instance;
  return instance;
}

}  // namespace

const char* op_name(Op op) {
  constexpr const char* kNames[kNumOps] = {"silu_and_mul", "kv_write",    "meta_attention",
                                           "linear",       "linear_int8", "quantize_rows",
                                           "rms_norm"};
  return kNames[static_cast<int>(op)];
}

const char* dtype_name(DType dtype) {
  constexpr const char* kNames[kNumDTypes] = {"f32", "bf16", "f16"};
  return kNames[static_cast<int>(dtype)];
}

int num_kernels() {
  return kNumKernels;
}

Kernel& kernel_at(int index) {
  return kKernels[index];
}

Kernel* chosen_kernel(Op op, DType dtype) {
  return state().chosen[static_cast<int>(op)][static_cast<int>(dtype)].load(
      std::memory_order_relaxed);
}

Isa isa_cap() {
  return state().cap.load(std::memory_order_relaxed);
}

void set_isa_cap(Isa isa) {
  state().cap.store(isa, std::memory_order_relaxed);
  state().fill();
}

const char* isa_environment_error() {
  const std::string& error = state().environment_error;
  return error.empty() ? nullptr : error.c_str();
}

}  // namespace xyserve

// Driver for test_portable.py: the kernels as a machine without x86 vector sets
// builds them.

#include <cstdio>

#include "xyserve/registry.h"

int main() {
  using namespace xyserve;
  if (const char *error = isa_environment_error()) {
    std::printf("%s\n", error);
    return 3;
  }
  const float x[6] = {1.0f, -2.0f, 100.0f, 3.0f, 5.0f, 7.0f};
  float out[3] = {};
  SiluAndMulArgs args{out, x, 3, 3, 6};
  dispatch<Op::silu_and_mul>(DType::f32)(args, 0, 1);
  const Kernel *kernel = chosen_kernel(Op::silu_and_mul, DType::f32);
  std::printf("%d %s %llu %.6f %.6f %.6f\n", num_kernels(), kernel->name,
              static_cast<unsigned long long>(kernel->calls.load()), out[0],
              out[1], out[2]);
  return 0;
}

#include "silu_and_mul.h"
#include "vec_scalar.h"

XYSERVE_DEFINE_SILU_AND_MUL(VecScalar, scalar, f32)
XYSERVE_DEFINE_SILU_AND_MUL(VecScalar, scalar, bf16)
XYSERVE_DEFINE_SILU_AND_MUL(VecScalar, scalar, f16)

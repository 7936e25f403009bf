#include "silu_and_mul.h"
#include "vec_avx2.h"

XYSERVE_DEFINE_SILU_AND_MUL(VecAvx2, avx2, f32)
XYSERVE_DEFINE_SILU_AND_MUL(VecAvx2, avx2, bf16)
XYSERVE_DEFINE_SILU_AND_MUL(VecAvx2, avx2, f16)

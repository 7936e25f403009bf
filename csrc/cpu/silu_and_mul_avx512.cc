#include "silu_and_mul.h"
#include "vec_avx512.h"

XYSERVE_DEFINE_SILU_AND_MUL(VecAvx512, avx512, f32)
XYSERVE_DEFINE_SILU_AND_MUL(VecAvx512, avx512, bf16)
XYSERVE_DEFINE_SILU_AND_MUL(VecAvx512, avx512, f16)

#include "silu_and_mul.h"
#include "vec_avx512_bf16.h"

XYSERVE_DEFINE_SILU_AND_MUL(VecAvx512Bf16, avx512_bf16, bf16)

#include "rms_norm.h"
#include "vec_avx512_bf16.h"

XYSERVE_DEFINE_RMS_NORM(VecAvx512Bf16, avx512_bf16, bf16)

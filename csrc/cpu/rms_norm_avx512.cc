#include "rms_norm.h"
#include "vec_avx512.h"

XYSERVE_DEFINE_RMS_NORM(VecAvx512, avx512, f32)
XYSERVE_DEFINE_RMS_NORM(VecAvx512, avx512, bf16)
XYSERVE_DEFINE_RMS_NORM(VecAvx512, avx512, f16)

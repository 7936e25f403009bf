#include "rms_norm.h"
#include "vec_avx2.h"

XYSERVE_DEFINE_RMS_NORM(VecAvx2, avx2, f32)
XYSERVE_DEFINE_RMS_NORM(VecAvx2, avx2, bf16)
XYSERVE_DEFINE_RMS_NORM(VecAvx2, avx2, f16)

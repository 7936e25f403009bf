#include "rms_norm.h"
#include "vec_scalar.h"

XYSERVE_DEFINE_RMS_NORM(VecScalar, scalar, f32)
XYSERVE_DEFINE_RMS_NORM(VecScalar, scalar, bf16)
XYSERVE_DEFINE_RMS_NORM(VecScalar, scalar, f16)

#include "kv_write.h"

XYSERVE_DEFINE_KV_WRITE(KvWriteScalar, scalar, f32)
XYSERVE_DEFINE_KV_WRITE(KvWriteScalar, scalar, bf16)
XYSERVE_DEFINE_KV_WRITE(KvWriteScalar, scalar, f16)

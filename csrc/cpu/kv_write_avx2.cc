#include "kv_write.h"

XYSERVE_DEFINE_KV_WRITE(KvWriteScalar, avx2, f32)
XYSERVE_DEFINE_KV_WRITE(KvWriteScalar, avx2, bf16)
XYSERVE_DEFINE_KV_WRITE(KvWriteScalar, avx2, f16)

#include "attention_bf16.h"

XYSERVE_DEFINE_META_ATTENTION(MicroBf16, avx512_bf16, bf16)

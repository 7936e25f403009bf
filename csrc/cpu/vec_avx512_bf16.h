// AVX-512 with the bf16 conversion instruction. Internal linkage: see the note in vec_scalar.h.
#pragma once

#include "vec_avx512.h"

namespace xyserve {
namespace {

struct VecAvx512Bf16 : VecAvx512 {
  using VecAvx512::store;
  // vcvtneps2bf16 ignores MXCSR and flushes subnormal inputs to zero. Every fp32 subnormal is also
  // a bf16 subnormal, so flushing would lose answers that the other instruction sets keep: lanes
  // with one are rare, and take the integer path. The result is bit-identical to VecAvx512.
  static void store(Bf16* p, F v) {
    constexpr int kSubnormal = 0x20;
    __m256i half;
    if (__builtin_expect(_mm512_fpclass_ps_mask(v, kSubnormal) != 0, 0)) {
      half = round_to_bf16(v);
    } else {
      const __m256bh converted = _mm512_cvtneps_pbh(v);
      __builtin_memcpy(&half, &converted, sizeof(half));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  }
};

}  // namespace
}  // namespace xyserve

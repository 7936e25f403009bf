// The KV write with AVX-512 (F, BW). Internal linkage: see the note in vec_scalar.h.
#pragma once

#include <immintrin.h>

#include "kv_write.h"

namespace xyserve {
namespace {

struct KvWriteAvx512 : KvWriteScalar {
  static constexpr bool kTransposes = true;

  // 16 rows of `num_units` 4-byte units (a multiple of 16) become [num_units][16].
  static void transpose(char* to, const char* const* rows, int32_t num_units) {
    for (int32_t u = 0; u < num_units; u += 16) {
      __m512i a[16];
      for (int i = 0; i < 16; ++i) {
        a[i] = _mm512_loadu_si512(rows[i] + 4 * int64_t{u});
      }
      transpose_16x16(a);
      for (int i = 0; i < 16; ++i) {
        _mm512_storeu_si512(to + 64 * int64_t{u + i}, a[i]);
      }
    }
  }

  static void value(uint16_t* to, const uint16_t* from, int32_t size) {
    // `to` may be the odd half of a pair, whose vector ends two bytes late: only the even lanes of
    // 16 bits are stored.
    for (int32_t d = 0; d < size; d += 16) {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + d));
      _mm512_mask_storeu_epi16(to + 2 * int64_t{d}, 0x55555555, _mm512_cvtepu16_epi32(half));
    }
  }

  static void value_pair(uint16_t* to, const uint16_t* even, const uint16_t* odd, int32_t size) {
    for (int32_t d = 0; d < size; d += 16) {
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d));
      const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
      _mm512_storeu_si512(to + 2 * int64_t{d},
                          _mm512_or_si512(_mm512_cvtepu16_epi32(low), shifted));
    }
  }

 private:
  static void transpose_16x16(__m512i (&a)[16]) {
    __m512i b[16];
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    // a[4 g + c]: rows 4 g .. 4 g + 3 of columns c, c + 4, c + 8, c + 12, one per 128 bits.
    for (int c = 0; c < 4; ++c) {
      b[c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
      b[4 + c] = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xDD);
      b[8 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
      b[12 + c] = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xDD);
    }
    for (int c = 0; c < 4; ++c) {
      a[c] = _mm512_shuffle_i32x4(b[c], b[8 + c], 0x88);
      a[8 + c] = _mm512_shuffle_i32x4(b[c], b[8 + c], 0xDD);
      a[4 + c] = _mm512_shuffle_i32x4(b[4 + c], b[12 + c], 0x88);
      a[12 + c] = _mm512_shuffle_i32x4(b[4 + c], b[12 + c], 0xDD);
    }
  }
};

}  // namespace
}  // namespace xyserve

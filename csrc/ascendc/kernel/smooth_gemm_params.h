// What the host tells a SmoothGEMM launch, and the buffers that the kernel cuts out of a cube core.
// Plain C++: host side and kernel read the same lines.
#pragma once

#include <cstdint>

#include "ascendc/arch.h"

namespace xyserve::ascend {

#if defined(__CCE__)
using GmAddress = __gm__ uint8_t*;
#else
using GmAddress = uint8_t*;
#endif

// out[r, c] = sum_k x[r, k] * weight[c, k] (+ bias[c]), accumulated in fp32 or int32. Strides count
// elements; elements of a row are adjacent. Grouped: rows up to group_ends[0] meet the first
// weight, from there up to group_ends[1] the second, and so on; a group may be empty.
struct SmoothGemmParams {
  GmAddress x;       // [m, k]
  GmAddress weight;  // [groups, n, k], rows or NZ
  GmAddress bias;    // [groups, n] of the accumulator's type, or fp32 in the workspace form; null
  GmAddress scales;  // int8: [groups, n], uint64 for the Fixpipe, fp32 in the workspace form
  GmAddress row_scales;  // int8 in the workspace form: [m] fp32, or null
  GmAddress out;         // [m, n]
  GmAddress workspace;   // int32 tiles, two per cube core
  GmAddress group_ends;  // [num_groups] int64 in device memory, or null

  int64_t x_row_stride;
  int64_t weight_row_stride;  // of rows; NZ has none
  int64_t weight_group_stride;
  int64_t out_row_stride;

  int32_t m;  // grouped: rows of x, an upper bound of group_ends
  int32_t n;
  int32_t k;
  int32_t num_groups;  // 1 without groups

  // The tile: m_tile x n_tile of the output, k_tile of K per L1 buffer, k_step per L0 buffer.
  int32_t m_tile;
  int32_t n_tile;
  int32_t k_tile;
  int32_t k_step;
  // Order of the tiles: bands of swizzle_count rows of tiles (0) or columns of tiles (1).
  int32_t swizzle_direction;
  int32_t swizzle_count;
  int32_t last_split;  // pieces that each tile of the last, partial wave is cut into
  int32_t num_cores;
};

// Two buffers of each kind, so that a transfer runs beside the computation on the other.
struct SmoothGemmBuffers {
  static constexpr int32_t kMaxM = 128;
  static constexpr int32_t kMaxN = 256;
  static constexpr int32_t kL1RowBytes = 512;  // of K per row at the largest tile
  static constexpr int32_t kL1a = kMaxM * kL1RowBytes;
  static constexpr int32_t kL1b = kMaxN * kL1RowBytes;
  static constexpr int32_t kL1Bias = kMaxN * 4;
  static constexpr int32_t kL1Scales = kMaxN * 8;
  static constexpr int32_t kL0a = arch::kL0aBytes / 2;
  static constexpr int32_t kL0b = arch::kL0bBytes / 2;
  static constexpr int32_t kL0c = kMaxM * kMaxN * 4;
};
static_assert(2 * (SmoothGemmBuffers::kL1a + SmoothGemmBuffers::kL1b + SmoothGemmBuffers::kL1Bias +
                   SmoothGemmBuffers::kL1Scales) <=
                  arch::kL1Usable,
              "64 + 128 + 1 + 2 KB, twice, of 512 KB");
static_assert(SmoothGemmBuffers::kL0c <= arch::kL0cBytes, "the largest tile fills L0C");
static_assert(SmoothGemmBuffers::kL1Bias <= arch::kBiasTableBytes, "256 values of 4 bytes");
static_assert(SmoothGemmBuffers::kL1Scales <= arch::kFixpipeBytes, "256 scales of 8 bytes");
// 32 bytes of K for each of 256 rows, at the least, in half of L0.
static_assert(SmoothGemmBuffers::kMaxN * arch::kBlockBytes <= SmoothGemmBuffers::kL0b, "k_step");

// Two tiles of the accumulator fit L0C up to here: the Fixpipe then runs beside the next tile.
XYSERVE_HOST_DEVICE constexpr int32_t smooth_gemm_l0c_stages(int32_t m_tile, int32_t n_tile) {
  return 2 * m_tile * n_tile * 4 <= arch::kL0cBytes ? 2 : 1;
}

// Whether the buffers hold a tile; the host refuses tuned data for which they do not.
XYSERVE_HOST_DEVICE constexpr bool smooth_gemm_tile_fits(int32_t m_tile, int32_t n_tile,
                                                         int32_t k_tile, int32_t k_step,
                                                         int32_t element_bytes) {
  const int32_t c0 = arch::kBlockBytes / element_bytes;
  return m_tile > 0 && n_tile > 0 && k_step > 0 && m_tile % arch::kFractalRows == 0 &&
         n_tile % arch::kFractalRows == 0 && k_tile % c0 == 0 && k_step % c0 == 0 &&
         k_step <= k_tile && k_step <= arch::kMaxMmad && m_tile <= SmoothGemmBuffers::kMaxM &&
         n_tile <= SmoothGemmBuffers::kMaxN &&
         m_tile * k_tile * element_bytes <= SmoothGemmBuffers::kL1a &&
         n_tile * k_tile * element_bytes <= SmoothGemmBuffers::kL1b &&
         m_tile * k_step * element_bytes <= SmoothGemmBuffers::kL0a &&
         n_tile * k_step * element_bytes <= SmoothGemmBuffers::kL0b;
}
static_assert(smooth_gemm_tile_fits(128, 256, 256, 64, 2), "the largest tile, 16-bit elements");
static_assert(smooth_gemm_tile_fits(128, 256, 512, 128, 1), "the largest tile, int8");
static_assert(!smooth_gemm_tile_fits(128, 256, 256, 80, 2), "L0B holds 64 of K for 256 columns");

}  // namespace xyserve::ascend

#include "ascendc/host/smooth_gemm.h"

#include <cstring>
#include <utility>

#include "ascendc/kernel/gemm_walk.h"

namespace xyserve::ascend {
namespace {

using Sizes = SmoothGemmBuffers;

int32_t element_bytes(GemmForm form) {
  return is_int8(form) ? 1 : 2;
}

int32_t k_step_of(int32_t m_tile, int32_t n_tile, int32_t k_tile, int32_t bytes) {
  const int32_t c0 = arch::kBlockBytes / bytes;
  const int32_t most = arch::min_of(Sizes::kL0a / (m_tile * bytes), Sizes::kL0b / (n_tile * bytes));
  return arch::min_of(arch::round_down(most, c0), k_tile);
}

// K per L1 buffer: at least 512 bytes of each row, more where the tile leaves room, since a row's
// part is one contiguous read of global memory.
int32_t k_tile_of(int32_t m_tile, int32_t n_tile, int64_t k, int32_t bytes) {
  constexpr int32_t kMostRowBytes = 1024;
  const int32_t c0 = arch::kBlockBytes / bytes;
  const int32_t room = arch::min_of(Sizes::kL1a / m_tile, Sizes::kL1b / n_tile);
  const int32_t row = arch::round_down(arch::min_of(room, kMostRowBytes), Sizes::kL1RowBytes);
  const int64_t whole = arch::round_up(k, int64_t{c0});
  return static_cast<int32_t>(arch::min_of(whole, int64_t{row / bytes}));
}

// Cycles of one tile, roughly: the slowest of reading it from global memory, moving it to L0 and
// multiplying. Only comparisons between tiles of one problem matter. 64 bytes a cycle and core lie
// between the two published bandwidths (135 GiB/s flat, HBM shared by 24 cores); L1 to L0A and L0B
// move 256 and 128; the cube multiplies a fractal a cycle.
int64_t tile_cycles(int64_t m, int64_t n, int64_t k, int32_t bytes) {
  constexpr int64_t kGlobalBytes = 64;
  constexpr int64_t kL0aBytes = 256;
  constexpr int64_t kL0bBytes = 128;
  constexpr int64_t kFixed = 1000;  // first load and Fixpipe, which nothing hides
  const int64_t row = k * bytes;
  const int64_t load = (m + n) * row / kGlobalBytes;
  const int64_t move = m * row / kL0aBytes + n * row / kL0bBytes;
  const int64_t cube = m / 16 * (n / 16) * arch::ceil_div(row, int64_t{arch::kBlockBytes});
  return arch::max_of(load, arch::max_of(move, cube)) + kFixed;
}

int32_t split_of_last_wave(int64_t tiles, int32_t num_cores, int32_t n_tile) {
  const auto left = static_cast<int32_t>(tiles % num_cores);
  if (left == 0) {
    return 1;
  }
  return arch::max_of(1, arch::min_of(num_cores / left, n_tile / arch::kFractalRows));
}

int64_t num_tiles(const GemmArgs& args, int32_t m_tile, int32_t n_tile) {
  return arch::ceil_div(args.m, int64_t{m_tile}) * arch::ceil_div(args.n, int64_t{n_tile});
}

// Whole waves of whole tiles, then the last one in pieces.
int64_t total_cycles(const GemmArgs& args, int32_t m_tile, int32_t n_tile, int32_t num_cores) {
  const int32_t bytes = element_bytes(args.form);
  const int64_t tiles = num_tiles(args, m_tile, n_tile);
  int64_t cycles = tiles / num_cores * tile_cycles(m_tile, n_tile, args.k, bytes);
  if (tiles % num_cores != 0) {
    const int32_t split = split_of_last_wave(tiles, num_cores, n_tile);
    const int32_t width = arch::round_up(arch::ceil_div(n_tile, split), arch::kFractalRows);
    cycles += tile_cycles(m_tile, width, args.k, bytes);
  }
  return cycles;
}

// kernel/gemm_walk.h, cut_columns.
int32_t least_n_tile(int64_t n) {
  return n % arch::kFractalRows == 0 ? arch::kFractalRows : 2 * arch::kFractalRows;
}

struct TilePair {
  int32_t m;
  int32_t n;
};

TilePair best_tile(const GemmArgs& args, const GemmTuning& tuning, int32_t num_cores) {
  const auto rows = static_cast<int32_t>(
      arch::min_of(arch::round_up(arch::max_of(args.m / args.num_groups, int64_t{1}), int64_t{16}),
                   int64_t{Sizes::kMaxM}));
  const auto columns = static_cast<int32_t>(
      arch::min_of(arch::round_up(args.n, int64_t{16}), int64_t{Sizes::kMaxN}));
  const int32_t heights[] = {rows, 96, 64, 48, 32, 16};
  TilePair best{};
  int64_t least = INT64_MAX;
  for (int32_t height : heights) {
    const int32_t m = tuning.m_tile != 0 ? tuning.m_tile : height;
    for (int32_t width = columns; width >= least_n_tile(args.n); width -= 16) {
      const int32_t n = tuning.n_tile != 0 ? tuning.n_tile : width;
      const int64_t cycles = total_cycles(args, m, n, num_cores);
      if (height <= rows && cycles < least) {
        least = cycles;
        best = {m, n};
      }
    }
  }
  return best;
}

std::string text(int64_t value) {
  return std::to_string(value);
}

CanRun check_scales(const GemmArgs& args) {
  if (!is_int8(args.form)) {
    return args.scales == nullptr && args.row_scales == nullptr
               ? CanRun{}
               : no("scales belong to the int8 forms; pass none with fp16 or bf16");
  }
  if (args.scales == nullptr) {
    return no("the int8 forms need a scale per column (scales), none came");
  }
  if (args.form == GemmForm::int8_static && args.row_scales != nullptr) {
    return no("int8_static has no scale per row: the Fixpipe scales columns only; use int8_f16");
  }
  // 127 * 128 * k must stay below 2^31.
  constexpr int64_t kMostK = 131072;
  if (args.k > kMostK) {
    return no("int8: k is " + text(args.k) + ", but int32 sums hold " + text(kMostK) + " at most");
  }
  return {};
}

CanRun check_strides(const GemmArgs& args) {
  if (args.x_row_stride < args.k || args.out_row_stride < args.n) {
    return no("row strides of x and out must be at least k and n, came " + text(args.x_row_stride) +
              " and " + text(args.out_row_stride));
  }
  // The Fixpipe and the vector cores' stores keep the gap between two rows of out in 32 bits of
  // bytes.
  constexpr int64_t kMostOutStride = int64_t{1} << 30;
  if (args.out_row_stride > kMostOutStride) {
    return no("out's row stride is " + text(args.out_row_stride) + ", above 2^30 elements");
  }
  const int64_t c0 = arch::kBlockBytes / element_bytes(args.form);
  const int64_t weight = args.weight_nz
                             ? arch::round_up(args.n, int64_t{16}) * arch::round_up(args.k, c0)
                             : args.weight_row_stride * (args.n - 1) + args.k;
  if (!args.weight_nz && args.weight_row_stride < args.k) {
    return no("the weight's row stride is " + text(args.weight_row_stride) +
              ", below k = " + text(args.k));
  }
  if (args.num_groups > 1 && args.weight_group_stride < weight) {
    return no("a group's weight has " + text(weight) + " elements, but weight_group_stride is " +
              text(args.weight_group_stride));
  }
  return {};
}

CanRun check_tuning(const GemmArgs& args, const GemmTuning& tuning, int32_t num_cores) {
  const GemmTuning tile = smooth_gemm_tile(args, tuning, num_cores);
  const int32_t bytes = element_bytes(args.form);
  if (tuning.m_tile < 0 || tuning.n_tile < 0 || tuning.k_tile < 0 ||
      !smooth_gemm_tile_fits(tile.m_tile, tile.n_tile, tile.k_tile,
                             k_step_of(tile.m_tile, tile.n_tile, tile.k_tile, bytes), bytes)) {
    return no("the buffers do not hold the tuned tile " + text(tile.m_tile) + " x " +
              text(tile.n_tile) + " x " + text(tile.k_tile) +
              ": m_tile and n_tile are multiples of 16 up to 128 and 256, and a row of k_tile has "
              "512 bytes at the largest of them");
  }
  if (tile.n_tile < least_n_tile(args.n)) {
    return no("n = " + text(args.n) + " is no multiple of 16, so n_tile must be at least 32");
  }
  if (tile.swizzle_direction < 0 || tile.swizzle_direction > 1 || tile.swizzle_count < 1 ||
      tile.last_split < 1) {
    return no("swizzle_direction is 0 or 1, swizzle_count and last_split are at least 1");
  }
  return {};
}

}  // namespace

bool is_int8(GemmForm form) {
  return form != GemmForm::f16 && form != GemmForm::bf16;
}

bool uses_workspace(GemmForm form) {
  return form == GemmForm::int8_f16 || form == GemmForm::int8_bf16;
}

CanRun smooth_gemm_can_run(const GemmArgs& args, const GemmTuning& tuning, int32_t num_cores) {
  constexpr int64_t kMost = INT32_MAX / 2;
  if (num_cores < 1 || num_cores > arch::kMaxAic) {
    return no("1 to " + text(arch::kMaxAic) + " cube cores, came " + text(num_cores));
  }
  if (args.m < 0 || args.k < 1 || args.m > kMost || args.n > kMost || args.k > kMost) {
    return no("m >= 0 and k >= 1, both below 2^30, came m = " + text(args.m) +
              ", n = " + text(args.n) + ", k = " + text(args.k));
  }
  if (args.n < arch::kFractalRows) {
    return no("n is " + text(args.n) + ", but the Fixpipe writes columns in sixteens: pad the " +
              "weight to 16 rows, or use the framework's own matmul");
  }
  if (args.num_groups < 1 || (args.num_groups > 1) != (args.group_ends != nullptr)) {
    return no("several weights come with group_ends and one without, came " +
              text(args.num_groups) + " groups");
  }
  // A tensor without rows has no memory.
  if (args.weight == nullptr || (args.m > 0 && (args.x == nullptr || args.out == nullptr))) {
    return no("x, weight and out must be set");
  }
  if (num_tiles(args, 16, 16) > kMost) {
    return no("more than 2^30 tiles: split m");
  }
  for (const CanRun& check : {check_scales(args), check_strides(args)}) {
    if (!check) {
      return check;
    }
  }
  return check_tuning(args, tuning, num_cores);
}

GemmTuning smooth_gemm_tile(const GemmArgs& args, const GemmTuning& tuning, int32_t num_cores) {
  GemmTuning tile = tuning;
  if (tile.m_tile == 0 || tile.n_tile == 0) {
    const TilePair best = best_tile(args, tuning, num_cores);
    tile.m_tile = best.m;
    tile.n_tile = best.n;
  }
  if (tile.m_tile <= 0 || tile.n_tile <= 0) {
    return tile;
  }
  if (tile.k_tile == 0) {
    tile.k_tile = k_tile_of(tile.m_tile, tile.n_tile, args.k, element_bytes(args.form));
  }
  if (tile.swizzle_count == 0) {
    // A band of as many tiles as make a core's wave squarish: 4 x 6 on 24 cores, 4 x 5 on 20.
    tile.swizzle_count = num_cores >= 16 ? 4 : 2;
  }
  if (args.num_groups > 1) {
    tile.last_split = 1;  // the next group fills a partial wave
  } else if (tile.last_split == 0) {
    tile.last_split =
        split_of_last_wave(num_tiles(args, tile.m_tile, tile.n_tile), num_cores, tile.n_tile);
  }
  return tile;
}

int64_t smooth_gemm_workspace_bytes(const GemmArgs& args, const GemmTuning& tile,
                                    int32_t num_cores) {
  if (!uses_workspace(args.form)) {
    return 0;
  }
  return int64_t{2} * num_cores * tile.m_tile * tile.n_tile * static_cast<int64_t>(sizeof(int32_t));
}

SmoothGemmParams smooth_gemm_params(const GemmArgs& args, const GemmTuning& tile, void* workspace,
                                    int32_t num_cores) {
  const auto address = [](const void* p) { return static_cast<GmAddress>(const_cast<void*>(p)); };
  SmoothGemmParams p{};
  p.x = address(args.x);
  p.weight = address(args.weight);
  p.bias = address(args.bias);
  p.scales = address(args.scales);
  p.row_scales = address(args.row_scales);
  p.out = address(args.out);
  p.workspace = address(workspace);
  p.group_ends = address(args.group_ends);
  p.x_row_stride = args.x_row_stride;
  p.weight_row_stride = args.weight_row_stride;
  p.weight_group_stride = args.weight_group_stride;
  p.out_row_stride = args.out_row_stride;
  p.m = static_cast<int32_t>(args.m);
  p.n = static_cast<int32_t>(args.n);
  p.k = static_cast<int32_t>(args.k);
  p.num_groups = static_cast<int32_t>(args.num_groups);
  p.m_tile = tile.m_tile;
  p.n_tile = tile.n_tile;
  p.k_tile = tile.k_tile;
  p.k_step = k_step_of(tile.m_tile, tile.n_tile, tile.k_tile, element_bytes(args.form));
  p.swizzle_direction = tile.swizzle_direction;
  p.swizzle_count = tile.swizzle_count;
  p.last_split = tile.last_split;
  p.num_cores = num_cores;
  return p;
}

uint64_t fixpipe_scale(float scale) {
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  return bits & ~uint32_t{0x1fff};
}

}  // namespace xyserve::ascend

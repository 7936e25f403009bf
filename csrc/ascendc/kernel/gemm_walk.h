// Which output tiles a core computes, and in what order. Plain C++, so that a test of the host can
// list every core's tiles; both halves of a mixed kernel walk the same list.
//
// [NOTE] Tile i of the order belongs to core i % cores. Tiles of the last wave that fewer than all
// cores would get are cut into `last_split` column pieces each, which the idle cores take. Groups
// follow each other in one numbering instead: the next group starts on the next free core.
#pragma once

#include <cstdint>

#include "ascendc/arch.h"
#include "ascendc/bound.h"
#include "ascendc/kernel/smooth_gemm_params.h"

namespace xyserve::ascend {

struct GemmTile {
  int32_t group;
  int32_t m_begin;
  int32_t m;
  int32_t n_begin;
  int32_t n;
};

struct Cut {
  int32_t begin;
  int32_t end;
};

// Piece `index` of [0, total) in pieces of `width`, a multiple of 16. The last piece is never
// narrower than 16 if total is not: the Fixpipe writes columns in sixteens (tile/l0c_to_global.h),
// so the piece before it gives 16 away. Pieces may be empty; with a width of 16, the last may be up
// to 31 wide, so tiles of a ragged N have at least 32 (host/smooth_gemm.cc).
XYSERVE_HOST_DEVICE Cut cut_columns(int32_t total, int32_t width, int32_t index) {
  constexpr int32_t kLeast = arch::kFractalRows;
  const int32_t last = arch::ceil_div(total, width) - 1;
  const bool short_last = last > 0 && total - last * width < kLeast;
  if (index > last) {
    return {total, total};
  }
  Cut cut{index * width, XYSERVE_BOUNDED((index + 1) * width, total)};
  if (short_last && index == last) {
    cut.begin -= kLeast;
  }
  if (short_last && index == last - 1) {
    cut.end -= kLeast;
  }
  return cut;
}

struct TilePosition {
  int32_t m;
  int32_t n;
};

// Serpentine order: bands of `count` tiles along one axis, walked along the other, every second
// band backwards, so that neighbours in time share weights or activations in the L2 cache.
XYSERVE_HOST_DEVICE TilePosition swizzle(int32_t index, int32_t m_tiles, int32_t n_tiles,
                                         int32_t direction, int32_t count) {
  const int32_t across = direction == 0 ? m_tiles : n_tiles;
  const int32_t along = direction == 0 ? n_tiles : m_tiles;
  const int32_t band = index / (count * along);
  const int32_t height = XYSERVE_BOUNDED(count, across - band * count);
  const int32_t rest = index - band * count * along;
  const int32_t a = band * count + rest % height;
  const int32_t b = band % 2 == 0 ? rest / height : along - 1 - rest / height;
  return direction == 0 ? TilePosition{a, b} : TilePosition{b, a};
}

// GroupEnds: int64_t operator()(int32_t group), only called if there are groups.
template <typename GroupEnds>
class GemmWalk {
 public:
  XYSERVE_HOST_DEVICE GemmWalk(const SmoothGemmParams& params, int32_t core, GroupEnds ends)
      : p_(params), ends_(ends), next_(core) {
    n_tiles_ = arch::ceil_div(p_.n, p_.n_tile);
    start_group(0, 0);
  }

  // False when this core has no further tile.
  XYSERVE_HOST_DEVICE bool next(GemmTile* tile) {
    while (true) {
      if (next_ >= num_tasks_) {
        if (group_ + 1 >= p_.num_groups) {
          return false;
        }
        next_ -= num_tasks_;
        start_group(group_ + 1, m_begin_ + m_);
        continue;
      }
      place(next_, tile);
      next_ += p_.num_cores;
      if (tile->n > 0) {
        return true;
      }
    }
  }

 private:
  XYSERVE_HOST_DEVICE void start_group(int32_t group, int32_t m_begin) {
    group_ = group;
    m_begin_ = m_begin;
    int64_t end = p_.m;
    if (p_.group_ends != nullptr) {
      end = ends_(group);
      end = XYSERVE_BOUNDED(arch::max_of(end, static_cast<int64_t>(m_begin)), int64_t{p_.m});
    }
    m_ = static_cast<int32_t>(end) - m_begin;
    m_tiles_ = arch::ceil_div(m_, p_.m_tile);
    const int32_t tiles = m_tiles_ * n_tiles_;
    whole_ = p_.last_split > 1 ? arch::round_down(tiles, p_.num_cores) : tiles;
    num_tasks_ = whole_ + (tiles - whole_) * p_.last_split;
  }

  XYSERVE_HOST_DEVICE void place(int32_t task, GemmTile* tile) const {
    const int32_t index = task < whole_ ? task : whole_ + (task - whole_) / p_.last_split;
    const TilePosition at =
        swizzle(index, m_tiles_, n_tiles_, p_.swizzle_direction, p_.swizzle_count);
    Cut columns = cut_columns(p_.n, p_.n_tile, at.n);
    const int32_t width = columns.end - columns.begin;
    if (task >= whole_ && width > 0) {
      const int32_t piece =
          arch::round_up(arch::ceil_div(width, p_.last_split), arch::kFractalRows);
      const Cut cut = cut_columns(width, piece, (task - whole_) % p_.last_split);
      columns = {columns.begin + cut.begin, columns.begin + cut.end};
    }
    tile->group = group_;
    tile->m_begin = m_begin_ + at.m * p_.m_tile;
    tile->m = XYSERVE_BOUNDED(p_.m_tile, m_ - at.m * p_.m_tile);
    tile->n_begin = columns.begin;
    tile->n = columns.end - columns.begin;
  }

  const SmoothGemmParams& p_;
  GroupEnds ends_;
  int32_t next_;
  int32_t n_tiles_;
  int32_t group_ = 0;
  int32_t m_begin_ = 0;
  int32_t m_ = 0;
  int32_t m_tiles_ = 0;
  int32_t whole_ = 0;
  int32_t num_tasks_ = 0;
};

}  // namespace xyserve::ascend

#include <algorithm>
#include <limits>

#include "pieces.h"

namespace xyserve::plan {

namespace {

constexpr int64_t kMaxInt16 = std::numeric_limits<int16_t>::max();

struct Keys {
  int64_t begin;
  int64_t end;
};

// Keys that queries at positions [first, last) of their context need together.
Keys key_range(const PlanParams& params, int64_t first, int64_t last, int64_t key_len) {
  const int64_t window = params.window;
  int64_t end = key_len;
  if (params.causal) {
    end = std::clamp<int64_t>(last, 0, key_len);
  } else if (window > 0) {
    end = std::clamp<int64_t>(last + window - 1, 0, key_len);
  }
  const int64_t begin = window > 0 ? std::clamp<int64_t>(first - window + 1, 0, end) : 0;
  return {begin, end};
}

// Number of key splits of a tile; room 0: none.
int64_t num_splits(const PlanParams& params, const Tile& tile, int64_t room) {
  if (params.invariant) {
    const int64_t last = std::max<int64_t>(tile.key_end - 1, 0) / params.split_span;
    return last - std::min<int64_t>(tile.key_begin / params.split_span, last) + 1;
  }
  if (room == 0 || tile.unit_ps <= room) {
    return 1;
  }
  const int64_t most = tile.num_quanta * params.split_quantum / params.min_split_keys;
  const int64_t wanted =
      std::min(ceil_div(tile.unit_ps, room), std::min<int64_t>(most, params.max_splits));
  return std::max<int64_t>(std::min(wanted, tile.num_quanta), 1);
}

// Appends the splits of one head range of a tile.
void cut_keys(const PlanParams& params, const Tile& tile, Piece piece, Cut* cut) {
  const int64_t rows = int64_t{tile.num_queries} * params.group_size * piece.num_heads;
  const bool is_split = piece.num_splits > 1;
  const int64_t span = params.split_span / params.split_quantum;
  const int64_t first = tile.first_quantum;
  const int64_t end = first + tile.num_quanta;
  const int64_t base = is_split ? tile.num_quanta / piece.num_splits : tile.num_quanta;
  const int64_t extra = is_split ? tile.num_quanta % piece.num_splits : 0;
  int64_t at = first;
  for (int32_t split = 0; split < piece.num_splits; ++split) {
    int64_t stop = at + base + (split < extra ? 1 : 0);
    if (params.invariant) {
      stop = std::min(end, (first / span + split + 1) * span);
    }
    piece.split = split;
    piece.begin_quantum = static_cast<int32_t>(at);
    piece.end_quantum = static_cast<int32_t>(stop);
    piece.partial = is_split ? cut->num_partial_rows : -1;
    int64_t cost = params.cost_task_ps;
    cost += piece.num_heads * (stop - at) * params.split_quantum * tile.per_key_ps;
    if (is_split) {
      if (split == 0) {
        cut->merges.push_back(static_cast<int32_t>(cut->pieces.size()));
        cut->merge_costs.push_back(params.cost_task_ps +
                                   rows * piece.num_splits * params.cost_partial_ps);
      }
      cost += rows * params.cost_partial_ps;
      cut->num_partial_rows += rows;
    }
    cut->pieces.push_back(piece);
    cut->costs.push_back(cost);
    at = stop;
  }
}

}  // namespace

int64_t cut_rows(const PlanParams& params, const PlanRows& rows, std::vector<Tile>* tiles) {
  tiles->clear();
  const int32_t* sizes = params.tile_rows;
  const int32_t num_classes = params.num_tile_classes;
  const int32_t max_queries = std::max(1, sizes[num_classes - 1] / params.group_size);
  const int64_t quantum = params.split_quantum;
  int64_t total = 0;
  for (int32_t row = 0; row < rows.num_rows; ++row) {
    const int64_t history = int64_t{rows.key_len[row]} - rows.query_len[row];
    for (int64_t begin = 0; begin < rows.query_len[row]; begin += max_queries) {
      Tile tile;
      tile.segment = row;
      tile.query_begin = static_cast<int32_t>(begin);
      tile.num_queries =
          static_cast<int32_t>(std::min<int64_t>(rows.query_len[row] - begin, max_queries));
      const int64_t tile_rows = int64_t{tile.num_queries} * params.group_size;
      const auto found = std::lower_bound(sizes, sizes + num_classes, tile_rows);
      tile.tile_class = std::min(static_cast<int32_t>(found - sizes), num_classes - 1);
      const int64_t size = sizes[tile.tile_class];
      const int64_t cost_rows = tile_rows <= size ? size : ceil_div(tile_rows, size) * size;
      const Keys keys =
          key_range(params, history + begin, history + begin + tile.num_queries, rows.key_len[row]);
      tile.key_begin = static_cast<int32_t>(keys.begin);
      tile.key_end = static_cast<int32_t>(keys.end);
      tile.first_quantum = keys.begin / quantum;
      tile.num_quanta =
          keys.end > keys.begin ? ceil_div(keys.end, quantum) - tile.first_quantum : 0;
      tile.per_key_ps = params.cost_key_ps + cost_rows * params.cost_pair_ps;
      tile.unit_ps = tile.num_quanta * quantum * tile.per_key_ps;
      total += params.cost_task_ps + params.num_kv_heads * tile.unit_ps;
      tiles->push_back(tile);
    }
  }
  return total;
}

void Cut::clear() {
  pieces.clear();
  costs.clear();
  merges.clear();
  merge_costs.clear();
  num_partial_rows = 0;
  max_splits = 0;
}

bool cut_tiles(const PlanParams& params, const std::vector<Tile>& tiles, int64_t limit, Cut* cut) {
  cut->clear();
  const int64_t num_heads = params.num_kv_heads;
  const int64_t room = std::max<int64_t>(limit - params.cost_task_ps, 1);
  for (size_t i = 0; i < tiles.size(); ++i) {
    const Tile& tile = tiles[i];
    const int64_t unit = std::max<int64_t>(tile.unit_ps, 1);
    int64_t heads = 1;
    if (limit > 0) {
      heads = unit * num_heads <= room ? num_heads : std::clamp<int64_t>(room / unit, 1, num_heads);
    }
    const int64_t parts = heads == num_heads ? 1 : ceil_div(num_heads, heads);
    const int64_t splits = num_splits(params, tile, limit > 0 ? room : 0);
    if (splits > kMaxInt16) {
      return false;
    }
    cut->max_splits = std::max(cut->max_splits, static_cast<int32_t>(splits));
    int64_t head = 0;
    for (int64_t part = 0; part < parts; ++part) {
      Piece piece{};
      piece.tile = static_cast<int32_t>(i);
      piece.head_begin = static_cast<int32_t>(head);
      piece.num_heads =
          static_cast<int32_t>(num_heads / parts + (part < num_heads % parts ? 1 : 0));
      piece.num_splits = static_cast<int32_t>(splits);
      head += piece.num_heads;
      cut_keys(params, tile, piece, cut);
    }
  }
  return true;
}

}  // namespace xyserve::plan

// Tiles and pieces: what lies between the rows and the table.
#pragma once

#include <cstdint>
#include <vector>

#include "xyserve/plan.h"

namespace xyserve::plan {

// A query tile for all KV heads. unit_ps: its whole key range for one head, without the fixed part.
struct Tile {
  int32_t segment;
  int32_t query_begin;
  int32_t num_queries;
  int32_t tile_class;
  int32_t key_begin;
  int32_t key_end;
  int64_t first_quantum;
  int64_t num_quanta;
  int64_t per_key_ps;
  int64_t unit_ps;
};

// A task to be. key range in quanta; partial -1 if the tile is not split.
struct Piece {
  int32_t tile;
  int32_t head_begin;
  int32_t num_heads;
  int32_t split;
  int32_t num_splits;
  int32_t core;  // set by fit() alone
  int32_t begin_quantum;
  int32_t end_quantum;
  int64_t partial;
};

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Cut of the tiles at one fineness, with costs beside the pieces, since only they are sorted.
struct Cut {
  std::vector<Piece> pieces;
  std::vector<int64_t> costs;
  std::vector<int32_t> merges;  // pieces that are the first of several splits
  std::vector<int64_t> merge_costs;
  int64_t num_partial_rows = 0;
  int32_t max_splits = 0;

  void clear();
};

// Returns the cost of the step with one task per tile.
int64_t cut_rows(const PlanParams& params, const PlanRows& rows, std::vector<Tile>* tiles);
// limit 0: one piece per tile and head, keys whole. False: an invariant tile has too many splits.
bool cut_tiles(const PlanParams& params, const std::vector<Tile>& tiles, int64_t limit, Cut* cut);

// Cutting to fit: cores are filled one after the other and a tile is cut where a core is full
// (McNaughton's wrap-around rule with a fixed cost per piece). cut_cost: work that a cut between
// two cores is expected to add. total: the result of cut_rows.
void fit(const PlanParams& params, const std::vector<Tile>& tiles, int64_t total, int64_t cut_cost,
         Cut* cut);

// Result of dealing. Of the i-th dearest piece: index and core.
struct Dealt {
  std::vector<int32_t> order;
  std::vector<int32_t> core;
  std::vector<int64_t> loads;
  int64_t max_load = 0;
  int64_t min_load = 0;
};

void deal(const std::vector<int64_t>& costs, int32_t num_cores, int32_t dealing, Dealt* dealt);
// The same for pieces that fit() has already given to cores.
void deal_as_fitted(const Cut& cut, int32_t num_cores, Dealt* dealt);

}  // namespace xyserve::plan

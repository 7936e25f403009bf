#include <algorithm>

#include "pieces.h"

namespace xyserve::plan {

namespace {

// A core is full when it is within this share (a power of two) of the target.
constexpr int kSlackShift = 7;

// One pass: the core being filled, its load, and the pieces so far.
class Filler {
 public:
  Filler(const PlanParams& params, int64_t total, int64_t cut_cost, Cut* cut)
      : params_(params), cut_(cut), cut_cost_(cut_cost), remaining_(total) {
    start_core(0);
  }

  void add_tile(const Tile& tile, int32_t index);

 private:
  bool is_last() const { return core_ == params_.num_cores - 1; }
  // Work that the core can still take beside a fixed cost.
  int64_t room(int64_t fixed) const { return target_ - load_ - fixed; }
  int64_t slack() const { return target_ >> kSlackShift; }

  // The target of a core is its share of what is left, and so are earlier deviations.
  void start_core(int32_t core) {
    core_ = core;
    load_ = 0;
    const int64_t after = params_.num_cores - 1 - core;
    target_ = ceil_div(remaining_ + cut_cost_ * after, after + 1);
  }

  // work: what the piece takes off the work that is left.
  void place(const Piece& piece, int64_t cost, int64_t work) {
    cut_->pieces.push_back(piece);
    cut_->pieces.back().core = core_;
    cut_->costs.push_back(cost);
    load_ += cost;
    remaining_ -= work;
  }

  bool add_cut_head(const Tile& tile, int32_t index, int64_t head);
  void finish_splits(size_t first, int64_t rows);

  const PlanParams& params_;
  Cut* cut_;
  int64_t cut_cost_;
  int64_t remaining_;
  int64_t target_ = 0;
  int64_t load_ = 0;
  int32_t core_ = 0;
};

// Whole heads while they fit, then one head cut along its keys, then on to the next core.
void Filler::add_tile(const Tile& tile, int32_t index) {
  const int64_t task = params_.cost_task_ps;
  const int64_t unit = tile.unit_ps;
  int64_t head = 0;
  while (head < params_.num_kv_heads) {
    const int64_t left = params_.num_kv_heads - head;
    const int64_t space = room(task) + slack();
    int64_t whole = left;
    if (!is_last() && left * unit > space) {
      whole = space > 0 ? space / std::max<int64_t>(unit, 1) : 0;
    }
    if (whole < 1 && add_cut_head(tile, index, head)) {
      ++head;
      continue;
    }
    if (whole < 1 && load_ > 0) {
      start_core(core_ + 1);
      continue;
    }
    whole = std::max<int64_t>(whole, 1);
    Piece piece{};
    piece.tile = index;
    piece.head_begin = static_cast<int32_t>(head);
    piece.num_heads = static_cast<int32_t>(whole);
    piece.num_splits = 1;
    piece.begin_quantum = static_cast<int32_t>(tile.first_quantum);
    piece.end_quantum = static_cast<int32_t>(tile.first_quantum + tile.num_quanta);
    piece.partial = -1;
    place(piece, task + whole * unit, whole * unit);
    head += whole;
  }
  remaining_ -= task;
}

// One head over as many cores as its keys take; false if it is too short to be cut.
bool Filler::add_cut_head(const Tile& tile, int32_t index, int64_t head) {
  const int64_t per_quantum = std::max<int64_t>(params_.split_quantum * tile.per_key_ps, 1);
  const int64_t rows = int64_t{tile.num_queries} * params_.group_size;
  const int64_t fixed = params_.cost_task_ps + rows * params_.cost_partial_ps;
  // A split is at least as much work as its own overhead.
  const int64_t least = std::max(ceil_div(params_.min_split_keys, params_.split_quantum),
                                 ceil_div(fixed, per_quantum));
  if (tile.num_quanta < 2 * least) {
    return false;
  }
  const size_t first_piece = cut_->pieces.size();
  const int64_t end = tile.first_quantum + tile.num_quanta;
  int64_t at = tile.first_quantum;
  while (at < end) {
    const int64_t left = end - at;
    const int64_t num_splits = static_cast<int64_t>(cut_->pieces.size() - first_piece);
    const int64_t own = num_splits > 0 ? fixed : params_.cost_task_ps;
    const bool ends = is_last() || num_splits == params_.max_splits - 1;
    int64_t count = left;
    if (!ends && left * per_quantum > room(own) + slack()) {
      const int64_t nearest = (std::max<int64_t>(room(fixed), 0) + per_quantum / 2) / per_quantum;
      count = std::min(nearest, left - least);
      if (count < least && load_ > 0) {
        start_core(core_ + 1);
        continue;
      }
      count = left >= 2 * least ? std::max(count, least) : left;
    }
    Piece piece{};
    piece.tile = index;
    piece.head_begin = static_cast<int32_t>(head);
    piece.num_heads = 1;
    piece.split = static_cast<int32_t>(num_splits);
    piece.num_splits = 1;
    piece.begin_quantum = static_cast<int32_t>(at);
    piece.end_quantum = static_cast<int32_t>(at + count);
    piece.partial = -1;
    const int64_t overhead = num_splits > 0 || count < left ? fixed : params_.cost_task_ps;
    place(piece, overhead + count * per_quantum, count * per_quantum);
    at += count;
    if (at < end) {
      start_core(core_ + 1);
    }
  }
  finish_splits(first_piece, rows);
  return true;
}

void Filler::finish_splits(size_t first, int64_t rows) {
  const int64_t num_splits = static_cast<int64_t>(cut_->pieces.size() - first);
  if (num_splits == 1) {
    return;
  }
  cut_->merges.push_back(static_cast<int32_t>(first));
  cut_->merge_costs.push_back(params_.cost_task_ps + rows * num_splits * params_.cost_partial_ps);
  for (size_t i = first; i < cut_->pieces.size(); ++i) {
    cut_->pieces[i].num_splits = static_cast<int32_t>(num_splits);
    cut_->pieces[i].partial = cut_->num_partial_rows;
    cut_->num_partial_rows += rows;
  }
}

}  // namespace

void fit(const PlanParams& params, const std::vector<Tile>& tiles, int64_t total, int64_t cut_cost,
         Cut* cut) {
  cut->clear();
  Filler filler(params, total, cut_cost, cut);
  for (size_t i = 0; i < tiles.size(); ++i) {
    filler.add_tile(tiles[i], static_cast<int32_t>(i));
  }
  for (const Piece& piece : cut->pieces) {
    cut->max_splits = std::max(cut->max_splits, piece.num_splits);
  }
}

}  // namespace xyserve::plan

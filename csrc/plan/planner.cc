#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "pieces.h"
#include "xyserve/plan.h"

namespace xyserve {

using plan::ceil_div;
using plan::Cut;
using plan::Dealt;
using plan::Piece;
using plan::Tile;

namespace {

// One way of cutting and dealing, judged by its makespan.
struct Candidate {
  Cut cut;
  Dealt tasks;
  Dealt merges;
  int64_t makespan = 0;
};

// First entry of each core's slice, rounded up to whole cache lines. Returns the entries in all.
int64_t slice_begins(const Dealt& dealt, int32_t num_cores, int32_t per_line, int32_t* begin) {
  std::fill(begin, begin + num_cores + 1, 0);
  for (const int32_t core : dealt.core) {
    ++begin[core + 1];
  }
  for (int32_t core = 0; core < num_cores; ++core) {
    begin[core + 1] =
        begin[core] + static_cast<int32_t>(ceil_div(begin[core + 1], per_line) * per_line);
  }
  return begin[num_cores];
}

// Passes of fit(); each knows better than the one before what its cuts add.
constexpr int32_t kFitRounds = 3;
constexpr int32_t kTasksPerLine = kTableAlign / sizeof(Task);
constexpr int32_t kMergesPerLine = kTableAlign / sizeof(Merge);

int64_t align_up(int64_t bytes) {
  return ceil_div(bytes, kTableAlign) * kTableAlign;
}

struct Offsets {
  int64_t core_begin, merge_begin, segments, tasks, merges, end;
};

Offsets section_offsets(int64_t cores, int64_t segments, int64_t tasks, int64_t merges) {
  Offsets at;
  at.core_begin = align_up(sizeof(TableHeader));
  at.merge_begin = at.core_begin + align_up(sizeof(int32_t) * (cores + 1));
  at.segments = at.merge_begin + align_up(sizeof(int32_t) * (cores + 1));
  at.tasks = at.segments + align_up(sizeof(Segment) * segments);
  at.merges = at.tasks + align_up(sizeof(Task) * tasks);
  at.end = at.merges + align_up(sizeof(Merge) * merges);
  return at;
}

}  // namespace

struct Planner::State {
  PlanParams params;
  PlanRows rows;
  std::vector<Tile> tiles;
  Candidate candidates[2];
  int best = 0;
  std::vector<int32_t> core_begin;
  std::vector<int32_t> merge_begin;
  Offsets offsets;

  const Candidate& chosen() const { return candidates[best]; }
  Candidate& next_trial() { return candidates[best == 0 ? 1 : 0]; }
  bool choose();
  bool judge(Candidate& trial);
  int64_t lay_out();
  void fill_header(int32_t step, TableHeader* header) const;
  void fill_segments(Segment* segments) const;
  void fill_tasks(Task* tasks) const;
  void fill_merges(Merge* merges) const;
};

Planner::Planner(const PlanParams& params) : state_(std::make_unique<State>()) {
  state_->params = params;
}

Planner::~Planner() = default;

// List scheduling of tiles that are cut to a core's mean load, to half of it and so on; with kFit
// no finer than the mean, then cuts at the cores' borders. Stops when the cores are even (98 %).
bool Planner::State::choose() {
  const int64_t total = plan::cut_rows(params, rows, &tiles);
  const int64_t mean = ceil_div(total, params.num_cores);
  const bool fits = params.dealing == kFit && !params.invariant;
  const int32_t levels = fits ? std::min(params.levels, 1) : params.levels;
  best = -1;
  for (int32_t level = 0; level < std::max(levels, 1); ++level) {
    Candidate& trial = next_trial();
    const int64_t limit = levels == 0 ? 0 : std::max<int64_t>(1, mean >> level);
    if (!plan::cut_tiles(params, tiles, limit, &trial.cut)) {
      return false;
    }
    plan::deal(trial.cut.costs, params.num_cores, params.dealing, &trial.tasks);
    if (judge(trial)) {
      return true;
    }
  }
  int64_t cut_cost = params.cost_task_ps;
  for (int32_t round = 0; round < (fits && levels > 0 ? kFitRounds : 0); ++round) {
    Candidate& trial = next_trial();
    plan::fit(params, tiles, total, cut_cost, &trial.cut);
    plan::deal_as_fitted(trial.cut, params.num_cores, &trial.tasks);
    if (judge(trial)) {
      return true;
    }
    const int64_t sum = std::accumulate(trial.cut.costs.begin(), trial.cut.costs.end(), int64_t{0});
    cut_cost = (sum - total) / std::max(params.num_cores - 1, 1);
  }
  return true;
}

// Keeps the smallest makespan, of equals the earlier; true if the cores are even.
bool Planner::State::judge(Candidate& trial) {
  plan::deal(trial.cut.merge_costs, params.num_cores, params.dealing, &trial.merges);
  trial.makespan = trial.tasks.max_load + trial.merges.max_load;
  if (best < 0 || trial.makespan < candidates[best].makespan) {
    best = static_cast<int>(&trial - candidates);
  }
  return 100 * trial.tasks.min_load >= 98 * trial.tasks.max_load;
}

int64_t Planner::State::lay_out() {
  const int32_t cores = params.num_cores;
  core_begin.resize(cores + 1);
  merge_begin.resize(cores + 1);
  const int64_t tasks = slice_begins(chosen().tasks, cores, kTasksPerLine, core_begin.data());
  const int64_t merges = slice_begins(chosen().merges, cores, kMergesPerLine, merge_begin.data());
  offsets = section_offsets(cores, rows.num_rows, tasks, merges);
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (offsets.end > most || chosen().cut.num_partial_rows > most) {
    return kPlanTooLarge;
  }
  return offsets.end;
}

int64_t Planner::plan(const PlanRows& rows) {
  state_->rows = rows;
  if (!state_->choose()) {
    return kPlanTooManySplits;
  }
  return state_->lay_out();
}

void Planner::State::fill_header(int32_t step, TableHeader* header) const {
  const Cut& cut = chosen().cut;
  header->magic = kTableMagic;
  header->version = kTableVersion;
  header->num_bytes = static_cast<int32_t>(offsets.end);
  header->num_cores = params.num_cores;
  header->form = kFormDecode;
  for (int32_t row = 0; row < rows.num_rows; ++row) {
    header->form = rows.query_len[row] > 1 ? kFormMixed : header->form;
    header->num_query_tokens += rows.query_len[row];
  }
  header->flags = (params.causal ? kTableCausal : 0) | (params.invariant ? kTableInvariant : 0);
  header->num_kv_heads = params.num_kv_heads;
  header->group_size = params.group_size;
  header->head_dim = params.head_dim;
  header->window = params.window;
  header->split_quantum = params.split_quantum;
  header->dealing = params.dealing;
  header->step = step;
  header->num_segments = rows.num_rows;
  header->num_tasks = core_begin[params.num_cores];
  header->num_merges = merge_begin[params.num_cores];
  header->num_real_tasks = static_cast<int32_t>(cut.pieces.size());
  header->num_real_merges = static_cast<int32_t>(cut.merges.size());
  header->num_partial_rows = static_cast<int32_t>(cut.num_partial_rows);
  header->max_splits = cut.max_splits;
  header->core_begin_offset = static_cast<int32_t>(offsets.core_begin);
  header->merge_begin_offset = static_cast<int32_t>(offsets.merge_begin);
  header->segments_offset = static_cast<int32_t>(offsets.segments);
  header->tasks_offset = static_cast<int32_t>(offsets.tasks);
  header->merges_offset = static_cast<int32_t>(offsets.merges);
  header->cost_task_ps = params.cost_task_ps;
  header->cost_key_ps = params.cost_key_ps;
  header->cost_pair_ps = params.cost_pair_ps;
  header->cost_partial_ps = params.cost_partial_ps;
  header->num_tile_classes = params.num_tile_classes;
  header->split_span = params.invariant ? params.split_span : 0;
  std::copy(params.tile_rows, params.tile_rows + params.num_tile_classes, header->tile_rows);
}

void Planner::State::fill_segments(Segment* segments) const {
  for (int32_t row = 0; row < rows.num_rows; ++row) {
    Segment& segment = segments[row];
    segment.plan_row = row;
    segment.batch_row = -1;
    segment.query_start = -1;
    segment.query_len = rows.query_len[row];
    segment.key_len = rows.key_len[row];
    segment.mask_offset = rows.mask_offset != nullptr ? rows.mask_offset[row] : -1;
    segment.window = params.window;
    const int32_t kind = rows.query_len[row] == 1 ? kDecode : kPrefill;
    segment.kind = static_cast<int16_t>(rows.kind != nullptr ? rows.kind[row] : kind);
  }
}

void Planner::State::fill_tasks(Task* tasks) const {
  const Dealt& dealt = chosen().tasks;
  std::vector<int32_t> next(core_begin.begin(), core_begin.end());
  for (size_t i = 0; i < dealt.order.size(); ++i) {
    const Piece& piece = chosen().cut.pieces[dealt.order[i]];
    const Tile& tile = tiles[piece.tile];
    Task& task = tasks[next[dealt.core[i]]++];
    const int64_t quantum = params.split_quantum;
    task.segment = tile.segment;
    task.query_begin = tile.query_begin;
    task.key_begin =
        static_cast<int32_t>(std::max<int64_t>(tile.key_begin, piece.begin_quantum * quantum));
    task.key_end =
        static_cast<int32_t>(std::min<int64_t>(tile.key_end, piece.end_quantum * quantum));
    task.partial = static_cast<int32_t>(piece.partial);
    task.num_queries = static_cast<int16_t>(tile.num_queries);
    task.head_begin = static_cast<int16_t>(piece.head_begin);
    task.num_heads = static_cast<int16_t>(piece.num_heads);
    task.split = static_cast<int16_t>(piece.split);
    task.num_splits = static_cast<int16_t>(piece.num_splits);
    task.tile_class = static_cast<int8_t>(tile.tile_class);
    const bool masked = rows.mask_offset != nullptr && rows.mask_offset[tile.segment] >= 0;
    task.flags = masked ? kTaskTreeMask : 0;
  }
}

void Planner::State::fill_merges(Merge* merges) const {
  const Dealt& dealt = chosen().merges;
  const Cut& cut = chosen().cut;
  std::vector<int32_t> next(merge_begin.begin(), merge_begin.end());
  for (size_t i = 0; i < dealt.order.size(); ++i) {
    const Piece& piece = cut.pieces[cut.merges[dealt.order[i]]];
    const Tile& tile = tiles[piece.tile];
    Merge& merge = merges[next[dealt.core[i]]++];
    merge.segment = tile.segment;
    merge.query_begin = tile.query_begin;
    merge.first_partial = static_cast<int32_t>(piece.partial);
    merge.num_queries = static_cast<int16_t>(tile.num_queries);
    merge.head_begin = static_cast<int16_t>(piece.head_begin);
    merge.num_heads = static_cast<int16_t>(piece.num_heads);
    merge.num_splits = static_cast<int16_t>(piece.num_splits);
  }
}

void Planner::write(int32_t step, void* out) const {
  const State& state = *state_;
  const Offsets& at = state.offsets;
  char* base = static_cast<char*>(out);
  std::memset(base, 0, static_cast<size_t>(at.end));
  state.fill_header(step, reinterpret_cast<TableHeader*>(base));
  std::copy(state.core_begin.begin(), state.core_begin.end(),
            reinterpret_cast<int32_t*>(base + at.core_begin));
  std::copy(state.merge_begin.begin(), state.merge_begin.end(),
            reinterpret_cast<int32_t*>(base + at.merge_begin));
  state.fill_segments(reinterpret_cast<Segment*>(base + at.segments));
  state.fill_tasks(reinterpret_cast<Task*>(base + at.tasks));
  state.fill_merges(reinterpret_cast<Merge*>(base + at.merges));
}

}  // namespace xyserve

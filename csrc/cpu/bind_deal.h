// How the work of a linear layer is dealt to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "bind_tensor.h"
#include "xyserve/linear.h"
#include "xyserve/linear_tuned.h"

namespace xyserve {
namespace {

// How a call is cut. row_parts: blocks of rows that are dealt beside panels. split: segments of K
// are dealt too. pass_rows, pass_panels: what one pass covers, 0 is all.
struct Deal {
  int64_t threads;
  int64_t row_parts;
  int64_t pass_rows;
  int64_t pass_panels;
  bool split;
};

// wanted: how many threads are worth waking for this much work. segments: those of K.
inline Deal choose_deal(const LinearTuning& tuning, int64_t num_rows, int64_t panels,
                        int64_t wanted, int64_t segments) {
  if (tuning.threads > 0) {
    wanted = tuning.threads;
  }
  Deal deal{};
  deal.threads = wanted <= 1 ? 1 : std::min<int64_t>(torch::stable::get_num_threads(), wanted);
  deal.pass_rows = tuning.pass_rows;
  deal.pass_panels = tuning.pass_panels;
  if (tuning.row_parts > 0) {
    deal.row_parts = std::min(tuning.row_parts, num_rows);
  } else {
    deal.row_parts =
        panels >= 4 * deal.threads ? 1 : std::clamp<int64_t>(num_rows / 24, 1, deal.threads);
  }
  // A split costs a pass over the sums: where whole tiles leave a fifth of the threads idle.
  const int64_t tiles = panels * deal.row_parts;
  const int64_t rounds = (tiles + deal.threads - 1) / deal.threads;
  const bool uneven = 4 * rounds * deal.threads >= 5 * tiles;
  deal.split =
      deal.threads > 1 && segments > 1 && (tuning.split_k == 2 || (tuning.split_k == 0 && uneven));
  return deal;
}

// One thread's part, in passes.
template <class Run>
void run_passes(const Deal& deal, const LinearPart& part, const Run& run) {
  const int64_t rows = deal.pass_rows > 0 ? deal.pass_rows : part.row_end - part.row_begin;
  const int64_t panels =
      deal.pass_panels > 0 ? deal.pass_panels : part.panel_end - part.panel_begin;
  for (int64_t panel = part.panel_begin; panel < part.panel_end; panel += panels) {
    for (int64_t row = part.row_begin; row < part.row_end; row += rows) {
      run(LinearPart{row, std::min(part.row_end, row + rows), panel,
                     std::min(part.panel_end, panel + panels)});
    }
  }
}

// Deals whole tiles, panels of blocks of rows, evenly to the threads.
template <class Run>
void deal_parts(const Deal& deal, int64_t num_rows, int64_t panels, const Run& run) {
  const int64_t blocks = deal.row_parts;
  if (deal.threads <= 1) {
    run_passes(deal, LinearPart{0, num_rows, 0, panels}, run);
    return;
  }
  const int64_t items = panels * blocks;
  // torch's own pool: a second OpenMP runtime in the process would fight it for the cores.
  torch::stable::parallel_for(0, deal.threads, 1, [&](int64_t begin, int64_t end) {
    int64_t item = items * begin / deal.threads;
    const int64_t last = items * end / deal.threads;
    while (item < last) {
      const int64_t block = item / panels;
      const int64_t panel = item % panels;
      const int64_t panel_end = std::min(panels, panel + last - item);
      run_passes(
          deal,
          LinearPart{num_rows * block / blocks, num_rows * (block + 1) / blocks, panel, panel_end},
          run);
      item += panel_end - panel;
    }
  });
}

// Deals segments of tiles. Whoever finishes the last segment of a tile adds up all of them, in
// order: no thread waits, and the bits do not depend on who it was.
template <class Run>
void deal_segments(const Deal& deal, int64_t num_rows, int64_t panels, int64_t segments,
                   const Run& run) {
  const int64_t blocks = deal.row_parts;
  const int64_t items = panels * blocks * segments;
  std::vector<std::atomic<int64_t>> done(static_cast<size_t>(panels * blocks));
  torch::stable::parallel_for(0, deal.threads, 1, [&](int64_t begin, int64_t end) {
    const int64_t last = items * end / deal.threads;
    for (int64_t item = items * begin / deal.threads; item < last;) {
      const int64_t tile = item / segments;
      const int64_t block = tile / panels;
      const int64_t panel = tile % panels;
      LinearPart part{num_rows * block / blocks, num_rows * (block + 1) / blocks, panel, panel + 1};
      const int64_t segment = item % segments;
      if (segment == 0 && last - item >= segments) {  // whole tiles: neighbours together
        part.panel_end = std::min(panels, panel + (last - item) / segments);
        run(part);
        item += (part.panel_end - panel) * segments;
        continue;
      }
      part.segment_begin = segment;
      part.segment_end = std::min(segments, segment + last - item);
      run(part);
      const int64_t count = part.segment_end - segment;
      if (done[tile].fetch_add(count, std::memory_order_acq_rel) + count == segments) {
        part.segment_begin = part.segment_end = 0;
        part.merge = true;
        run(part);
      }
      item += count;
    }
  });
}

}  // namespace
}  // namespace xyserve

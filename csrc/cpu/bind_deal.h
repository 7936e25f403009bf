// How the work of a linear layer is dealt to threads.
#pragma once

#include <algorithm>

#include "bind_tensor.h"

namespace xyserve {
namespace {

// Deals panels - and blocks of rows, where there are too few panels - evenly to the threads.
// wanted: how many threads are worth waking for this much work.
template <class Run>
void deal_parts(int64_t num_rows, int64_t panels, int64_t wanted, const Run& run) {
  const int64_t threads =
      wanted <= 1 ? 1 : std::min<int64_t>(torch::stable::get_num_threads(), wanted);
  if (threads <= 1) {
    run(LinearPart{0, num_rows, 0, panels});
    return;
  }
  const int64_t row_blocks =
      panels >= 4 * threads ? 1 : std::clamp<int64_t>(num_rows / 24, 1, threads);
  const int64_t items = panels * row_blocks;
  // torch's own pool: a second OpenMP runtime in the process would fight it for the cores.
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    int64_t item = items * begin / threads;
    const int64_t last = items * end / threads;
    while (item < last) {
      const int64_t block = item / panels;
      const int64_t panel = item % panels;
      const int64_t panel_end = std::min(panels, panel + last - item);
      run(LinearPart{num_rows * block / row_blocks, num_rows * (block + 1) / row_blocks, panel,
                     panel_end});
      item += panel_end - panel;
    }
  });
}

}  // namespace
}  // namespace xyserve

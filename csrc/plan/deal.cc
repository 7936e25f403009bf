#include <algorithm>
#include <numeric>

#include "pieces.h"

namespace xyserve::plan {

namespace {

struct Load {
  int64_t load;
  int32_t core;

  bool operator<(const Load& other) const {
    return load != other.load ? load < other.load : core < other.core;
  }
};

constexpr int kIndexBits = 20;

// Dearest first, equal costs in their order. Cost and index share one 64-bit key where they fit (a
// cost below 8 s and a million pieces, so always): 1,024 pieces sort in half the time of pairs.
void sort_by_cost(const std::vector<int64_t>& costs, std::vector<int32_t>* order) {
  order->resize(costs.size());
  const int64_t limit = int64_t{1} << (63 - kIndexBits);
  const int64_t most = costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
  if (most >= limit || costs.size() >= size_t{1} << kIndexBits) {
    std::iota(order->begin(), order->end(), 0);
    std::stable_sort(order->begin(), order->end(),
                     [&costs](int32_t a, int32_t b) { return costs[a] > costs[b]; });
    return;
  }
  thread_local std::vector<int64_t> keys;
  keys.resize(costs.size());
  for (size_t i = 0; i < costs.size(); ++i) {
    keys[i] = (most - costs[i]) << kIndexBits | static_cast<int64_t>(i);
  }
  std::sort(keys.begin(), keys.end());
  for (size_t i = 0; i < costs.size(); ++i) {
    (*order)[i] = static_cast<int32_t>(keys[i] & ((1 << kIndexBits) - 1));
  }
}

// A binary heap whose root is replaced and sinks: half the work of a pop and a push.
void deal_lpt(const std::vector<int64_t>& costs, int32_t num_cores, Dealt* dealt) {
  std::vector<Load> heap(num_cores);
  for (int32_t core = 0; core < num_cores; ++core) {
    heap[core] = {0, core};
  }
  for (size_t i = 0; i < dealt->order.size(); ++i) {
    Load moved = heap[0];
    dealt->core[i] = moved.core;
    moved.load += costs[dealt->order[i]];
    int32_t hole = 0;
    for (int32_t child = 1; child < num_cores; child = 2 * hole + 1) {
      child += child + 1 < num_cores && heap[child + 1] < heap[child] ? 1 : 0;
      if (!(heap[child] < moved)) {
        break;
      }
      heap[hole] = heap[child];
      hole = child;
    }
    heap[hole] = moved;
  }
}

void deal_rounds(const std::vector<int64_t>& costs, int32_t num_cores, Dealt* dealt) {
  std::vector<Load> loads(num_cores);
  for (int32_t core = 0; core < num_cores; ++core) {
    loads[core] = {0, core};
  }
  for (size_t start = 0; start < dealt->order.size(); start += num_cores) {
    std::sort(loads.begin(), loads.end());
    const size_t count = std::min<size_t>(num_cores, dealt->order.size() - start);
    for (size_t i = 0; i < count; ++i) {
      dealt->core[start + i] = loads[i].core;
      loads[i].load += costs[dealt->order[start + i]];
    }
  }
}

void sum_loads(const std::vector<int64_t>& costs, int32_t num_cores, Dealt* dealt) {
  dealt->loads.assign(num_cores, 0);
  for (size_t i = 0; i < dealt->order.size(); ++i) {
    dealt->loads[dealt->core[i]] += costs[dealt->order[i]];
  }
  const auto [least, most] = std::minmax_element(dealt->loads.begin(), dealt->loads.end());
  dealt->min_load = *least;
  dealt->max_load = *most;
}

}  // namespace

void deal(const std::vector<int64_t>& costs, int32_t num_cores, int32_t dealing, Dealt* dealt) {
  sort_by_cost(costs, &dealt->order);
  const size_t num_pieces = costs.size();
  dealt->core.resize(num_pieces);
  if (dealing == kLpt || dealing == kFit) {
    deal_lpt(costs, num_cores, dealt);
  } else if (dealing == kRounds) {
    deal_rounds(costs, num_cores, dealt);
  } else {
    for (size_t i = 0; i < num_pieces; ++i) {
      const int32_t at = static_cast<int32_t>(i % num_cores);
      const bool back = dealing == kSnake && i / num_cores % 2 == 1;
      dealt->core[i] = back ? num_cores - 1 - at : at;
    }
  }
  sum_loads(costs, num_cores, dealt);
}

void deal_as_fitted(const Cut& cut, int32_t num_cores, Dealt* dealt) {
  dealt->order.resize(cut.pieces.size());
  dealt->core.resize(cut.pieces.size());
  for (size_t i = 0; i < cut.pieces.size(); ++i) {
    dealt->order[i] = static_cast<int32_t>(i);
    dealt->core[i] = cut.pieces[i].core;
  }
  sum_loads(cut.costs, num_cores, dealt);
}

}  // namespace xyserve::plan

#include "xyserve/linear_tuned.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace xyserve {
namespace {

using Table = std::vector<TunedEntry>;

auto order(const TunedKey& key, int64_t m_first) {
  return std::make_tuple(key.n, key.k, key.threads, key.dtype, key.isa, m_first);
}

std::atomic<const Table*> current{nullptr};
std::atomic<uint64_t> num_found{0};

}  // namespace

void set_tuned(const TunedEntry* entries, int64_t count) {
  // Replaced tables stay: a call may still read one, and there are few, of some kilobytes.
  static std::mutex mutex;
  static std::vector<std::unique_ptr<const Table>> tables;
  auto table = std::make_unique<Table>(entries, entries + count);
  std::sort(table->begin(), table->end(), [](const TunedEntry& a, const TunedEntry& b) {
    return order(a.key, a.m_first) < order(b.key, b.m_first);
  });
  const std::lock_guard<std::mutex> lock(mutex);
  tables.push_back(std::move(table));
  current.store(count > 0 ? tables.back().get() : nullptr, std::memory_order_release);
}

bool has_tuned() {
  return current.load(std::memory_order_relaxed) != nullptr;
}

const LinearTuning* find_tuned(const TunedKey& key, int64_t m) {
  const Table* table = current.load(std::memory_order_acquire);
  if (table == nullptr) {
    return nullptr;
  }
  // The last entry that begins at or before m.
  auto entry = std::upper_bound(table->begin(), table->end(), order(key, m),
                                [](const auto& wanted, const TunedEntry& candidate) {
                                  return wanted < order(candidate.key, candidate.m_first);
                                });
  if (entry == table->begin()) {
    return nullptr;
  }
  --entry;
  if (order(entry->key, 0) != order(key, 0) || m > entry->m_last) {
    return nullptr;
  }
  num_found.fetch_add(1, std::memory_order_relaxed);
  return &entry->tuning;
}

uint64_t tuned_calls() {
  return num_found.load(std::memory_order_relaxed);
}

}  // namespace xyserve

// Measured choices for linear layers: how a call is cut and ordered. None changes a bit of the
// output.
#pragma once

#include <cstdint>

#include "xyserve/dtype.h"
#include "xyserve/isa.h"

namespace xyserve {

// Each field: 0 leaves it to the rule.
// tile_rows: most rows of a tile. block_steps: steps of K per block (of weights without segments).
// threads: threads to use, of those that there are. row_parts: blocks of rows that are dealt to
// threads. pass_rows, pass_panels: rows and panels that one pass over the weight covers; a thread
// takes block of panels by block of panels, and within it block of rows by block of rows.
// split_k: 1 never deals segments of K to threads, 2 does wherever there are segments.
struct LinearTuning {
  int64_t tile_rows = 0;
  int64_t block_steps = 0;
  int64_t threads = 0;
  int64_t row_parts = 0;
  int64_t pass_rows = 0;
  int64_t pass_panels = 0;
  int64_t split_k = 0;
};

struct TunedKey {
  DType dtype;
  Isa isa;  // of the kernel that runs
  int64_t threads;
  int64_t n;
  int64_t k;
};

// One measured choice: for calls of this key with m in [m_first, m_last].
struct TunedEntry {
  TunedKey key;
  int64_t m_first;
  int64_t m_last;
  LinearTuning tuning;
};

// Replaces all entries. Safe while other threads look up; what they found stays valid.
void set_tuned(const TunedEntry* entries, int64_t count);
// False where there are no entries at all: then nothing need be looked up.
bool has_tuned();
// The choice for a call, or nullptr. Counts what it finds.
const LinearTuning* find_tuned(const TunedKey& key, int64_t m);
// How many calls found a choice.
uint64_t tuned_calls();

}  // namespace xyserve

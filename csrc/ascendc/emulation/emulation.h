// Launching a kernel on the emulated chip, from C++ or through a C interface from Python.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine.h"

namespace xyserve::emulation {

// Who runs next, among everything that flags, barriers and queues allow.
enum class Schedule : uint8_t {
  eager,         // program order: an operation runs as soon as it may
  starve_pipe,   // pipe `starve` (a pipe_t) runs only when nothing else can
  starve_core,   // core `starve` (an index into the launch's cores) runs only when nothing else can
  random_order,  // any legal order, drawn from `seed`
};

// A stretch of global memory. Everything that a kernel touches lies in one. `shadow` has one bit
// per byte, set where memory was written, and is kept up to date; null stands for "all written" if
// `written`, else for a private one.
struct Region {
  std::string name;
  void* data = nullptr;
  uint64_t bytes = 0;
  bool written = true;
  bool constant = false;  // a write to it is a finding, reads of it are no part of a race
  uint8_t* shadow = nullptr;
};

// What a mutation does with the site of this number (`Report::sites` lists them).
enum class Mutation : uint8_t {
  drop,     // the call is not made: one side of a flag, a barrier, a bound
  neutral,  // the flag is set and waited for, but orders nothing: a whole pair, named by its set
};

struct Mutant {
  std::string site;  // Report's key, "file:line:api<kind>"
  Mutation mutation = Mutation::drop;
};

struct Options {
  uint32_t blocks = 1;
  KernelMetaType type = KERNEL_TYPE_AIV_ONLY;
  uint32_t cores = 24;  // cube cores of the chip; it has twice as many vector cores
  Schedule schedule = Schedule::eager;
  uint64_t seed = 0;
  int32_t starve = 0;
  bool happens_before = true;
  bool check_nan = true;    // NaN inside what the cube multiplies is a finding
  bool reserved_ub = true;  // 8 KB of UB belong to the compiler, as without its opt-out
  std::vector<Region> regions;
  std::vector<Mutant> mutants;
};

struct Finding {
  std::string api;
  std::string rule;
  int64_t value = 0;
  std::string message;  // everything: core, pipe, site, value
};

// Totals over cores; `per_core` splits the same.
struct Counters {
  std::map<std::string, uint64_t> values;
  uint64_t operator[](const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() ? 0 : found->second;
  }
};

struct SiteReport {
  std::string key;   // "file:line:api<kind>"
  std::string kind;  // set, wait, barrier, cross_set, cross_wait, sync_all, queue, clean, bound
  uint64_t hits = 0;
  std::vector<std::string> partners;  // sets: the sites of the waits that took them, and back
};

struct Report {
  bool ok = false;
  Finding finding;  // the first one, if not ok
  Counters counters;
  std::vector<Counters> per_core;
  std::vector<SiteReport> sites;
  std::string json() const;
};

// Runs `kernel` on every core of the launch. Not reentrant.
Report launch(const Options& options, const std::function<void()>& kernel);

// What a host passes to a mixed kernel that calls SetSyncBaseAddr.
uint64_t sync_base_address();

// A bound of a kernel as a mutation site: `std::min(value, limit)`, or `value` when removed.
template <typename T>
T bounded(T value, T limit, Site at = Site()) {
  if (engine::bound_removed(at))
    return value;
  return value < limit ? value : limit;
}

// The C interface that tests call through ctypes.
struct CRegion {
  const char* name;
  void* data;
  uint64_t bytes;
  uint8_t* shadow;
  uint8_t written;
  uint8_t constant;
};
struct CLaunch {
  uint32_t blocks;
  uint32_t type;
  uint32_t cores;
  uint32_t schedule;
  uint64_t seed;
  int32_t starve;
  uint8_t happens_before;
  uint8_t check_nan;
  uint8_t reserved_ub;
  uint8_t unused;
  const CRegion* regions;
  uint64_t region_count;
  const char* mutants;  // lines "site\tdrop" or "site\tneutral"
};

// Runs and returns the report as JSON, valid until the next call. An entry point of a test is
//   extern "C" const char* my_kernel(const CLaunch* c, void* const* tensors, const int64_t* n) {
//     return run(c, [=] { kernel((GM_ADDR)tensors[0], n[0]); });
//   }
const char* run(const CLaunch* launch, const std::function<void()>& kernel);

}  // namespace xyserve::emulation

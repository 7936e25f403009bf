// The orders in which programs and pipes take turns, deadlocks, and what a launch leaves behind.
#include "schedule.h"

#include <cstdlib>

namespace xyserve::emulation {

namespace {

bool can_start(const Core& core) {
  // Blocks beyond the chip's cores start as others end.
  if (core.started)
    return true;
  uint32_t running = 0;
  for (const auto& other : active->cores) {
    if (other->cube == core.cube && other->started && !other->finished)
      ++running;
  }
  return running < active->options->cores * (core.cube ? 1 : 2);
}

bool runnable(Core& core) {
  return !core.finished && can_start(core) && (!core.blocked || core.blocked());
}

bool drain(Core& core, int skipped = -1) {
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    for (int pipe = pipe_v; pipe < pipe_count; ++pipe) {
      if (pipe == skipped)
        continue;
      while (run_head(core, static_cast<Pipe>(pipe)))
        progress = true;
    }
    any |= progress;
  }
  return any;
}

bool deliver(size_t which) {
  if (which >= active->transit.size())
    return false;
  Delivery delivery = active->transit[which];
  active->transit.erase(active->transit.begin() + static_cast<std::ptrdiff_t>(which));
  auto& counter = active->cores[delivery.core]->cross[delivery.id];
  counter.push_back(delivery.token);
  if (counter.size() > 15) {
    Op op{active->cores[delivery.core].get(), pipe_s, "CrossCoreSetFlag", Site("", 0)};
    fail(op, "a counter of at most 15", static_cast<int64_t>(counter.size()),
         active->sites[delivery.token.site].key);
  }
  return true;
}

bool all_done() {
  for (const auto& core : active->cores) {
    if (!core->finished)
      return false;
    for (const auto& queue : core->queue) {
      if (!queue.empty())
        return false;
    }
  }
  return active->transit.empty();
}

// Everything but `pipe` on every core but `core`, for as long as anything moves.
bool step_directed(int pipe, int core_index) {
  bool progress = false;
  while (deliver(0))
    progress = true;
  for (auto& core : active->cores) {
    if (static_cast<int>(core->index) == core_index)
      continue;
    if (runnable(*core)) {
      resume(*core, INT64_MAX);
      progress = true;
      if (active->stopping)
        return true;
    }
    progress |= drain(*core, pipe);
  }
  return progress;
}

bool step_starved(int pipe, int core_index) {
  for (auto& core : active->cores) {
    if (pipe >= 0 && run_head(*core, static_cast<Pipe>(pipe)))
      return true;
    if (static_cast<int>(core->index) != core_index)
      continue;
    for (int any = pipe_v; any < pipe_count; ++any) {
      if (run_head(*core, static_cast<Pipe>(any)))
        return true;
    }
    if (runnable(*core)) {
      resume(*core, 1);
      return true;
    }
  }
  return false;
}

bool step_random() {
  auto& random = active->random;
  const auto below = [&](uint64_t n) { return random() % n; };
  if (!active->transit.empty() && below(3) == 0) {
    // Sets of one core with different ids may overtake each other, those of one id may not.
    const size_t which = below(active->transit.size());
    size_t first = 0;
    while (active->transit[first].core != active->transit[which].core ||
           active->transit[first].id != active->transit[which].id) {
      ++first;
    }
    return deliver(first);
  }
  for (int attempt = 0; attempt < 16; ++attempt) {
    Core& core = *active->cores[below(active->cores.size())];
    const int actor = static_cast<int>(below(pipe_count));
    if (actor == pipe_s) {
      if (!runnable(core))
        continue;
      resume(core, static_cast<int64_t>(1 + below(16)));
      return true;
    }
    int64_t burst = static_cast<int64_t>(1 + below(4));
    bool progress = false;
    while (burst-- > 0 && run_head(core, static_cast<Pipe>(actor)))
      progress = true;
    if (progress)
      return true;
  }
  for (auto& core : active->cores) {
    for (int pipe = pipe_v; pipe < pipe_count; ++pipe) {
      if (run_head(*core, static_cast<Pipe>(pipe)))
        return true;
    }
    if (runnable(*core)) {
      resume(*core, 1);
      return true;
    }
  }
  return deliver(0);
}

[[noreturn]] void report_deadlock() {
  // A wait at the head of a queue says more than the program that waits for the queue.
  for (const auto& core : active->cores) {
    for (const auto& queue : core->queue) {
      if (queue.empty())
        continue;
      const Entry& head = queue.front();
      fail(head.op, "a flag that is set for this wait (nothing can run any more)",
           head.channel % 8);
    }
  }
  for (const auto& core : active->cores) {
    if (core->finished)
      continue;
    Op op{core.get(), pipe_s, core->blocked_api, core->blocked_site};
    fail(op, "a flag that is set for this wait (nothing can run any more)", core->blocked_value);
  }
  std::abort();
}

void check_left_over() {
  for (const auto& core : active->cores) {
    for (size_t i = 0; i < core->channels.size(); ++i) {
      const Channel& channel = core->channels[i];
      if (channel.sets_issued == channel.waits_issued)
        continue;
      Op op{core.get(), pipe_s, "SetFlag", Site("end of kernel", channel.last_set_line)};
      fail(op, "as many waits as sets; id of the flag left set", static_cast<int64_t>(i % 8),
           active->sites.empty() ? "" : active->sites[channel.last_set_site].key);
    }
    for (int id = 0; id < 16; ++id) {
      if (core->cross[id].empty())
        continue;
      Op op{core.get(), pipe_s, "CrossCoreSetFlag", Site("end of kernel", 0)};
      fail(op, "as many waits as sets; id of the flag left set", id,
           active->sites[core->cross[id].front().site].key);
    }
    for (const auto& line : core->cache) {
      if (line.second.dirty == 0)
        continue;
      Op op{core.get(), pipe_s, "SetValue", Site("end of kernel", 0)};
      fail(op, "DataCacheCleanAndInvalid for each line written; address of the line",
           static_cast<int64_t>(line.first));
    }
    if (core->atomic != engine::AtomicOp::none) {
      Op op{core.get(), pipe_s, "SetAtomicNone", Site("end of kernel", 0)};
      fail(op, "atomic mode switched off before the end", 1);
    }
  }
  for (const auto& entry : active->gathers) {
    for (const auto& from : entry.second.from) {
      if (from.second.empty())
        continue;
      Op op{active->cores[from.first].get(), pipe_s, "CrossCoreSetFlag", Site("end of kernel", 0)};
      fail(op, "a set by every core that takes part; id", std::get<1>(entry.first),
           active->sites[from.second.front().site].key);
    }
  }
}

}  // namespace

void schedule() {
  const Options& options = *active->options;
  const int starved = options.starve == PIPE_FIX ? static_cast<int>(pipe_fix) : options.starve;
  while (!all_done()) {
    bool progress = false;
    switch (options.schedule) {
      case Schedule::eager:
        progress = step_directed(-1, -1);
        break;
      case Schedule::starve_pipe:
        progress = step_directed(starved, -1) || step_starved(starved, -1);
        break;
      case Schedule::starve_core:
        progress = step_directed(-1, options.starve) || step_starved(-1, options.starve);
        break;
      case Schedule::random_order:
        progress = step_random();
        break;
    }
    if (active->stopping)
      throw Stopped();
    if (!progress)
      report_deadlock();
  }
  check_left_over();
}

}  // namespace xyserve::emulation

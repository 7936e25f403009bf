// Cores as fibers, pipes as queues, and who runs next.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "internal.h"

namespace xyserve::emulation {

Launch* active = nullptr;

namespace {

constexpr size_t stack_bytes = 512 * 1024;
constexpr size_t guard_bytes = 4096;

struct Stacks {
  std::vector<void*> free;
  void* take() {
    if (!free.empty()) {
      void* result = free.back();
      free.pop_back();
      return result;
    }
    void* memory = mmap(nullptr, stack_bytes + guard_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      throw std::bad_alloc();
    mprotect(memory, guard_bytes, PROT_NONE);
    return memory;
  }
};
Stacks& stacks() {
  static Stacks pool;
  return pool;
}

void fiber_main() {
  Core* core = active->current;
  try {
    (*active->kernel)();
  } catch (const Stopped&) {
  }
  core->finished = true;
  core->blocked = nullptr;
  switch_to_scheduler();
}

void resume(Core& core, int64_t budget) {
  core.budget = budget;
  core.blocked = nullptr;
  active->current = &core;
  if (!core.started) {
    core.started = true;
    core.stack = stacks().take();
    getcontext(&core.context);
    core.context.uc_stack.ss_sp = static_cast<char*>(core.stack) + guard_bytes;
    core.context.uc_stack.ss_size = stack_bytes;
    core.context.uc_link = nullptr;
    makecontext(&core.context, fiber_main, 0);
  }
  swapcontext(&active->scheduler, &core.context);
  if (core.finished && core.stack != nullptr) {
    stacks().free.push_back(core.stack);
    core.stack = nullptr;
  }
}

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

void unwind_programs() {
  for (auto& core : active->cores) {
    while (core->started && !core->finished)
      resume(*core, INT64_MAX);
  }
}

void make_cores(Launch& launch) {
  const Options& options = *launch.options;
  const auto add = [&](bool cube, uint32_t block, uint32_t sub) {
    auto core = std::make_unique<Core>();
    core->index = static_cast<uint32_t>(launch.cores.size());
    core->cube = cube;
    core->block = block;
    core->sub = sub;
    core->channels.resize(static_cast<size_t>(AscendC::HardEvent::MAX) * 8);
    launch.cores.push_back(std::move(core));
  };
  for (uint32_t block = 0; block < options.blocks; ++block) {
    switch (options.type) {
      case KERNEL_TYPE_AIV_ONLY:
      case KERNEL_TYPE_MIX_AIV_1_0:
        add(false, block, 0);
        break;
      case KERNEL_TYPE_AIC_ONLY:
      case KERNEL_TYPE_MIX_AIC_1_0:
        add(true, block, 0);
        break;
      case KERNEL_TYPE_MIX_AIC_1_1:
        add(true, block, 0);
        add(false, block, 0);
        break;
      default:
        add(true, block, 0);
        add(false, block, 0);
        add(false, block, 1);
    }
  }
  for (auto& core : launch.cores) {
    attach_memory(*core);
    if (!options.happens_before)
      continue;
    for (Clock& clock : core->clock)
      clock.assign(launch.cores.size() * pipe_count, 0);
    core->issued = std::make_shared<Clock>(core->clock[pipe_s]);
  }
  for (Clock& clock : launch.sync_clock)
    clock.assign(launch.cores.size() * pipe_count, 0);
}

void collect(Launch& launch) {
  Report& report = launch.report;
  for (auto& core : launch.cores) {
    Counters own;
    for (const auto& item : core->counts)
      own.values[item.first] += item.second;
    for (const auto& item : core->vector_repeats) {
      own.values[std::string("vector.") + item.first.first + "." +
                 name_of(static_cast<Type>(item.first.second))] += item.second;
    }
    for (const auto& item : own.values)
      report.counters.values[item.first] += item.second;
    report.per_core.push_back(std::move(own));
  }
  for (const SiteState& site : launch.sites) {
    SiteReport entry{site.key, site.kind, site.hits, {}};
    for (const auto& partner : site.partners) {
      entry.partners.push_back(launch.sites[partner.first].key);
    }
    report.sites.push_back(std::move(entry));
  }
}

}  // namespace

void switch_to_scheduler() {
  Core& core = here();
  swapcontext(&core.context, &active->scheduler);
}

void block(const char* api, Site site, int64_t value, std::function<bool()> ready) {
  Core& core = here();
  if (ready())
    return;
  core.blocked_api = api;
  core.blocked_site = site;
  core.blocked_value = value;
  core.blocked = std::move(ready);
  switch_to_scheduler();
  if (active->stopping && std::uncaught_exceptions() == 0)
    throw Stopped();
}

void fail(const Op& op, const char* rule, int64_t value, const std::string& more) {
  if (!active->stopping) {
    Finding& finding = active->report.finding;
    finding.api = op.api;
    finding.rule = rule;
    finding.value = value;
    const Core& core = *op.core;
    finding.message = std::string(op.api) + ": " + rule + ", came " + std::to_string(value);
    if (!more.empty())
      finding.message += " (" + more + ")";
    finding.message += std::string(" [") + (core.cube ? "AIC" : "AIV") + " block " +
                       std::to_string(core.block) + " sub " + std::to_string(core.sub) + ", " +
                       name_of(op.pipe) + ", " + op.site.file + ":" + std::to_string(op.site.line) +
                       "]";
    active->stopping = true;
  }
  throw Stopped();
}

void engine::reject(Site site, const char* api, const char* rule, int64_t value) {
  fail(Op{&here(), pipe_s, api, site}, rule, value);
}

Report launch(const Options& options, const std::function<void()>& kernel) {
  if (active != nullptr)
    std::abort();
  Launch state;
  state.options = &options;
  state.kernel = &kernel;
  state.random.seed(options.seed);
  state.eager = options.schedule == Schedule::eager || options.schedule == Schedule::starve_core;
  active = &state;
  try {
    map_regions(state);
    make_cores(state);
    schedule();
  } catch (const Stopped&) {
    unwind_programs();
  }
  state.report.ok = !state.stopping;
  collect(state);
  release_memory(state);
  active = nullptr;
  return std::move(state.report);
}

uint64_t sync_base_address() {
  return 0x5eed5eed;
}

}  // namespace xyserve::emulation

// A launch: cores as fibers, findings, the report.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "schedule.h"

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
  }
  if (state.stopping)
    unwind_programs();
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

// Queues, flags, barriers and cross-core flags, with the vector clocks that they carry.
#include <algorithm>

#include "internal.h"

namespace xyserve::emulation {

using AscendC::HardEvent;

namespace {

struct Ends {
  Pipe from, to;
  const char* name;
  bool cube, vector;  // legal on AIC, on AIV
};

const Ends& ends_of(HardEvent event) {
  static const Ends table[] = {
      {pipe_mte2, pipe_mte1, "MTE2_MTE1", true, false},
      {pipe_mte1, pipe_mte2, "MTE1_MTE2", true, false},
      {pipe_mte1, pipe_m, "MTE1_M", true, false},
      {pipe_m, pipe_mte1, "M_MTE1", true, false},
      {pipe_mte2, pipe_v, "MTE2_V", false, true},
      {pipe_v, pipe_mte2, "V_MTE2", false, true},
      {pipe_mte3, pipe_v, "MTE3_V", false, true},
      {pipe_v, pipe_mte3, "V_MTE3", false, true},
      {pipe_m, pipe_v, "M_V", false, false},
      {pipe_v, pipe_m, "V_M", false, false},
      {pipe_v, pipe_v, "V_V", false, true},
      {pipe_mte3, pipe_mte1, "MTE3_MTE1", true, false},
      {pipe_mte1, pipe_mte3, "MTE1_MTE3", true, false},
      {pipe_mte1, pipe_v, "MTE1_V", false, false},
      {pipe_mte2, pipe_m, "MTE2_M", true, false},
      {pipe_m, pipe_mte2, "M_MTE2", true, false},
      {pipe_v, pipe_mte1, "V_MTE1", false, false},
      {pipe_m, pipe_fix, "M_FIX", true, false},
      {pipe_fix, pipe_m, "FIX_M", true, false},
      {pipe_mte3, pipe_mte2, "MTE3_MTE2", true, true},
      {pipe_mte2, pipe_mte3, "MTE2_MTE3", true, true},
      {pipe_s, pipe_v, "S_V", false, true},
      {pipe_v, pipe_s, "V_S", false, true},
      {pipe_s, pipe_mte2, "S_MTE2", false, true},
      {pipe_mte2, pipe_s, "MTE2_S", false, true},
      {pipe_s, pipe_mte3, "S_MTE3", false, true},
      {pipe_mte3, pipe_s, "MTE3_S", false, true},
      {pipe_mte2, pipe_fix, "MTE2_FIX", true, false},
      {pipe_fix, pipe_mte2, "FIX_MTE2", true, false},
      {pipe_fix, pipe_s, "FIX_S", false, false},
      {pipe_m, pipe_s, "M_S", false, false},
      {pipe_fix, pipe_mte3, "FIX_MTE3", true, false},
      {pipe_mte1, pipe_fix, "MTE1_FIX", true, false},
      {pipe_fix, pipe_mte1, "FIX_MTE1", true, false},
      {pipe_fix, pipe_fix, "FIX_FIX", true, false},
  };
  return table[static_cast<int>(event)];
}

Pipe to_pipe(const Op& op, pipe_t pipe) {
  switch (pipe) {
    case PIPE_S:
      return pipe_s;
    case PIPE_V:
      return pipe_v;
    case PIPE_M:
      return pipe_m;
    case PIPE_MTE1:
      return pipe_mte1;
    case PIPE_MTE2:
      return pipe_mte2;
    case PIPE_MTE3:
      return pipe_mte3;
    case PIPE_FIX:
      return pipe_fix;
    default:
      fail(op, "a pipe of the 910B", pipe);
  }
}

bool has_pipe(const Core& core, Pipe pipe) {
  if (pipe == pipe_mte2 || pipe == pipe_mte3 || pipe == pipe_s)
    return true;
  return core.cube == (pipe == pipe_m || pipe == pipe_mte1 || pipe == pipe_fix);
}

uint32_t thread_of(const Core& core, Pipe pipe) {
  return core.index * pipe_count + pipe;
}

// What a flag set now tells its waiter: all that this pipe has run is complete.
SharedClock published(Core& core, Pipe pipe) {
  if (!hb())
    return nullptr;
  auto clock = std::make_shared<Clock>(core.clock[pipe]);
  (*clock)[thread_of(core, pipe)] = core.counter[pipe];
  return clock;
}

void complete_own(Core& core, Pipe pipe) {
  if (hb())
    core.clock[pipe][thread_of(core, pipe)] = core.counter[pipe];
}

void learn_issue(Core& core, Pipe pipe, const SharedClock& issue) {
  if (issue)
    join(core.clock[pipe], issue);
}

void note_partners(uint32_t a, uint32_t b) {
  active->sites[a].partners[b] = true;
  active->sites[b].partners[a] = true;
}

std::vector<uint32_t> cores_of_type(bool cube) {
  std::vector<uint32_t> result;
  for (const auto& core : active->cores) {
    if (core->cube == cube)
      result.push_back(core->index);
  }
  return result;
}

std::vector<uint32_t> block_mates(const Core& core, bool cube) {
  std::vector<uint32_t> result;
  for (const auto& other : active->cores) {
    if (other->block == core.block && other->cube == cube)
      result.push_back(other->index);
  }
  return result;
}

// Hands a token to a set's receivers once every member of its group has set.
void gather_set(Core& core, uint8_t mode, uint16_t id, const Token& token) {
  std::vector<uint32_t> from;
  std::vector<uint32_t> to;
  uint32_t key = 0;
  if (mode == 0) {
    from = to = cores_of_type(core.cube);
    key = UINT32_MAX;
  } else if (mode == 1) {
    from = to = block_mates(core, false);
    key = core.block;
  } else {
    from = block_mates(core, core.cube);
    to = block_mates(core, !core.cube);
    key = core.block;
  }
  Gather& gather = active->gathers[{key, id, mode, core.cube}];
  gather.from[core.index].push_back(token);
  for (uint32_t member : from) {
    const auto found = gather.from.find(member);
    if (found == gather.from.end() || found->second.empty())
      return;
  }
  Token merged;
  Clock clock;
  for (uint32_t member : from) {
    Token part = gather.from[member].front();
    gather.from[member].pop_front();
    merged.site = part.site;
    if (part.clock) {
      if (clock.empty())
        clock = *part.clock;
      join(clock, part.clock);
    }
  }
  if (!clock.empty())
    merged.clock = std::make_shared<Clock>(std::move(clock));
  for (uint32_t receiver : to)
    active->transit.push_back({receiver, id, merged});
}

void run_wait(Core& core, Pipe pipe, Channel& channel, uint64_t number, uint32_t site) {
  const Token token = channel.arrived[number];
  channel.arrived.erase(number);
  note_partners(token.site, site);
  if (token.clock)
    join(core.clock[pipe], token.clock);
}

}  // namespace

void join(Clock& into, const SharedClock& from) {
  const uint32_t* source = from->data();
  uint32_t* target = into.data();
  const size_t n = into.size();
  for (size_t i = 0; i < n; ++i)
    target[i] = std::max(target[i], source[i]);
}

void program_learns(Core& core, const SharedClock& clock) {
  if (!clock)
    return;
  join(core.clock[pipe_s], clock);
  core.issued = std::make_shared<Clock>(core.clock[pipe_s]);
  ++core.issued_version;
}

void joined_all(Core& core) {
  core.mmads.clear();
  if (!hb())
    return;
  Clock all = core.clock[pipe_s];
  for (int pipe = 0; pipe < pipe_count; ++pipe) {
    const Clock& own = core.clock[pipe];
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = std::max(all[i], own[i]);
  }
  for (int pipe = 0; pipe < pipe_count; ++pipe) {
    all[thread_of(core, static_cast<Pipe>(pipe))] = core.counter[pipe];
  }
  for (Clock& clock : core.clock)
    clock = all;
  core.issued = std::make_shared<Clock>(std::move(all));
  ++core.issued_version;
}

uint32_t find_site(Site site, const char* api, int kind, const char* kind_name) {
  const auto key = std::make_tuple(site.file, site.line, api, kind);
  const auto found = active->site_index.find(key);
  uint32_t index = 0;
  if (found != active->site_index.end()) {
    index = found->second;
  } else {
    const std::string path = site.file;
    size_t cut = path.rfind('/');
    if (cut != std::string::npos && cut > 0)
      cut = path.rfind('/', cut - 1);
    std::string name = (cut == std::string::npos ? path : path.substr(cut + 1)) + ":" +
                       std::to_string(site.line) + ":" + api;
    if (kind >= 0 && kind < static_cast<int>(HardEvent::MAX)) {
      name += std::string("<") + ends_of(static_cast<HardEvent>(kind)).name + ">";
    }
    SiteState state;
    state.key = name;
    state.kind = kind_name;
    for (const Mutant& mutant : active->options->mutants) {
      if (mutant.site == name)
        state.action = static_cast<int>(mutant.mutation);
    }
    index = static_cast<uint32_t>(active->sites.size());
    active->sites.push_back(std::move(state));
    active->site_index[key] = index;
  }
  ++active->sites[index].hits;
  return index;
}

bool dropped(uint32_t site) {
  return active->sites[site].action == static_cast<int>(Mutation::drop);
}

bool engine::bound_removed(Site site) {
  if (active == nullptr)
    return false;
  return dropped(find_site(site, "bound", -1, "bound"));
}

Op issuing(Site site, const char* api, Pipe pipe) {
  Core& core = here();
  if (!active->stopping && --core.budget < 0) {
    switch_to_scheduler();
  }
  if (active->stopping && std::uncaught_exceptions() == 0)
    throw Stopped();
  Op op{&core, pipe, api, site};
  if (!has_pipe(core, pipe) && !active->stopping) {
    fail(op,
         core.cube ? "an API of the vector core, called on AIC"
                   : "an API of the cube core, called on AIV",
         pipe);
  }
  return op;
}

namespace {

void begin(Core& core, Op& op) {
  op.clock = ++core.counter[op.pipe];
  op.label = 0;
  if (!hb())
    return;
  const auto key = std::make_pair(op.api, std::make_pair(op.site.file, op.site.line));
  const auto found = active->label_index.find(key);
  if (found != active->label_index.end()) {
    op.label = found->second;
    return;
  }
  op.label = static_cast<uint16_t>(active->labels.size());
  active->labels.push_back({op.api, op.site});
  active->label_index[key] = op.label;
}

void push(Core& core, Entry entry) {
  const Pipe pipe = entry.op.pipe;
  if (hb() && core.joined_version[pipe] != core.issued_version) {
    entry.issue = core.issued;
    core.joined_version[pipe] = core.issued_version;
  }
  core.queue[pipe].push_back(std::move(entry));
  if (!active->eager)
    return;
  for (bool progress = true; progress;) {
    progress = false;
    for (int any = pipe_v; any < pipe_count; ++any) {
      while (run_head(core, static_cast<Pipe>(any)))
        progress = true;
    }
  }
}

}  // namespace

void enqueue(const Op& op, std::function<void(Op&)> work) {
  if (active->stopping)
    return;
  Core& core = *op.core;
  if (op.pipe == pipe_s || (active->eager && core.queue[op.pipe].empty())) {
    if (hb() && op.pipe != pipe_s && core.joined_version[op.pipe] != core.issued_version) {
      join(core.clock[op.pipe], core.issued);
      core.joined_version[op.pipe] = core.issued_version;
    }
    Op running = op;
    begin(core, running);
    work(running);
    return;
  }
  Entry entry;
  entry.op = op;
  entry.work = std::move(work);
  push(core, std::move(entry));
}

bool run_head(Core& core, Pipe pipe) {
  if (core.queue[pipe].empty() || active->stopping)
    return false;
  Entry& head = core.queue[pipe].front();
  if (head.kind == Entry::wait) {
    Channel& channel = core.channels[head.channel];
    if (channel.arrived.find(head.number) == channel.arrived.end())
      return false;
  }
  Entry entry = std::move(head);
  core.queue[pipe].pop_front();
  learn_issue(core, pipe, entry.issue);
  switch (entry.kind) {
    case Entry::run:
      begin(core, entry.op);
      entry.work(entry.op);
      break;
    case Entry::set:
      core.channels[entry.channel].arrived[entry.number] = {published(core, pipe), entry.site};
      break;
    case Entry::wait:
      run_wait(core, pipe, core.channels[entry.channel], entry.number, entry.site);
      if (pipe == pipe_m) {
        const auto event = static_cast<HardEvent>(entry.channel / 8);
        if (event == HardEvent::FIX_M)
          core.mmads.clear();
      }
      break;
    case Entry::barrier:
      complete_own(core, pipe);
      if (pipe == pipe_m)
        core.mmads.clear();
      break;
    case Entry::cross_set: {
      Token token{entry.neutral ? nullptr : published(core, pipe), entry.site};
      gather_set(core, entry.mode, static_cast<uint16_t>(entry.number), token);
      break;
    }
  }
  return true;
}

namespace engine {

void set_flag(Site site, HardEvent event, int32_t id, bool from_queue) {
  if (active->stopping)
    return;
  const Ends& ends = ends_of(event);
  Op op = issuing(site, "SetFlag", ends.from);
  Core& core = here();
  require(op, core.cube ? ends.cube : ends.vector,
          core.cube ? "an event of AIC; HardEvent" : "an event of AIV; HardEvent",
          static_cast<int64_t>(event));
  require(op, id >= 0 && id < 8, "an event id 0..7", id);
  const bool held = event == HardEvent::M_MTE1 && id < 3 && core.tpipe != nullptr && !from_queue;
  require(op, !held, "no M_MTE1 id 0..2 while a TPipe lives on AIC, which holds them", id);
  const uint32_t where = find_site(site, from_queue ? "queue.SetFlag" : "SetFlag",
                                   static_cast<int>(event), from_queue ? "queue_set" : "set");
  if (dropped(where))
    return;
  const auto index = static_cast<uint16_t>(static_cast<int>(event) * 8 + id);
  Channel& channel = core.channels[index];
  require(op, channel.sets_issued <= channel.waits_issued,
          "a wait between two sets of one event id", id);
  channel.last_set_site = where;
  channel.last_set_line = site.line;
  const uint64_t number = channel.sets_issued++;
  if (active->sites[where].action == static_cast<int>(Mutation::neutral)) {
    channel.arrived[number] = {nullptr, where};
    return;
  }
  if (ends.from == pipe_s) {
    channel.arrived[number] = {published(core, pipe_s), where};
    return;
  }
  Entry entry;
  entry.kind = Entry::set;
  entry.op = op;
  entry.channel = index;
  entry.number = number;
  entry.site = where;
  push(core, std::move(entry));
}

void wait_flag(Site site, HardEvent event, int32_t id, bool from_queue) {
  if (active->stopping)
    return;
  const Ends& ends = ends_of(event);
  Op op = issuing(site, "WaitFlag", ends.to);
  Core& core = here();
  require(op, core.cube ? ends.cube : ends.vector,
          core.cube ? "an event of AIC; HardEvent" : "an event of AIV; HardEvent",
          static_cast<int64_t>(event));
  require(op, id >= 0 && id < 8, "an event id 0..7", id);
  const bool held = event == HardEvent::M_MTE1 && id < 3 && core.tpipe != nullptr && !from_queue;
  require(op, !held, "no M_MTE1 id 0..2 while a TPipe lives on AIC, which holds them", id);
  const uint32_t where = find_site(site, from_queue ? "queue.WaitFlag" : "WaitFlag",
                                   static_cast<int>(event), from_queue ? "queue_wait" : "wait");
  if (dropped(where))
    return;
  const auto index = static_cast<uint16_t>(static_cast<int>(event) * 8 + id);
  Channel& channel = core.channels[index];
  const uint64_t number = channel.waits_issued++;
  if (ends.to == pipe_s) {
    block("WaitFlag", site, id,
          [&channel, number] { return channel.arrived.find(number) != channel.arrived.end(); });
    const Token token = channel.arrived[number];
    channel.arrived.erase(number);
    note_partners(token.site, where);
    program_learns(core, token.clock);
    return;
  }
  Entry entry;
  entry.kind = Entry::wait;
  entry.op = op;
  entry.channel = index;
  entry.number = number;
  entry.site = where;
  push(core, std::move(entry));
}

namespace {

// The program waits until all its pipes have run dry, then everything before is complete.
void wait_for_all(Site site, const char* api) {
  Core& core = here();
  block(api, site, 0, [&core] {
    for (const auto& queue : core.queue) {
      if (!queue.empty())
        return false;
    }
    return true;
  });
  joined_all(core);
}

void require_mixed(const Op& op) {
  const KernelMetaType type = active->options->type;
  require(op, type != KERNEL_TYPE_AIC_ONLY && type != KERNEL_TYPE_AIV_ONLY,
          "a mixed launch (KERNEL_TYPE_MIX_*) for cross-core synchronisation; type", type);
  require(op, op.core->synced || type == KERNEL_TYPE_MIX_AIV_1_0 || type == KERNEL_TYPE_MIX_AIC_1_0,
          "SetSyncBaseAddr before the first cross-core synchronisation", 0);
}

void require_resident(const Op& op) {
  const Options& options = *active->options;
  const bool vectors =
      options.type == KERNEL_TYPE_MIX_AIV_1_0 || options.type == KERNEL_TYPE_AIV_ONLY;
  const uint32_t limit = vectors ? options.cores * 2 : options.cores;
  require(op, options.blocks <= limit, "no more blocks than cores, as all must be resident; blocks",
          options.blocks);
}

}  // namespace

void pipe_barrier(Site site, pipe_t pipe) {
  if (active->stopping)
    return;
  Core& core = here();
  Op op{&core, pipe_s, "PipeBarrier", site};
  const Pipe target = pipe == PIPE_ALL ? pipe_s : to_pipe(op, pipe);
  require(op, pipe == PIPE_ALL || target != pipe_s, "no PIPE_S", pipe);
  op = issuing(site, "PipeBarrier", target);
  const int kind = 1000 + static_cast<int>(pipe);
  static const char* const names[] = {"PipeBarrier<S>",
                                      "PipeBarrier<V>",
                                      "PipeBarrier<M>",
                                      "PipeBarrier<MTE1>",
                                      "PipeBarrier<MTE2>",
                                      "PipeBarrier<MTE3>",
                                      "PipeBarrier<ALL>",
                                      "",
                                      "",
                                      "",
                                      "PipeBarrier<FIX>"};
  if (dropped(find_site(site, names[pipe], kind, "barrier")))
    return;
  if (pipe == PIPE_ALL) {
    wait_for_all(site, "PipeBarrier");
    return;
  }
  Entry entry;
  entry.kind = Entry::barrier;
  entry.op = op;
  push(core, std::move(entry));
}

void data_sync_barrier(Site site, AscendC::MemDsbT) {
  if (active->stopping)
    return;
  issuing(site, "DataSyncBarrier", pipe_s);
}

void set_sync_base(Site site, uint64_t address) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "SetSyncBaseAddr", pipe_s);
  require(op, address == sync_base_address(), "the address that the host passed",
          static_cast<int64_t>(address));
  here().synced = true;
}

void cross_core_set(Site site, uint8_t mode, pipe_t pipe, uint16_t id) {
  if (active->stopping)
    return;
  Core& core = here();
  Op op{&core, pipe_s, "CrossCoreSetFlag", site};
  require(op, pipe != PIPE_S && pipe != PIPE_ALL, "neither PIPE_S nor PIPE_ALL", pipe);
  op = issuing(site, "CrossCoreSetFlag", to_pipe(op, pipe));
  require(op, mode <= 2, "mode 0, 1 or 2", mode);
  require(op, id <= 10, "a flag id 0..10 (SyncAll owns 11 to 14)", id);
  require_mixed(op);
  const KernelMetaType type = active->options->type;
  if (mode == 0) {
    require_resident(op);
  } else {
    require(op, type == KERNEL_TYPE_MIX_AIC_1_1 || type == KERNEL_TYPE_MIX_AIC_1_2,
            "KERNEL_TYPE_MIX_AIC_1_1 or 1_2 for modes 1 and 2; type", type);
  }
  require(op, mode != 1 || !core.cube, "mode 1 on AIV only", mode);
  const uint32_t where = find_site(site, "CrossCoreSetFlag", 2000 + mode, "cross_set");
  if (dropped(where))
    return;
  Entry entry;
  entry.kind = Entry::cross_set;
  entry.op = op;
  entry.mode = mode;
  entry.number = id;
  entry.site = where;
  entry.neutral = active->sites[where].action == static_cast<int>(Mutation::neutral);
  if (entry.neutral) {
    gather_set(core, mode, id, {nullptr, where});
    return;
  }
  push(core, std::move(entry));
}

void cross_core_wait(Site site, uint8_t mode, pipe_t, uint16_t id) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "CrossCoreWaitFlag", pipe_s);
  require(op, mode <= 2, "mode 0, 1 or 2", mode);
  require(op, id <= 10, "a flag id 0..10 (SyncAll owns 11 to 14)", id);
  require_mixed(op);
  const uint32_t where = find_site(site, "CrossCoreWaitFlag", 2100, "cross_wait");
  if (dropped(where))
    return;
  Core& core = here();
  block("CrossCoreWaitFlag", site, id, [&core, id] { return !core.cross[id].empty(); });
  const Token token = core.cross[id].front();
  core.cross[id].pop_front();
  note_partners(token.site, where);
  program_learns(core, token.clock);
}

void sync_all(Site site, bool vector_cores_only) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "SyncAll", pipe_s);
  require_mixed(op);
  require_resident(op);
  Core& core = here();
  require(op, !vector_cores_only || !core.cube, "SyncAll<false> on AIC", 1);
  if (dropped(find_site(site, "SyncAll", 2200 + vector_cores_only, "sync_all")))
    return;
  wait_for_all(site, "SyncAll");
  const int kind = vector_cores_only ? 1 : 0;
  uint32_t members = 0;
  for (const auto& other : active->cores)
    members += !vector_cores_only || !other->cube;
  if (hb())
    join(active->sync_clock[kind], core.issued);
  const uint64_t generation = active->sync_generation[kind];
  if (++active->sync_arrived[kind] == members) {
    active->sync_arrived[kind] = 0;
    ++active->sync_generation[kind];
    if (hb())
      active->sync_released[kind] = std::make_shared<Clock>(active->sync_clock[kind]);
  } else {
    block("SyncAll", site, members,
          [kind, generation] { return active->sync_generation[kind] != generation; });
  }
  if (!hb())
    return;
  program_learns(core, active->sync_released[kind]);
}

}  // namespace engine
}  // namespace xyserve::emulation

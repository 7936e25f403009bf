// Cross-core flags and SyncAll.
#include "queue.h"

namespace xyserve::emulation {

namespace {

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

void require_mixed(const Op& op) {
  const KernelMetaType type = active->options->type;
  require(op, type != KERNEL_TYPE_AIC_ONLY && type != KERNEL_TYPE_AIV_ONLY,
          "a mixed launch (KERNEL_TYPE_MIX_*) for cross-core synchronisation; type", type);
  require(op, op.core->synced, "SetSyncBaseAddr before the first cross-core synchronisation", 0);
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

namespace engine {

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
  if (active->sites[where].action == static_cast<int>(Mutation::neutral)) {
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

// Flags and barriers within a core.
#include "queue.h"

namespace xyserve::emulation {

using AscendC::HardEvent;

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

namespace engine {

// What a set and a wait require alike.
static void require_event(const Op& op, const Core& core, HardEvent event, int32_t id,
                          bool from_queue) {
  const Ends& ends = ends_of(event);
  require(op, core.cube ? ends.cube : ends.vector,
          core.cube ? "an event of AIC; HardEvent" : "an event of AIV; HardEvent",
          static_cast<int64_t>(event));
  require(op, id >= 0 && id < 8, "an event id 0..7", id);
  const bool held = event == HardEvent::M_MTE1 && id < 3 && core.tpipe != nullptr && !from_queue;
  require(op, !held, "no M_MTE1 id 0..2 while a TPipe lives on AIC, which holds them", id);
}

void set_flag(Site site, HardEvent event, int32_t id, bool from_queue) {
  if (active->stopping)
    return;
  const Ends& ends = ends_of(event);
  Op op = issuing(site, "SetFlag", ends.from);
  Core& core = here();
  require_event(op, core, event, id, from_queue);
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
  require_event(op, core, event, id, from_queue);
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

}  // namespace engine
}  // namespace xyserve::emulation

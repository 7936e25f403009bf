// Operations in the queues of pipes, and the vector clocks that go with them.
#include "queue.h"

#include <algorithm>

namespace xyserve::emulation {

using AscendC::HardEvent;

namespace {

constexpr uint64_t call_limit = 20'000'000;

bool has_pipe(const Core& core, Pipe pipe) {
  if (pipe == pipe_mte2 || pipe == pipe_mte3 || pipe == pipe_s)
    return true;
  return core.cube == (pipe == pipe_m || pipe == pipe_mte1 || pipe == pipe_fix);
}

uint32_t thread_of(const Core& core, Pipe pipe) {
  return core.index * pipe_count + pipe;
}

void complete_own(Core& core, Pipe pipe) {
  if (hb())
    core.clock[pipe][thread_of(core, pipe)] = core.counter[pipe];
}

void learn_issue(Core& core, Pipe pipe, const SharedClock& issue) {
  if (issue)
    join(core.clock[pipe], issue);
}

void run_wait(Core& core, Pipe pipe, Channel& channel, uint64_t number, uint32_t site) {
  const Token token = channel.arrived[number];
  channel.arrived.erase(number);
  note_partners(token.site, site);
  if (token.clock)
    join(core.clock[pipe], token.clock);
}

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

}  // namespace

SharedClock published(Core& core, Pipe pipe) {
  if (!hb())
    return nullptr;
  auto clock = std::make_shared<Clock>(core.clock[pipe]);
  (*clock)[thread_of(core, pipe)] = core.counter[pipe];
  return clock;
}

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

Op issuing(Site site, const char* api, Pipe pipe) {
  Core& core = here();
  if (!active->stopping && --core.budget < 0) {
    switch_to_scheduler();
  }
  if (active->stopping && std::uncaught_exceptions() == 0)
    throw Stopped();
  Op op{&core, pipe, api, site};
  // A program that a mutation keeps from ending is stopped, not waited for.
  if (++core.calls > call_limit && !active->stopping) {
    fail(op, "a program of at most 20 million calls", call_limit);
  }
  if (!has_pipe(core, pipe) && !active->stopping) {
    fail(op,
         core.cube ? "an API of the vector core, called on AIC"
                   : "an API of the cube core, called on AIV",
         pipe);
  }
  return op;
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
      const Token token{published(core, pipe), entry.site};
      gather_set(core, entry.mode, static_cast<uint16_t>(entry.number), token);
      break;
    }
  }
  return true;
}

}  // namespace xyserve::emulation

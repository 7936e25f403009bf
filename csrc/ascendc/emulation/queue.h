// What queues, flags and cross-core flags share.
#pragma once

#include "internal.h"

namespace xyserve::emulation {

// A flag's pipes, and the cores that have both.
struct Ends {
  Pipe from, to;
  const char* name;
  bool cube, vector;  // legal on AIC, on AIV
};

const Ends& ends_of(AscendC::HardEvent event);
Pipe to_pipe(const Op& op, pipe_t pipe);
// What a flag set now tells its waiter: all that this pipe has run is complete.
SharedClock published(Core& core, Pipe pipe);
// Queues an entry; in eager order, runs what it and others may.
void push(Core& core, Entry entry);
void note_partners(uint32_t a, uint32_t b);
// Hands a token to a set's receivers once every member of its group has set.
void gather_set(Core& core, uint8_t mode, uint16_t id, const Token& token);
// The program waits until all its pipes have run dry, then everything before is complete.
void wait_for_all(Site site, const char* api);

}  // namespace xyserve::emulation

// How bytes reach global memory: plainly, or combined with what is there under SetAtomic*.
#pragma once

#include <algorithm>

#include "internal.h"

namespace xyserve::emulation {

struct Atomic {
  engine::AtomicOp op = engine::AtomicOp::none;
  Type type = Type::f32;
};

// What holds for an operation issued now; a store under it must have the declared type.
Atomic atomic_now(const Op& op, Type stored);
// Combines or copies `bytes` from `from` into `to`, with the accesses noted; `from` may be null,
// then `data` holds freshly computed bytes.
void store(const Op& op, const Atomic& atomic, const Span& to, const uint8_t* data, uint64_t bytes);

}  // namespace xyserve::emulation

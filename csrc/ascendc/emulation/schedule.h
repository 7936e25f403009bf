// Who runs next.
#pragma once

#include "internal.h"

namespace xyserve::emulation {

// Runs a core's program until it blocks, ends or has made `budget` calls.
void resume(Core& core, int64_t budget);
// Runs everything to its end, then looks for what was left over.
void schedule();

}  // namespace xyserve::emulation

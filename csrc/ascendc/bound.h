// A limit that keeps a kernel inside its data. In the emulation each one is a site that the
// mutation run can remove, to show that some test notices.
#pragma once

#include "ascendc/arch.h"

#if defined(XYSERVE_EMULATION)
#include "ascendc/emulation/emulation.h"
#define XYSERVE_BOUNDED(value, limit) ::xyserve::emulation::bounded(value, limit)
#else
#define XYSERVE_BOUNDED(value, limit) ::xyserve::arch::min_of(value, limit)
#endif

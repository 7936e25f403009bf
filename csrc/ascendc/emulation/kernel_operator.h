// Stands in for the vendor's header of this name: the Ascend C basic API (910B) as a functional
// emulation on a host. docs/ascend-emulation.md says what it models and what it does not.
#pragma once

#include "api_copy.h"
#include "api_cube.h"
#include "api_select.h"
#include "api_sync.h"
#include "api_vector.h"
#include "tensor.h"
#include "tpipe.h"

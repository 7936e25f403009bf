// The answer of a host-side check. Plain C++: no CANN, no torch.
#pragma once

#include <cstdint>
#include <string>

namespace xyserve::ascend {

struct CanRun {
  bool ok = true;
  std::string reason;  // what was required, what came, what to do; empty if ok

  explicit operator bool() const { return ok; }
};

inline CanRun no(std::string reason) {
  return {false, std::move(reason)};
}

}  // namespace xyserve::ascend

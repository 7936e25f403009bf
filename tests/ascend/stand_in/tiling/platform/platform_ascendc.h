// What bind_ascend.cc needs of CANN's header of this name.
#pragma once

#include <cstdint>

namespace platform_ascendc {

struct PlatformAscendCManager {
  static PlatformAscendCManager* GetInstance() {
    static PlatformAscendCManager manager;
    return &manager;
  }
  uint32_t GetCoreNumAic() const { return 24; }
};

}  // namespace platform_ascendc

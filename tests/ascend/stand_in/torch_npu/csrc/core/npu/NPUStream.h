// What bind_ascend.cc needs of torch_npu's header of this name.
#pragma once

namespace c10_npu {

struct NPUStream {
  void* stream(bool = true) const { return nullptr; }
};
inline NPUStream getCurrentNPUStream() { return {}; }

}  // namespace c10_npu

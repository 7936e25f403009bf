// Synchronisation, system variables, atomics and the data cache.
#pragma once

#include "tensor.h"

// As a condition in the vendor's form: `if ASCEND_IS_AIC { ... }`.
#define ASCEND_IS_AIC (::xyserve::emulation::engine::on_cube())
#define ASCEND_IS_AIV (!::xyserve::emulation::engine::on_cube())
#define KERNEL_TASK_TYPE_DEFAULT(type) \
  ::xyserve::emulation::engine::declare_kernel_type(::xyserve::emulation::Site(), type)

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t eventID, emulated::Site at = emulated::Site()) {
  emulated::engine::set_flag(at, event, eventID);
}
template <HardEvent event>
void WaitFlag(int32_t eventID, emulated::Site at = emulated::Site()) {
  emulated::engine::wait_flag(at, event, eventID);
}
template <pipe_t pipe>
void PipeBarrier(emulated::Site at = emulated::Site()) {
  emulated::engine::pipe_barrier(at, pipe);
}
template <MemDsbT scope>
void DataSyncBarrier(emulated::Site at = emulated::Site()) {
  emulated::engine::data_sync_barrier(at, scope);
}
template <uint8_t modeId, pipe_t pipe>
void CrossCoreSetFlag(uint16_t flagId, emulated::Site at = emulated::Site()) {
  emulated::engine::cross_core_set(at, modeId, pipe, flagId);
}
template <uint8_t modeId = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t flagId, emulated::Site at = emulated::Site()) {
  emulated::engine::cross_core_wait(at, modeId, pipe, flagId);
}
template <bool isAIVOnly = true>
void SyncAll(emulated::Site at = emulated::Site()) {
  emulated::engine::sync_all(at, isAIVOnly);
}

inline int64_t GetBlockNum() {
  return emulated::engine::block_count();
}
inline int64_t GetBlockIdx() {
  return emulated::engine::block_index();
}
inline int64_t GetSubBlockIdx() {
  return emulated::engine::sub_block_index();
}
inline int64_t GetSubBlockNum() {
  return emulated::engine::sub_block_count();
}
inline int64_t GetTaskRatio() {
  return emulated::engine::task_ratio();
}
inline constexpr int16_t GetDataBlockSizeInBytes() {
  return ONE_BLK_SIZE;
}
inline void SetSyncBaseAddr(uint64_t address, emulated::Site at = emulated::Site()) {
  emulated::engine::set_sync_base(at, address);
}
inline void Trap(emulated::Site at = emulated::Site()) {
  emulated::engine::trap(at);
}

template <typename T>
void SetAtomicAdd(emulated::Site at = emulated::Site()) {
  emulated::engine::set_atomic(at, "SetAtomicAdd", emulated::engine::AtomicOp::add,
                               emulated::type_of<T>());
}
template <typename T>
void SetAtomicMax(emulated::Site at = emulated::Site()) {
  emulated::engine::set_atomic(at, "SetAtomicMax", emulated::engine::AtomicOp::max,
                               emulated::type_of<T>());
}
template <typename T>
void SetAtomicMin(emulated::Site at = emulated::Site()) {
  emulated::engine::set_atomic(at, "SetAtomicMin", emulated::engine::AtomicOp::min,
                               emulated::type_of<T>());
}
inline void SetAtomicNone(emulated::Site at = emulated::Site()) {
  emulated::engine::set_atomic(at, "SetAtomicNone", emulated::engine::AtomicOp::none,
                               emulated::type_of<float>());
}
inline void DisableDmaAtomic(emulated::Site at = emulated::Site()) {
  SetAtomicNone(at);
}

template <typename T, CacheLine entireType, DcciDst dcciDst>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, emulated::Site at = emulated::Site()) {
  if constexpr (dcciDst == DcciDst::CACHELINE_OUT || dcciDst == DcciDst::CACHELINE_ALL) {
    emulated::engine::clean_and_invalidate(at, dst.global(),
                                           entireType == CacheLine::ENTIRE_DATA_CACHE);
  } else {
    emulated::engine::reject(at, "DataCacheCleanAndInvalid", "only CACHELINE_OUT and CACHELINE_ALL",
                             static_cast<int64_t>(dcciDst));
  }
}
template <typename T, CacheLine entireType>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, emulated::Site at = emulated::Site()) {
  emulated::engine::clean_and_invalidate(at, dst.global(),
                                         entireType == CacheLine::ENTIRE_DATA_CACHE);
}

}  // namespace AscendC

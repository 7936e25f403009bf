// LocalTensor and GlobalTensor. Elements are reached only through calls that the emulation sees:
// `operator()`, which hands out a plain reference, is left out on purpose.
#pragma once

#include "engine.h"

namespace AscendC {

namespace emulated = ::xyserve::emulation;

// Where a logical position lies on the 910B.
constexpr emulated::Buffer buffer_of(TPosition position) {
  switch (position) {
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
    case TPosition::TSCM:
      return emulated::Buffer::l1;
    case TPosition::A2:
      return emulated::Buffer::l0a;
    case TPosition::B2:
      return emulated::Buffer::l0b;
    case TPosition::C2:
      return emulated::Buffer::bias;
    case TPosition::CO1:
      return emulated::Buffer::l0c;
    case TPosition::C2PIPE2GM:
      return emulated::Buffer::fixpipe;
    case TPosition::VECIN:
    case TPosition::VECOUT:
    case TPosition::VECCALC:
      return emulated::Buffer::ub;
    default:
      return emulated::Buffer::count;
  }
}

struct TBuffAddr {
  uint8_t logicPos = 0;
  uint8_t bufferHandle = 0;  // index of the queue's buffer
  uint32_t dataLen = 0;      // bytes up to the end of the allocation
  uint32_t bufferAddr = 0;   // bytes from the start of the physical buffer
};

template <typename T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;
  // Static placement without TPipe: `tileSize` elements at byte `addr` of the position's buffer.
  LocalTensor(TPosition pos, uint32_t addr, uint32_t tileSize) {
    address_.logicPos = static_cast<uint8_t>(pos);
    address_.bufferAddr = addr;
    address_.dataLen = tileSize * sizeof(T);
    size_ = tileSize;
  }

  uint64_t GetPhyAddr() const { return address_.bufferAddr; }
  uint64_t GetPhyAddr(uint32_t offset) const { return address_.bufferAddr + offset * sizeof(T); }
  int32_t GetPosition() const { return address_.logicPos; }
  uint32_t GetSize() const { return size_; }
  void SetSize(uint32_t size) { size_ = size; }
  void SetBufferLen(uint32_t dataLen) { address_.dataLen = dataLen * sizeof(T); }

  LocalTensor operator[](uint32_t offset) const {
    LocalTensor result = *this;
    const uint64_t bytes = static_cast<uint64_t>(offset) * sizeof(T);
    result.address_.bufferAddr += static_cast<uint32_t>(bytes);
    result.address_.dataLen =
        bytes < address_.dataLen ? address_.dataLen - static_cast<uint32_t>(bytes) : 0;
    result.size_ = offset < size_ ? size_ - offset : 0;
    return result;
  }

  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    LocalTensor<U> result;
    result.address_ = address_;
    result.SetSize(static_cast<uint32_t>(static_cast<uint64_t>(size_) * sizeof(T) / sizeof(U)));
    return result;
  }

  T GetValue(uint32_t index, emulated::Site at = emulated::Site()) const {
    const uint64_t bits = emulated::engine::scalar_read(at, element(index));
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }
  template <typename S>
  void SetValue(uint32_t index, const S value, emulated::Site at = emulated::Site()) const {
    emulated::engine::scalar_write(at, element(index), emulated::bits_of(static_cast<T>(value)));
  }

  emulated::Local local() const {
    return {buffer_of(static_cast<TPosition>(address_.logicPos)), emulated::type_of<T>(),
            address_.bufferAddr, address_.dataLen};
  }

  TBuffAddr address_;

 private:
  emulated::Local element(uint32_t index) const { return (*this)[index].local(); }

  uint32_t size_ = 0;
};

template <typename T>
class GlobalTensor {
 public:
  using PrimType = T;

  void SetGlobalBuffer(__gm__ T* buffer) { SetGlobalBuffer(buffer, 0); }
  void SetGlobalBuffer(__gm__ T* buffer, uint64_t bufferSize) {
    address_ = buffer;
    bufferSize_ = bufferSize;
  }
  const __gm__ T* GetPhyAddr() const { return address_; }
  __gm__ T* GetPhyAddr(uint64_t offset) const { return address_ + offset; }
  uint64_t GetSize() const { return bufferSize_; }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor result = *this;
    result.address_ += offset;
    return result;
  }

  T GetValue(uint64_t offset, emulated::Site at = emulated::Site()) const {
    const uint64_t bits = emulated::engine::scalar_read(at, (*this)[offset].global());
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }
  void SetValue(uint64_t offset, T value, emulated::Site at = emulated::Site()) {
    emulated::engine::scalar_write(at, (*this)[offset].global(), emulated::bits_of(value));
  }
  template <CacheRwMode rwMode = CacheRwMode::RW>
  void SetL2CacheHint(CacheMode) {}

  emulated::Global global() const {
    return {reinterpret_cast<uint64_t>(address_), emulated::type_of<T>()};
  }

  uint64_t bufferSize_ = 0;

 private:
  __gm__ T* address_ = nullptr;
};

}  // namespace AscendC

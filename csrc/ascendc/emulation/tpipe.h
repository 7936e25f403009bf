// TPipe, TQue and TBuf: buffer placement and the events that queues set and wait on their own.
#pragma once

#include "api_sync.h"

namespace AscendC {

class TPipe;
inline TPipe* GetTPipePtr() {
  return static_cast<TPipe*>(emulated::engine::tpipe_pointer());
}

class TPipe {
 public:
  TPipe() { Init(); }
  // A finding may end the program here.
  ~TPipe() noexcept(false) { Destroy(); }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  void Init(emulated::Site at = emulated::Site()) {
    emulated::engine::tpipe_pointer() = this;
    live_ = true;
    if (!emulated::engine::on_cube())
      return;
    // The vendor's TPipe holds these three for its own matrix multiply.
    for (int32_t id = 0; id < held_ids; ++id) {
      occupied_[index(HardEvent::M_MTE1)] |= 1u << id;
      emulated::engine::set_flag(at, HardEvent::M_MTE1, id, true);
    }
  }
  void Destroy(emulated::Site at = emulated::Site()) {
    if (!live_)
      return;
    live_ = false;
    for (int32_t i = 0; i < queues_; ++i)
      drain_[i](queue_[i]);
    queues_ = 0;
    if (emulated::engine::on_cube()) {
      for (int32_t id = 0; id < held_ids; ++id) {
        emulated::engine::wait_flag(at, HardEvent::M_MTE1, id, true);
      }
    }
    if (emulated::engine::tpipe_pointer() == this)
      emulated::engine::tpipe_pointer() = nullptr;
  }
  void Reset(emulated::Site at = emulated::Site()) {
    Destroy(at);
    for (uint32_t& next : next_)
      next = 0;
    for (uint32_t& mask : occupied_)
      mask = 0;
    Init(at);
  }

  template <class T>
  bool InitBuffer(T& que, uint8_t num, uint32_t len, emulated::Site at = emulated::Site()) {
    const uint32_t rounded = round_up(len);
    if (num == 0 || num > T::max_buffers)
      emulated::engine::reject(at, "InitBuffer", "buffers 1..16", num);
    if (queues_ == max_queues)
      emulated::engine::reject(at, "InitBuffer", "at most 64 queues", queues_);
    que.place(place(at, T::buffer, rounded * num), num, rounded);
    queue_[queues_] = &que;
    drain_[queues_++] = [](void* queue) { static_cast<T*>(queue)->FreeAllEvent(); };
    return true;
  }
  template <class T>
  bool InitBuffer(T& buf, uint32_t len, emulated::Site at = emulated::Site()) {
    const uint32_t rounded = round_up(len);
    buf.place(place(at, T::buffer, rounded), rounded);
    return true;
  }

  template <HardEvent evt>
  TEventID AllocEventID(emulated::Site at = emulated::Site()) {
    uint32_t& mask = occupied_[index(evt)];
    for (int32_t id = 0; id < event_ids; ++id) {
      if (mask & 1u << id)
        continue;
      mask |= 1u << id;
      return static_cast<TEventID>(id);
    }
    if (emulated::engine::cancelled())
      return 0;
    emulated::engine::reject(at, "AllocEventID", "at most 8 event ids of a kind at a time",
                             event_ids);
  }
  template <HardEvent evt>
  void ReleaseEventID(TEventID id, emulated::Site at = emulated::Site()) {
    uint32_t& mask = occupied_[index(evt)];
    if (!(mask & 1u << id) && !emulated::engine::cancelled()) {
      emulated::engine::reject(at, "ReleaseEventID", "an allocated id", id);
    }
    mask &= ~(1u << id);
  }
  // The next free id, without taking it.
  TEventID FetchEventID(HardEvent evt) {
    const uint32_t mask = occupied_[index(evt)];
    for (int32_t id = 0; id < event_ids; ++id) {
      if (!(mask & 1u << id))
        return static_cast<TEventID>(id);
    }
    return 0;
  }
  template <HardEvent evt>
  TEventID FetchEventID() {
    return FetchEventID(evt);
  }
  template <TPosition pos, typename T>
  LocalTensor<T> GetAbsAddr(int32_t offset, int32_t size) const {
    return LocalTensor<T>(pos, static_cast<uint32_t>(offset), static_cast<uint32_t>(size));
  }

 private:
  static constexpr int32_t held_ids = 3;
  static constexpr int32_t event_ids = 8;
  static constexpr int32_t max_queues = 64;

  static constexpr int32_t index(HardEvent evt) { return static_cast<int32_t>(evt); }
  static uint32_t round_up(uint32_t bytes) { return (bytes + 31) / 32 * 32; }
  uint32_t place(emulated::Site at, emulated::Buffer buffer, uint32_t bytes) {
    uint32_t& next = next_[static_cast<int32_t>(buffer)];
    const uint32_t start = next;
    const uint64_t end = static_cast<uint64_t>(start) + bytes;
    if (end > emulated::engine::capacity(buffer)) {
      emulated::engine::reject(at, "InitBuffer", "total within the buffer's capacity in bytes",
                               static_cast<int64_t>(end));
    }
    next = static_cast<uint32_t>(end);
    return start;
  }

  bool live_ = false;
  uint32_t next_[static_cast<int32_t>(emulated::Buffer::count)] = {};
  uint32_t occupied_[static_cast<int32_t>(HardEvent::MAX)] = {};
  void* queue_[max_queues] = {};
  void (*drain_[max_queues])(void*) = {};
  int32_t queues_ = 0;
};

// The event from filling a buffer at `src` for `dst` to emptying it, or back.
constexpr HardEvent GetQueEvt(TPosition src, TPosition dst, bool forward) {
  const emulated::Buffer to = buffer_of(dst);
  if (src == TPosition::GM) {
    if (to == emulated::Buffer::ub)
      return forward ? HardEvent::MTE2_V : HardEvent::V_MTE2;
    if (to == emulated::Buffer::l1)
      return forward ? HardEvent::MTE2_MTE1 : HardEvent::MTE1_MTE2;
  }
  const emulated::Buffer from = buffer_of(src);
  if (from == emulated::Buffer::l1)
    return forward ? HardEvent::MTE1_M : HardEvent::M_MTE1;
  if (from == emulated::Buffer::l0c)
    return forward ? HardEvent::M_FIX : HardEvent::FIX_M;
  if (from == emulated::Buffer::ub && dst == TPosition::GM) {
    return forward ? HardEvent::V_MTE3 : HardEvent::MTE3_V;
  }
  if (src == TPosition::VECIN && dst == TPosition::VECOUT) {
    return forward ? HardEvent::MTE2_MTE3 : HardEvent::MTE3_MTE2;
  }
  return HardEvent::V_V;
}

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
 public:
  static constexpr int32_t max_buffers = 16;
  static constexpr TPosition position =
      src == TPosition::GM                                                     ? dst
      : (dst == TPosition::A2 || dst == TPosition::B2 || dst == TPosition::C2) ? dst
                                                                               : src;
  static constexpr emulated::Buffer buffer = buffer_of(position);
  static constexpr HardEvent filled = GetQueEvt(src, dst, true);
  static constexpr HardEvent emptied = GetQueEvt(src, dst, false);

  template <typename T>
  LocalTensor<T> AllocTensor(emulated::Site at = emulated::Site()) {
    for (int32_t step = 0; step < count_; ++step) {
      Slot& slot = slots_[(cursor_ + step) % count_];
      if (slot.used)
        continue;
      const int32_t taken = (cursor_ + step) % count_;
      cursor_ = (taken + 1) % count_;
      slot.used = true;
      if (slot.free_event >= 0) {
        emulated::engine::wait_flag(at, emptied, slot.free_event, true);
        GetTPipePtr()->template ReleaseEventID<emptied>(slot.free_event, at);
        slot.free_event = -1;
      }
      return tensor<T>(taken);
    }
    if (!emulated::engine::cancelled())
      emulated::engine::reject(at, "AllocTensor", "a free buffer", count_);
    return LocalTensor<T>();
  }
  template <typename T>
  void FreeTensor(LocalTensor<T>& local, emulated::Site at = emulated::Site()) {
    Slot& slot = slots_[local.address_.bufferHandle];
    if (!slot.used && !emulated::engine::cancelled()) {
      emulated::engine::reject(at, "FreeTensor", "a tensor of AllocTensor",
                               local.address_.bufferHandle);
    }
    slot.free_event = GetTPipePtr()->template AllocEventID<emptied>(at);
    emulated::engine::set_flag(at, emptied, slot.free_event, true);
    slot.used = false;
  }
  template <typename T>
  bool EnQue(const LocalTensor<T>& local, emulated::Site at = emulated::Site()) {
    if (queued_ == limit() && !emulated::engine::cancelled()) {
      emulated::engine::reject(at, "EnQue", "at most `depth` tensors in the queue", queued_ + 1);
    }
    const int32_t handle = local.address_.bufferHandle;
    Slot& slot = slots_[handle];
    slot.fill_event = GetTPipePtr()->template AllocEventID<filled>(at);
    emulated::engine::set_flag(at, filled, slot.fill_event, true);
    order_[(head_ + queued_) % max_buffers] = static_cast<uint8_t>(handle);
    ++queued_;
    return true;
  }
  template <typename T>
  LocalTensor<T> DeQue(emulated::Site at = emulated::Site()) {
    if (queued_ == 0) {
      if (!emulated::engine::cancelled())
        emulated::engine::reject(at, "DeQue", "a tensor in the queue", 0);
      return LocalTensor<T>();
    }
    const int32_t handle = order_[head_];
    head_ = (head_ + 1) % max_buffers;
    --queued_;
    Slot& slot = slots_[handle];
    emulated::engine::wait_flag(at, filled, slot.fill_event, true);
    GetTPipePtr()->template ReleaseEventID<filled>(slot.fill_event, at);
    slot.fill_event = -1;
    return tensor<T>(handle);
  }
  bool VacantInQue() const { return queued_ < limit(); }
  bool HasTensorInQue() const { return queued_ > 0; }
  int32_t GetTensorCountInQue() const { return queued_; }
  bool HasIdleBuffer() const {
    for (int32_t i = 0; i < count_; ++i) {
      if (!slots_[i].used)
        return true;
    }
    return false;
  }
  void FreeAllEvent(emulated::Site at = emulated::Site()) {
    for (int32_t i = 0; i < count_; ++i) {
      if (slots_[i].free_event < 0)
        continue;
      emulated::engine::wait_flag(at, emptied, slots_[i].free_event, true);
      slots_[i].free_event = -1;
    }
  }

  // For TPipe.
  void place(uint32_t start, int32_t num, uint32_t len) {
    start_ = start;
    count_ = num;
    bytes_ = len;
    cursor_ = head_ = queued_ = 0;
    for (Slot& slot : slots_)
      slot = Slot();
  }

 private:
  struct Slot {
    bool used = false;
    TEventID fill_event = -1;
    TEventID free_event = -1;
  };
  // Depth 0 stands for "as many as there are buffers" in the vendor's newer API.
  int32_t limit() const { return depth > 0 && depth < count_ ? depth : count_; }
  template <typename T>
  LocalTensor<T> tensor(int32_t handle) const {
    LocalTensor<T> result(position, start_ + static_cast<uint32_t>(handle) * bytes_,
                          bytes_ / static_cast<uint32_t>(sizeof(T)));
    result.address_.dataLen = bytes_;
    result.address_.bufferHandle = static_cast<uint8_t>(handle);
    return result;
  }

  uint32_t start_ = 0;
  uint32_t bytes_ = 0;
  int32_t count_ = 0;
  int32_t cursor_ = 0;
  int32_t head_ = 0;
  int32_t queued_ = 0;
  uint8_t order_[max_buffers] = {};
  Slot slots_[max_buffers];
};

constexpr TPosition GetBufferLogicPos(TPosition pos, bool isSrc) {
  switch (pos) {
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
    case TPosition::VECIN:
      return isSrc ? TPosition::GM : pos;
    case TPosition::A2:
      return isSrc ? TPosition::A1 : pos;
    case TPosition::B2:
      return isSrc ? TPosition::B1 : pos;
    case TPosition::C2:
      return isSrc ? TPosition::C1 : pos;
    case TPosition::CO1:
      return isSrc ? pos : TPosition::CO2;
    case TPosition::VECOUT:
      return isSrc ? pos : TPosition::GM;
    default:
      return pos;
  }
}

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue
    : public TQueBind<GetBufferLogicPos(pos, true), GetBufferLogicPos(pos, false), depth, mask> {};

template <TPosition pos = TPosition::LCM>
class TBuf {
 public:
  static constexpr emulated::Buffer buffer = buffer_of(pos);

  template <typename T>
  LocalTensor<T> Get(emulated::Site at = emulated::Site()) const {
    return GetWithOffset<T>(bytes_ / static_cast<uint32_t>(sizeof(T)), 0, at);
  }
  template <typename T>
  LocalTensor<T> Get(uint32_t len, emulated::Site at = emulated::Site()) const {
    return GetWithOffset<T>(len, 0, at);
  }
  // `size` elements, `bufOffset` bytes into the buffer.
  template <typename T>
  LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset,
                               emulated::Site at = emulated::Site()) const {
    const uint64_t end = static_cast<uint64_t>(size) * sizeof(T) + bufOffset;
    if (end > bytes_) {
      emulated::engine::reject(at, "TBuf::Get", "bytes within the buffer",
                               static_cast<int64_t>(end));
    }
    return LocalTensor<T>(pos, start_ + bufOffset, size);
  }

  // For TPipe.
  void place(uint32_t start, uint32_t len) {
    start_ = start;
    bytes_ = len;
  }

 private:
  uint32_t start_ = 0;
  uint32_t bytes_ = 0;
};

}  // namespace AscendC

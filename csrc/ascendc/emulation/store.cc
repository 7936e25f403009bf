// Stores to global memory, plain and atomic.
#include "store.h"

namespace xyserve::emulation {

namespace {

template <typename T>
void combine(engine::AtomicOp op, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + at, sizeof(T));
    std::memcpy(&b, from + at, sizeof(T));
    if (op == engine::AtomicOp::add)
      a = static_cast<T>(a + b);
    if (op == engine::AtomicOp::max)
      a = std::max(a, b);
    if (op == engine::AtomicOp::min)
      a = std::min(a, b);
    std::memcpy(to + at, &a, sizeof(T));
  }
}

void combine_bf16(engine::AtomicOp op, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 2) {
    bfloat16_t a, b;
    std::memcpy(&a, to + at, 2);
    std::memcpy(&b, from + at, 2);
    const float x = static_cast<float>(a);
    const float y = static_cast<float>(b);
    const float z = op == engine::AtomicOp::add   ? x + y
                    : op == engine::AtomicOp::max ? std::max(x, y)
                                                  : std::min(x, y);
    a = bfloat16_t(z);
    std::memcpy(to + at, &a, 2);
  }
}

}  // namespace

Atomic atomic_now(const Op& op, Type stored) {
  const Atomic result{op.core->atomic, op.core->atomic_type};
  require(op, result.op == engine::AtomicOp::none || result.type == stored,
          "the type of SetAtomic* for an atomic store; type", static_cast<int64_t>(stored));
  return result;
}

void store(const Op& op, const Atomic& atomic, const Span& to, const uint8_t* data,
           uint64_t bytes) {
  if (atomic.op == engine::AtomicOp::none) {
    touch(op, to, bytes, true);
    std::memcpy(to.data(), data, bytes);
    return;
  }
  require_written(op, to, bytes);
  touch(op, to, bytes, true, true);
  switch (atomic.type) {
    case Type::f32:
      return combine<float>(atomic.op, to.data(), data, bytes);
    case Type::f16:
      return combine<half>(atomic.op, to.data(), data, bytes);
    case Type::i32:
      return combine<int32_t>(atomic.op, to.data(), data, bytes);
    case Type::i16:
      return combine<int16_t>(atomic.op, to.data(), data, bytes);
    case Type::i8:
      return combine<int8_t>(atomic.op, to.data(), data, bytes);
    default:
      return combine_bf16(atomic.op, to.data(), data, bytes);
  }
}

namespace engine {

void set_atomic(Site site, const char* api, AtomicOp operation, Type type) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_s);
  const bool legal = type == Type::f32 || type == Type::f16 || type == Type::i32 ||
                     type == Type::i16 || type == Type::i8 || type == Type::bf16;
  require(op, legal, "float, half, bf16, int32, int16 or int8; type", static_cast<int64_t>(type));
  here().atomic = operation;
  here().atomic_type = type;
}

}  // namespace engine
}  // namespace xyserve::emulation

// Data movement on MTE2, MTE3, and between on-chip buffers.
#include "store.h"

namespace xyserve::emulation {

using AscendC::DataCopyExtParams;
using AscendC::DataCopyParams;
using AscendC::Nd2NzParams;

namespace {

constexpr uint64_t unit_bytes = 32;

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

void require_aligned(const Op& op, const Local& tensor, uint32_t alignment = 32) {
  require(op, tensor.address % alignment == 0,
          alignment == 32 ? "an on-chip address aligned to 32 bytes"
                          : "an on-chip address aligned to 64 bytes",
          tensor.address);
}

void require_element_aligned(const Op& op, const Global& tensor) {
  require(op, tensor.address % size_of(tensor.type) == 0,
          "a global address aligned to the element size", static_cast<int64_t>(tensor.address));
}

// One burst pattern: `count` bursts of `bytes`, starting every `from_step` and `to_step` bytes.
struct Bursts {
  uint32_t count;
  uint64_t bytes;
  uint64_t from_step;
  uint64_t to_step;
};

Bursts bursts_of(const Op& op, const DataCopyParams& p, uint64_t unit = unit_bytes) {
  require(op, p.blockCount >= 1 && p.blockCount <= 4095, "blockCount 1..4095", p.blockCount);
  require(op, p.blockLen >= 1, "blockLen 1..65535", p.blockLen);
  const uint64_t bytes = p.blockLen * unit;
  return {p.blockCount, bytes, bytes + p.srcStride * unit_bytes, bytes + p.dstStride * unit_bytes};
}

Bursts bursts_of(const Op& op, uint32_t count, Type type, uint64_t unit = unit_bytes) {
  const uint64_t bytes = static_cast<uint64_t>(count) * size_of(type);
  require(op, bytes > 0 && bytes % unit == 0,
          "a count whose bytes are a multiple of 32 (the hardware rounds down); bytes",
          static_cast<int64_t>(bytes));
  return {1, bytes, bytes, bytes};
}

Pipe pipe_in(Site site, const Local& dst) {
  const bool known = dst.buffer == Buffer::ub || dst.buffer == Buffer::l1;
  if (!known)
    engine::reject(site, "DataCopy", "global memory to UB or L1", 0);
  return pipe_mte2;
}

void require_place(const Op& op, const Local& tensor) {
  require(op, op.core->cube == (tensor.buffer != Buffer::ub),
          op.core->cube ? "no UB on AIC" : "only UB on AIV; buffer",
          static_cast<int64_t>(tensor.buffer));
}

void copy_in(const Op& op, const Local& dst, const Global& src, const Bursts& b) {
  require_aligned(op, dst);
  require_element_aligned(op, src);
  require_place(op, dst);
  enqueue(op, [dst, src, b](Op& run) {
    for (uint32_t i = 0; i < b.count; ++i) {
      const Span from = global_span(run, src.address + i * b.from_step, b.bytes);
      move(run, local_span(run, dst, i * b.to_step, b.bytes), from, b.bytes);
    }
    count(*run.core, "mte2.bytes", b.count * b.bytes);
    count(*run.core, "mte2.transfers", 1);
  });
}

void copy_out(const Op& op, const Global& dst, const Local& src, const Bursts& b) {
  require_aligned(op, src);
  require_element_aligned(op, dst);
  require_place(op, src);
  require(op, src.buffer == Buffer::ub || src.buffer == Buffer::l1, "UB or L1 to global memory",
          static_cast<int64_t>(src.buffer));
  const Atomic atomic = atomic_now(op, src.type);
  enqueue(op, [dst, src, b, atomic](Op& run) {
    for (uint32_t i = 0; i < b.count; ++i) {
      const Span from = local_span(run, src, i * b.from_step, b.bytes);
      require_written(run, from, b.bytes);
      touch(run, from, b.bytes, false);
      const Span to = global_span(run, dst.address + i * b.to_step, b.bytes);
      store(run, atomic, to, from.data(), b.bytes);
    }
    count(*run.core, "mte3.bytes", b.count * b.bytes);
    count(*run.core, "mte3.transfers", 1);
  });
}

void require_overlap(const Op& op, const Local& dst, const Local& src, const Bursts& b) {
  if (dst.buffer != src.buffer || dst.address == src.address)
    return;
  const uint64_t to_end = dst.address + (b.count - 1) * b.to_step + b.bytes;
  const uint64_t from_end = src.address + (b.count - 1) * b.from_step + b.bytes;
  require(op, dst.address >= from_end || src.address >= to_end,
          "source and target that overlap completely or not at all; target", dst.address);
}

void copy_within(const Op& op, const Local& dst, const Local& src, const Bursts& b) {
  require_aligned(op, dst, dst.buffer == Buffer::bias ? 64 : 32);
  require_aligned(op, src);
  require_overlap(op, dst, src, b);
  enqueue(op, [dst, src, b](Op& run) {
    for (uint32_t i = 0; i < b.count; ++i) {
      const Span from = local_span(run, src, i * b.from_step, b.bytes);
      require_written(run, from, b.bytes);
      move(run, local_span(run, dst, i * b.to_step, b.bytes), from, b.bytes);
    }
    count(*run.core, run.pipe == pipe_v ? "v.copy.bytes" : "l1.table.bytes", b.count * b.bytes);
  });
}

Op issuing_within(Site site, const Local& dst, const Local& src, uint64_t& unit) {
  unit = unit_bytes;
  if (dst.buffer == Buffer::ub && src.buffer == Buffer::ub) {
    return issuing(site, "DataCopy", pipe_v);
  }
  if (src.buffer == Buffer::l1 && dst.buffer == Buffer::bias) {
    unit = 64;
    return issuing(site, "DataCopy", pipe_mte1);
  }
  if (src.buffer == Buffer::l1 && dst.buffer == Buffer::fixpipe) {
    unit = 128;
    return issuing(site, "DataCopy", pipe_fix);
  }
  engine::reject(site, "DataCopy", "UB to UB, L1 to bias table or L1 to fixpipe buffer; target",
                 static_cast<int64_t>(dst.buffer));
}

// One matrix of ND2NZ: rows of `dValue` elements become columns of 32-byte blocks, whose last block
// is filled with zeros.
void copy_matrix(Op& run, const Local& dst, const Global& src, const Nd2NzParams& p, uint64_t i) {
  const uint64_t size = size_of(dst.type);
  const uint64_t row_bytes = p.dValue * size;
  const uint64_t columns = (row_bytes + unit_bytes - 1) / unit_bytes;
  const uint64_t start = i * p.dstNzMatrixStride * size;
  const uint64_t extent = p.nValue == 0 ? 0 : ((p.nValue - 1ull) * p.dstNzNStride + 1) * unit_bytes;
  for (uint64_t j = 0; j < columns && extent > 0; ++j) {
    const Span column = local_span(run, dst, start + j * p.dstNzC0Stride * unit_bytes, extent);
    if (p.dstNzNStride == 1) {
      touch(run, column, extent, true);
      continue;
    }
    for (uint64_t n = 0; n < p.nValue; ++n) {
      touch(run, {column.memory, column.offset + n * p.dstNzNStride * unit_bytes}, unit_bytes,
            true);
    }
  }
  for (uint64_t n = 0; n < p.nValue; ++n) {
    const uint64_t row = (i * p.srcNdMatrixStride + n * p.srcDValue) * size;
    const Span from = global_span(run, src.address + row, row_bytes);
    touch(run, from, row_bytes, false);
    const bool known = bits_all(from.memory->written, from.offset, row_bytes);
    for (uint64_t j = 0; j < columns; ++j) {
      const uint64_t block = j * p.dstNzC0Stride + n * p.dstNzNStride;
      const Span to = local_span(run, dst, start + block * unit_bytes, unit_bytes);
      const uint64_t bytes = std::min(unit_bytes, row_bytes - j * unit_bytes);
      std::memcpy(to.data(), from.data() + j * unit_bytes, bytes);
      std::memset(to.data() + bytes, 0, unit_bytes - bytes);
      if (known)
        continue;
      bits_copy(to.memory->written, to.offset, from.memory->written, from.offset + j * unit_bytes,
                bytes);
    }
  }
}

// Marks bytes as holding nothing that was written.
void forget(const Op& op, const Span& span, uint64_t bytes) {
  touch(op, span, bytes, true);
  uint32_t* map = span.memory->written;
  for (uint64_t at = span.offset; at < span.offset + bytes; ++at) {
    map[at / 32] &= ~(1u << at % 32);
    span.memory->data[at] = 0xcb;
  }
}

void fill(const Op& op, const Span& span, uint64_t bytes, uint64_t value, uint32_t size) {
  touch(op, span, bytes, true);
  for (uint64_t at = 0; at < bytes; at += size)
    std::memcpy(span.data() + at, &value, size);
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

void data_copy(Site site, Local dst, Global src, uint32_t n) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopy", pipe_in(site, dst));
  copy_in(op, dst, src, bursts_of(op, n, dst.type));
}

void data_copy(Site site, Global dst, Local src, uint32_t n) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopy", pipe_mte3);
  copy_out(op, dst, src, bursts_of(op, n, src.type));
}

void data_copy(Site site, Local dst, Local src, uint32_t n) {
  if (active->stopping)
    return;
  uint64_t unit = 0;
  const Op op = issuing_within(site, dst, src, unit);
  copy_within(op, dst, src, bursts_of(op, n, dst.type, unit));
}

void data_copy(Site site, Local dst, Global src, const DataCopyParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopy", pipe_in(site, dst));
  copy_in(op, dst, src, bursts_of(op, p));
}

void data_copy(Site site, Global dst, Local src, const DataCopyParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopy", pipe_mte3);
  copy_out(op, dst, src, bursts_of(op, p));
}

void data_copy(Site site, Local dst, Local src, const DataCopyParams& p) {
  if (active->stopping)
    return;
  uint64_t unit = 0;
  const Op op = issuing_within(site, dst, src, unit);
  copy_within(op, dst, src, bursts_of(op, p, unit));
}

void data_copy(Site site, Local dst, Global src, const Nd2NzParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopy", pipe_mte2);
  require(op, dst.buffer == Buffer::l1, "L1 as the target of ND2NZ; buffer",
          static_cast<int64_t>(dst.buffer));
  require(op, op.core->cube, "ND2NZ on AIC", 0);
  require_aligned(op, dst);
  require_element_aligned(op, src);
  require(op, p.ndNum <= 4095, "ndNum 0..4095", p.ndNum);
  require(op, p.nValue <= 16384, "nValue 0..16384", p.nValue);
  require(op, p.dstNzC0Stride >= 1 && p.dstNzC0Stride <= 16384, "dstNzC0Stride 1..16384",
          p.dstNzC0Stride);
  require(op, p.dstNzNStride >= 1 && p.dstNzNStride <= 16384, "dstNzNStride 1..16384",
          p.dstNzNStride);
  require(op, p.srcDValue >= 1, "srcDValue 1..65535", p.srcDValue);
  require(op, p.dstNzMatrixStride * size_of(dst.type) % unit_bytes == 0,
          "dstNzMatrixStride whole blocks; elements", p.dstNzMatrixStride);
  enqueue(op, [dst, src, p](Op& run) {
    const uint64_t row_bytes = p.dValue * size_of(dst.type);
    for (uint64_t i = 0; i < p.ndNum; ++i)
      copy_matrix(run, dst, src, p, i);
    count(*run.core, "mte2.bytes", p.ndNum * p.nValue * row_bytes);
    count(*run.core, "mte2.transfers", 1);
  });
}

void data_copy_pad(Site site, Local dst, Global src, const DataCopyExtParams& p, const Pad& pad) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopyPad", pipe_mte2);
  require_aligned(op, dst);
  require_place(op, dst);
  require_element_aligned(op, src);
  const uint64_t size = size_of(dst.type);
  require(op, p.blockCount >= 1 && p.blockCount <= 4095, "blockCount 1..4095", p.blockCount);
  require(op, p.blockLen >= 1 && p.blockLen <= 2097151, "blockLen 1..2097151 bytes", p.blockLen);
  require(op, p.blockLen % size == 0, "blockLen whole elements; bytes", p.blockLen);
  require(op, pad.left * size <= unit_bytes, "leftPadding of at most 32 bytes",
          static_cast<int64_t>(pad.left * size));
  require(op, pad.right * size <= unit_bytes, "rightPadding of at most 32 bytes",
          static_cast<int64_t>(pad.right * size));
  enqueue(op, [dst, src, p, pad, size](Op& run) {
    const uint64_t left = pad.left * size;
    const uint64_t right = pad.right * size;
    const uint64_t whole = (left + p.blockLen + right + unit_bytes - 1) / unit_bytes * unit_bytes;
    for (uint64_t i = 0; i < p.blockCount; ++i) {
      const Span to = local_span(run, dst, i * (whole + p.dstStride * unit_bytes), whole);
      const Span from = global_span(run, src.address + i * (p.blockLen + p.srcStride), p.blockLen);
      const Span middle{to.memory, to.offset + left};
      const Span tail{to.memory, middle.offset + p.blockLen};
      move(run, middle, from, p.blockLen);
      const uint64_t rest = whole - left - p.blockLen;
      if (pad.on) {
        fill(run, to, left, pad.value, static_cast<uint32_t>(size));
        fill(run, tail, right, pad.value, static_cast<uint32_t>(size));
        forget(run, {to.memory, tail.offset + right}, rest - right);
      } else {
        forget(run, to, left);
        forget(run, tail, rest);
      }
    }
    count(*run.core, "mte2.bytes", static_cast<uint64_t>(p.blockCount) * p.blockLen);
    count(*run.core, "mte2.transfers", 1);
  });
}

void data_copy_pad(Site site, Global dst, Local src, const DataCopyExtParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "DataCopyPad", pipe_mte3);
  require_aligned(op, src);
  require_place(op, src);
  require_element_aligned(op, dst);
  require(op, p.blockCount >= 1 && p.blockCount <= 4095, "blockCount 1..4095", p.blockCount);
  require(op, p.blockLen >= 1 && p.blockLen <= 2097151, "blockLen 1..2097151 bytes", p.blockLen);
  require(op, p.blockLen % size_of(src.type) == 0, "blockLen whole elements; bytes", p.blockLen);
  const Atomic atomic = atomic_now(op, src.type);
  enqueue(op, [dst, src, p, atomic](Op& run) {
    const uint64_t whole = (p.blockLen + unit_bytes - 1) / unit_bytes * unit_bytes;
    for (uint64_t i = 0; i < p.blockCount; ++i) {
      const Span from = local_span(run, src, i * (whole + p.srcStride * unit_bytes), p.blockLen);
      require_written(run, from, p.blockLen);
      touch(run, from, p.blockLen, false);
      const Span to = global_span(run, dst.address + i * (p.blockLen + p.dstStride), p.blockLen);
      store(run, atomic, to, from.data(), p.blockLen);
    }
    count(*run.core, "mte3.bytes", static_cast<uint64_t>(p.blockCount) * p.blockLen);
    count(*run.core, "mte3.transfers", 1);
  });
}

}  // namespace engine
}  // namespace xyserve::emulation

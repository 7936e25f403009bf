// The way out of L0C: conversion, ReLU and layout on pipe FIX.
#include <cmath>

#include "store.h"

namespace xyserve::emulation {

using AscendC::CO2Layout;
using AscendC::FixpipeParamsV220;

namespace {

constexpr uint64_t side = 16;

struct Conversion {
  QuantMode_t mode;
  Type from, to;
  bool per_column;
};

Conversion conversion_of(const Op& op, QuantMode_t mode, Type from, Type to, bool has_scale) {
  static const Conversion table[] = {
      {NoQuant, Type::f32, Type::f32, false},    {NoQuant, Type::i32, Type::i32, false},
      {F322F16, Type::f32, Type::f16, false},    {F322BF16, Type::f32, Type::bf16, false},
      {DEQF16, Type::i32, Type::f16, false},     {VDEQF16, Type::i32, Type::f16, true},
      {QF322B8_PRE, Type::f32, Type::i8, false}, {QF322B8_PRE, Type::f32, Type::u8, false},
      {VQF322B8_PRE, Type::f32, Type::i8, true}, {VQF322B8_PRE, Type::f32, Type::u8, true},
      {REQ8, Type::i32, Type::i8, false},        {REQ8, Type::i32, Type::u8, false},
      {VREQ8, Type::i32, Type::i8, true},        {VREQ8, Type::i32, Type::u8, true},
  };
  for (const Conversion& entry : table) {
    if (entry.mode != mode || entry.from != from || entry.to != to)
      continue;
    require(op, entry.per_column == has_scale, "a scale tensor in L1 for per-column modes only",
            mode);
    return entry;
  }
  fail(op, "a quantPre that turns the L0C type into the target type; quantPre", mode,
       std::string(name_of(from)) + " to " + name_of(to));
}

// The hardware keeps 10 mantissa bits of a scale; bits 37..45 hold the offset of 8-bit results.
float scale_of(uint64_t word) {
  const auto bits = static_cast<uint32_t>(word) & 0xffffe000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

int32_t offset_of(uint64_t word) {
  const auto bits = static_cast<int32_t>(word >> 37 & 0x1ff);
  return bits >= 256 ? bits - 512 : bits;
}

void convert_one(const Conversion& how, uint64_t scale, bool relu, const uint8_t* from,
                 uint8_t* to) {
  if (how.mode == NoQuant && how.from == Type::i32) {
    int32_t value;
    std::memcpy(&value, from, 4);
    if (relu)
      value = std::max(value, 0);
    std::memcpy(to, &value, 4);
    return;
  }
  float value;
  if (how.from == Type::i32) {
    int32_t whole;
    std::memcpy(&whole, from, 4);
    value = static_cast<float>(whole);
  } else {
    std::memcpy(&value, from, 4);
  }
  if (relu && value < 0)
    value = 0;
  if (how.mode != NoQuant && how.mode != F322F16 && how.mode != F322BF16)
    value *= scale_of(scale);
  if (how.to == Type::f32) {
    std::memcpy(to, &value, 4);
  } else if (how.to == Type::f16) {
    const uint16_t half_bits = float_to_half(value);
    std::memcpy(to, &half_bits, 2);
  } else if (how.to == Type::bf16) {
    const bfloat16_t brain(value);
    std::memcpy(to, &brain, 2);
  } else {
    const float low = how.to == Type::i8 ? -128.0f : 0.0f;
    const float high = how.to == Type::i8 ? 127.0f : 255.0f;
    const float moved = std::nearbyint(value) + static_cast<float>(offset_of(scale));
    *to = static_cast<uint8_t>(
        static_cast<int32_t>(std::min(high, std::max(low, std::isnan(moved) ? 0.0f : moved))));
  }
}

struct Out {
  Local src;
  FixpipeParamsV220 p;
  Conversion how;
  CO2Layout layout;
  Local scale;
  Atomic atomic;
};

// Reads and converts `columns` of row `m`, starting at column `n`, of matrix `nd`.
void convert_row(Op& run, const Out& out, const uint64_t* scales, uint64_t nd, uint64_t m,
                 uint64_t n, uint64_t columns, uint8_t* to) {
  const uint64_t size = size_of(out.how.to);
  for (uint64_t c = 0; c < columns; c += side) {
    const uint64_t block = (n + c) / side;
    const uint64_t at = nd * out.p.srcNdStride * 1024 + block * out.p.srcStride * 64 + m * 64;
    const uint64_t count = std::min(side, columns - c);
    const Span from = local_span(run, out.src, at, count * 4);
    const uint8_t* data = from.data();
    if (out.how.to == Type::f32 && !out.p.reluEn) {
      std::memcpy(to + c * size, data, count * 4);
      continue;
    }
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t scale = scales != nullptr ? scales[n + c + i] : out.p.deqScalar;
      convert_one(out.how, scale, out.p.reluEn, data + i * 4, to + (c + i) * size);
    }
  }
}

void note_reads(Op& run, const Out& out, uint64_t nd) {
  for (uint64_t block = 0; block * side < out.p.nSize; ++block) {
    const uint64_t at = nd * out.p.srcNdStride * 1024 + block * out.p.srcStride * 64;
    const uint64_t bytes = out.p.mSize * 64;
    const Span from = local_span(run, out.src, at, bytes);
    require_written(run, from, bytes);
    touch(run, from, bytes, false);
  }
}

const uint64_t* read_scales(Op& run, const Out& out) {
  if (!out.how.per_column)
    return nullptr;
  const uint64_t bytes = out.p.nSize * 8ull;
  require(run, bytes <= 2048, "scales within the fixpipe buffer of 2 KB; bytes",
          static_cast<int64_t>(bytes));
  const Span span = local_span(run, out.scale, 0, bytes);
  require_written(run, span, bytes);
  touch(run, span, bytes, false);
  return reinterpret_cast<const uint64_t*>(span.data());
}

// `target(offset, bytes)` gives the place of a piece of the result.
template <typename Target>
void run_fixpipe(Op& run, const Out& out, Target target, bool to_global) {
  const uint64_t size = size_of(out.how.to);
  const uint64_t* scales = read_scales(run, out);
  std::vector<uint8_t> row(out.p.nSize * size);
  uint64_t written = 0;
  const bool nd = out.layout == CO2Layout::ROW_MAJOR;
  for (uint64_t i = 0; i < (nd ? out.p.ndNum : 1u); ++i) {
    note_reads(run, out, i);
    const uint64_t width = nd ? out.p.nSize : size == 1 ? 32 : out.p.isChannelSplit ? 8 : 16;
    for (uint64_t m = 0; m < out.p.mSize; ++m) {
      for (uint64_t n = 0; n < out.p.nSize; n += width) {
        const uint64_t columns = std::min<uint64_t>(width, out.p.nSize - n);
        convert_row(run, out, scales, i, m, n, columns, row.data());
        const uint64_t at = nd ? (i * out.p.dstNdStride + m * out.p.dstStride) * size
                               : n / width * out.p.dstStride * 32 + m * width * size;
        const Span to = target(at, columns * size);
        store(run, out.atomic, to, row.data(), columns * size);
        written += columns * size;
      }
    }
  }
  count(*run.core, to_global ? "fix.bytes" : "fix.l1.bytes", written);
  count(*run.core, "fix.transfers", 1);
}

Out checked(const Op& op, Type to, const Local& src, const Local* scale, const FixpipeParamsV220& p,
            CO2Layout layout) {
  require(op, src.buffer == Buffer::l0c, "L0C as the source; buffer",
          static_cast<int64_t>(src.buffer));
  require(op, src.address % 64 == 0, "a source aligned to 64 bytes", src.address);
  require(op, layout != CO2Layout::COLUMN_MAJOR, "CFG_NZ or CFG_ROW_MAJOR",
          static_cast<int64_t>(layout));
  const bool nd = layout == CO2Layout::ROW_MAJOR;
  require(op, p.nSize <= 4095, "nSize 0..4095", p.nSize);
  require(op, p.nSize % (p.isChannelSplit ? 8 : 16) == 0,
          "nSize a multiple of 16 (8 with isChannelSplit)", p.nSize);
  require(op, !nd || p.mSize <= 8192, "mSize 0..8192 for NZ2ND", p.mSize);
  require(op, p.nSize <= 16 || (p.srcStride >= p.mSize && p.srcStride % 16 == 0),
          "srcStride a multiple of 16 of at least mSize", p.srcStride);
  require(op, p.dstStride >= 1, "dstStride of at least 1", p.dstStride);
  require(op, !nd || p.ndNum >= 1, "ndNum of at least 1", p.ndNum);
  require(op, !nd || p.ndNum == 1 || (p.srcNdStride >= 1 && p.srcNdStride <= 512),
          "srcNdStride 1..512", p.srcNdStride);
  require(op, p.unitFlag == 0, "unitFlag 0 (the others are not emulated)", p.unitFlag);
  require(op, !p.isChannelSplit || (!nd && to == Type::f32 && src.type == Type::f32),
          "isChannelSplit for float in NZ", 1);
  Out out{src,    p,       conversion_of(op, p.quantPre, src.type, to, scale != nullptr),
          layout, Local(), atomic_now(op, to)};
  if (scale != nullptr) {
    require(op, scale->buffer == Buffer::l1, "the scale tensor in L1; buffer",
            static_cast<int64_t>(scale->buffer));
    require(op, scale->address % 32 == 0, "a scale tensor aligned to 32 bytes", scale->address);
    out.scale = *scale;
  }
  return out;
}

}  // namespace

void engine::fixpipe(Site site, Global dst, Local src, const Local* scale,
                     const FixpipeParamsV220& p, CO2Layout layout) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Fixpipe", pipe_fix);
  const Out out = checked(op, dst.type, src, scale, p, layout);
  require(op, dst.address % size_of(dst.type) == 0, "a global address aligned to the element size",
          static_cast<int64_t>(dst.address));
  enqueue(op, [out, dst](Op& run) {
    run_fixpipe(
        run, out,
        [&](uint64_t at, uint64_t bytes) { return global_span(run, dst.address + at, bytes); },
        true);
  });
}

void engine::fixpipe(Site site, Local dst, Local src, const Local* scale,
                     const FixpipeParamsV220& p, CO2Layout layout) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Fixpipe", pipe_fix);
  require(op, dst.buffer == Buffer::l1, "L1 or global memory as the target (no L0C to UB); buffer",
          static_cast<int64_t>(dst.buffer));
  require(op, layout == CO2Layout::NZ, "CFG_NZ for a target in L1", static_cast<int64_t>(layout));
  require(op, dst.type != Type::f32 && dst.type != Type::i32,
          "half, bf16, int8 or uint8 for a target in L1; type", static_cast<int64_t>(dst.type));
  require(op, dst.address % 32 == 0, "a target aligned to 32 bytes", dst.address);
  Out out = checked(op, dst.type, src, scale, p, layout);
  out.atomic = Atomic();
  enqueue(op, [out, dst](Op& run) {
    run_fixpipe(
        run, out, [&](uint64_t at, uint64_t bytes) { return local_span(run, dst, at, bytes); },
        false);
  });
}

}  // namespace xyserve::emulation

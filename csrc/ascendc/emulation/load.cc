// Cube loads (MTE1, and MTE2 straight from global memory).
#include "internal.h"

namespace xyserve::emulation {

using AscendC::LoadData2DParams;
using AscendC::LoadData2dTransposeParams;

namespace {

constexpr uint64_t fractal = 512;

void require_cube_target(const Op& op, const Local& dst, uint32_t alignment) {
  const bool legal = dst.buffer == Buffer::l0a || dst.buffer == Buffer::l0b;
  require(op, legal, "L0A or L0B as the target; buffer", static_cast<int64_t>(dst.buffer));
  require(op, dst.address % alignment == 0, "a target aligned to 512 bytes", dst.address);
}

void count_load(Op& run, const Local& dst, uint64_t bytes) {
  count(*run.core, dst.buffer == Buffer::l0a ? "mte1.l0a.bytes" : "mte1.l0b.bytes", bytes);
  count(*run.core, "mte1.transfers", 1);
}

// Moves a square of `n` x `n` elements transposed, with what is known of each.
template <typename T>
void transpose_square(const Span& from, const uint64_t* from_row, const Span& to,
                      const uint64_t* to_row, uint64_t n) {
  const bool known = bits_all(from.memory->written, from.offset, n * n * sizeof(T));
  for (uint64_t r = 0; r < n; ++r) {
    for (uint64_t c = 0; c < n; ++c) {
      const uint64_t source = from_row[c] + r * sizeof(T);
      const uint64_t target = to_row[r] + c * sizeof(T);
      std::memcpy(to.memory->data + to.offset + target, from.memory->data + from.offset + source,
                  sizeof(T));
      if (!known) {
        bits_copy(to.memory->written, to.offset + target, from.memory->written,
                  from.offset + source, sizeof(T));
      }
    }
  }
}

}  // namespace

namespace engine {

void load_data(Site site, Local dst, Local src, const LoadData2DParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "LoadData", pipe_mte1);
  require_cube_target(op, dst, 512);
  require(op, src.buffer == Buffer::l1, "L1 as the source; buffer",
          static_cast<int64_t>(src.buffer));
  require(op, src.address % 32 == 0, "a source aligned to 32 bytes", src.address);
  require(op, p.addrMode == 0, "addrMode 0", p.addrMode);
  require(op, !p.ifTranspose || size_of(src.type) == 2, "ifTranspose with 16-bit types; bytes",
          size_of(src.type));
  enqueue(op, [dst, src, p](Op& run) {
    uint64_t rows[16];
    for (uint64_t i = 0; i < 16; ++i)
      rows[i] = i * 32;
    for (uint64_t r = 0; r < p.repeatTimes; ++r) {
      const uint64_t source = (p.startIndex + r * p.srcStride) * fractal;
      const Span from = local_span(run, src, source, fractal);
      const Span to = local_span(run, dst, r * (1 + p.dstGap) * fractal, fractal);
      if (!p.ifTranspose) {
        move(run, to, from, fractal);
        continue;
      }
      touch(run, from, fractal, false);
      touch(run, to, fractal, true);
      transpose_square<uint16_t>(from, rows, to, rows, 16);
    }
    count_load(run, dst, p.repeatTimes * fractal);
  });
}

void load_data(Site site, Local dst, Global src, const LoadData2DParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "LoadData", pipe_mte2);
  require(op, op.core->cube, "global memory to L1, L0A or L0B on AIC", 0);
  require(op, dst.address % 512 == 0, "a target aligned to 512 bytes", dst.address);
  require(op, !p.ifTranspose && p.addrMode == 0, "neither ifTranspose nor addrMode", 1);
  enqueue(op, [dst, src, p](Op& run) {
    for (uint64_t r = 0; r < p.repeatTimes; ++r) {
      const uint64_t source = (p.startIndex + r * p.srcStride) * fractal;
      move(run, local_span(run, dst, r * (1 + p.dstGap) * fractal, fractal),
           global_span(run, src.address + source, fractal), fractal);
    }
    count(*run.core, "mte2.bytes", p.repeatTimes * fractal);
    count(*run.core, "mte2.transfers", 1);
  });
}

void load_data_with_transpose(Site site, Local dst, Local src, const LoadData2dTransposeParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "LoadDataWithTranspose", pipe_mte1);
  require_cube_target(op, dst, 512);
  require(op, src.buffer == Buffer::l1, "L1 as the source; buffer",
          static_cast<int64_t>(src.buffer));
  require(op, src.address % 32 == 0, "a source aligned to 32 bytes", src.address);
  require(op, p.addrMode == 0, "addrMode 0", p.addrMode);
  enqueue(op, [dst, src, p](Op& run) {
    const uint64_t size = size_of(src.type);
    const uint64_t n = size == 1 ? 32 : 16;
    const uint64_t square = n * n * size;
    const uint64_t second = (1 + p.dstFracGap) * fractal;  // the iteration's other fractal
    uint64_t from_row[32];
    uint64_t to_row[32];
    for (uint64_t i = 0; i < n; ++i) {
      // int8: rows of 32 bytes, fractals of 16 rows. float: two fractals of 16 x 8 side by side.
      from_row[i] = i * 32;
      to_row[i] = i < 16 ? i * 32 : second + (i - 16) * 32;
    }
    for (uint64_t r = 0; r < p.repeatTimes; ++r) {
      const Span from = local_span(run, src, (p.startIndex + r * p.srcStride) * square, square);
      const uint64_t extent = square == fractal ? fractal : second + fractal;
      const Span to = local_span(run, dst, r * (1 + p.dstGap) * fractal, extent);
      touch(run, from, square, false);
      touch(run, to, fractal, true);
      if (square != fractal)
        touch(run, {to.memory, to.offset + second}, fractal, true);
      if (size == 2)
        transpose_square<uint16_t>(from, from_row, to, to_row, n);
      if (size == 1)
        transpose_square<uint8_t>(from, from_row, to, to_row, n);
      if (size == 4) {
        for (uint64_t i = 0; i < 16; ++i) {
          for (uint64_t j = 0; j < 16; ++j) {
            const uint64_t a = from.offset + j * 32 + i / 8 * fractal + i % 8 * 4;
            const uint64_t b = to.offset + i * 32 + j / 8 * second + j % 8 * 4;
            std::memcpy(to.memory->data + b, from.memory->data + a, 4);
            bits_copy(to.memory->written, b, from.memory->written, a, 4);
          }
        }
      }
    }
    count_load(run, dst, p.repeatTimes * square);
  });
}

void init_const(Site site, Local dst, uint16_t repeat, uint16_t blocks, uint16_t gap,
                uint64_t value) {
  if (active->stopping)
    return;
  const bool l1 = dst.buffer == Buffer::l1;
  const Op op = issuing(site, "InitConstValue", l1 ? pipe_mte2 : pipe_mte1);
  require(op, l1 || dst.buffer == Buffer::l0a || dst.buffer == Buffer::l0b,
          "L1, L0A or L0B; buffer", static_cast<int64_t>(dst.buffer));
  require(op, dst.address % (l1 ? 32 : 512) == 0, "an aligned target", dst.address);
  require(op, repeat <= 32767 && blocks <= 32767 && gap <= 32767, "fields of at most 32767",
          repeat);
  enqueue(op, [=](Op& run) {
    const uint64_t unit = l1 ? 32 : 512;
    const uint64_t bytes = (blocks == 0 && !l1 ? 1 : blocks) * unit;
    const uint32_t size = size_of(dst.type);
    for (uint64_t r = 0; r < repeat; ++r) {
      const Span to = local_span(run, dst, r * (bytes + gap * unit), bytes);
      touch(run, to, bytes, true);
      for (uint64_t at = 0; at < bytes; at += size)
        std::memcpy(to.data() + at, &value, size);
    }
  });
}

}  // namespace engine
}  // namespace xyserve::emulation

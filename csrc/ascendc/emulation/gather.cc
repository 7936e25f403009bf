// Broadcast, gather and transpose.
#include "lanes.h"

namespace xyserve::emulation {

namespace {

Operand source(const Local& tensor, uint64_t block_stride, uint64_t repeat_stride) {
  return {tensor, block_stride, repeat_stride};
}

}  // namespace

namespace engine {

void brcb(Site site, Local dst, Local src, uint8_t repeat, const AscendC::BrcbRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Brcb", pipe_v);
  const uint64_t size = size_of(dst.type);
  require(op, size == 2 || size == 4, "elements of 2 or 4 bytes", static_cast<int64_t>(size));
  require_operand(op, source(src, 1, 8));
  require_operand(op, source(dst, 1, 8));
  enqueue(op, [=](Op& run) {
    for (uint64_t r = 0; r < repeat; ++r) {
      const Span from = local_span(run, src, r * 8 * size, 8 * size);
      require_written(run, from, 8 * size);
      touch(run, from, 8 * size, false);
      for (uint64_t j = 0; j < 8; ++j) {
        const Span to = local_span(run, dst, (r * p.dstRepStride + j * p.dstBlkStride) * 32, 32);
        touch(run, to, 32, true);
        for (uint64_t at = 0; at < 32; at += size) {
          std::memcpy(to.data() + at, from.data() + j * size, size);
        }
      }
    }
    count_repeats(run, dst.type, repeat);
  });
}

void gather(Site site, Local dst, Local src, Local offsets, uint32_t base, const Lanes& lanes,
            uint16_t dst_repeat_stride) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Gather", pipe_v);
  const uint64_t size = size_of(dst.type);
  require(op, size == 2 || size == 4, "elements of 2 or 4 bytes", static_cast<int64_t>(size));
  const Active lanes_on = resolve(op, lanes, size);
  const Operand to{dst, 1, dst_repeat_stride, true};
  const Operand index = source(offsets, 1, lanes_on.per_repeat * 4 / 32);
  for (const Operand* operand : {&to, &index})
    require_operand(op, *operand);
  require_operand(op, source(src, 1, 8));
  enqueue(op, [=](Op& run) {
    const Operand both[] = {index, to};
    for_pieces(lanes_on, both, [&](uint64_t repeat, uint64_t first, uint64_t n) {
      const Span from = local_span(run, offsets, place(index, repeat, first), n * 4);
      require_written(run, from, n * 4);
      touch(run, from, n * 4, false);
      const Span target = local_span(run, dst, place(to, repeat, first), n * size);
      touch(run, target, n * size, true);
      for (uint64_t i = 0; i < n; ++i) {
        uint32_t offset;
        std::memcpy(&offset, from.data() + i * 4, 4);
        require(run, offset % size == 0, "offsets of whole elements; bytes", offset);
        const Span one = local_span(run, src, uint64_t{base} + offset, size);
        require_written(run, one, size);
        touch(run, one, size, false);
        std::memcpy(target.data() + i * size, one.data(), size);
      }
    });
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

namespace {

// The vendor's fixed patterns: every second element, every fourth, all.
bool fixed_takes(uint8_t pattern, uint64_t i) {
  switch (pattern) {
    case 1:
      return i % 2 == 0;
    case 2:
      return i % 2 == 1;
    case 3:
    case 4:
    case 5:
    case 6:
      return i % 4 == pattern - 3u;
    default:
      return true;
  }
}

}  // namespace

void gather_mask(Site site, Local dst, Local src, const Local* pattern, uint8_t fixed_pattern,
                 bool counted, uint32_t mask, const AscendC::GatherMaskParams& p,
                 uint64_t& written) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "GatherMask", pipe_v);
  const uint64_t size = size_of(dst.type);
  require(op, size == 2 || size == 4, "elements of 2 or 4 bytes", static_cast<int64_t>(size));
  require(op, pattern != nullptr || (fixed_pattern >= 1 && fixed_pattern <= 7), "a pattern 1..7",
          fixed_pattern);
  const uint64_t full = 256 / size;
  const uint64_t n = counted ? mask : full;
  require(op, n >= 1, "a mask of at least 1 in counter mode", mask);
  require_operand(op, source(dst, 1, 8));
  require_operand(op, source(src, 1, 8));
  const bool has_pattern = pattern != nullptr;
  const Local table = has_pattern ? *pattern : Local();
  uint64_t* result = &written;
  enqueue(op, [=](Op& run) {
    const Operand from{src, p.src0BlockStride, p.src0RepeatStride};
    uint64_t taken = 0;
    for (uint64_t r = 0; r < p.repeatTimes; ++r) {
      for (uint64_t i = 0; i < n; ++i) {
        bool take = fixed_takes(fixed_pattern, i);
        if (has_pattern) {
          const Span bits = local_span(run, table, r * p.src1RepeatStride * 32 + i / 8, 1);
          require_written(run, bits, 1);
          touch(run, bits, 1, false);
          take = *bits.data() >> i % 8 & 1;
        }
        const Span one = local_span(run, src, place(from, r, i), size);
        require_written(run, one, size);
        touch(run, one, size, false);
        if (!take)
          continue;
        const Span to = local_span(run, dst, taken++ * size, size);
        touch(run, to, size, true);
        std::memcpy(to.data(), one.data(), size);
      }
    }
    *result = taken;
    count_repeats(run, dst.type, p.repeatTimes);
  });
  Core& core = here();
  block("GatherMask", site, 0, [&core] { return core.queue[pipe_v].empty(); });
}

void transpose_16x16(Site site, Local dst, Local src) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Transpose", pipe_v);
  require(op, size_of(dst.type) == 2, "elements of 2 bytes", size_of(dst.type));
  require_operand(op, source(dst, 1, 8));
  require_operand(op, source(src, 1, 8));
  enqueue(op, [=](Op& run) {
    const Span from = local_span(run, src, 0, 512);
    require_written(run, from, 512);
    touch(run, from, 512, false);
    const Span to = local_span(run, dst, 0, 512);
    touch(run, to, 512, true);
    uint16_t tile[256];
    std::memcpy(tile, from.data(), 512);
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 16; ++c)
        std::memcpy(to.data() + (r * 16 + c) * 2, &tile[c * 16 + r], 2);
    }
    count_repeats(run, dst.type, 2);
  });
}

}  // namespace engine
}  // namespace xyserve::emulation

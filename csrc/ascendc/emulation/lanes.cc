// Masks, counts and overlap of vector operations.
#include "lanes.h"

namespace xyserve::emulation {

Active resolve(const Op& op, const Lanes& lanes, uint64_t widest) {
  Active active;
  const Core& core = *op.core;
  active.per_repeat = widest == 1 ? 256 : 256 / widest;
  if (lanes.counted || (lanes.from_register && core.mask_counts)) {
    active.total = lanes.counted ? lanes.count : static_cast<int64_t>(core.mask[0]);
    require(op, active.total >= 0, "a count of at least 0", active.total);
    active.repeats =
        (static_cast<uint64_t>(active.total) + active.per_repeat - 1) / active.per_repeat;
    return active;
  }
  require(op, lanes.repeat >= 0 && lanes.repeat <= 255, "repeatTime 0..255", lanes.repeat);
  active.repeats = static_cast<uint64_t>(lanes.repeat);
  if (lanes.from_register) {
    active.bits[0] = core.mask[0];
    active.bits[1] = core.mask[1];
    if (active.per_repeat <= 64)
      active.bits[1] = 0;
  } else {
    const auto limit = static_cast<int64_t>(std::min<uint64_t>(active.per_repeat, 128));
    require(op, lanes.count < 0 || (lanes.count >= 1 && lanes.count <= limit),
            "a mask of 1 to the elements of a repeat", lanes.count);
    active.bits[0] = lanes.bits[0];
    active.bits[1] = lanes.bits[1];
  }
  require(op, (active.bits[0] | active.bits[1]) != 0, "a mask that is not zero", 0);
  require(op, active.per_repeat > 64 || active.bits[1] == 0,
          "no mask bits beyond the elements of a repeat; high word",
          static_cast<int64_t>(active.bits[1]));
  return active;
}

void require_operand(const Op& op, const Operand& operand, uint32_t alignment) {
  require(op, operand.tensor.buffer == Buffer::ub, "operands in UB; buffer",
          static_cast<int64_t>(operand.tensor.buffer));
  require(op, operand.tensor.address % alignment == 0,
          alignment == 32 ? "a UB address aligned to 32 bytes"
                          : "a UB address aligned to what the API needs",
          operand.tensor.address);
}

void require_overlap(const Op& op, const Active& active, const Operand& target,
                     const Operand& source) {
  const uint64_t to = target.tensor.address;
  const uint64_t from = source.tensor.address;
  const bool same =
      to == from && target.size() == source.size() && target.block_stride == source.block_stride;
  if (same || active.repeats == 0)
    return;
  const uint64_t last = active.repeats - 1;
  const uint64_t to_end = to + place(target, last, active.per_repeat - 1) + target.size();
  const uint64_t from_end = from + place(source, last, active.per_repeat - 1) + source.size();
  if (to >= from_end || from >= to_end)
    return;
  // Within a repeat only: what an earlier repeat wrote, a later one may read.
  for (uint64_t r = 0; r < active.repeats; ++r) {
    const uint64_t n = active.total < 0
                           ? active.per_repeat
                           : std::min(active.per_repeat,
                                      static_cast<uint64_t>(active.total) - r * active.per_repeat);
    const uint64_t target_blocks = (n * target.size() + 31) / 32;
    const uint64_t source_blocks = (n * source.size() + 31) / 32;
    for (uint64_t i = 0; i < target_blocks; ++i) {
      const uint64_t a = to + place(target, r, i * 32 / target.size());
      for (uint64_t j = 0; j < source_blocks; ++j) {
        const uint64_t b = from + place(source, r, j * 32 / source.size());
        if (a == b && i == j && target.size() == source.size())
          continue;
        require(op, a >= b + 32 || b >= a + 32,
                "source and target that overlap completely or not at all; target",
                static_cast<int64_t>(a));
      }
    }
  }
}

void count_repeats(Op& op, Type type, uint64_t repeats) {
  op.core->vector_repeats[{op.api, static_cast<uint8_t>(type)}] += repeats;
}

}  // namespace xyserve::emulation

// Walking the active elements of a vector operation as contiguous pieces.
#pragma once

#include <algorithm>

#include "internal.h"

namespace xyserve::emulation {

// One operand: strides in blocks of 32 bytes, between blocks of a repeat and between repeats.
struct Operand {
  Local tensor;
  uint64_t block_stride = 1;
  uint64_t repeat_stride = 8;
  bool written = false;  // a target

  uint64_t size() const { return size_of(tensor.type); }
};

// The active elements, resolved: either the first `total` ones over all repeats, or `bits` in each.
struct Active {
  int64_t total = -1;
  uint64_t bits[2] = {0, 0};
  uint64_t repeats = 0;
  uint64_t per_repeat = 0;  // elements of a full repeat

  bool on(uint64_t element) const { return bits[element / 64] >> (element % 64) & 1; }
  bool full(uint64_t repeat) const {
    if (total >= 0)
      return static_cast<uint64_t>(total) >= (repeat + 1) * per_repeat;
    if (per_repeat == 128)
      return (bits[0] & bits[1]) == ~uint64_t{0};
    return per_repeat == 64 ? bits[0] == ~uint64_t{0} : bits[0] == (uint64_t{1} << 32) - 1;
  }
};

// Checks mask, count and repeat against a widest element of `widest` bytes.
Active resolve(const Op& op, const Lanes& lanes, uint64_t widest);
void require_operand(const Op& op, const Operand& operand, uint32_t alignment = 32);
// Source and target of a repeat overlap element by element or not at all.
void require_overlap(const Op& op, const Active& active, const Operand& target,
                     const Operand& source);
void count_repeats(Op& op, Type type, uint64_t repeats);

inline uint64_t place(const Operand& operand, uint64_t repeat, uint64_t element) {
  const uint64_t per_block = 32 / operand.size();
  const uint64_t block =
      repeat * operand.repeat_stride + element / per_block * operand.block_stride;
  return block * 32 + element % per_block * operand.size();
}

// Whether the elements of all repeats follow each other in memory.
inline bool dense(const Operand& operand, uint64_t per_repeat) {
  return operand.block_stride == 1 && operand.repeat_stride * 32 == per_repeat * operand.size();
}

// Calls `visit(repeat, first element, elements)` for each run of active elements that is contiguous
// in every operand.
template <size_t N, typename Visit>
void for_pieces(const Active& active, const Operand (&operands)[N], Visit visit) {
  bool all_dense = true;
  bool blocks_dense = true;
  uint64_t widest = 1;
  for (const Operand& operand : operands) {
    all_dense &= dense(operand, active.per_repeat);
    blocks_dense &= operand.block_stride == 1;
    widest = std::max(widest, operand.size());
  }
  const uint64_t n = active.per_repeat;
  if (all_dense && active.total >= 0) {
    if (active.total > 0)
      visit(0, 0, static_cast<uint64_t>(active.total));
    return;
  }
  if (all_dense && active.full(0)) {
    if (active.repeats > 0)
      visit(0, 0, active.repeats * n);
    return;
  }
  const uint64_t chunk = 32 / widest;
  for (uint64_t r = 0; r < active.repeats; ++r) {
    if (active.total >= 0 || active.full(r)) {
      const uint64_t left = active.total >= 0 ? static_cast<uint64_t>(active.total) - r * n : n;
      const uint64_t here = std::min(n, left);
      const uint64_t step = blocks_dense ? here : chunk;
      for (uint64_t e = 0; e < here; e += step)
        visit(r, e, std::min(step, here - e));
      continue;
    }
    const uint64_t limit = blocks_dense ? n : chunk;
    for (uint64_t e = 0; e < n;) {
      if (!active.on(e)) {
        ++e;
        continue;
      }
      uint64_t end = e + 1;
      while (end < n && active.on(end) && end % limit != 0)
        ++end;
      visit(r, e, end - e);
      e = end;
    }
  }
}

// Elementwise over N operands, the last of which is the target: notes accesses, then calls
// `compute(pointers, elements)` for each piece.
template <size_t N, typename Compute>
void elementwise(Op& run, const Active& active, const Operand (&operands)[N], Compute compute) {
  for_pieces(active, operands, [&](uint64_t repeat, uint64_t first, uint64_t n) {
    uint8_t* data[N];
    Span target{};
    for (size_t i = 0; i < N; ++i) {
      const Operand& operand = operands[i];
      const uint64_t bytes = n * operand.size();
      const Span span = local_span(run, operand.tensor, place(operand, repeat, first), bytes);
      data[i] = span.data();
      if (operand.written) {
        target = span;
        continue;
      }
      require_written(run, span, bytes);
      touch(run, span, bytes, false);
    }
    touch(run, target, n * operands[N - 1].size(), true);
    compute(data, n);
  });
}

}  // namespace xyserve::emulation

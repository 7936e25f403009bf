// Compare and select.
#include "lanes.h"

namespace xyserve::emulation {

using AscendC::CMPMODE;
using AscendC::SELMODE;

namespace {

double value_of(Type type, const uint8_t* at) {
  uint16_t word;
  float single;
  int32_t whole;
  if (type == Type::f16) {
    std::memcpy(&word, at, 2);
    return half_to_float(word);
  }
  if (type == Type::f32) {
    std::memcpy(&single, at, 4);
    return single;
  }
  std::memcpy(&whole, at, 4);
  return whole;
}

bool holds(CMPMODE mode, double a, double b) {
  switch (mode) {
    case CMPMODE::LT:
      return a < b;
    case CMPMODE::GT:
      return a > b;
    case CMPMODE::EQ:
      return a == b;
    case CMPMODE::LE:
      return a <= b;
    case CMPMODE::GE:
      return a >= b;
    default:
      return a != b;
  }
}

void require_comparable(const Op& op, Type type, CMPMODE mode) {
  const bool legal =
      type == Type::f16 || type == Type::f32 || (type == Type::i32 && mode == CMPMODE::EQ);
  if (!legal) {
    fail(op, "half or float, or int32 with EQ; type", static_cast<int64_t>(type), name_of(type));
  }
}

void require_count(const Op& op, const Lanes& lanes, uint64_t size) {
  require(op, !lanes.counted || lanes.count * static_cast<int64_t>(size) % 256 == 0,
          "a count whose bytes are a multiple of 256; bytes",
          lanes.count * static_cast<int64_t>(size));
}

// Reads and notes the sources piece by piece: `visit(global element, data pointers, elements)`.
template <size_t N, typename Visit>
void read_pieces(Op& run, const Active& lanes, const Operand (&sources)[N], Visit visit) {
  for_pieces(lanes, sources, [&](uint64_t repeat, uint64_t first, uint64_t n) {
    const uint8_t* data[N];
    for (size_t i = 0; i < N; ++i) {
      const uint64_t bytes = n * sources[i].size();
      const Span span = local_span(run, sources[i].tensor, place(sources[i], repeat, first), bytes);
      require_written(run, span, bytes);
      touch(run, span, bytes, false);
      data[i] = span.data();
    }
    visit(repeat * lanes.per_repeat + first, data, n);
  });
}

uint64_t extent_of(const Active& lanes) {
  return lanes.total >= 0 ? static_cast<uint64_t>(lanes.total) : lanes.repeats * lanes.per_repeat;
}

// `b` null compares with `scalar`. Inactive elements give 0.
void run_compare(Op& run, const Local& dst, const Operand& a, const Operand* b, uint64_t scalar,
                 CMPMODE mode, const Active& lanes) {
  std::vector<uint8_t> bits((extent_of(lanes) + 7) / 8, 0);
  const Type type = a.tensor.type;
  const uint64_t size = a.size();
  const double fixed = b == nullptr ? value_of(type, reinterpret_cast<uint8_t*>(&scalar)) : 0;
  const auto mark = [&](uint64_t element, const uint8_t* x, const uint8_t* y, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      const double other = y == nullptr ? fixed : value_of(type, y + i * size);
      if (holds(mode, value_of(type, x + i * size), other)) {
        bits[(element + i) / 8] |= static_cast<uint8_t>(1u << (element + i) % 8);
      }
    }
  };
  if (b == nullptr) {
    const Operand one[] = {a};
    read_pieces(run, lanes, one, [&](uint64_t element, const uint8_t** data, uint64_t n) {
      mark(element, data[0], nullptr, n);
    });
  } else {
    const Operand two[] = {a, *b};
    read_pieces(run, lanes, two, [&](uint64_t element, const uint8_t** data, uint64_t n) {
      mark(element, data[0], data[1], n);
    });
  }
  const Span to = local_span(run, dst, 0, bits.size());
  touch(run, to, bits.size(), true);
  std::memcpy(to.data(), bits.data(), bits.size());
  count_repeats(run, type, lanes.repeats);
}

Operand source(const Local& tensor, uint64_t block_stride, uint64_t repeat_stride) {
  return {tensor, block_stride, repeat_stride};
}

void issue_select(Site site, const Local& dst, const Local& mask, const Local& a, const Local* b,
                  uint64_t scalar, SELMODE mode, const Lanes& lanes,
                  const AscendC::BinaryRepeatParams& p) {
  const Op op = issuing(site, "Select", pipe_v);
  const uint64_t size = size_of(dst.type);
  require(op, active->options->reserved_ub, "the compiler's 8 KB of UB, which Select uses", 0);
  require(op, (dst.type == Type::f16 || dst.type == Type::f32) && a.type == dst.type,
          "half or float; type", static_cast<int64_t>(dst.type));
  require(op, (mode == SELMODE::VSEL_TENSOR_SCALAR_MODE) == (b == nullptr),
          "VSEL_TENSOR_SCALAR_MODE with a scalar, another mode with two tensors; mode",
          static_cast<int64_t>(mode));
  const Active lanes_on = resolve(op, lanes, size);
  const Operand first = source(a, p.src0BlkStride, p.src0RepStride);
  const Operand second = b == nullptr ? first : source(*b, p.src1BlkStride, p.src1RepStride);
  const Operand to{dst, p.dstBlkStride, p.dstRepStride, true};
  const Operand selector = source(mask, 1, 8);
  for (const Operand* operand : {&first, &second, &to, &selector})
    require_operand(op, *operand);
  require_overlap(op, lanes_on, to, first);
  require_overlap(op, lanes_on, to, second);
  const bool has_second = b != nullptr;
  enqueue(op, [=](Op& run) {
    const bool repeated = mode == SELMODE::VSEL_CMPMASK_SPR;
    const uint64_t bits = repeated ? lanes_on.per_repeat : extent_of(lanes_on);
    const Span chosen = local_span(run, mask, 0, (bits + 7) / 8);
    require_written(run, chosen, (bits + 7) / 8);
    touch(run, chosen, (bits + 7) / 8, false);
    const std::vector<uint8_t> copy(chosen.data(), chosen.data() + (bits + 7) / 8);
    const Operand all[] = {first, second, to};
    for_pieces(lanes_on, all, [&](uint64_t repeat, uint64_t start, uint64_t n) {
      uint8_t* data[3];
      for (int i = 0; i < 3; ++i) {
        const Span span = local_span(run, all[i].tensor, place(all[i], repeat, start), n * size);
        data[i] = span.data();
        if (!all[i].written)
          require_written(run, span, n * size);
        touch(run, span, n * size, all[i].written);
      }
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t element = repeat * lanes_on.per_repeat + start + i;
        const uint64_t bit = repeated ? element % lanes_on.per_repeat : element;
        const bool take_first = copy[bit / 8] >> bit % 8 & 1;
        const uint8_t* other =
            has_second ? data[1] + i * size : reinterpret_cast<const uint8_t*>(&scalar);
        std::memmove(data[2] + i * size, take_first ? data[0] + i * size : other, size);
      }
    });
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

}  // namespace

namespace engine {

void compare(Site site, Local dst, Local a, Local b, CMPMODE mode, const Lanes& lanes,
             const AscendC::BinaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Compare", pipe_v);
  require_comparable(op, a.type, mode);
  require_count(op, lanes, size_of(a.type));
  const Active lanes_on = resolve(op, lanes, size_of(a.type));
  const Operand first = source(a, p.src0BlkStride, p.src0RepStride);
  const Operand second = source(b, p.src1BlkStride, p.src1RepStride);
  for (const Operand* operand : {&first, &second})
    require_operand(op, *operand);
  require_operand(op, source(dst, 1, 8));
  enqueue(op, [=](Op& run) { run_compare(run, dst, first, &second, 0, mode, lanes_on); });
}

void compare_scalar(Site site, Local dst, Local a, uint64_t scalar, CMPMODE mode,
                    const Lanes& lanes, const AscendC::UnaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "CompareScalar", pipe_v);
  require_comparable(op, a.type, mode);
  require_count(op, lanes, size_of(a.type));
  const Active lanes_on = resolve(op, lanes, size_of(a.type));
  const Operand first = source(a, p.srcBlkStride, p.srcRepStride);
  require_operand(op, first);
  require_operand(op, source(dst, 1, 8));
  enqueue(op, [=](Op& run) { run_compare(run, dst, first, nullptr, scalar, mode, lanes_on); });
}

void compare_to_register(Site site, Local a, Local b, CMPMODE mode, const Lanes& lanes,
                         const AscendC::BinaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Compare", pipe_v);
  require_comparable(op, a.type, mode);
  const Active lanes_on = resolve(op, lanes, size_of(a.type));
  const Operand first = source(a, p.src0BlkStride, p.src0RepStride);
  const Operand second = source(b, p.src1BlkStride, p.src1RepStride);
  for (const Operand* operand : {&first, &second})
    require_operand(op, *operand);
  enqueue(op, [=](Op& run) {
    const Operand two[] = {first, second};
    uint64_t bits[2] = {0, 0};
    const uint64_t size = first.size();
    read_pieces(run, lanes_on, two, [&](uint64_t element, const uint8_t** data, uint64_t n) {
      for (uint64_t i = 0; i < n; ++i) {
        if (holds(mode, value_of(a.type, data[0] + i * size),
                  value_of(a.type, data[1] + i * size))) {
          bits[(element + i) / 64] |= uint64_t{1} << (element + i) % 64;
        }
      }
    });
    run.core->compare_mask[0] = bits[0];
    run.core->compare_mask[1] = bits[1];
    count_repeats(run, a.type, 1);
  });
}

void get_cmp_mask(Site site, Local dst) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "GetCmpMask", pipe_v);
  require_operand(op, source(dst, 1, 8));
  enqueue(op, [=](Op& run) {
    const Span to = local_span(run, dst, 0, 16);
    touch(run, to, 16, true);
    std::memcpy(to.data(), run.core->compare_mask, 16);
  });
}

void set_cmp_mask(Site site, Local src) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "SetCmpMask", pipe_v);
  require_operand(op, source(src, 1, 8));
  enqueue(op, [=](Op& run) {
    const Span from = local_span(run, src, 0, 16);
    require_written(run, from, 16);
    touch(run, from, 16, false);
    std::memcpy(run.core->compare_mask, from.data(), 16);
  });
}

void select(Site site, Local dst, Local mask, Local a, Local b, SELMODE mode, const Lanes& lanes,
            const AscendC::BinaryRepeatParams& p) {
  if (active->stopping)
    return;
  issue_select(site, dst, mask, a, &b, 0, mode, lanes, p);
}

void select_scalar(Site site, Local dst, Local mask, Local a, uint64_t b, SELMODE mode,
                   const Lanes& lanes, const AscendC::BinaryRepeatParams& p) {
  if (active->stopping)
    return;
  issue_select(site, dst, mask, a, nullptr, b, mode, lanes, p);
}

}  // namespace engine
}  // namespace xyserve::emulation

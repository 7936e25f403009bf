// Elementwise vector operations.
#include "lanes.h"
#include "vector_math.h"

namespace xyserve::emulation {

namespace {

void require_type(const Op& op, bool legal, Type type) {
  if (!legal)
    fail(op, "a type that the API supports; type", static_cast<int64_t>(type), name_of(type));
}

Operand target_of(const Local& tensor, uint64_t block_stride, uint64_t repeat_stride) {
  return {tensor, block_stride, repeat_stride, true};
}

// Counted forms are dense whatever the types' sizes.
void make_dense(Operand& operand, const Active& active) {
  operand.block_stride = 1;
  operand.repeat_stride = active.per_repeat * operand.size() / 32;
}

}  // namespace

namespace engine {

void set_vector_mask(Site site, uint64_t high, uint64_t low) {
  if (active->stopping)
    return;
  issuing(site, "SetVectorMask", pipe_v);
  here().mask[0] = low;
  here().mask[1] = high;
}

void set_mask_mode(Site site, bool counter) {
  if (active->stopping)
    return;
  issuing(site, counter ? "SetMaskCount" : "SetMaskNorm", pipe_v);
  here().mask_counts = counter;
}

void unary(Site site, const char* api, Unary what, Local dst, Local src, const Lanes& lanes,
           const AscendC::UnaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_v);
  const Type type = dst.type;
  const bool legal = what == Unary::bit_not ? type == Type::i16 || type == Type::u16
                     : what == Unary::relu  ? is_float(type) || type == Type::i32
                                            : is_float(type);
  require_type(op, legal && src.type == type, type);
  const Active lanes_on = resolve(op, lanes, size_of(type));
  const Operand operands[] = {{src, p.srcBlkStride, p.srcRepStride},
                              target_of(dst, p.dstBlkStride, p.dstRepStride)};
  for (const Operand& operand : operands)
    require_operand(op, operand);
  require_overlap(op, lanes_on, operands[1], operands[0]);
  const Operand from = operands[0];
  const Operand to = operands[1];
  enqueue(op, [=](Op& run) {
    const Operand both[] = {from, to};
    elementwise(run, lanes_on, both,
                [&](uint8_t** data, uint64_t n) { run_unary(what, type, data[1], data[0], n); });
    count_repeats(run, type, lanes_on.repeats);
  });
}

void binary(Site site, const char* api, Binary what, Local dst, Local a, Local b,
            const Lanes& lanes, const AscendC::BinaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_v);
  require_type(op, a.type == b.type && binary_types(what, dst.type, a.type), a.type);
  const Active lanes_on = resolve(op, lanes, size_of(dst.type));
  Operand first{a, p.src0BlkStride, p.src0RepStride};
  Operand second{b, p.src1BlkStride, p.src1RepStride};
  Operand to = target_of(dst, p.dstBlkStride, p.dstRepStride);
  if (lanes.counted) {
    for (Operand* operand : {&first, &second, &to})
      make_dense(*operand, lanes_on);
  }
  for (const Operand* operand : {&first, &second, &to})
    require_operand(op, *operand);
  require_overlap(op, lanes_on, to, first);
  require_overlap(op, lanes_on, to, second);
  const bool reads_target = what == Binary::mul_add_dst || what == Binary::fused_mul_add;
  enqueue(op, [=](Op& run) {
    Operand old = to;
    old.written = false;
    const auto compute = [&](uint8_t* d, const uint8_t* x, const uint8_t* y, uint64_t n) {
      run_binary(what, dst.type, a.type, d, x, y, n);
    };
    if (reads_target) {
      const Operand all[] = {first, second, old, to};
      elementwise(run, lanes_on, all,
                  [&](uint8_t** data, uint64_t n) { compute(data[3], data[0], data[1], n); });
    } else {
      const Operand all[] = {first, second, to};
      elementwise(run, lanes_on, all,
                  [&](uint8_t** data, uint64_t n) { compute(data[2], data[0], data[1], n); });
    }
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

void with_scalar(Site site, const char* api, WithScalar what, Local dst, Local src, uint64_t scalar,
                 const Lanes& lanes, const AscendC::UnaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_v);
  require_type(op, scalar_types(what, dst.type, src.type), src.type);
  const Active lanes_on = resolve(op, lanes, size_of(dst.type));
  Operand from{src, p.srcBlkStride, p.srcRepStride};
  Operand to = target_of(dst, p.dstBlkStride, p.dstRepStride);
  if (lanes.counted) {
    for (Operand* operand : {&from, &to})
      make_dense(*operand, lanes_on);
  }
  for (const Operand* operand : {&from, &to})
    require_operand(op, *operand);
  require_overlap(op, lanes_on, to, from);
  enqueue(op, [=](Op& run) {
    Operand old = to;
    old.written = false;
    if (what == WithScalar::axpy) {
      const Operand all[] = {from, old, to};
      elementwise(run, lanes_on, all, [&](uint8_t** data, uint64_t n) {
        run_scalar(what, dst.type, src.type, data[2], data[0], scalar, n);
      });
    } else {
      const Operand all[] = {from, to};
      elementwise(run, lanes_on, all, [&](uint8_t** data, uint64_t n) {
        run_scalar(what, dst.type, src.type, data[1], data[0], scalar, n);
      });
    }
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

void copy(Site site, Local dst, Local src, const Lanes& lanes, const AscendC::CopyRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Copy", pipe_v);
  const uint32_t size = size_of(dst.type);
  require_type(op, dst.type == src.type && (size == 2 || size == 4), dst.type);
  const Active lanes_on = resolve(op, lanes, size);
  const Operand from{src, p.srcStride, p.srcRepeatSize};
  const Operand to = target_of(dst, p.dstStride, p.dstRepeatSize);
  for (const Operand* operand : {&from, &to})
    require_operand(op, *operand);
  require_overlap(op, lanes_on, to, from);
  enqueue(op, [=](Op& run) {
    const Operand all[] = {from, to};
    elementwise(run, lanes_on, all,
                [&](uint8_t** data, uint64_t n) { std::memmove(data[1], data[0], n * size); });
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

void duplicate(Site site, Local dst, uint64_t value, const Lanes& lanes, uint16_t block_stride,
               uint8_t repeat_stride) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Duplicate", pipe_v);
  const uint32_t size = size_of(dst.type);
  require_type(op, size == 2 || size == 4, dst.type);
  const Active lanes_on = resolve(op, lanes, size);
  const Operand to = target_of(dst, block_stride, repeat_stride);
  require_operand(op, to);
  enqueue(op, [=](Op& run) {
    const Operand all[] = {to};
    elementwise(run, lanes_on, all, [&](uint8_t** data, uint64_t n) {
      if (size == 4) {
        std::fill_n(reinterpret_cast<uint32_t*>(data[0]), n, static_cast<uint32_t>(value));
      } else {
        std::fill_n(reinterpret_cast<uint16_t*>(data[0]), n, static_cast<uint16_t>(value));
      }
    });
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

void create_vec_index(Site site, Local dst, uint64_t first, const Lanes& lanes,
                      uint16_t block_stride, uint8_t repeat_stride) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "CreateVecIndex", pipe_v);
  require_type(op, is_arithmetic(dst.type), dst.type);
  const Active lanes_on = resolve(op, lanes, size_of(dst.type));
  const Operand to = target_of(dst, block_stride, repeat_stride);
  require_operand(op, to);
  enqueue(op, [=](Op& run) {
    const Operand all[] = {to};
    for_pieces(lanes_on, all, [&](uint64_t repeat, uint64_t element, uint64_t n) {
      const uint64_t size = to.size();
      const Span span = local_span(run, dst, place(to, repeat, element), n * size);
      touch(run, span, n * size, true);
      for (uint64_t i = 0; i < n; ++i) {
        const auto index = static_cast<int64_t>(repeat * lanes_on.per_repeat + element + i);
        uint64_t bits = 0;
        if (dst.type == Type::f32)
          bits = bits_of(from_bits<float>(first) + static_cast<float>(index));
        if (dst.type == Type::f16) {
          bits = float_to_half(half_to_float(static_cast<uint16_t>(first)) +
                               static_cast<float>(index));
        }
        if (!is_float(dst.type))
          bits = first + static_cast<uint64_t>(index);
        std::memcpy(span.data() + i * size, &bits, size);
      }
    });
    count_repeats(run, dst.type, lanes_on.repeats);
  });
}

}  // namespace engine
}  // namespace xyserve::emulation

// Reductions of a repeat, of a block, of pairs, and of a whole tensor.
#include "lanes.h"

namespace xyserve::emulation {

using AscendC::ReduceOrder;

namespace {

struct Value {
  float value;
  uint32_t index;
};

float read(Type type, const uint8_t* at) {
  uint16_t word;
  float single;
  if (type == Type::f16) {
    std::memcpy(&word, at, 2);
    return half_to_float(word);
  }
  std::memcpy(&single, at, 4);
  return single;
}

void put(Type type, float value, uint8_t* at) {
  if (type == Type::f16) {
    const uint16_t word = float_to_half(value);
    std::memcpy(at, &word, 2);
  } else {
    std::memcpy(at, &value, 4);
  }
}

float rounded(Type type, float value) {
  return type == Type::f16 ? half_to_float(float_to_half(value)) : value;
}

// Sums as a tree of neighbours, as the hardware does; the first of equal extremes wins; NaN wins.
Value reduce_values(Reduce what, Type type, std::vector<Value>& values) {
  if (what == Reduce::sum) {
    for (size_t n = values.size(); n > 1; n = (n + 1) / 2) {
      for (size_t i = 0; i < n / 2; ++i) {
        values[i].value = rounded(type, values[2 * i].value + values[2 * i + 1].value);
      }
      if (n % 2 == 1)
        values[n / 2] = values[n - 1];
    }
    return values[0];
  }
  Value best = values[0];
  for (const Value& each : values) {
    const bool better = what == Reduce::max ? each.value > best.value : each.value < best.value;
    if (best.value == best.value && (better || each.value != each.value))
      best = each;
  }
  return best;
}

// The active elements of one repeat from `first` to `end`, in order.
void gather_repeat(Op& run, const Active& lanes, const Operand& source, uint64_t repeat,
                   uint64_t first, uint64_t end, std::vector<Value>& values) {
  values.clear();
  const uint64_t size = source.size();
  const uint64_t limit = source.block_stride == 1 ? lanes.per_repeat : 32 / size;
  const auto on = [&](uint64_t at) {
    if (lanes.total < 0)
      return lanes.on(at);
    return repeat * lanes.per_repeat + at < static_cast<uint64_t>(lanes.total);
  };
  for (uint64_t e = first; e < end;) {
    if (!on(e)) {
      ++e;
      continue;
    }
    uint64_t stop = e + 1;
    while (stop < end && stop % limit != 0 && on(stop))
      ++stop;
    const uint64_t bytes = (stop - e) * size;
    const Span from = local_span(run, source.tensor, place(source, repeat, e), bytes);
    require_written(run, from, bytes);
    touch(run, from, bytes, false);
    for (uint64_t i = 0; e < stop; ++e, ++i) {
      values.push_back(
          {read(source.tensor.type, from.data() + i * size), static_cast<uint32_t>(e)});
    }
  }
}

void put_at(Op& run, const Local& dst, uint64_t offset, float value) {
  const uint64_t size = size_of(dst.type);
  const Span to = local_span(run, dst, offset, size);
  touch(run, to, size, true);
  put(dst.type, value, to.data());
}

// An index has the element's size: uint16 for half, uint32 for float.
void put_index(Op& run, const Local& dst, uint64_t offset, uint32_t index) {
  const uint64_t size = size_of(dst.type);
  const Span to = local_span(run, dst, offset, size);
  touch(run, to, size, true);
  std::memcpy(to.data(), &index, size);
}

void require_float(const Op& op, const Local& dst, const Local& src) {
  require(op, (dst.type == Type::f16 || dst.type == Type::f32) && dst.type == src.type,
          "half or float; type", static_cast<int64_t>(src.type));
}

Operand source_of(const Op& op, const Local& src, int32_t block_stride, int32_t repeat_stride) {
  require(op, block_stride >= 0 && block_stride <= 65535, "srcBlkStride 0..65535", block_stride);
  require(op, repeat_stride >= 0 && repeat_stride <= 65535, "srcRepStride 0..65535", repeat_stride);
  const Operand source{src, static_cast<uint64_t>(block_stride),
                       static_cast<uint64_t>(repeat_stride)};
  require_operand(op, source);
  return source;
}

// What the vendor's whole-tensor reductions need in `sharedTmpBuffer`, in elements.
uint64_t scratch_elements(Reduce what, uint64_t repeats, uint64_t per_repeat, uint64_t per_block,
                          bool index) {
  const auto up = [](uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; };
  if (what == Reduce::sum)
    return up(repeats, per_block);
  uint64_t produced = repeats * 2;
  uint64_t need = up(produced, per_block);
  while (index && produced > 2) {
    const uint64_t next = (produced + per_repeat - 1) / per_repeat;
    produced = next * 2;
    need += up(produced, per_block);
    if (next == 1)
      break;
  }
  return need;
}

}  // namespace

namespace engine {

void whole_reduce(Site site, const char* api, Reduce what, Local dst, Local src, const Lanes& lanes,
                  int32_t dst_repeat_stride, int32_t src_block_stride, int32_t src_repeat_stride,
                  ReduceOrder order) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_v);
  require_float(op, dst, src);
  const uint64_t size = size_of(src.type);
  const Active lanes_on = resolve(op, lanes, size);
  const Operand source = source_of(op, src, src_block_stride, src_repeat_stride);
  const bool paired = order != ReduceOrder::ORDER_ONLY_VALUE;
  require_operand(op, {dst, 1, 1, true}, static_cast<uint32_t>(paired ? 2 * size : size));
  require(op, order != ReduceOrder::ORDER_ONLY_INDEX, "an order with the value",
          static_cast<int64_t>(order));
  require(op, dst_repeat_stride >= 0 && dst_repeat_stride <= 65535, "dstRepStride 0..65535",
          dst_repeat_stride);
  enqueue(op, [=](Op& run) {
    const uint64_t step = static_cast<uint64_t>(dst_repeat_stride) * size * (paired ? 2 : 1);
    std::vector<Value> values;
    for (uint64_t r = 0; r < lanes_on.repeats; ++r) {
      gather_repeat(run, lanes_on, source, r, 0, lanes_on.per_repeat, values);
      const Value best = reduce_values(what, src.type, values);
      const bool value_first = order != ReduceOrder::ORDER_INDEX_VALUE;
      put_at(run, dst, r * step + (value_first ? 0 : size), best.value);
      if (paired)
        put_index(run, dst, r * step + (value_first ? size : 0), best.index);
    }
    count_repeats(run, src.type, lanes_on.repeats);
  });
}

void block_reduce(Site site, const char* api, Reduce what, Local dst, Local src, const Lanes& lanes,
                  int32_t dst_repeat_stride, int32_t src_block_stride, int32_t src_repeat_stride) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_v);
  require_float(op, dst, src);
  const uint64_t size = size_of(src.type);
  const Active lanes_on = resolve(op, lanes, size);
  const Operand source = source_of(op, src, src_block_stride, src_repeat_stride);
  require_operand(op, {dst, 1, 1, true}, static_cast<uint32_t>(8 * size));
  require(op, dst_repeat_stride >= 0 && dst_repeat_stride <= 65535, "dstRepStride 0..65535",
          dst_repeat_stride);
  enqueue(op, [=](Op& run) {
    const uint64_t per_block = 32 / size;
    std::vector<Value> values;
    for (uint64_t r = 0; r < lanes_on.repeats; ++r) {
      for (uint64_t block = 0; block < 8; ++block) {
        gather_repeat(run, lanes_on, source, r, block * per_block, (block + 1) * per_block, values);
        if (values.empty())
          continue;
        const Value best = reduce_values(what, src.type, values);
        put_at(run, dst, (r * static_cast<uint64_t>(dst_repeat_stride) * 8 + block) * size,
               best.value);
      }
    }
    count_repeats(run, src.type, lanes_on.repeats);
  });
}

void pair_reduce_sum(Site site, Local dst, Local src, const Lanes& lanes, int32_t dst_repeat_stride,
                     int32_t src_block_stride, int32_t src_repeat_stride) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "PairReduceSum", pipe_v);
  require_float(op, dst, src);
  const uint64_t size = size_of(src.type);
  const Active lanes_on = resolve(op, lanes, size);
  const Operand source = source_of(op, src, src_block_stride, src_repeat_stride);
  require_operand(op, {dst, 1, 1, true});
  enqueue(op, [=](Op& run) {
    std::vector<Value> values;
    for (uint64_t r = 0; r < lanes_on.repeats; ++r) {
      for (uint64_t e = 0; e < lanes_on.per_repeat; e += 2) {
        gather_repeat(run, lanes_on, source, r, e, e + 2, values);
        if (values.empty())
          continue;
        const uint64_t at = r * static_cast<uint64_t>(dst_repeat_stride) * 128 + e / 2 * size;
        put_at(run, dst, at, reduce_values(Reduce::sum, src.type, values).value);
      }
    }
    count_repeats(run, src.type, lanes_on.repeats);
  });
}

void reduce(Site site, const char* api, Reduce what, Local dst, Local src, Local scratch,
            const Lanes& lanes, int32_t src_repeat_stride, bool index) {
  if (active->stopping)
    return;
  const Op op = issuing(site, api, pipe_v);
  require_float(op, dst, src);
  const uint64_t size = size_of(src.type);
  const Active lanes_on = resolve(op, lanes, size);
  const Operand source = source_of(op, src, 1, src_repeat_stride);
  require_operand(op, {dst, 1, 1, true}, static_cast<uint32_t>(size));
  require_operand(op, {scratch, 1, 1, true});
  require(op,
          what == Reduce::sum || src.type != Type::f16 ||
              lanes_on.repeats * lanes_on.per_repeat <= 65536 || !index,
          "at most 65536 half elements with an index",
          static_cast<int64_t>(lanes_on.repeats * lanes_on.per_repeat));
  const uint64_t need =
      scratch_elements(what, lanes_on.repeats, lanes_on.per_repeat, 32 / size, index) * size;
  require(op, scratch.bytes >= need, "a sharedTmpBuffer of the size that the vendor states; bytes",
          scratch.bytes);
  enqueue(op, [=](Op& run) {
    if (lanes_on.repeats == 0)
      return;
    std::vector<Value> all;
    std::vector<Value> values;
    for (uint64_t r = 0; r < lanes_on.repeats; ++r) {
      gather_repeat(run, lanes_on, source, r, 0, lanes_on.per_repeat, values);
      Value best = reduce_values(what, src.type, values);
      best.index += static_cast<uint32_t>(r * lanes_on.per_repeat);
      all.push_back(best);
    }
    touch(run, local_span(run, scratch, 0, need), need, true);
    const Value best = reduce_values(what, src.type, all);
    put_at(run, dst, 0, best.value);
    if (index)
      put_index(run, dst, size, best.index);
    count_repeats(run, src.type, lanes_on.repeats + (lanes_on.repeats > 1 ? 1 : 0));
  });
}

}  // namespace engine
}  // namespace xyserve::emulation

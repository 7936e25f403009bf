// Elementwise vector operations.
#include <cmath>

#include "lanes.h"

namespace xyserve::emulation {

namespace {

float load(const half* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return half_to_float(bits);
}
float load(const float* at) {
  return *at;
}
void put(half* at, float value) {
  const uint16_t bits = float_to_half(value);
  std::memcpy(at, &bits, 2);
}
void put(float* at, float value) {
  *at = value;
}

// NaN wins, so that a comparison with one cannot hide it.
float larger(float a, float b) {
  return a > b || a != a ? a : b;
}
float smaller(float a, float b) {
  return a < b || a != a ? a : b;
}

template <typename T, typename F>
void map1(T* d, const T* a, uint64_t n, F f) {
  for (uint64_t i = 0; i < n; ++i)
    put(d + i, f(load(a + i)));
}
template <typename D, typename T, typename F>
void map2(D* d, const T* a, const T* b, uint64_t n, F f) {
  for (uint64_t i = 0; i < n; ++i)
    put(d + i, f(load(a + i), load(b + i)));
}
template <typename T, typename F>
void whole1(T* d, const T* a, uint64_t n, F f) {
  for (uint64_t i = 0; i < n; ++i)
    d[i] = static_cast<T>(f(a[i]));
}
template <typename T, typename F>
void whole2(T* d, const T* a, const T* b, uint64_t n, F f) {
  for (uint64_t i = 0; i < n; ++i)
    d[i] = static_cast<T>(f(a[i], b[i]));
}

bool is_float(Type type) {
  return type == Type::f16 || type == Type::f32;
}
bool is_arithmetic(Type type) {
  return is_float(type) || type == Type::i16 || type == Type::i32;
}

void require_type(const Op& op, bool legal, Type type) {
  if (!legal)
    fail(op, "a type that the API supports; type", static_cast<int64_t>(type), name_of(type));
}

// --- unary

template <typename T>
void float_unary(Unary what, T* d, const T* a, uint64_t n) {
  switch (what) {
    case Unary::exp:
      return map1(d, a, n, [](float x) { return std::exp(x); });
    case Unary::ln:
      return map1(d, a, n, [](float x) { return std::log(x); });
    case Unary::abs:
      return map1(d, a, n, [](float x) { return std::fabs(x); });
    case Unary::sqrt:
      return map1(d, a, n, [](float x) { return std::sqrt(x); });
    case Unary::rsqrt:
      return map1(d, a, n, [](float x) { return 1.0f / std::sqrt(x); });
    case Unary::reciprocal:
      return map1(d, a, n, [](float x) { return 1.0f / x; });
    default:
      return map1(d, a, n, [](float x) { return larger(x, 0.0f); });
  }
}

void run_unary(Unary what, Type type, uint8_t* d, const uint8_t* a, uint64_t n) {
  if (what == Unary::bit_not) {
    return whole1(reinterpret_cast<uint16_t*>(d), reinterpret_cast<const uint16_t*>(a), n,
                  [](uint16_t x) { return ~x; });
  }
  if (type == Type::i32) {
    return whole1(reinterpret_cast<int32_t*>(d), reinterpret_cast<const int32_t*>(a), n,
                  [](int32_t x) { return std::max(x, 0); });
  }
  if (type == Type::f16) {
    return float_unary(what, reinterpret_cast<half*>(d), reinterpret_cast<const half*>(a), n);
  }
  float_unary(what, reinterpret_cast<float*>(d), reinterpret_cast<const float*>(a), n);
}

// --- binary

template <typename D, typename T>
void float_binary(Binary what, D* d, const T* a, const T* b, uint64_t n) {
  switch (what) {
    case Binary::add:
      return map2(d, a, b, n, [](float x, float y) { return x + y; });
    case Binary::sub:
      return map2(d, a, b, n, [](float x, float y) { return x - y; });
    case Binary::mul:
      return map2(d, a, b, n, [](float x, float y) { return x * y; });
    case Binary::div:
      return map2(d, a, b, n, [](float x, float y) { return x / y; });
    case Binary::max:
      return map2(d, a, b, n, larger);
    case Binary::min:
      return map2(d, a, b, n, smaller);
    case Binary::add_relu:
      return map2(d, a, b, n, [](float x, float y) { return larger(x + y, 0.0f); });
    case Binary::sub_relu:
      return map2(d, a, b, n, [](float x, float y) { return larger(x - y, 0.0f); });
    case Binary::fused_mul_add:
      for (uint64_t i = 0; i < n; ++i)
        put(d + i, load(a + i) * load(d + i) + load(b + i));
      return;
    default:
      for (uint64_t i = 0; i < n; ++i)
        put(d + i, load(d + i) + load(a + i) * load(b + i));
  }
}

// Integers wrap.
template <typename T>
void whole_binary(Binary what, T* d, const T* a, const T* b, uint64_t n) {
  using U = std::make_unsigned_t<T>;
  switch (what) {
    case Binary::add:
      return whole2(d, a, b, n, [](T x, T y) { return static_cast<U>(x) + static_cast<U>(y); });
    case Binary::sub:
      return whole2(d, a, b, n, [](T x, T y) { return static_cast<U>(x) - static_cast<U>(y); });
    case Binary::mul:
      return whole2(d, a, b, n,
                    [](T x, T y) { return static_cast<uint32_t>(x) * static_cast<uint32_t>(y); });
    case Binary::max:
      return whole2(d, a, b, n, [](T x, T y) { return std::max(x, y); });
    case Binary::min:
      return whole2(d, a, b, n, [](T x, T y) { return std::min(x, y); });
    case Binary::bit_and:
      return whole2(d, a, b, n, [](T x, T y) { return x & y; });
    case Binary::bit_or:
      return whole2(d, a, b, n, [](T x, T y) { return x | y; });
    case Binary::add_relu:
      return whole2(d, a, b, n, [](T x, T y) { return std::max<int32_t>(x + y, 0); });
    default:
      return whole2(d, a, b, n, [](T x, T y) { return std::max<int32_t>(x - y, 0); });
  }
}

bool binary_types(Binary what, Type to, Type from) {
  switch (what) {
    case Binary::div:
    case Binary::fused_mul_add:
      return to == from && is_float(to);
    case Binary::mul_add_dst:
      return is_float(to) && (to == from || (to == Type::f32 && from == Type::f16));
    case Binary::bit_and:
    case Binary::bit_or:
      return to == from && (to == Type::i16 || to == Type::u16);
    case Binary::add_relu:
    case Binary::sub_relu:
      return to == from && (is_float(to) || to == Type::i16);
    default:
      return to == from && is_arithmetic(to);
  }
}

void run_binary(Binary what, Type to, Type from, uint8_t* d, const uint8_t* a, const uint8_t* b,
                uint64_t n) {
  if (to == Type::i32) {
    return whole_binary(what, reinterpret_cast<int32_t*>(d), reinterpret_cast<const int32_t*>(a),
                        reinterpret_cast<const int32_t*>(b), n);
  }
  if (to == Type::i16 || to == Type::u16) {
    return whole_binary(what, reinterpret_cast<int16_t*>(d), reinterpret_cast<const int16_t*>(a),
                        reinterpret_cast<const int16_t*>(b), n);
  }
  if (to == Type::f16) {
    return float_binary(what, reinterpret_cast<half*>(d), reinterpret_cast<const half*>(a),
                        reinterpret_cast<const half*>(b), n);
  }
  if (from == Type::f16) {
    return float_binary(what, reinterpret_cast<float*>(d), reinterpret_cast<const half*>(a),
                        reinterpret_cast<const half*>(b), n);
  }
  float_binary(what, reinterpret_cast<float*>(d), reinterpret_cast<const float*>(a),
               reinterpret_cast<const float*>(b), n);
}

// --- with a scalar

template <typename D, typename T>
void float_scalar(WithScalar what, D* d, const T* a, float s, uint64_t n) {
  switch (what) {
    case WithScalar::adds:
      return map2(d, a, a, n, [s](float x, float) { return x + s; });
    case WithScalar::muls:
      return map2(d, a, a, n, [s](float x, float) { return x * s; });
    case WithScalar::maxs:
      return map2(d, a, a, n, [s](float x, float) { return larger(x, s); });
    case WithScalar::mins:
      return map2(d, a, a, n, [s](float x, float) { return smaller(x, s); });
    case WithScalar::leaky_relu:
      return map2(d, a, a, n, [s](float x, float) { return x >= 0 ? x : x * s; });
    default:
      for (uint64_t i = 0; i < n; ++i)
        put(d + i, load(d + i) + load(a + i) * s);
  }
}

template <typename T>
void whole_scalar(WithScalar what, T* d, const T* a, T s, uint64_t n) {
  switch (what) {
    case WithScalar::adds:
      return whole1(d, a, n,
                    [s](T x) { return static_cast<uint32_t>(x) + static_cast<uint32_t>(s); });
    case WithScalar::muls:
      return whole1(d, a, n,
                    [s](T x) { return static_cast<uint32_t>(x) * static_cast<uint32_t>(s); });
    case WithScalar::maxs:
      return whole1(d, a, n, [s](T x) { return std::max(x, s); });
    case WithScalar::mins:
      return whole1(d, a, n, [s](T x) { return std::min(x, s); });
    case WithScalar::shift_left:
      return whole1(d, a, n, [s](T x) { return static_cast<uint64_t>(x) << s; });
    default:
      return whole1(d, a, n, [s](T x) { return x >> s; });
  }
}

bool scalar_types(WithScalar what, Type to, Type from) {
  switch (what) {
    case WithScalar::axpy:
      return is_float(to) && (to == from || (to == Type::f32 && from == Type::f16));
    case WithScalar::leaky_relu:
      return to == from && is_float(to);
    case WithScalar::shift_left:
    case WithScalar::shift_right:
      return to == from && !is_float(to) && (size_of(to) == 2 || size_of(to) == 4) &&
             to != Type::bf16;
    default:
      return to == from && is_arithmetic(to);
  }
}

template <typename T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

void run_scalar(WithScalar what, Type to, Type from, uint8_t* d, const uint8_t* a, uint64_t bits,
                uint64_t n) {
  switch (to) {
    case Type::i16:
      return whole_scalar(what, reinterpret_cast<int16_t*>(d), reinterpret_cast<const int16_t*>(a),
                          from_bits<int16_t>(bits), n);
    case Type::u16:
      return whole_scalar(what, reinterpret_cast<uint16_t*>(d),
                          reinterpret_cast<const uint16_t*>(a), from_bits<uint16_t>(bits), n);
    case Type::i32:
      return whole_scalar(what, reinterpret_cast<int32_t*>(d), reinterpret_cast<const int32_t*>(a),
                          from_bits<int32_t>(bits), n);
    case Type::u32:
      return whole_scalar(what, reinterpret_cast<uint32_t*>(d),
                          reinterpret_cast<const uint32_t*>(a), from_bits<uint32_t>(bits), n);
    default:
      break;
  }
  const float s =
      from == Type::f16 ? half_to_float(static_cast<uint16_t>(bits)) : from_bits<float>(bits);
  if (to == Type::f16) {
    return float_scalar(what, reinterpret_cast<half*>(d), reinterpret_cast<const half*>(a), s, n);
  }
  if (from == Type::f16) {
    return float_scalar(what, reinterpret_cast<float*>(d), reinterpret_cast<const half*>(a), s, n);
  }
  float_scalar(what, reinterpret_cast<float*>(d), reinterpret_cast<const float*>(a), s, n);
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

// --- what lanes.h declares

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

// Conversions between element types with their rounding modes.
#include <cmath>

#include "lanes.h"

namespace xyserve::emulation {

using AscendC::RoundMode;

namespace {

constexpr unsigned none = 1u << static_cast<unsigned>(RoundMode::CAST_NONE);
constexpr unsigned odd = 1u << static_cast<unsigned>(RoundMode::CAST_ODD);
// RINT, FLOOR, CEIL, ROUND and TRUNC.
constexpr unsigned directed = 0b111110;

unsigned modes(Type from, Type to) {
  struct Entry {
    Type from, to;
    unsigned modes;
  };
  static const Entry table[] = {
      {Type::f32, Type::f16, none | directed | odd},
      {Type::f32, Type::bf16, directed},
      {Type::f32, Type::f32, directed},
      {Type::f32, Type::i32, directed},
      {Type::f32, Type::i16, directed},
      {Type::f32, Type::i64, directed},
      {Type::f16, Type::f32, none},
      {Type::f16, Type::i32, directed},
      {Type::f16, Type::i16, directed},
      {Type::f16, Type::i8, none | directed},
      {Type::f16, Type::u8, none | directed},
      {Type::bf16, Type::f32, none},
      {Type::bf16, Type::i32, directed},
      {Type::i32, Type::f32, none | directed},
      {Type::i32, Type::f16, none},
      {Type::i32, Type::i16, none},
      {Type::i32, Type::i64, none},
      {Type::i16, Type::f16, none | directed},
      {Type::i16, Type::f32, none},
      {Type::i8, Type::f16, none},
      {Type::u8, Type::f16, none},
      {Type::i64, Type::i32, none},
      {Type::i64, Type::f32, directed},
  };
  for (const Entry& entry : table) {
    if (entry.from == from && entry.to == to)
      return entry.modes;
  }
  return 0;
}

double to_whole(double value, RoundMode mode) {
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return std::floor(value);
    case RoundMode::CAST_CEIL:
      return std::ceil(value);
    case RoundMode::CAST_ROUND:
      return std::round(value);
    case RoundMode::CAST_TRUNC:
      return std::trunc(value);
    default:
      return std::nearbyint(value);
  }
}

// The 16-bit float next to `value`'s nearest one that `mode` asks for. `widen` and the bit pattern
// (sign and magnitude) are the same for half and bf16.
template <typename Widen>
uint16_t adjust(float value, uint16_t nearest, RoundMode mode, Widen widen) {
  const float back = widen(nearest);
  if (back == value || value != value)
    return nearest;
  const bool too_large = std::fabs(back) > std::fabs(value);
  const auto toward_zero = static_cast<uint16_t>(too_large ? nearest - 1 : nearest);
  const auto away = static_cast<uint16_t>(toward_zero + 1);
  const bool negative = std::signbit(value);
  switch (mode) {
    case RoundMode::CAST_TRUNC:
      return toward_zero;
    case RoundMode::CAST_FLOOR:
      return negative ? away : toward_zero;
    case RoundMode::CAST_CEIL:
      return negative ? toward_zero : away;
    case RoundMode::CAST_ODD:
      return static_cast<uint16_t>(toward_zero | 1);
    case RoundMode::CAST_ROUND: {
      const double below = std::fabs(static_cast<double>(value) - widen(toward_zero));
      const double above = std::fabs(static_cast<double>(value) - widen(away));
      return above <= below ? away : toward_zero;
    }
    default:
      return nearest;
  }
}

float widen_bf16(uint16_t bits) {
  bfloat16_t value;
  value.bits = bits;
  return static_cast<float>(value);
}

double read(Type type, const uint8_t* at) {
  int64_t whole = 0;
  uint16_t word;
  float single;
  switch (type) {
    case Type::f32:
      std::memcpy(&single, at, 4);
      return single;
    case Type::f16:
      std::memcpy(&word, at, 2);
      return half_to_float(word);
    case Type::bf16:
      std::memcpy(&word, at, 2);
      return widen_bf16(word);
    case Type::i8:
      return static_cast<int8_t>(*at);
    case Type::u8:
      return *at;
    case Type::i16: {
      int16_t small;
      std::memcpy(&small, at, 2);
      return small;
    }
    case Type::i32: {
      int32_t middle;
      std::memcpy(&middle, at, 4);
      return middle;
    }
    default:
      std::memcpy(&whole, at, 8);
      return static_cast<double>(whole);
  }
}

int64_t saturated(double value, Type type) {
  if (value != value)
    return 0;
  double low = -9223372036854775808.0;
  double high = 9223372036854774784.0;
  if (type == Type::i32)
    low = -2147483648.0, high = 2147483647.0;
  if (type == Type::i16)
    low = -32768.0, high = 32767.0;
  if (type == Type::i8)
    low = -128.0, high = 127.0;
  if (type == Type::u8)
    low = 0.0, high = 255.0;
  return static_cast<int64_t>(std::min(high, std::max(low, value)));
}

void write(Type type, double value, RoundMode mode, uint8_t* at) {
  if (type == Type::f32) {
    const auto single = static_cast<float>(value);
    std::memcpy(at, &single, 4);
    return;
  }
  const auto single = static_cast<float>(value);
  if (type == Type::f16) {
    const uint16_t bits = adjust(single, float_to_half(single), mode, half_to_float);
    std::memcpy(at, &bits, 2);
    return;
  }
  if (type == Type::bf16) {
    const uint16_t bits = adjust(single, bfloat16_t(single).bits, mode, widen_bf16);
    std::memcpy(at, &bits, 2);
    return;
  }
  const int64_t whole = saturated(to_whole(value, mode), type);
  std::memcpy(at, &whole, size_of(type));
}

// The conversions of hot loops, without a switch per element.
bool convert_fast(Type from, Type to, RoundMode mode, const uint8_t* a, uint8_t* d, uint64_t n) {
  const auto* words = reinterpret_cast<const uint16_t*>(a);
  auto* floats = reinterpret_cast<float*>(d);
  if (to == Type::f32 && from == Type::f16)
    return halves_to_floats(words, floats, n), true;
  if (to == Type::f32 && from == Type::bf16)
    return bf16_to_floats(words, floats, n), true;
  const bool nearest = mode == RoundMode::CAST_RINT || mode == RoundMode::CAST_NONE;
  if (from != Type::f32 || !nearest)
    return false;
  const auto* source = reinterpret_cast<const float*>(a);
  auto* target = reinterpret_cast<uint16_t*>(d);
  if (to == Type::f16) {
    for (uint64_t i = 0; i < n; ++i)
      target[i] = float_to_half(source[i]);
    return true;
  }
  if (to == Type::bf16) {
    for (uint64_t i = 0; i < n; ++i)
      target[i] = bfloat16_t(source[i]).bits;
    return true;
  }
  return false;
}

void convert(Type from, Type to, RoundMode mode, float scale, const uint8_t* a, uint8_t* d,
             uint64_t n) {
  if (convert_fast(from, to, mode, a, d, n))
    return;
  const bool scaled = from == Type::i32 && to == Type::f16;
  for (uint64_t i = 0; i < n; ++i) {
    double value = read(from, a + i * size_of(from));
    if (scaled)
      value *= scale;
    if (from == Type::f32 && to == Type::f32)
      value = to_whole(value, mode);
    write(to, value, mode, d + i * size_of(to));
  }
}

}  // namespace

namespace engine {

void set_deq_scale(Site site, half scale) {
  if (active->stopping)
    return;
  issuing(site, "SetDeqScale", pipe_v);
  here().deq_scale = static_cast<float>(scale);
}

void cast(Site site, Local dst, Local src, RoundMode mode, const Lanes& lanes,
          const AscendC::UnaryRepeatParams& p) {
  if (active->stopping)
    return;
  const Op op = issuing(site, "Cast", pipe_v);
  const unsigned legal = modes(src.type, dst.type);
  if (legal == 0) {
    fail(op, "a pair of types that Cast supports; target type", static_cast<int64_t>(dst.type),
         std::string(name_of(src.type)) + " to " + name_of(dst.type));
  }
  require(op, static_cast<unsigned>(mode) < 8 && (legal >> static_cast<unsigned>(mode) & 1) != 0,
          "a RoundMode of this pair of types; mode", static_cast<int64_t>(mode));
  const uint64_t widest = std::max(size_of(dst.type), size_of(src.type));
  const Active lanes_on = resolve(op, lanes, widest);
  Operand from{src, p.srcBlkStride, p.srcRepStride};
  Operand to{dst, p.dstBlkStride, p.dstRepStride, true};
  if (lanes.counted) {
    from.repeat_stride = lanes_on.per_repeat * from.size() / 32;
    to.repeat_stride = lanes_on.per_repeat * to.size() / 32;
  }
  for (const Operand* operand : {&from, &to})
    require_operand(op, *operand);
  require_overlap(op, lanes_on, to, from);
  const float scale = here().deq_scale;
  enqueue(op, [=](Op& run) {
    const Operand all[] = {from, to};
    elementwise(run, lanes_on, all, [&](uint8_t** data, uint64_t n) {
      convert(src.type, dst.type, mode, scale, data[0], data[1], n);
    });
    count_repeats(run, widest == size_of(dst.type) ? dst.type : src.type, lanes_on.repeats);
  });
}

}  // namespace engine
}  // namespace xyserve::emulation

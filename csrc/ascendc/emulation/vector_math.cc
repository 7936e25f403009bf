#include "vector_math.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

bool is_float(Type type) {
  return type == Type::f16 || type == Type::f32;
}
bool is_arithmetic(Type type) {
  return is_float(type) || type == Type::i16 || type == Type::i32;
}

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace xyserve::emulation

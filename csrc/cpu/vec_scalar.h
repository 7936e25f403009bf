// One fp32 lane in plain C++: the path that exists on every CPU.
//
// [NOTE] Everything in vec_*.h has internal linkage. These headers are compiled several times with
// different instruction sets; an external inline function would be merged by the linker, and a
// CPU without AVX-512 could then execute the AVX-512 copy. For the same reason the bodies that
// include them use no templates of the standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "xyserve/dtype.h"

namespace xyserve {
namespace {

struct VecScalar {
  using F = float;
  static constexpr int64_t kWidth = 1;

  static uint32_t to_bits(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof(bits));
    return bits;
  }
  static float from_bits(uint32_t bits) {
    float v;
    std::memcpy(&v, &bits, sizeof(v));
    return v;
  }

  static F load(const float* p) { return *p; }
  static F load(const Bf16* p) { return from_bits(static_cast<uint32_t>(p->bits) << 16); }
  static F load(const F16* p) {
    const uint32_t sign = (p->bits & 0x8000u) << 16;
    const uint32_t magnitude = p->bits & 0x7FFFu;
    if (magnitude >= 0x7C00u) {  // infinity, or NaN with its payload
      return from_bits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    }
    // Read as if the exponent were fp32's, then scaled by 2^(127 - 15): exact, subnormals included.
    const float scaled = from_bits(magnitude << 13) * 0x1p112f;
    return from_bits(sign | to_bits(scaled));
  }

  static void store(float* p, F v) { *p = v; }
  static void store(Bf16* p, F v) {
    const uint32_t bits = to_bits(v);
    const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);  // to nearest even
    p->bits = static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
  }
  static void store(F16* p, F v) {
    const uint32_t bits = to_bits(v);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    uint32_t half;
    if (magnitude > 0x7F800000u) {
      half = 0x7E00u;
    } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
      half = 0x7C00u;
    } else if (magnitude < 0x38800000u) {
      // Below 2^-14: adding 0.5 leaves exactly the ten subnormal bits in the mantissa, rounded by
      // the hardware to nearest even.
      half = to_bits(from_bits(magnitude) + 0.5f) - 0x3F000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    }
    p->bits = static_cast<uint16_t>(sign | half);
  }

  static F set1(float v) { return v; }
  static F broadcast(const float* p) { return *p; }
  // Of two values that lie together per lane, the first or the second.
  static F load_even(const Bf16* p) { return load(p); }
  static F load_odd(const Bf16* p) { return load(p + 1); }

  static F add(F a, F b) { return a + b; }
  // Two roundings: without the instruction, the C library's fma costs a hundred times as much.
  static F fma(F a, F b, F c) { return a * b + c; }
  // With a NaN in either operand these return the second one, as the instructions do.
  static F min(F a, F b) { return a < b ? a : b; }
  static F max(F a, F b) { return a > b ? a : b; }
  static int32_t round_to_int(float v) { return static_cast<int32_t>(std::nearbyint(v)); }
  // round(v) + zero, kept within 0 to 255; to nearest even.
  static void store_quantized(uint8_t* p, F v, int32_t zero) {
    const float bounded = v > -65536.0f ? (v < 65536.0f ? v : 65536.0f) : -65536.0f;
    const int32_t q = round_to_int(bounded) + zero;
    *p = static_cast<uint8_t>(q < 0 ? 0 : (q > 255 ? 255 : q));
  }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F one() { return 1.0f; }
  static F negate(F a) { return -a; }
  // The C library's expf: overflow to infinity, NaN in NaN out.
  static F exp(F x) { return std::exp(x); }
};

}  // namespace
}  // namespace xyserve

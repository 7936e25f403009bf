// Half and bf16 to float and back, written so that the compiler turns them into vector code.
#include "internal.h"

namespace xyserve::emulation {

namespace {

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float widen(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  // Scaling by 2^112 moves the exponent and makes subnormals normal; infinities keep theirs set.
  const uint32_t scaled = as_bits(as_float(magnitude) * as_float(0x77800000u));
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return as_float(scaled | special | static_cast<uint32_t>(h & 0x8000u) << 16);
}

}  // namespace

float half_to_float(uint16_t bits) {
  return widen(bits);
}

uint16_t float_to_half(float value) {
  const uint32_t bits = as_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns the subnormal's last bit with the float's, which rounds to nearest even.
    const uint32_t aligned = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
    return static_cast<uint16_t>(sign | aligned);
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

void halves_to_floats(const uint16_t* from, float* to, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i)
    to[i] = widen(from[i]);
}

void bf16_to_floats(const uint16_t* from, float* to, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i)
    to[i] = as_float(static_cast<uint32_t>(from[i]) << 16);
}

}  // namespace xyserve::emulation

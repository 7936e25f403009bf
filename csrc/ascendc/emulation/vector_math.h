// The arithmetic of elementwise vector operations, on contiguous elements.
#pragma once

#include "internal.h"

namespace xyserve::emulation {

bool is_float(Type type);
bool is_arithmetic(Type type);
bool binary_types(Binary what, Type to, Type from);
bool scalar_types(WithScalar what, Type to, Type from);

void run_unary(Unary what, Type type, uint8_t* d, const uint8_t* a, uint64_t n);
void run_binary(Binary what, Type to, Type from, uint8_t* d, const uint8_t* a, const uint8_t* b,
                uint64_t n);
void run_scalar(WithScalar what, Type to, Type from, uint8_t* d, const uint8_t* a, uint64_t bits,
                uint64_t n);

template <typename T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace xyserve::emulation

// Element types that kernels are compiled for.
#pragma once

#include <cstdint>

namespace xyserve {

enum class DType : int32_t { f32, bf16, f16 };
inline constexpr int kNumDTypes = 3;

// Storage only; the conversions belong to each instruction set (csrc/cpu/vec_*.h).
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::f32> {
  using type = float;
};
template <>
struct ElementOf<DType::bf16> {
  using type = Bf16;
};
template <>
struct ElementOf<DType::f16> {
  using type = F16;
};

}  // namespace xyserve

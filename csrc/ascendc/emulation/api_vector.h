// Vector operations on UB, all on pipe V. Three forms as in the vendor's API: `count` consecutive
// elements; `repeatTime` repeats of 256 bytes of which the first `mask` elements are active; and
// the same under a bit mask of two words. `isSetMask = false` takes the mask from SetVectorMask.
#pragma once

#include "tensor.h"

namespace AscendC {

namespace emulated_lanes {
inline emulated::Lanes counted(int64_t count) {
  emulated::Lanes result;
  result.counted = true;
  result.count = count;
  return result;
}
inline emulated::Lanes first(uint64_t elements, int32_t repeat, bool set_mask) {
  emulated::Lanes result;
  result.repeat = repeat;
  result.from_register = !set_mask;
  result.count = static_cast<int64_t>(elements);
  const auto ones = [](uint64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; };
  result.bits[0] = ones(elements);
  result.bits[1] = elements > 64 ? ones(elements - 64) : 0;
  return result;
}
inline emulated::Lanes bits(const uint64_t mask[], int32_t repeat, bool set_mask) {
  emulated::Lanes result;
  result.repeat = repeat;
  result.from_register = !set_mask;
  result.count = -1;
  if (set_mask) {
    result.bits[0] = mask[0];
    result.bits[1] = mask[1];
  }
  return result;
}
}  // namespace emulated_lanes

template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow,
                   emulated::Site at = emulated::Site()) {
  emulated::engine::set_vector_mask(at, maskHigh, maskLow);
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(int32_t len, emulated::Site at = emulated::Site()) {
  if (mode == MaskMode::COUNTER) {
    emulated::engine::set_vector_mask(at, 0, static_cast<uint64_t>(len));
  } else {
    const emulated::Lanes mask = emulated_lanes::first(static_cast<uint64_t>(len), 1, true);
    emulated::engine::set_vector_mask(at, mask.bits[1], mask.bits[0]);
  }
}
inline void ResetMask(emulated::Site at = emulated::Site()) {
  emulated::engine::set_vector_mask(at, ~uint64_t{0}, ~uint64_t{0});
}
inline void SetMaskCount(emulated::Site at = emulated::Site()) {
  emulated::engine::set_mask_mode(at, true);
}
inline void SetMaskNorm(emulated::Site at = emulated::Site()) {
  emulated::engine::set_mask_mode(at, false);
}

#define XYSERVE_UNARY(Name, op)                                                                \
  template <typename T, bool isSetMask = true>                                                 \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],       \
            const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,                   \
            emulated::Site at = emulated::Site()) {                                            \
    emulated::engine::unary(at, #Name, op, dst.local(), src.local(),                           \
                            emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);  \
  }                                                                                            \
  template <typename T, bool isSetMask = true>                                                 \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask,               \
            const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,                   \
            emulated::Site at = emulated::Site()) {                                            \
    emulated::engine::unary(at, #Name, op, dst.local(), src.local(),                           \
                            emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams); \
  }                                                                                            \
  template <typename T>                                                                        \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count,        \
            emulated::Site at = emulated::Site()) {                                            \
    emulated::engine::unary(at, #Name, op, dst.local(), src.local(),                           \
                            emulated_lanes::counted(count), UnaryRepeatParams());              \
  }

XYSERVE_UNARY(Exp, emulated::Unary::exp)
XYSERVE_UNARY(Ln, emulated::Unary::ln)
XYSERVE_UNARY(Abs, emulated::Unary::abs)
XYSERVE_UNARY(Sqrt, emulated::Unary::sqrt)
XYSERVE_UNARY(Rsqrt, emulated::Unary::rsqrt)
XYSERVE_UNARY(Reciprocal, emulated::Unary::reciprocal)
XYSERVE_UNARY(Relu, emulated::Unary::relu)
XYSERVE_UNARY(Not, emulated::Unary::bit_not)
#undef XYSERVE_UNARY

#define XYSERVE_BINARY(Name, op)                                                                \
  template <typename T, bool isSetMask = true>                                                  \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,  \
            const uint64_t mask[], const uint8_t repeatTime,                                    \
            const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {     \
    emulated::engine::binary(at, #Name, op, dst.local(), src0.local(), src1.local(),            \
                             emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);  \
  }                                                                                             \
  template <typename T, bool isSetMask = true>                                                  \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,  \
            uint64_t mask, const uint8_t repeatTime, const BinaryRepeatParams& repeatParams,    \
            emulated::Site at = emulated::Site()) {                                             \
    emulated::engine::binary(at, #Name, op, dst.local(), src0.local(), src1.local(),            \
                             emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams); \
  }                                                                                             \
  template <typename T>                                                                         \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,  \
            const int32_t& count, emulated::Site at = emulated::Site()) {                       \
    emulated::engine::binary(at, #Name, op, dst.local(), src0.local(), src1.local(),            \
                             emulated_lanes::counted(count), BinaryRepeatParams());             \
  }

XYSERVE_BINARY(Add, emulated::Binary::add)
XYSERVE_BINARY(Sub, emulated::Binary::sub)
XYSERVE_BINARY(Mul, emulated::Binary::mul)
XYSERVE_BINARY(Div, emulated::Binary::div)
XYSERVE_BINARY(Max, emulated::Binary::max)
XYSERVE_BINARY(Min, emulated::Binary::min)
XYSERVE_BINARY(And, emulated::Binary::bit_and)
XYSERVE_BINARY(Or, emulated::Binary::bit_or)
XYSERVE_BINARY(AddRelu, emulated::Binary::add_relu)
XYSERVE_BINARY(SubRelu, emulated::Binary::sub_relu)
XYSERVE_BINARY(FusedMulAdd, emulated::Binary::fused_mul_add)
#undef XYSERVE_BINARY

// dst += src0 * src1; dst may be float where the sources are half.
template <typename T, typename U, bool isSetMask = true>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,
               const uint64_t mask[], const uint8_t repeatTime,
               const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::binary(at, "MulAddDst", emulated::Binary::mul_add_dst, dst.local(),
                           src0.local(), src1.local(),
                           emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U, bool isSetMask = true>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,
               uint64_t mask, const uint8_t repeatTime, const BinaryRepeatParams& repeatParams,
               emulated::Site at = emulated::Site()) {
  emulated::engine::binary(at, "MulAddDst", emulated::Binary::mul_add_dst, dst.local(),
                           src0.local(), src1.local(),
                           emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,
               const int32_t& count, emulated::Site at = emulated::Site()) {
  emulated::engine::binary(at, "MulAddDst", emulated::Binary::mul_add_dst, dst.local(),
                           src0.local(), src1.local(), emulated_lanes::counted(count),
                           BinaryRepeatParams());
}

#define XYSERVE_WITH_SCALAR(Name, op)                                                             \
  template <typename T, bool isSetMask = true>                                                    \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,           \
            const uint64_t mask[], const uint8_t repeatTime,                                      \
            const UnaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {        \
    emulated::engine::with_scalar(                                                                \
        at, #Name, op, dst.local(), src.local(), emulated::bits_of(scalarValue),                  \
        emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);                         \
  }                                                                                               \
  template <typename T, bool isSetMask = true>                                                    \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,           \
            uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,       \
            emulated::Site at = emulated::Site()) {                                               \
    emulated::engine::with_scalar(                                                                \
        at, #Name, op, dst.local(), src.local(), emulated::bits_of(scalarValue),                  \
        emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);                        \
  }                                                                                               \
  template <typename T, bool isSetMask = true>                                                    \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,           \
            const int32_t& count, emulated::Site at = emulated::Site()) {                         \
    emulated::engine::with_scalar(at, #Name, op, dst.local(), src.local(),                        \
                                  emulated::bits_of(scalarValue), emulated_lanes::counted(count), \
                                  UnaryRepeatParams());                                           \
  }

XYSERVE_WITH_SCALAR(Adds, emulated::WithScalar::adds)
XYSERVE_WITH_SCALAR(Muls, emulated::WithScalar::muls)
XYSERVE_WITH_SCALAR(Maxs, emulated::WithScalar::maxs)
XYSERVE_WITH_SCALAR(Mins, emulated::WithScalar::mins)
XYSERVE_WITH_SCALAR(LeakyRelu, emulated::WithScalar::leaky_relu)
XYSERVE_WITH_SCALAR(ShiftLeft, emulated::WithScalar::shift_left)
#undef XYSERVE_WITH_SCALAR

template <typename T, bool isSetMask = true>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
                uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,
                bool roundEn = false, emulated::Site at = emulated::Site()) {
  if (roundEn)
    emulated::engine::reject(at, "ShiftRight", "roundEn is not emulated", 1);
  emulated::engine::with_scalar(at, "ShiftRight", emulated::WithScalar::shift_right, dst.local(),
                                src.local(), emulated::bits_of(scalarValue),
                                emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
                const int32_t& count, emulated::Site at = emulated::Site()) {
  emulated::engine::with_scalar(at, "ShiftRight", emulated::WithScalar::shift_right, dst.local(),
                                src.local(), emulated::bits_of(scalarValue),
                                emulated_lanes::counted(count), UnaryRepeatParams());
}

// dst += src * scalar; dst may be float where the source is half.
template <typename T, typename U, bool isSetMask = true>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, uint64_t mask,
          const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,
          emulated::Site at = emulated::Site()) {
  emulated::engine::with_scalar(at, "Axpy", emulated::WithScalar::axpy, dst.local(), src.local(),
                                emulated::bits_of(scalarValue),
                                emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U, bool isSetMask = true>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue,
          const uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,
          emulated::Site at = emulated::Site()) {
  emulated::engine::with_scalar(at, "Axpy", emulated::WithScalar::axpy, dst.local(), src.local(),
                                emulated::bits_of(scalarValue),
                                emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue,
          const int32_t& count, emulated::Site at = emulated::Site()) {
  emulated::engine::with_scalar(at, "Axpy", emulated::WithScalar::axpy, dst.local(), src.local(),
                                emulated::bits_of(scalarValue), emulated_lanes::counted(count),
                                UnaryRepeatParams());
}

template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],
          const uint8_t repeatTime, const CopyRepeatParams& repeatParams,
          emulated::Site at = emulated::Site()) {
  emulated::engine::copy(at, dst.local(), src.local(),
                         emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask,
          const uint8_t repeatTime, const CopyRepeatParams& repeatParams,
          emulated::Site at = emulated::Site()) {
  emulated::engine::copy(at, dst.local(), src.local(),
                         emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}

template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask,
               const uint8_t repeatTime, const uint16_t dstBlockStride,
               const uint8_t dstRepeatStride, emulated::Site at = emulated::Site()) {
  emulated::engine::duplicate(at, dst.local(), emulated::bits_of(scalarValue),
                              emulated_lanes::first(mask, repeatTime, isSetMask), dstBlockStride,
                              dstRepeatStride);
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const uint64_t mask[],
               const uint8_t repeatTime, const uint16_t dstBlockStride,
               const uint8_t dstRepeatStride, emulated::Site at = emulated::Site()) {
  emulated::engine::duplicate(at, dst.local(), emulated::bits_of(scalarValue),
                              emulated_lanes::bits(mask, repeatTime, isSetMask), dstBlockStride,
                              dstRepeatStride);
}
template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count,
               emulated::Site at = emulated::Site()) {
  emulated::engine::duplicate(at, dst.local(), emulated::bits_of(scalarValue),
                              emulated_lanes::counted(count), DEFAULT_BLK_STRIDE,
                              DEFAULT_REPEAT_STRIDE);
}

template <typename T>
void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count,
                    emulated::Site at = emulated::Site()) {
  emulated::engine::create_vec_index(at, dst.local(), emulated::bits_of(firstValue),
                                     emulated_lanes::counted(count), DEFAULT_BLK_STRIDE,
                                     DEFAULT_REPEAT_STRIDE);
}
template <typename T>
void CreateVecIndex(LocalTensor<T>& dst, const T& firstValue, uint64_t mask, uint8_t repeatTime,
                    uint16_t dstBlkStride, uint8_t dstRepStride,
                    emulated::Site at = emulated::Site()) {
  emulated::engine::create_vec_index(at, dst.local(), emulated::bits_of(firstValue),
                                     emulated_lanes::first(mask, repeatTime, true), dstBlkStride,
                                     dstRepStride);
}

template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
          const uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,
          emulated::Site at = emulated::Site()) {
  emulated::engine::cast(at, dst.local(), src.local(), roundMode,
                         emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
          const uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& repeatParams,
          emulated::Site at = emulated::Site()) {
  emulated::engine::cast(at, dst.local(), src.local(), roundMode,
                         emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
          const uint32_t count, emulated::Site at = emulated::Site()) {
  emulated::engine::cast(at, dst.local(), src.local(), roundMode, emulated_lanes::counted(count),
                         UnaryRepeatParams());
}
inline void SetDeqScale(half scale, emulated::Site at = emulated::Site()) {
  emulated::engine::set_deq_scale(at, scale);
}

}  // namespace AscendC

// Compare, select, reduce, broadcast and gather on UB, all on pipe V.
#pragma once

#include "api_vector.h"

namespace AscendC {

// One result bit per element, packed from bit 0 of byte 0.
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
             CMPMODE cmpMode, const uint64_t mask[], uint8_t repeatTime,
             const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::compare(at, dst.local(), src0.local(), src1.local(), cmpMode,
                            emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
             CMPMODE cmpMode, const uint64_t mask, uint8_t repeatTime,
             const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::compare(at, dst.local(), src0.local(), src1.local(), cmpMode,
                            emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
             CMPMODE cmpMode, uint32_t count, emulated::Site at = emulated::Site()) {
  emulated::engine::compare(at, dst.local(), src0.local(), src1.local(), cmpMode,
                            emulated_lanes::counted(count), BinaryRepeatParams());
}
template <typename T, bool isSetMask = true>
void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             const uint64_t mask[], const BinaryRepeatParams& repeatParams,
             emulated::Site at = emulated::Site()) {
  emulated::engine::compare_to_register(at, src0.local(), src1.local(), cmpMode,
                                        emulated_lanes::bits(mask, 1, isSetMask), repeatParams);
}
template <typename T, bool isSetMask = true>
void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             const uint64_t mask, const BinaryRepeatParams& repeatParams,
             emulated::Site at = emulated::Site()) {
  emulated::engine::compare_to_register(at, src0.local(), src1.local(), cmpMode,
                                        emulated_lanes::first(mask, 1, isSetMask), repeatParams);
}
template <typename T>
void GetCmpMask(const LocalTensor<T>& dst, emulated::Site at = emulated::Site()) {
  emulated::engine::get_cmp_mask(at, dst.local());
}
template <typename T>
void SetCmpMask(const LocalTensor<T>& src, emulated::Site at = emulated::Site()) {
  emulated::engine::set_cmp_mask(at, src.local());
}

#define XYSERVE_COMPARE_SCALAR(Name)                                                               \
  template <typename T, typename U, bool isSetMask = true>                                         \
  void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar,             \
            CMPMODE cmpMode, const uint64_t mask[], uint8_t repeatTime,                            \
            const UnaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {         \
    emulated::engine::compare_scalar(at, dst.local(), src0.local(), emulated::bits_of(src1Scalar), \
                                     cmpMode, emulated_lanes::bits(mask, repeatTime, isSetMask),   \
                                     repeatParams);                                                \
  }                                                                                                \
  template <typename T, typename U, bool isSetMask = true>                                         \
  void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar,             \
            CMPMODE cmpMode, const uint64_t mask, uint8_t repeatTime,                              \
            const UnaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {         \
    emulated::engine::compare_scalar(at, dst.local(), src0.local(), emulated::bits_of(src1Scalar), \
                                     cmpMode, emulated_lanes::first(mask, repeatTime, isSetMask),  \
                                     repeatParams);                                                \
  }                                                                                                \
  template <typename T, typename U>                                                                \
  void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar,             \
            CMPMODE cmpMode, uint32_t count, emulated::Site at = emulated::Site()) {               \
    emulated::engine::compare_scalar(at, dst.local(), src0.local(), emulated::bits_of(src1Scalar), \
                                     cmpMode, emulated_lanes::counted(count),                      \
                                     UnaryRepeatParams());                                         \
  }
XYSERVE_COMPARE_SCALAR(Compares)
XYSERVE_COMPARE_SCALAR(CompareScalar)
#undef XYSERVE_COMPARE_SCALAR

template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, const uint64_t mask[], uint8_t repeatTime,
            const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::select(at, dst.local(), selMask.local(), src0.local(), src1.local(), selMode,
                           emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask, uint8_t repeatTime,
            const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::select(at, dst.local(), selMask.local(), src0.local(), src1.local(), selMode,
                           emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint32_t count,
            emulated::Site at = emulated::Site()) {
  emulated::engine::select(at, dst.local(), selMask.local(), src0.local(), src1.local(), selMode,
                           emulated_lanes::counted(count), BinaryRepeatParams());
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            T src1, SELMODE selMode, const uint64_t mask[], uint8_t repeatTime,
            const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::select_scalar(at, dst.local(), selMask.local(), src0.local(),
                                  emulated::bits_of(src1), selMode,
                                  emulated_lanes::bits(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            T src1, SELMODE selMode, uint64_t mask, uint8_t repeatTime,
            const BinaryRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::select_scalar(at, dst.local(), selMask.local(), src0.local(),
                                  emulated::bits_of(src1), selMode,
                                  emulated_lanes::first(mask, repeatTime, isSetMask), repeatParams);
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            T src1, SELMODE selMode, uint32_t count, emulated::Site at = emulated::Site()) {
  emulated::engine::select_scalar(at, dst.local(), selMask.local(), src0.local(),
                                  emulated::bits_of(src1), selMode, emulated_lanes::counted(count),
                                  BinaryRepeatParams());
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime,
          const BrcbRepeatParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::brcb(at, dst.local(), src.local(), repeatTime, repeatParams);
}

#define XYSERVE_WHOLE_REDUCE(Name, op)                                                           \
  template <typename T, bool isSetMask = true>                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],         \
            const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,    \
            const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,      \
            emulated::Site at = emulated::Site()) {                                              \
    emulated::engine::whole_reduce(at, #Name, op, dst.local(), src.local(),                      \
                                   emulated_lanes::bits(mask, repeatTime, isSetMask),            \
                                   dstRepStride, srcBlkStride, srcRepStride, order);             \
  }                                                                                              \
  template <typename T, bool isSetMask = true>                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,            \
            const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,    \
            const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,      \
            emulated::Site at = emulated::Site()) {                                              \
    emulated::engine::whole_reduce(                                                              \
        at, #Name, op, dst.local(), src.local(),                                                 \
        emulated_lanes::first(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, \
        srcBlkStride, srcRepStride, order);                                                      \
  }
XYSERVE_WHOLE_REDUCE(WholeReduceMax, emulated::Reduce::max)
XYSERVE_WHOLE_REDUCE(WholeReduceMin, emulated::Reduce::min)
#undef XYSERVE_WHOLE_REDUCE

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],
                    const int32_t repeatTime, const int32_t dstRepStride,
                    const int32_t srcBlkStride, const int32_t srcRepStride,
                    emulated::Site at = emulated::Site()) {
  emulated::engine::whole_reduce(at, "WholeReduceSum", emulated::Reduce::sum, dst.local(),
                                 src.local(), emulated_lanes::bits(mask, repeatTime, isSetMask),
                                 dstRepStride, srcBlkStride, srcRepStride,
                                 ReduceOrder::ORDER_ONLY_VALUE);
}
template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
                    const int32_t repeatTime, const int32_t dstRepStride,
                    const int32_t srcBlkStride, const int32_t srcRepStride,
                    emulated::Site at = emulated::Site()) {
  emulated::engine::whole_reduce(
      at, "WholeReduceSum", emulated::Reduce::sum, dst.local(), src.local(),
      emulated_lanes::first(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride,
      srcBlkStride, srcRepStride, ReduceOrder::ORDER_ONLY_VALUE);
}

// The deprecated argument order of the vendor's BlockReduce and PairReduce: repeat before mask.
#define XYSERVE_BLOCK_REDUCE(Name, call)                                                          \
  template <typename T, bool isSetMask = true>                                                    \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime,       \
            const uint64_t mask[], const int32_t dstRepStride, const int32_t srcBlkStride,        \
            const int32_t srcRepStride, emulated::Site at = emulated::Site()) {                   \
    call(dst.local(), src.local(), emulated_lanes::bits(mask, repeatTime, isSetMask),             \
         dstRepStride, srcBlkStride, srcRepStride);                                               \
  }                                                                                               \
  template <typename T, bool isSetMask = true>                                                    \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime,       \
            const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride,           \
            const int32_t srcRepStride, emulated::Site at = emulated::Site()) {                   \
    call(dst.local(), src.local(),                                                                \
         emulated_lanes::first(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, \
         srcBlkStride, srcRepStride);                                                             \
  }
#define XYSERVE_MAX(...) \
  emulated::engine::block_reduce(at, "BlockReduceMax", emulated::Reduce::max, __VA_ARGS__)
#define XYSERVE_MIN(...) \
  emulated::engine::block_reduce(at, "BlockReduceMin", emulated::Reduce::min, __VA_ARGS__)
#define XYSERVE_SUM(...) \
  emulated::engine::block_reduce(at, "BlockReduceSum", emulated::Reduce::sum, __VA_ARGS__)
#define XYSERVE_PAIR(...) emulated::engine::pair_reduce_sum(at, __VA_ARGS__)
XYSERVE_BLOCK_REDUCE(BlockReduceMax, XYSERVE_MAX)
XYSERVE_BLOCK_REDUCE(BlockReduceMin, XYSERVE_MIN)
XYSERVE_BLOCK_REDUCE(BlockReduceSum, XYSERVE_SUM)
XYSERVE_BLOCK_REDUCE(PairReduceSum, XYSERVE_PAIR)
#undef XYSERVE_MAX
#undef XYSERVE_MIN
#undef XYSERVE_SUM
#undef XYSERVE_PAIR
#undef XYSERVE_BLOCK_REDUCE

#define XYSERVE_REDUCE(Name, op)                                                                   \
  template <typename T>                                                                            \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                                  \
            const LocalTensor<T>& sharedTmpBuffer, const int32_t mask, const int32_t repeatTime,   \
            const int32_t srcRepStride, bool calIndex = 0, emulated::Site at = emulated::Site()) { \
    emulated::engine::reduce(at, #Name, op, dst.local(), src.local(), sharedTmpBuffer.local(),     \
                             emulated_lanes::first(static_cast<uint64_t>(mask), repeatTime, true), \
                             srcRepStride, calIndex);                                              \
  }                                                                                                \
  template <typename T>                                                                            \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                                  \
            const LocalTensor<T>& sharedTmpBuffer, const uint64_t mask[],                          \
            const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = 0,               \
            emulated::Site at = emulated::Site()) {                                                \
    emulated::engine::reduce(at, #Name, op, dst.local(), src.local(), sharedTmpBuffer.local(),     \
                             emulated_lanes::bits(mask, repeatTime, true), srcRepStride,           \
                             calIndex);                                                            \
  }                                                                                                \
  template <typename T>                                                                            \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                                  \
            const LocalTensor<T>& sharedTmpBuffer, const int32_t count, bool calIndex = 0,         \
            emulated::Site at = emulated::Site()) {                                                \
    emulated::engine::reduce(at, #Name, op, dst.local(), src.local(), sharedTmpBuffer.local(),     \
                             emulated_lanes::counted(count), DEFAULT_REPEAT_STRIDE, calIndex);     \
  }
XYSERVE_REDUCE(ReduceMax, emulated::Reduce::max)
XYSERVE_REDUCE(ReduceMin, emulated::Reduce::min)
#undef XYSERVE_REDUCE

template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               const LocalTensor<T>& sharedTmpBuffer, const int32_t mask, const int32_t repeatTime,
               const int32_t srcRepStride, emulated::Site at = emulated::Site()) {
  emulated::engine::reduce(
      at, "ReduceSum", emulated::Reduce::sum, dst.local(), src.local(), sharedTmpBuffer.local(),
      emulated_lanes::first(static_cast<uint64_t>(mask), repeatTime, true), srcRepStride, false);
}
template <typename T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               const LocalTensor<T>& sharedTmpBuffer, const int32_t count,
               emulated::Site at = emulated::Site()) {
  emulated::engine::reduce(at, "ReduceSum", emulated::Reduce::sum, dst.local(), src.local(),
                           sharedTmpBuffer.local(), emulated_lanes::counted(count),
                           DEFAULT_REPEAT_STRIDE, false);
}

// Byte offsets per element, added to `srcBaseOffset`.
template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseOffset,
            const uint64_t mask, const uint8_t repeatTime, const uint16_t dstRepStride,
            emulated::Site at = emulated::Site()) {
  emulated::engine::gather(at, dst.local(), src.local(), srcOffset.local(), srcBaseOffset,
                           emulated_lanes::first(mask, repeatTime, true), dstRepStride);
}
template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseOffset,
            const uint32_t count, emulated::Site at = emulated::Site()) {
  emulated::engine::gather(at, dst.local(), src.local(), srcOffset.local(), srcBaseOffset,
                           emulated_lanes::counted(count), DEFAULT_REPEAT_STRIDE);
}

template <typename T, typename U, GatherMaskMode mode = GatherMaskMode::VERSION_V2>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                const LocalTensor<U>& src1Pattern, const bool reduceMode, const uint32_t mask,
                const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                emulated::Site at = emulated::Site()) {
  const emulated::Local pattern = src1Pattern.local();
  emulated::engine::gather_mask(at, dst.local(), src0.local(), &pattern, 0, reduceMode, mask,
                                gatherMaskParams, rsvdCnt);
}
template <typename T, GatherMaskMode mode = GatherMaskMode::VERSION_V2>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                const bool reduceMode, const uint32_t mask,
                const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                emulated::Site at = emulated::Site()) {
  emulated::engine::gather_mask(at, dst.local(), src0.local(), nullptr, src1Pattern, reduceMode,
                                mask, gatherMaskParams, rsvdCnt);
}

// One 16 x 16 tile of 16-bit elements.
template <typename T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               emulated::Site at = emulated::Site()) {
  emulated::engine::transpose_16x16(at, dst.local(), src.local());
}

}  // namespace AscendC

// Every vector API on whole buffers: scalars choose the call, its form and its
// parameters.
#include "emulation.h"
#include "kernel_operator.h"

using namespace AscendC;
namespace emu = xyserve::emulation;

namespace {

constexpr uint32_t slot = 32 * 1024;  // bytes of each of up to four buffers in UB

template <typename T>
LocalTensor<T> buffer(uint32_t index, uint32_t elements) {
  return LocalTensor<T>(TPosition::VECCALC, index * slot, elements);
}

template <typename T>
LocalTensor<T> loaded(uint32_t index, void* from, uint32_t elements) {
  GlobalTensor<T> global;
  global.SetGlobalBuffer((__gm__ T*)from);
  LocalTensor<T> local = buffer<T>(index, elements);
  DataCopy(local, global, elements);
  return local;
}

template <typename T>
void stored(void* to, LocalTensor<T> from, uint32_t elements) {
  PipeBarrier<PIPE_ALL>();
  GlobalTensor<T> global;
  global.SetGlobalBuffer((__gm__ T*)to);
  DataCopy(global, from, elements);
}

// n: elements per buffer, op, form (0 count, 1 mask, 2 bits), count or mask,
// bits low, bits high, repeat, then six strides.
struct Call {
  uint32_t elements;
  int64_t op, form, count;
  uint64_t bits[2];
  uint8_t repeat;
  int64_t stride[6];

  explicit Call(const int64_t* n)
      : elements(n[0]),
        op(n[1]),
        form(n[2]),
        count(n[3]),
        bits{(uint64_t)n[4], (uint64_t)n[5]},
        repeat(n[6]),
        stride{n[7], n[8], n[9], n[10], n[11], n[12]} {}
  BinaryRepeatParams binary() const {
    return BinaryRepeatParams(stride[0], stride[1], stride[2], stride[3], stride[4], stride[5]);
  }
  UnaryRepeatParams unary() const {
    return UnaryRepeatParams(stride[0], stride[1], stride[3], stride[4]);
  }
};

#define FORMS(Name, params, ...)                              \
  {                                                           \
    if (c.form == 0)                                          \
      Name(__VA_ARGS__, (int32_t)c.count);                    \
    if (c.form == 1)                                          \
      Name(__VA_ARGS__, (uint64_t)c.count, c.repeat, params); \
    if (c.form == 2)                                          \
      Name(__VA_ARGS__, c.bits, c.repeat, params);            \
    break;                                                    \
  }

template <typename T>
void binary(void* const* t, const Call& c) {
  auto a = loaded<T>(0, t[0], c.elements);
  auto b = loaded<T>(1, t[1], c.elements);
  auto d = loaded<T>(2, t[2], c.elements);
  PipeBarrier<PIPE_ALL>();
  if constexpr (std::is_same_v<T, half> || std::is_same_v<T, float>) {
    switch (c.op) {
      case 3:
        FORMS(Div, c.binary(), d, a, b)
      case 8:
        FORMS(FusedMulAdd, c.binary(), d, a, b)
      case 9:
        FORMS(MulAddDst, c.binary(), d, a, b)
    }
  }
  if constexpr (std::is_same_v<T, int16_t>) {
    switch (c.op) {
      case 10:
        FORMS(And, c.binary(), d, a, b)
      case 11:
        FORMS(Or, c.binary(), d, a, b)
    }
  }
  switch (c.op) {
    case 0:
      FORMS(Add, c.binary(), d, a, b)
    case 1:
      FORMS(Sub, c.binary(), d, a, b)
    case 2:
      FORMS(Mul, c.binary(), d, a, b)
    case 4:
      FORMS(Max, c.binary(), d, a, b)
    case 5:
      FORMS(Min, c.binary(), d, a, b)
    case 6:
      FORMS(AddRelu, c.binary(), d, a, b)
    case 7:
      FORMS(SubRelu, c.binary(), d, a, b)
  }
  stored(t[3], d, c.elements);
}

template <typename T>
void unary(void* const* t, const Call& c) {
  auto a = loaded<T>(0, t[0], c.elements);
  auto d = loaded<T>(2, t[2], c.elements);
  PipeBarrier<PIPE_ALL>();
  if constexpr (std::is_same_v<T, half> || std::is_same_v<T, float>) {
    switch (c.op) {
      case 0:
        FORMS(Exp, c.unary(), d, a)
      case 1:
        FORMS(Ln, c.unary(), d, a)
      case 2:
        FORMS(Abs, c.unary(), d, a)
      case 3:
        FORMS(Sqrt, c.unary(), d, a)
      case 4:
        FORMS(Rsqrt, c.unary(), d, a)
      case 5:
        FORMS(Reciprocal, c.unary(), d, a)
    }
  }
  if (c.op == 6) {
    do
      FORMS(Relu, c.unary(), d, a) while (false);
  }
  if constexpr (std::is_same_v<T, int16_t>) {
    if (c.op == 7) {
      do
        FORMS(Not, c.unary(), d, a) while (false);
    }
  }
  stored(t[3], d, c.elements);
}

template <typename T>
void with_scalar(void* const* t, const Call& c) {
  auto a = loaded<T>(0, t[0], c.elements);
  auto d = loaded<T>(2, t[2], c.elements);
  T s;
  std::memcpy(&s, t[1], sizeof(T));
  PipeBarrier<PIPE_ALL>();
  if constexpr (std::is_same_v<T, half> || std::is_same_v<T, float>) {
    switch (c.op) {
      case 4:
        FORMS(LeakyRelu, c.unary(), d, a, s)
      case 5:
        FORMS(Axpy, c.unary(), d, a, s)
    }
  } else {
    switch (c.op) {
      case 6:
        FORMS(ShiftLeft, c.unary(), d, a, s)
      case 7:
        if (c.form == 0)
          ShiftRight(d, a, s, (int32_t)c.count);
        if (c.form == 1)
          ShiftRight(d, a, s, (uint64_t)c.count, c.repeat, c.unary());
    }
  }
  switch (c.op) {
    case 0:
      FORMS(Adds, c.unary(), d, a, s)
    case 1:
      FORMS(Muls, c.unary(), d, a, s)
    case 2:
      FORMS(Maxs, c.unary(), d, a, s)
    case 3:
      FORMS(Mins, c.unary(), d, a, s)
  }
  if (c.op == 8) {
    if (c.form == 0)
      Duplicate(d, s, (int32_t)c.count);
    if (c.form == 1)
      Duplicate(d, s, (uint64_t)c.count, c.repeat, c.stride[0], c.stride[3]);
    if (c.form == 2)
      Duplicate(d, s, c.bits, c.repeat, c.stride[0], c.stride[3]);
  }
  if (c.op == 9) {
    const CopyRepeatParams p(c.stride[0], c.stride[1], c.stride[3], c.stride[4]);
    if (c.form == 1)
      Copy(d, a, (uint64_t)c.count, c.repeat, p);
    if (c.form == 2)
      Copy(d, a, c.bits, c.repeat, p);
  }
  if (c.op == 10)
    CreateVecIndex(d, s, (uint32_t)c.count);
  stored(t[3], d, c.elements);
}

// n[13]: rounding mode.
template <typename D, typename S>
void cast(void* const* t, const Call& c, int64_t mode) {
  auto a = loaded<S>(0, t[0], c.elements);
  auto d = loaded<D>(2, t[2], c.elements);
  PipeBarrier<PIPE_ALL>();
  const auto how = static_cast<RoundMode>(mode);
  SetDeqScale((half)0.25);
  do
    FORMS(Cast, c.unary(), d, a, how) while (false);
  stored(t[3], d, c.elements);
}

// op: 0..2 WholeReduce max min sum, 3..5 BlockReduce, 6 PairReduceSum, 7..9
// Reduce max min sum. stride[0] between results, stride[1] source blocks,
// stride[4] source repeats; n[13]: the order of WholeReduce, or whether the
// index is asked for.
template <typename T>
void reduce(void* const* t, const Call& c, int64_t extra) {
  auto a = loaded<T>(0, t[0], c.elements);
  auto d = loaded<T>(2, t[2], c.elements);
  auto scratch = buffer<T>(3, c.elements);
  PipeBarrier<PIPE_ALL>();
  const auto order = static_cast<ReduceOrder>(extra);
  const int32_t to = c.stride[0], block = c.stride[1], repeat = c.stride[4];
#define WHOLE(Name, ...)                                                     \
  {                                                                          \
    if (c.form == 1)                                                         \
      Name(d, a, (int32_t)c.count, c.repeat, to, block, repeat __VA_ARGS__); \
    if (c.form == 2)                                                         \
      Name(d, a, c.bits, c.repeat, to, block, repeat __VA_ARGS__);           \
    break;                                                                   \
  }
#define BLOCK(Name)                                              \
  {                                                              \
    if (c.form == 1)                                             \
      Name(d, a, c.repeat, (int32_t)c.count, to, block, repeat); \
    if (c.form == 2)                                             \
      Name(d, a, c.repeat, c.bits, to, block, repeat);           \
    break;                                                       \
  }
  switch (c.op) {
    case 0:
      WHOLE(WholeReduceMax, , order)
    case 1:
      WHOLE(WholeReduceMin, , order)
    case 2:
      WHOLE(WholeReduceSum)
    case 3:
      BLOCK(BlockReduceMax)
    case 4:
      BLOCK(BlockReduceMin)
    case 5:
      BLOCK(BlockReduceSum)
    case 6:
      BLOCK(PairReduceSum)
    case 7:
      ReduceMax(d, a, scratch, (int32_t)c.count, extra != 0);
      break;
    case 8:
      ReduceMin(d, a, scratch, (int32_t)c.count, extra != 0);
      break;
    case 9:
      ReduceSum(d, a, scratch, (int32_t)c.count);
      break;
  }
  stored(t[3], d, c.elements);
}

// op: 0 Compare to bits then Select of tensors, 1 CompareScalar then Select
// with a scalar, 2 Compare in repeats, 3 Brcb, 4 Gather by count, 5 GatherMask
// fixed, 6 Transpose, 7 Compare to the register and GetCmpMask; n[13] cmp mode
// or pattern.
template <typename T>
void select(void* const* t, const Call& c, int64_t extra) {
  auto a = loaded<T>(0, t[0], c.elements);
  auto b = loaded<T>(1, t[1], c.elements);
  auto d = loaded<T>(2, t[2], c.elements);
  auto bits = buffer<uint8_t>(3, slot);
  PipeBarrier<PIPE_ALL>();
  const auto mode = static_cast<CMPMODE>(extra);
  const uint32_t count = c.count;
  T scalar;
  std::memcpy(&scalar, t[1], sizeof(T));
  switch (c.op) {
    case 0:
      Compare(bits, a, b, mode, count);
      PipeBarrier<PIPE_V>();
      Select(d, bits, a, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
      break;
    case 1:
      CompareScalar(bits, a, scalar, mode, count);
      PipeBarrier<PIPE_V>();
      Select(d, bits, a, scalar, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
      break;
    case 2:
      Compare(d.template ReinterpretCast<uint8_t>(), a, b, mode, (uint64_t)count, c.repeat,
              c.binary());
      break;
    case 3:
      Brcb(d, a, c.repeat, BrcbRepeatParams(c.stride[0], c.stride[3]));
      break;
    case 4:
      Gather(d, a, b.template ReinterpretCast<uint32_t>(), (uint32_t)extra, count);
      break;
    case 5: {
      uint64_t taken = 0;
      GatherMask(d, a, (uint8_t)extra, count != 0, count,
                 GatherMaskParams(c.stride[1], c.repeat, c.stride[4], 0), taken);
      *static_cast<uint64_t*>(t[4]) = taken;
      break;
    }
    case 6:
      if constexpr (sizeof(T) == 2)
        Transpose(d, a);
      break;
    case 7:
      Compare(a, b, mode, (uint64_t)count, c.binary());
      PipeBarrier<PIPE_V>();
      GetCmpMask(d);
      break;
  }
  stored(t[3], d, c.elements);
}

}  // namespace

#define ENTRY(name, call)                                                                \
  extern "C" const char* name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] {                                                             \
      const Call c(n);                                                                   \
      call;                                                                              \
    });                                                                                  \
  }
ENTRY(binary_half, binary<half>(t, c))
ENTRY(binary_float, binary<float>(t, c))
ENTRY(binary_int32, binary<int32_t>(t, c))
ENTRY(binary_int16, binary<int16_t>(t, c))
ENTRY(unary_half, unary<half>(t, c))
ENTRY(unary_float, unary<float>(t, c))
ENTRY(unary_int16, unary<int16_t>(t, c))
ENTRY(scalar_half, with_scalar<half>(t, c))
ENTRY(scalar_float, with_scalar<float>(t, c))
ENTRY(scalar_int32, with_scalar<int32_t>(t, c))
ENTRY(scalar_int16, with_scalar<int16_t>(t, c))
ENTRY(reduce_half, reduce<half>(t, c, n[13]))
ENTRY(reduce_float, reduce<float>(t, c, n[13]))
ENTRY(select_half, select<half>(t, c, n[13]))
ENTRY(select_float, select<float>(t, c, n[13]))
ENTRY(cast_float_half, (cast<half, float>(t, c, n[13])))
ENTRY(cast_float_bf16, (cast<bfloat16_t, float>(t, c, n[13])))
ENTRY(cast_float_float, (cast<float, float>(t, c, n[13])))
ENTRY(cast_float_int32, (cast<int32_t, float>(t, c, n[13])))
ENTRY(cast_float_int16, (cast<int16_t, float>(t, c, n[13])))
ENTRY(cast_half_float, (cast<float, half>(t, c, n[13])))
ENTRY(cast_half_int32, (cast<int32_t, half>(t, c, n[13])))
ENTRY(cast_half_int8, (cast<int8_t, half>(t, c, n[13])))
ENTRY(cast_bf16_float, (cast<float, bfloat16_t>(t, c, n[13])))
ENTRY(cast_int32_float, (cast<float, int32_t>(t, c, n[13])))
ENTRY(cast_int32_half, (cast<half, int32_t>(t, c, n[13])))
ENTRY(cast_int8_half, (cast<half, int8_t>(t, c, n[13])))

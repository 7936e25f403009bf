// Transfers with their parameters from scalars, UB and L1.
#include "emulation.h"
#include "kernel_operator.h"

using namespace AscendC;
namespace emu = xyserve::emulation;

namespace {

template <typename T>
GlobalTensor<T> global(void* at) {
  GlobalTensor<T> result;
  result.SetGlobalBuffer((__gm__ T*)at);
  return result;
}

// GM to UB to GM. n: kind, elements, then the parameters of the call in, then
// of the call out.
void through_ub(void* const* t, const int64_t* n) {
  LocalTensor<half> ub(TPosition::VECIN, 0, 32 * 1024);
  GlobalTensor<half> in = global<half>(t[0]), out = global<half>(t[1]);
  if (n[0] == 3)
    Duplicate(ub, (half)7.0, n[1]);
  PipeBarrier<PIPE_ALL>();
  if (n[0] == 0)
    DataCopy(ub, in, (uint32_t)n[2]);
  if (n[0] == 1)
    DataCopy(ub, in, DataCopyParams(n[2], n[3], n[4], n[5]));
  if (n[0] >= 2) {
    const DataCopyPadExtParams<half> pad(n[10] != 0, n[11], n[12], (half)3.0);
    DataCopyPad(ub, in, DataCopyExtParams(n[2], n[3], n[4], n[5], 0), pad);
  }
  PipeBarrier<PIPE_ALL>();
  if (n[0] == 0)
    DataCopy(out, ub, (uint32_t)n[6]);
  if (n[0] == 1)
    DataCopy(out, ub, DataCopyParams(n[6], n[7], n[8], n[9]));
  if (n[0] >= 2)
    DataCopyPad(out, ub, DataCopyExtParams(n[6], n[7], n[8], n[9], 0));
}

// Row-major to NZ in L1, then L1 to GM as it lies there. n: the eight of
// Nd2NzParams, bytes out.
template <typename T>
void nd2nz(void* const* t, const int64_t* n) {
  LocalTensor<T> l1(TPosition::A1, 0, 128 * 1024);
  GlobalTensor<T> out = global<T>(t[1]);
  // A background that shows what the copy left alone.
  InitConstValue(l1, InitConstValueParams<T>(1, n[8] / 32, 0, (T)5));
  PipeBarrier<PIPE_MTE2>();
  DataCopy(l1, global<T>(t[0]), Nd2NzParams(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]));
  SetFlag<HardEvent::MTE2_MTE3>(0);
  WaitFlag<HardEvent::MTE2_MTE3>(0);
  DataCopy(out, l1, (uint32_t)(n[8] / sizeof(T)));
}

// Each block adds its own number n[0] times into one place.
template <typename T>
void atomic(void* const* t, const int64_t* n) {
  LocalTensor<T> ub(TPosition::VECOUT, 0, 64);
  Duplicate(ub, (T)(GetBlockIdx() + 1), 64);
  SetFlag<HardEvent::V_MTE3>(0);
  WaitFlag<HardEvent::V_MTE3>(0);
  if (n[1] == 0)
    SetAtomicAdd<T>();
  if (n[1] == 1)
    SetAtomicMax<T>();
  if (n[1] == 2)
    SetAtomicMin<T>();
  for (int64_t i = 0; i < n[0]; ++i)
    DataCopyPad(global<T>(t[0]), ub, DataCopyExtParams(1, 40 * sizeof(T), 0, 0, 0));
  SetAtomicNone();
}

// UB to UB in bursts. n: four of DataCopyParams, elements.
void within_ub(void* const* t, const int64_t* n) {
  LocalTensor<float> a(TPosition::VECIN, 0, 4096), b(TPosition::VECOUT, 64 * 1024, 4096);
  DataCopy(a, global<float>(t[0]), (uint32_t)n[4]);
  DataCopy(b, global<float>(t[0]), (uint32_t)n[4]);
  PipeBarrier<PIPE_ALL>();
  DataCopy(b, a, DataCopyParams(n[0], n[1], n[2], n[3]));
  PipeBarrier<PIPE_ALL>();
  DataCopy(global<float>(t[1]), b, (uint32_t)n[4]);
}

// Scalar reads and writes of UB and of global memory, with the cache cleaned.
void scalars(void* const* t, const int64_t* n) {
  GlobalTensor<int32_t> in = global<int32_t>(t[0]), out = global<int32_t>(t[1]);
  LocalTensor<int32_t> ub(TPosition::VECIN, 0, 64);
  for (int64_t i = 0; i < n[0]; ++i)
    ub.SetValue(i, in.GetValue(i) * 2);
  for (int64_t i = 0; i < n[0]; ++i)
    out.SetValue(i, ub.GetValue(n[0] - 1 - i));
  DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(out);
}

}  // namespace

#define ENTRY(name, call)                                                                \
  extern "C" const char* name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] { call; });                                                   \
  }
ENTRY(copy_through_ub, through_ub(t, n))
ENTRY(copy_nd2nz_half, nd2nz<half>(t, n))
ENTRY(copy_nd2nz_int8, nd2nz<int8_t>(t, n))
ENTRY(copy_nd2nz_float, nd2nz<float>(t, n))
ENTRY(copy_atomic_float, atomic<float>(t, n))
ENTRY(copy_atomic_half, atomic<half>(t, n))
ENTRY(copy_atomic_int32, atomic<int32_t>(t, n))
ENTRY(copy_within_ub, within_ub(t, n))
ENTRY(copy_scalars, scalars(t, n))

// Less common ways into and out of the cube's buffers.
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

MmadParams product(uint16_t m, uint16_t n, uint16_t k) {
  MmadParams p;
  p.m = m;
  p.n = n;
  p.k = k;
  return p;
}

// A is the constant n[1] that InitConstValue puts into L0A; B comes as fractals
// straight from global memory into L0B. Two products of 16 x 16, 16 columns
// apart in L0C, leave as ND matrices.
void constants(void* const* t, const int64_t* n) {
  LocalTensor<half> a(TPosition::A2, 0, 256), b(TPosition::B2, 0, 512);
  LocalTensor<float> c(TPosition::CO1, 0, 512);
  InitConstValue(a, InitConstValueParams<half>(1, 1, 0, (half)(float)n[1]));
  LoadData(b, global<half>(t[0]), LoadData2DParams(0, 2, 1, 0, 0, false, 0));
  PipeBarrier<PIPE_ALL>();
  Mmad(c, a, b, product(16, 16, 16));
  Mmad(c[256], a, b[256], product(16, 16, 16));
  PipeBarrier<PIPE_ALL>();
  FixpipeParamsV220 fix(16, 16, 16, 20, false);
  fix.ndNum = 2;
  fix.srcNdStride = 1;
  fix.dstNdStride = 16 * 20 + 4;
  Fixpipe(global<float>(t[1]), c, fix);
}

// float: B is [k][n] as fractals of 16 x 8 in ZZ order, which the transposing
// load turns.
void transposed_float(void* const* t, const int64_t* n) {
  (void)n;
  LocalTensor<float> a1(TPosition::A1, 0, 256), b1(TPosition::B1, 65536, 512);
  LocalTensor<float> a2(TPosition::A2, 0, 256), b2(TPosition::B2, 0, 512);
  LocalTensor<float> c(TPosition::CO1, 0, 512);
  DataCopy(a1, global<float>(t[0]), Nd2NzParams(1, 16, 16, 0, 16, 16, 1, 0));
  DataCopy(b1, global<float>(t[1]), 512u);
  PipeBarrier<PIPE_ALL>();
  LoadData(a2, a1, LoadData2DParams(0, 2, 1, 0, 0, false, 0));
  // Two squares along n: their halves along k lie one N row of two fractals
  // apart.
  LoadDataWithTranspose(b2, b1, LoadData2dTransposeParams(0, 2, 1, 0, 1));
  PipeBarrier<PIPE_ALL>();
  Mmad(c, a2, b2, product(16, 32, 16));
  PipeBarrier<PIPE_ALL>();
  Fixpipe(global<float>(t[2]), c, FixpipeParamsV220(32, 16, 16, 32, false));
}

// (A * B) as half back in L1, then times B again.
void through_l1(void* const* t, const int64_t* n) {
  (void)n;
  LocalTensor<half> a1(TPosition::A1, 0, 1024), b1(TPosition::B1, 65536, 1024);
  LocalTensor<half> p1(TPosition::A1, 131072, 1024);
  LocalTensor<half> a2(TPosition::A2, 0, 1024), b2(TPosition::B2, 0, 1024);
  LocalTensor<float> c(TPosition::CO1, 0, 1024);
  DataCopy(a1, global<half>(t[0]), Nd2NzParams(1, 32, 32, 0, 32, 32, 1, 0));
  DataCopy(b1, global<half>(t[1]), Nd2NzParams(1, 32, 32, 0, 32, 32, 1, 0));
  PipeBarrier<PIPE_ALL>();
  LoadData(b2, b1, LoadData2DParams(0, 4, 1, 0, 0, false, 0));
  for (int pass = 0; pass < 2; ++pass) {
    const LocalTensor<half> left = pass == 0 ? a1 : p1;
    for (int i = 0; i < 2; ++i) {
      LoadData(a2[i * 512], left[i * 256], LoadData2DParams(0, 2, 2, 0, 0, false, 0));
    }
    SetFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::MTE1_M>(0);
    Mmad(c, a2, b2, product(32, 32, 32));
    SetFlag<HardEvent::M_FIX>(0);
    WaitFlag<HardEvent::M_FIX>(0);
    FixpipeParamsV220 fix(32, 32, 32, 32, false);
    if (pass == 0) {
      fix.quantPre = F322F16;
      Fixpipe<half, float, CFG_NZ>(p1, c, fix);
      SetFlag<HardEvent::FIX_MTE1>(0);
      WaitFlag<HardEvent::FIX_MTE1>(0);
      SetFlag<HardEvent::FIX_M>(0);
      WaitFlag<HardEvent::FIX_M>(0);
    } else {
      Fixpipe(global<float>(t[2]), c, fix);
    }
    if (pass == 0) {
      SetFlag<HardEvent::M_MTE1>(0);
      WaitFlag<HardEvent::M_MTE1>(0);
    }
  }
}

}  // namespace

#define ENTRY(name, call)                                                                \
  extern "C" const char* name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] { call; });                                                   \
  }
ENTRY(layout_constants, constants(t, n))
ENTRY(layout_transposed_float, transposed_float(t, n))
ENTRY(layout_through_l1, through_l1(t, n))

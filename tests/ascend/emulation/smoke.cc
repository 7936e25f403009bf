// A first kernel of each kind: a vector add through queues, and one matrix
// product.
#include "emulation.h"
#include "kernel_operator.h"

using namespace AscendC;
namespace emu = xyserve::emulation;

namespace {

__aicore__ void add_kernel(GM_ADDR x, GM_ADDR y, GM_ADDR z, int64_t per_core) {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 2> out;
  constexpr int32_t tile = 128;
  pipe.InitBuffer(in, 2, 2 * tile * sizeof(half));
  pipe.InitBuffer(out, 2, tile * sizeof(half));
  GlobalTensor<half> a, b, c;
  const int64_t start = GetBlockIdx() * per_core;
  a.SetGlobalBuffer((__gm__ half*)x + start, per_core);
  b.SetGlobalBuffer((__gm__ half*)y + start, per_core);
  c.SetGlobalBuffer((__gm__ half*)z + start, per_core);
  for (int64_t at = 0; at < per_core; at += tile) {
    LocalTensor<half> loaded = in.AllocTensor<half>();
    DataCopy(loaded, a[at], tile);
    DataCopy(loaded[tile], b[at], tile);
    in.EnQue(loaded);
    loaded = in.DeQue<half>();
    LocalTensor<half> sum = out.AllocTensor<half>();
    Add(sum, loaded, loaded[tile], tile);
    out.EnQue(sum);
    in.FreeTensor(loaded);
    sum = out.DeQue<half>();
    DataCopy(c[at], sum, tile);
    out.FreeTensor(sum);
  }
}

// C[m][n] = A[m][k] * B[n][k]^T, one tile.
__aicore__ void matmul_kernel(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint16_t m, uint16_t n, uint16_t k) {
  GlobalTensor<half> a, b;
  GlobalTensor<float> c;
  a.SetGlobalBuffer((__gm__ half*)x);
  b.SetGlobalBuffer((__gm__ half*)y);
  c.SetGlobalBuffer((__gm__ float*)z);
  const uint16_t rows = (m + 15) / 16 * 16;
  LocalTensor<half> a1(TPosition::A1, 0, rows * k);
  LocalTensor<half> b1(TPosition::B1, 128 * 1024, n * k);
  LocalTensor<half> a2(TPosition::A2, 0, rows * k);
  LocalTensor<half> b2(TPosition::B2, 0, n * k);
  LocalTensor<float> c1(TPosition::CO1, 0, rows * n);
  DataCopy(a1, a, Nd2NzParams(1, m, k, 0, k, rows, 1, 0));
  DataCopy(b1, b, Nd2NzParams(1, n, k, 0, k, n, 1, 0));
  SetFlag<HardEvent::MTE2_MTE1>(0);
  WaitFlag<HardEvent::MTE2_MTE1>(0);
  for (uint16_t i = 0; i < rows / 16; ++i) {
    LoadData(a2[i * 16 * k], a1[i * 256], LoadData2DParams(0, k / 16, rows / 16, 0, 0, false, 0));
  }
  LoadData(b2, b1, LoadData2DParams(0, n / 16 * (k / 16), 1, 0, 0, false, 0));
  SetFlag<HardEvent::MTE1_M>(0);
  WaitFlag<HardEvent::MTE1_M>(0);
  MmadParams params;
  params.m = m;
  params.n = n;
  params.k = k;
  Mmad(c1, a2, b2, params);
  SetFlag<HardEvent::M_FIX>(0);
  WaitFlag<HardEvent::M_FIX>(0);
  FixpipeParamsV220 fix(n, m, rows, n, false);
  Fixpipe(c, c1, fix);
}

}  // namespace

extern "C" const char* smoke_add(const emu::CLaunch* c, void* const* t, const int64_t* n) {
  return emu::run(c, [=] { add_kernel((GM_ADDR)t[0], (GM_ADDR)t[1], (GM_ADDR)t[2], n[0]); });
}

extern "C" const char* smoke_matmul(const emu::CLaunch* c, void* const* t, const int64_t* n) {
  return emu::run(
      c, [=] { matmul_kernel((GM_ADDR)t[0], (GM_ADDR)t[1], (GM_ADDR)t[2], n[0], n[1], n[2]); });
}

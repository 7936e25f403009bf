// Cube loads, products and Fixpipe with parameters from scalars.
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

constexpr int32_t up(int32_t value, int32_t unit) {
  return (value + unit - 1) / unit * unit;
}

// C[m][n] = A[m][k] * B (+ bias, + C0): B is [n][k], or [k][n] loaded with a
// transpose. n: m, n, k, mode (0 plain, 1 bias, 2 twice in one tile),
// transposed B, quant, NZ output, relu.
template <typename T, typename C, typename Out>
void matmul(void* const* t, const int64_t* n_) {
  constexpr int32_t c0 = 32 / sizeof(T);
  const int32_t m = n_[0], n = n_[1], k = n_[2], mode = n_[3];
  const bool transposed = n_[4] != 0, nz = n_[6] != 0;
  const auto quant = static_cast<QuantMode_t>(n_[5]);
  const int32_t rows = up(m, 16), depth = up(k, c0), wide = up(n, 16);
  // The square tiles of the transposing load are 32 wide for int8.
  const int32_t tall = transposed ? up(k, sizeof(T) == 1 ? 32 : 16) : depth;
  LocalTensor<T> a1(TPosition::A1, 0, rows * depth);
  LocalTensor<T> b1(TPosition::B1, 256 * 1024, tall * up(wide, 32));
  LocalTensor<T> a2(TPosition::A2, 0, rows * depth);
  LocalTensor<T> b2(TPosition::B2, 0, up(wide, 32) * tall);
  LocalTensor<C> bias1(TPosition::C1, 400 * 1024, wide);
  LocalTensor<uint64_t> scale(TPosition::C1, 420 * 1024, wide);
  LocalTensor<C> bias2(TPosition::C2, 0, wide);
  LocalTensor<C> c1(TPosition::CO1, 0, rows * wide);
  DataCopy(a1, global<T>(t[0]), Nd2NzParams(1, m, k, 0, k, rows, 1, 0));
  if (!transposed) {
    DataCopy(b1, global<T>(t[1]), Nd2NzParams(1, n, k, 0, k, wide, 1, 0));
  } else {
    DataCopy(b1, global<T>(t[1]), Nd2NzParams(1, k, n, 0, n, tall, 1, 0));
  }
  if (mode == 1)
    DataCopy(bias1, global<C>(t[3]), wide);
  const bool per_column = quant == VDEQF16 || quant == VQF322B8_PRE;
  if (per_column)
    DataCopy(scale, global<uint64_t>(t[4]), wide);
  SetFlag<HardEvent::MTE2_MTE1>(3);
  WaitFlag<HardEvent::MTE2_MTE1>(3);
  for (int32_t i = 0; i < rows / 16; ++i) {
    LoadData(a2[i * 16 * depth], a1[i * 16 * c0],
             LoadData2DParams(0, depth / c0, rows / 16, 0, 0, false, 0));
  }
  if (!transposed) {
    LoadData(b2, b1, LoadData2DParams(0, wide / 16 * (depth / c0), 1, 0, 0, false, 0));
  } else if constexpr (sizeof(T) == 2) {
    // Columns of V's NZ tile are the N fractals: one load per row of fractals
    // along k.
    for (int32_t i = 0; i < tall / 16; ++i) {
      LoadData(b2[i * 16 * wide], b1[i * 256],
               LoadData2DParams(0, wide / 16, tall / 16, 0, 0, true, 0));
    }
  } else {
    // L1 holds columns of 32 bytes by `tall` rows: squares follow each other
    // down a column.
    const int32_t side = sizeof(T) == 1 ? 32 : 16;
    for (int32_t i = 0; i < tall / side; ++i) {
      LoadDataWithTranspose(b2[i * side * up(wide, side)], b1[i * side * c0],
                            LoadData2dTransposeParams(0, up(wide, side) / side, tall / side, 1, 0));
    }
  }
  if (mode == 1)
    DataCopy(bias2, bias1, wide);
  SetFlag<HardEvent::MTE1_M>(1);
  WaitFlag<HardEvent::MTE1_M>(1);
  MmadParams p;
  p.m = m;
  p.n = n;
  p.k = k;
  if (mode == 1) {
    Mmad(c1, a2, b2, bias2, p);
  } else {
    Mmad(c1, a2, b2, p);
  }
  if (mode == 2) {
    PipeBarrier<PIPE_M>();
    p.cmatrixInitVal = false;
    Mmad(c1, a2, b2, p);
  }
  SetFlag<HardEvent::M_FIX>(2);
  WaitFlag<HardEvent::M_FIX>(2);
  FixpipeParamsV220 fix(n, m, rows, nz ? rows * 16 * sizeof(Out) / 32 : n, n_[7] != 0);
  if (nz && sizeof(Out) == 1)
    fix.dstStride = rows;
  fix.quantPre = quant;
  fix.deqScalar = static_cast<uint64_t>(n_[8]);
  if (per_column) {
    if (nz)
      Fixpipe<Out, C, CFG_NZ>(global<Out>(t[2]), c1, scale, fix);
    if (!nz)
      Fixpipe<Out, C, CFG_ROW_MAJOR>(global<Out>(t[2]), c1, scale, fix);
  } else {
    if (nz)
      Fixpipe<Out, C, CFG_NZ>(global<Out>(t[2]), c1, fix);
    if (!nz)
      Fixpipe<Out, C, CFG_ROW_MAJOR>(global<Out>(t[2]), c1, fix);
  }
}

// One row times B[n][k] in the GEMV form: A in L0A is a plain row.
void gemv(void* const* t, const int64_t* n_) {
  const int32_t n = n_[0], k = n_[1];
  LocalTensor<half> a1(TPosition::A1, 0, up(k, 256));
  LocalTensor<half> b1(TPosition::B1, 256 * 1024, n * k);
  LocalTensor<half> a2(TPosition::A2, 0, up(k, 256));
  LocalTensor<half> b2(TPosition::B2, 0, n * k);
  LocalTensor<float> c1(TPosition::CO1, 0, 16 * n);
  DataCopy(a1, global<half>(t[0]), k);
  DataCopy(b1, global<half>(t[1]), Nd2NzParams(1, n, k, 0, k, n, 1, 0));
  PipeBarrier<PIPE_ALL>();
  LoadData(a2, a1, LoadData2DParams(0, up(k, 256) / 256, 1, 0, 0, false, 0));
  LoadData(b2, b1, LoadData2DParams(0, n / 16 * (k / 16), 1, 0, 0, false, 0));
  PipeBarrier<PIPE_ALL>();
  MmadParams p;
  p.m = 1;
  p.n = n;
  p.k = k;
  Mmad(c1, a2, b2, p);
  PipeBarrier<PIPE_ALL>();
  Fixpipe(global<float>(t[2]), c1, FixpipeParamsV220(n, 1, 16, n, false));
}

}  // namespace

#define ENTRY(name, call)                                                                \
  extern "C" const char* name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] { call; });                                                   \
  }
ENTRY(matmul_half, (matmul<half, float, float>(t, n)))
ENTRY(matmul_half_half, (matmul<half, float, half>(t, n)))
ENTRY(matmul_bf16, (matmul<bfloat16_t, float, float>(t, n)))
ENTRY(matmul_bf16_bf16, (matmul<bfloat16_t, float, bfloat16_t>(t, n)))
ENTRY(matmul_float, (matmul<float, float, float>(t, n)))
ENTRY(matmul_int8, (matmul<int8_t, int32_t, int32_t>(t, n)))
ENTRY(matmul_int8_half, (matmul<int8_t, int32_t, half>(t, n)))
ENTRY(matmul_half_int8, (matmul<half, float, int8_t>(t, n)))
ENTRY(gemv_half, gemv(t, n))

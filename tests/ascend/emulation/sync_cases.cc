// Kernels with several cores: pipelines through global memory, barriers of all
// cores.
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

constexpr uint16_t side = 32;  // a tile is side x side
constexpr uint16_t full = 0, empty = 1;

// The cube core multiplies tile after tile with B into two slots of a
// workspace.
__aicore__ void produce(GM_ADDR a, GM_ADDR b, GM_ADDR work, int64_t tiles) {
  GlobalTensor<half> in = global<half>(a)[GetBlockIdx() * tiles * side * side];
  GlobalTensor<float> slots = global<float>(work)[GetBlockIdx() * 2 * side * side];
  LocalTensor<half> a1(TPosition::A1, 0, 2 * side * side);
  LocalTensor<half> b1(TPosition::B1, 128 * 1024, side * side);
  LocalTensor<half> a2(TPosition::A2, 0, side * side);
  LocalTensor<half> b2(TPosition::B2, 0, side * side);
  LocalTensor<float> c(TPosition::CO1, 0, side * side);
  DataCopy(b1, global<half>(b), Nd2NzParams(1, side, side, 0, side, side, 1, 0));
  SetFlag<HardEvent::MTE2_MTE1>(2);
  WaitFlag<HardEvent::MTE2_MTE1>(2);
  LoadData(b2, b1, LoadData2DParams(0, 4, 1, 0, 0, false, 0));
  SetFlag<HardEvent::MTE1_MTE2>(0);
  SetFlag<HardEvent::MTE1_MTE2>(1);
  SetFlag<HardEvent::M_MTE1>(0);
  SetFlag<HardEvent::FIX_M>(0);
  for (int64_t i = 0; i < tiles; ++i) {
    const int32_t slot = i % 2;
    LocalTensor<half> now = a1[slot * side * side];
    WaitFlag<HardEvent::MTE1_MTE2>(slot);
    DataCopy(now, in[i * side * side], Nd2NzParams(1, side, side, 0, side, side, 1, 0));
    SetFlag<HardEvent::MTE2_MTE1>(slot);
    WaitFlag<HardEvent::MTE2_MTE1>(slot);
    WaitFlag<HardEvent::M_MTE1>(0);
    LoadData(a2, now, LoadData2DParams(0, 2, 2, 0, 0, false, 0));
    LoadData(a2[2 * 256], now[256], LoadData2DParams(0, 2, 2, 0, 0, false, 0));
    SetFlag<HardEvent::MTE1_MTE2>(slot);
    SetFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::FIX_M>(0);
    MmadParams p;
    p.m = p.n = p.k = side;
    Mmad(c, a2, b2, p);
    SetFlag<HardEvent::M_MTE1>(0);
    SetFlag<HardEvent::M_FIX>(0);
    WaitFlag<HardEvent::M_FIX>(0);
    if (i >= 2)
      CrossCoreWaitFlag(empty);
    Fixpipe(slots[slot * side * side], c, FixpipeParamsV220(side, side, side, side, false));
    SetFlag<HardEvent::FIX_M>(0);
    CrossCoreSetFlag<2, PIPE_FIX>(full);
  }
  WaitFlag<HardEvent::MTE1_MTE2>(0);
  WaitFlag<HardEvent::MTE1_MTE2>(1);
  WaitFlag<HardEvent::M_MTE1>(0);
  WaitFlag<HardEvent::FIX_M>(0);
  // The last two tiles' slots.
  for (int64_t i = 0; i < 2 && i < tiles; ++i)
    CrossCoreWaitFlag(empty);
}

// Each vector core adds 1 to its half of the rows.
__aicore__ void consume(GM_ADDR work, GM_ADDR z, int64_t tiles) {
  const int64_t block = GetBlockIdx() / 2, rows = side / 2;
  const int64_t own = GetSubBlockIdx() * rows * side;
  const uint32_t count = rows * side;
  GlobalTensor<float> slots = global<float>(work)[block * 2 * side * side + own];
  GlobalTensor<float> out = global<float>(z)[block * tiles * side * side + own];
  LocalTensor<float> in(TPosition::VECIN, 0, count), sum(TPosition::VECOUT, 8192, count);
  SetFlag<HardEvent::V_MTE2>(0);
  SetFlag<HardEvent::MTE3_V>(0);
  for (int64_t i = 0; i < tiles; ++i) {
    CrossCoreWaitFlag(full);
    WaitFlag<HardEvent::V_MTE2>(0);
    DataCopy(in, slots[i % 2 * side * side], count);
    CrossCoreSetFlag<2, PIPE_MTE2>(empty);
    SetFlag<HardEvent::MTE2_V>(0);
    WaitFlag<HardEvent::MTE2_V>(0);
    WaitFlag<HardEvent::MTE3_V>(0);
    Adds(sum, in, 1.0f, count);
    SetFlag<HardEvent::V_MTE2>(0);
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    PipeBarrier<PIPE_MTE3>();
    DataCopy(out[i * side * side], sum, count);
    SetFlag<HardEvent::MTE3_V>(0);
  }
  WaitFlag<HardEvent::V_MTE2>(0);
  WaitFlag<HardEvent::MTE3_V>(0);
}

__aicore__ void pipeline(uint64_t sync, GM_ADDR a, GM_ADDR b, GM_ADDR work, GM_ADDR z,
                         int64_t tiles) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
  SetSyncBaseAddr(sync);
  if ASCEND_IS_AIC {
    produce(a, b, work, tiles);
  } else {
    consume(work, z, tiles);
  }
}

// Every core writes its number, waits for all by `how`, then reads its right
// neighbour's.
__aicore__ void neighbours(GM_ADDR work, GM_ADDR z, int64_t how) {
  SetSyncBaseAddr(emu::sync_base_address());
  if ASCEND_IS_AIC {
    if (how == 1)
      SyncAll<false>();
    return;
  }
  const int64_t cores = GetBlockNum() * GetSubBlockNum(), me = GetBlockIdx();
  LocalTensor<float> tile(TPosition::VECIN, 0, 64);
  Duplicate(tile, (float)me, 64);
  SetFlag<HardEvent::V_MTE3>(0);
  WaitFlag<HardEvent::V_MTE3>(0);
  DataCopy(global<float>(work)[me * 64], tile, 64);
  if (how == 0 || how == 3) {
    constexpr uint16_t id = 5;
    if (how == 0)
      CrossCoreSetFlag<0, PIPE_MTE3>(id);
    if (how == 3)
      CrossCoreSetFlag<1, PIPE_MTE3>(id);
    CrossCoreWaitFlag(id);
  } else if (how == 1) {
    SyncAll<false>();
  } else {
    SyncAll();
  }
  SetFlag<HardEvent::MTE3_MTE2>(0);
  WaitFlag<HardEvent::MTE3_MTE2>(0);
  const int64_t next = how == 3 ? me / 2 * 2 + 1 - me % 2 : (me + 1) % cores;
  DataCopy(tile, global<float>(work)[next * 64], 64);
  SetFlag<HardEvent::MTE2_MTE3>(0);
  WaitFlag<HardEvent::MTE2_MTE3>(0);
  PipeBarrier<PIPE_MTE3>();
  DataCopy(global<float>(z)[me * 64], tile, 64);
}

// Two flags in a row of which the second orders nothing that the first does
// not.
__aicore__ void redundant(GM_ADDR x, GM_ADDR z) {
  LocalTensor<float> tile(TPosition::VECIN, 0, 64);
  DataCopy(tile, global<float>(x), 64);
  SetFlag<HardEvent::MTE2_V>(0);
  WaitFlag<HardEvent::MTE2_V>(0);
  SetFlag<HardEvent::MTE2_V>(1);
  WaitFlag<HardEvent::MTE2_V>(1);
  Adds(tile, tile, 1.0f, emu::bounded<int32_t>(80, 64));
  SetFlag<HardEvent::V_MTE3>(0);
  WaitFlag<HardEvent::V_MTE3>(0);
  DataCopy(global<float>(z), tile, 64);
}

}  // namespace

#define ENTRY(name, call)                                                                \
  extern "C" const char* name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] { call; });                                                   \
  }
ENTRY(sync_pipeline, pipeline(emu::sync_base_address(), (GM_ADDR)t[0], (GM_ADDR)t[1], (GM_ADDR)t[2],
                              (GM_ADDR)t[3], n[0]))
ENTRY(sync_neighbours, neighbours((GM_ADDR)t[0], (GM_ADDR)t[1], n[0]))
ENTRY(sync_redundant, (void)n; redundant((GM_ADDR)t[0], (GM_ADDR)t[1]))

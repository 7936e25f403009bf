// Small kernels that each break one rule. An entry point is called
// check_<name>.
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

template <typename T>
LocalTensor<T> ub(uint32_t byte, uint32_t elements) {
  return LocalTensor<T>(TPosition::VECCALC, byte, elements);
}

// A half or float tile of ones in UB.
template <typename T>
LocalTensor<T> ones(uint32_t byte, uint32_t elements) {
  LocalTensor<T> result = ub<T>(byte, elements);
  Duplicate(result, (T)1.0, elements);
  PipeBarrier<PIPE_V>();
  return result;
}

template <HardEvent event>
void order(int32_t id) {
  SetFlag<event>(id);
  WaitFlag<event>(id);
}

struct Tiles {
  LocalTensor<half> a1{TPosition::A1, 0, 64 * 1024}, b1{TPosition::B1, 256 * 1024, 64 * 1024};
  LocalTensor<half> a2{TPosition::A2, 0, 32 * 1024}, b2{TPosition::B2, 0, 32 * 1024};
  LocalTensor<float> c{TPosition::CO1, 0, 32 * 1024};
};

// Fills one 16 x 16 x k product's operands from t[0] and leaves everything
// complete.
Tiles cube_tiles(void* const* t, int32_t k = 16) {
  Tiles tiles;
  DataCopy(tiles.a1, global<half>(t[0]), Nd2NzParams(1, 16, k, 0, k, 16, 1, 0));
  DataCopy(tiles.b1, global<half>(t[0]), Nd2NzParams(1, 16, k, 0, k, 16, 1, 0));
  order<HardEvent::MTE2_MTE1>(3);
  LoadData(tiles.a2, tiles.a1, LoadData2DParams(0, k / 16, 1, 0, 0, false, 0));
  LoadData(tiles.b2, tiles.b1, LoadData2DParams(0, k / 16, 1, 0, 0, false, 0));
  order<HardEvent::MTE1_M>(3);
  return tiles;
}

MmadParams product(uint16_t m, uint16_t n, uint16_t k) {
  MmadParams p;
  p.m = m;
  p.n = n;
  p.k = k;
  return p;
}

}  // namespace

#define CHECK(name, ...)                                                                         \
  extern "C" const char* check_##name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] {                                                                     \
      (void)t;                                                                                   \
      (void)n;                                                                                   \
      __VA_ARGS__                                                                                \
    });                                                                                          \
  }

// --- flags and barriers
CHECK(wait_without_set, WaitFlag<HardEvent::MTE2_V>(0);)
CHECK(scalar_wait_without_set, WaitFlag<HardEvent::V_S>(2);)
CHECK(flag_left_set, SetFlag<HardEvent::MTE2_V>(1);)
CHECK(set_twice, SetFlag<HardEvent::MTE2_V>(1); SetFlag<HardEvent::MTE2_V>(1);
      WaitFlag<HardEvent::MTE2_V>(1); WaitFlag<HardEvent::MTE2_V>(1);)
CHECK(event_id, SetFlag<HardEvent::MTE2_V>(8);)
CHECK(event_of_other_core, order<HardEvent::MTE1_M>(0);)
CHECK(event_of_scalar, order<HardEvent::MTE2_S>(0);)
CHECK(held_event, TPipe pipe; SetFlag<HardEvent::M_MTE1>(1); WaitFlag<HardEvent::M_MTE1>(1);)
CHECK(barrier_of_scalar, PipeBarrier<PIPE_S>();)
CHECK(barrier_of_other_core, PipeBarrier<PIPE_M>();)
CHECK(no_vector_barrier, auto a = ones<float>(0, 64); Add(a, a, a, 64); Muls(a, a, 2.0f, 64);)
CHECK(vector_barrier, auto a = ones<float>(0, 64); Add(a, a, a, 64); PipeBarrier<PIPE_V>();
      Muls(a, a, 2.0f, 64);)
CHECK(no_load_flag, auto a = ub<half>(0, 64); DataCopy(a, global<half>(t[0]), 64);
      Adds(ub<half>(256, 64), a, (half)1.0, 64);)
CHECK(no_store_flag, auto a = ones<half>(0, 64); DataCopy(global<half>(t[1]), a, 64);)
CHECK(no_reuse_flag, auto a = ub<half>(0, 64); DataCopy(a, global<half>(t[0]), 64);
      order<HardEvent::MTE2_V>(0); Adds(ub<half>(256, 64), a, (half)1.0, 64);
      PipeBarrier<PIPE_MTE2>(); DataCopy(a, global<half>(t[0]), 64);)
CHECK(no_load_barrier, auto a = ub<half>(0, 64); DataCopy(a, global<half>(t[0]), 64);
      DataCopy(a, global<half>(t[0]), 64);)
CHECK(no_scalar_flag, auto a = ones<half>(0, 64); a.GetValue(3);)
CHECK(scalar_flag, auto a = ones<half>(0, 64); order<HardEvent::V_S>(0); a.GetValue(3);)
CHECK(no_flag_from_scalar, auto a = ub<half>(0, 64); a.SetValue(0, 1.0f);
      Adds(ub<half>(256, 64), a, (half)1.0, 1);)
CHECK(cores_write_one_place, auto a = ones<half>(0, 64); order<HardEvent::V_MTE3>(0);
      DataCopy(global<half>(t[1]), a, 64);)
CHECK(cores_write_neighbours, auto a = ones<half>(0, 64); order<HardEvent::V_MTE3>(0);
      DataCopyPad(global<half>(t[1])[GetBlockIdx() * 3], a, DataCopyExtParams(1, 6, 0, 0, 0));)

// --- transfers
CHECK(ragged_count, DataCopy(ub<half>(0, 64), global<half>(t[0]), 17);)
CHECK(misaligned_ub, DataCopy(ub<half>(2, 64), global<half>(t[0]), 16);)
CHECK(misaligned_element, GlobalTensor<half> g;
      g.SetGlobalBuffer((__gm__ half*)((uint8_t*)t[0] + 1)); DataCopy(ub<half>(0, 64), g, 16);)
CHECK(read_past_end, DataCopy(ub<half>(0, 2048), global<half>(t[0])[1000], 64);)
CHECK(write_past_end, auto a = ones<half>(0, 64); order<HardEvent::V_MTE3>(0);
      DataCopy(global<half>(t[1])[1008], a, 32);)
CHECK(read_nowhere, DataCopy(ub<half>(0, 2048), global<half>((void*)4096), 64);)
CHECK(write_constant, auto a = ones<half>(0, 64); order<HardEvent::V_MTE3>(0);
      DataCopy(global<half>(t[0]), a, 64);)
CHECK(block_count, DataCopy(ub<half>(0, 64), global<half>(t[0]), DataCopyParams(4096, 1, 0, 0));)
CHECK(pad_length,
      DataCopyPad(ub<half>(0, 64), global<half>(t[0]), DataCopyExtParams(1, 2097152, 0, 0, 0),
                  DataCopyPadExtParams<half>(false, 0, 0, 0));)
CHECK(pad_width, DataCopyPad(ub<half>(0, 64), global<half>(t[0]), DataCopyExtParams(1, 32, 0, 0, 0),
                             DataCopyPadExtParams<half>(true, 17, 0, 0));)
CHECK(past_tensor, DataCopy(ub<half>(0, 64), global<half>(t[0]), 80);)
CHECK(past_ub, DataCopy(ub<half>(184 * 1024 - 32, 64), global<half>(t[0]), 64);)
CHECK(store_unwritten, DataCopy(global<half>(t[1]), ub<half>(0, 64), 64);)
CHECK(store_ragged_tail, auto a = ub<half>(0, 64);
      DataCopyPad(a, global<half>(t[0]), DataCopyExtParams(1, 6, 0, 0, 0),
                  DataCopyPadExtParams<half>(false, 0, 0, 0));
      order<HardEvent::MTE2_MTE3>(0); DataCopy(global<half>(t[1]), a, 16);)
CHECK(partial_copy_overlap, auto a = ones<half>(0, 256); DataCopy(a[16], a, 32);)
CHECK(nd2nz_stride, DataCopy(LocalTensor<half>(TPosition::A1, 0, 1024), global<half>(t[0]),
                             Nd2NzParams(1, 16, 16, 0, 16, 16385, 1, 0));)
CHECK(atomic_left_on, SetAtomicAdd<float>();)
CHECK(atomic_type, auto a = ones<half>(0, 64); order<HardEvent::V_MTE3>(0); SetAtomicAdd<float>();
      DataCopy(global<half>(t[1]), a, 64); SetAtomicNone();)
CHECK(atomic_on_unwritten, auto a = ones<half>(0, 64); order<HardEvent::V_MTE3>(0);
      SetAtomicAdd<half>(); DataCopy(global<half>(t[1]), a, 64); SetAtomicNone();)

// --- vector
CHECK(read_unwritten, Adds(ub<half>(0, 64), ub<half>(256, 64), (half)1.0, 64);)
CHECK(mask_too_long, auto a = ones<float>(0, 128); Add(a, a, a, 65, 1, {1, 1, 1, 8, 8, 8});)
CHECK(mask_zero, auto a = ones<float>(0, 128); uint64_t mask[2] = {0, 0};
      Add(a, a, a, mask, 1, {1, 1, 1, 8, 8, 8});)
CHECK(mask_high_word, auto a = ones<float>(0, 128); uint64_t mask[2] = {1, 1};
      Add(a, a, a, mask, 1, {1, 1, 1, 8, 8, 8});)
CHECK(bf16_arithmetic,
      Add(ub<bfloat16_t>(0, 64), ub<bfloat16_t>(0, 64), ub<bfloat16_t>(0, 64), 64);)
CHECK(cast_pair, Cast(ub<bfloat16_t>(0, 64), ub<half>(256, 64), RoundMode::CAST_RINT, 64);)
CHECK(cast_mode, Cast(ub<bfloat16_t>(0, 64), ones<float>(256, 64), RoundMode::CAST_NONE, 64);)
CHECK(compare_count, auto a = ones<float>(0, 128);
      Compare(ub<uint8_t>(1024, 64), a, a, CMPMODE::LT, 100);)
CHECK(partial_overlap, auto a = ones<float>(0, 256); Adds(a[8], a, 1.0f, 64);)
CHECK(vector_past_tensor, auto a = ones<float>(0, 64); Adds(ub<float>(512, 60), a, 1.0f, 64);)
CHECK(misaligned_operand, auto a = ones<float>(0, 128); Adds(ub<float>(1024, 64), a[4], 1.0f, 32);)
CHECK(reduce_scratch, auto a = ones<float>(0, 512);
      ReduceMax(ub<float>(4096, 8), a, ub<float>(8192, 8), 512, false);)
CHECK(select_without_reserve, auto a = ones<float>(0, 64);
      Duplicate(ub<uint16_t>(1024, 64), (uint16_t)1, 64); PipeBarrier<PIPE_V>();
      Select(ub<float>(2048, 64), ub<uint8_t>(1024, 64), a, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE,
             64);)
CHECK(cube_call_on_vector,
      Mmad(LocalTensor<float>(TPosition::CO1, 0, 256), LocalTensor<half>(TPosition::A2, 0, 256),
           LocalTensor<half>(TPosition::B2, 0, 256), product(16, 16, 16));)
CHECK(vector_call_on_cube, ones<half>(0, 64);)

// --- buffers and queues
CHECK(ub_overflow, TPipe pipe; TBuf<> one; TBuf<> two; pipe.InitBuffer(one, 100 * 1024);
      pipe.InitBuffer(two, 90 * 1024);)
CHECK(queue_exhausted, TPipe pipe; TQue<TPosition::VECIN, 1> q; pipe.InitBuffer(q, 1, 256);
      auto a = q.AllocTensor<half>(); auto b = q.AllocTensor<half>(); (void)a; (void)b;)
CHECK(queue_empty, TPipe pipe; TQue<TPosition::VECIN, 1> q; pipe.InitBuffer(q, 1, 256);
      q.DeQue<half>();)
CHECK(event_ids, TPipe pipe; for (int i = 0; i < 9; ++i) pipe.AllocEventID<HardEvent::MTE2_V>();)
CHECK(tbuf_too_small, TPipe pipe; TBuf<> b; pipe.InitBuffer(b, 64); b.Get<float>(17);)

// --- scalar accesses
CHECK(dirty_line_left, global<int32_t>(t[1]).SetValue(0, 5);)
CHECK(stale_line, auto g = global<half>(t[2]); g.GetValue(0); auto a = ones<half>(0, 64);
      order<HardEvent::V_MTE3>(0); DataCopy(g, a, 64); order<HardEvent::MTE3_S>(0); g.GetValue(0);)
CHECK(fresh_line, auto g = global<half>(t[2]); g.GetValue(0); auto a = ones<half>(0, 64);
      order<HardEvent::S_MTE3>(0); order<HardEvent::V_MTE3>(0); DataCopy(g, a, 64);
      order<HardEvent::MTE3_S>(0);
      DataCacheCleanAndInvalid<half, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(g);
      g.GetValue(0);)
CHECK(cores_share_line, auto g = global<int32_t>(t[2]); g.SetValue(GetBlockIdx(), 1);
      DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(g);)
CHECK(scalar_on_cube, LocalTensor<half>(TPosition::A1, 0, 64).GetValue(0);)
CHECK(kernel_type, KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);)
CHECK(trap, Trap();)

// --- cube
CHECK(mmad_range, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(16, 16, 4096));)
CHECK(mmad_alignment, auto c = cube_tiles(t); Mmad(c.c[16], c.a2, c.b2, product(16, 16, 16));)
CHECK(mmad_types, auto c = cube_tiles(t);
      Mmad(c.c.ReinterpretCast<int32_t>(), c.a2, c.b2, product(16, 16, 16));)
CHECK(mmad_unwritten_a, auto c = cube_tiles(t); Mmad(c.c, c.a2[256], c.b2, product(16, 16, 16));)
CHECK(mmad_unwritten_k, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(16, 16, 17));)
CHECK(mmad_numbers, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(16, 16, 16));)
CHECK(mmad_rows, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(n[0], n[0], n[1]));)
CHECK(no_cube_barrier, auto c = cube_tiles(t); auto p = product(16, 16, 16);
      Mmad(c.c, c.a2, c.b2, p); p.cmatrixInitVal = false; Mmad(c.c, c.a2, c.b2, p);)
CHECK(accumulate_unwritten, auto c = cube_tiles(t); auto p = product(16, 16, 16);
      p.cmatrixInitVal = false; Mmad(c.c, c.a2, c.b2, p);)
CHECK(no_fixpipe_flag, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(16, 16, 16));
      Fixpipe(global<float>(t[1]), c.c, FixpipeParamsV220(16, 16, 16, 16, false));)
CHECK(fixpipe_columns, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(16, 16, 16));
      order<HardEvent::M_FIX>(0);
      Fixpipe(global<float>(t[1]), c.c, FixpipeParamsV220(24, 16, 16, 16, false));)
CHECK(fixpipe_rows, auto c = cube_tiles(t); Mmad(c.c, c.a2, c.b2, product(12, 16, 16));
      order<HardEvent::M_FIX>(0);
      Fixpipe(global<float>(t[1]), c.c, FixpipeParamsV220(16, 16, 16, 16, false));)
CHECK(fixpipe_to_bf16, FixpipeParamsV220 p(16, 16, 16, 16, false); p.quantPre = F322BF16;
      Fixpipe(global<bfloat16_t>(t[1]), LocalTensor<int32_t>(TPosition::CO1, 0, 256), p);)
CHECK(fixpipe_to_ub, FixpipeParamsV220 p(16, 16, 16, 16, false); p.quantPre = F322F16;
      Fixpipe<half, float, CFG_NZ>(ub<half>(0, 256), LocalTensor<float>(TPosition::CO1, 0, 256),
                                   p);)
CHECK(fixpipe_scale, FixpipeParamsV220 p(16, 16, 16, 16, false); p.quantPre = VDEQF16;
      Fixpipe(global<half>(t[1]), LocalTensor<int32_t>(TPosition::CO1, 0, 256), p);)
CHECK(load_transpose_type, LoadData(LocalTensor<int8_t>(TPosition::A2, 0, 1024),
                                    LocalTensor<int8_t>(TPosition::A1, 0, 1024),
                                    LoadData2DParams(0, 1, 1, 0, 0, true, 0));)
CHECK(load_alignment,
      LoadData(LocalTensor<half>(TPosition::A2, 32, 512), LocalTensor<half>(TPosition::A1, 0, 512),
               LoadData2DParams(0, 1, 1, 0, 0, false, 0));)
CHECK(load_target,
      LoadData(LocalTensor<half>(TPosition::CO1, 0, 512), LocalTensor<half>(TPosition::A1, 0, 512),
               LoadData2DParams(0, 1, 1, 0, 0, false, 0));)
CHECK(past_l0a, LoadData(LocalTensor<half>(TPosition::A2, 63 * 1024, 1024),
                         LocalTensor<half>(TPosition::A1, 0, 4096),
                         LoadData2DParams(0, 4, 1, 0, 0, false, 0));)

// --- between cores
CHECK(cross_id, SetSyncBaseAddr(emu::sync_base_address()); CrossCoreSetFlag<0, PIPE_MTE3>(11);)
CHECK(cross_plain_launch, CrossCoreSetFlag<0, PIPE_MTE3>(1);)
CHECK(cross_no_address, CrossCoreWaitFlag(1);)
CHECK(cross_scalar_pipe, SetSyncBaseAddr(emu::sync_base_address()); CrossCoreSetFlag<2, PIPE_S>(1);)
CHECK(
    cross_wait_without_set, SetSyncBaseAddr(emu::sync_base_address());
    if ASCEND_IS_AIV { CrossCoreWaitFlag(4); })
CHECK(
    cross_half_set, SetSyncBaseAddr(emu::sync_base_address()); if ASCEND_IS_AIV {
      if (GetSubBlockIdx() == 0)
        CrossCoreSetFlag<2, PIPE_MTE3>(4);
    })
CHECK(
    cross_left_set, SetSyncBaseAddr(emu::sync_base_address());
    if ASCEND_IS_AIC { CrossCoreSetFlag<2, PIPE_FIX>(4); })
CHECK(
    cross_counter, SetSyncBaseAddr(emu::sync_base_address()); for (int i = 0; i < 16; ++i) {
      if ASCEND_IS_AIC {
        CrossCoreSetFlag<2, PIPE_FIX>(4);
      }
    } for (int i = 0; i < 16; ++i) {
      if ASCEND_IS_AIV {
        CrossCoreWaitFlag(4);
      }
    })
CHECK(
    cross_mode_one_on_cube, SetSyncBaseAddr(emu::sync_base_address());
    if ASCEND_IS_AIC { CrossCoreSetFlag<1, PIPE_FIX>(4); })
CHECK(sync_all_on_cube, SetSyncBaseAddr(emu::sync_base_address()); SyncAll();)
CHECK(sync_all_not_resident, SetSyncBaseAddr(emu::sync_base_address()); SyncAll();)
CHECK(sync_all_plain_launch, SyncAll();)
CHECK(sync_all_missing, SetSyncBaseAddr(emu::sync_base_address());
      if (GetBlockIdx() == 0) SyncAll();)

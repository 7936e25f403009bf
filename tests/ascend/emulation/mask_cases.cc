// Forms of the vector API beside count and mask: the mask register, counter
// mode, selection by a mask of one repeat, repeated gathers, queues that lead
// from MTE2 to MTE3.
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

constexpr uint32_t elements = 512;

struct Buffers {
  LocalTensor<float> a{TPosition::VECIN, 0, elements}, b{TPosition::VECIN, 8192, elements};
  LocalTensor<float> d{TPosition::VECOUT, 16384, elements};
};

Buffers loaded(void* const* t) {
  Buffers x;
  DataCopy(x.a, global<float>(t[0]), elements);
  DataCopy(x.b, global<float>(t[1]), elements);
  DataCopy(x.d, global<float>(t[2]), elements);
  PipeBarrier<PIPE_ALL>();
  return x;
}

void stored(void* const* t, const Buffers& x) {
  PipeBarrier<PIPE_ALL>();
  DataCopy(global<float>(t[3]), x.d, elements);
}

// n: case, number.
void masks(void* const* t, const int64_t* n) {
  Buffers x = loaded(t);
  const BinaryRepeatParams whole(1, 1, 1, 8, 8, 8);
  LocalTensor<uint8_t> bits(TPosition::VECCALC, 32768, 256);
  switch (n[0]) {
    case 0:
      SetVectorMask<float>(0, (uint64_t)n[1]);
      Add<float, false>(x.d, x.a, x.b, (uint64_t)0, 3, whole);
      ResetMask();
      break;
    case 1:
      SetMaskCount();
      SetVectorMask<float, MaskMode::COUNTER>((int32_t)n[1]);
      Add<float, false>(x.d, x.a, x.b, (uint64_t)0, 1, BinaryRepeatParams(1, 1, 1, 8, 8, 8));
      SetMaskNorm();
      ResetMask();
      break;
    case 2:
      SetVectorMask<float>((int32_t)n[1]);
      Muls<float, false>(x.d, x.a, 2.0f, (uint64_t)0, 2, UnaryRepeatParams(1, 1, 8, 8));
      ResetMask();
      break;
    case 3: {
      // One repeat's comparison chooses in every repeat.
      Compare(x.a, x.b, CMPMODE::LT, (uint64_t)64, whole);
      PipeBarrier<PIPE_V>();
      GetCmpMask(bits);
      PipeBarrier<PIPE_V>();
      Select(x.d, bits, x.a, x.b, SELMODE::VSEL_CMPMASK_SPR, (uint64_t)64, 4, whole);
      break;
    }
    case 4: {
      LocalTensor<uint32_t> offsets(TPosition::VECCALC, 32768, 128);
      CreateVecIndex(offsets.ReinterpretCast<int32_t>(), 1, 128u);
      PipeBarrier<PIPE_V>();
      Muls(offsets.ReinterpretCast<int32_t>(), offsets.ReinterpretCast<int32_t>(), 8, 128);
      PipeBarrier<PIPE_V>();
      Gather(x.d, x.a, offsets, 4u, (uint64_t)n[1], 2, 8);
      break;
    }
    case 5: {
      // 32 bits per pattern word: every third element of each repeat of 64.
      LocalTensor<uint32_t> pattern(TPosition::VECCALC, 32768, 8);
      Duplicate(pattern, 0x49249249u, 8);
      PipeBarrier<PIPE_V>();
      uint64_t taken = 0;
      GatherMask(x.d, x.a, pattern, true, (uint32_t)n[1], GatherMaskParams(1, 2, 8, 0), taken);
      global<int64_t>(t[4]).SetValue(0, (int64_t)taken);
      DataCacheCleanAndInvalid<int64_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(
          global<int64_t>(t[4]));
      break;
    }
    case 6: {
      LocalTensor<float> scratch(TPosition::VECCALC, 32768, 64);
      ReduceSum(x.d, x.a, scratch, (int32_t)n[1], 3, 8);
      break;
    }
    case 7: {
      LocalTensor<float> scratch(TPosition::VECCALC, 32768, 64);
      const uint64_t odd[2] = {0xaaaaaaaaaaaaaaaaull, 0};
      ReduceMax(x.d, x.a, scratch, odd, 3, 8, true);
      break;
    }
  }
  stored(t, x);
}

// Global memory to global memory without a vector operation, through a bound
// queue.
void relay(void* const* t, const int64_t* n) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> queue;
  pipe.InitBuffer(queue, 2, 256);
  for (int64_t i = 0; i < n[0]; ++i) {
    LocalTensor<float> tile = queue.AllocTensor<float>();
    DataCopy(tile, global<float>(t[0])[i * 64], 64);
    queue.EnQue(tile);
    tile = queue.DeQue<float>();
    DataCopy(global<float>(t[1])[i * 64], tile, 64);
    queue.FreeTensor(tile);
  }
}

}  // namespace

#define ENTRY(name, call)                                                                \
  extern "C" const char* name(const emu::CLaunch* l, void* const* t, const int64_t* n) { \
    return emu::run(l, [=] { call; });                                                   \
  }
ENTRY(mask_call, masks(t, n))
ENTRY(mask_relay, relay(t, n))

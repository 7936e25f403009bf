// SmoothGEMM on the cube core: any number of rows through fixed tiles, padded on chip only.
//
// [NOTE] Virtual padding. Global memory is read and written for the m real rows of a tile. In L1
// the rows up to the next multiple of 16 are zeroed, so that the cube multiplies defined values
// only (and m = 1, which the instruction would take for a matrix-vector product, becomes 16). A
// ragged number of columns is no padding at all: its last 16 columns are loaded, multiplied and
// written once more as a block of their own, since the Fixpipe writes columns in sixteens. A ragged
// K ends inside the last C0 block, where the instruction's own bound stops.
//
// [NOTE] Pipes. Unit of work is a chunk: k_tile of K of one output tile.
//   MTE2  load chunk i + 1 (x, weight; bias and scales with a tile's first)
//   MTE1  chunk i, k_step at a time, to L0A and L0B; bias to the bias table
//   M     multiply
//   FIX   a finished tile to global memory, beside the next tile where L0C holds two
// Two buffers everywhere; each flag pair guards one buffer. Chunks run on from tile to tile.
#pragma once

#include "ascendc/arch.h"
#include "ascendc/bound.h"
#include "ascendc/kernel/gemm_walk.h"
#include "ascendc/kernel/smooth_gemm_params.h"
#include "ascendc/kernel/smooth_gemm_types.h"
#include "ascendc/tile/global_to_l1.h"
#include "ascendc/tile/l0c_to_global.h"
#include "ascendc/tile/l1_to_l0.h"
#include "kernel_operator.h"

namespace xyserve::ascend {

template <typename In, typename Out, bool kWeightNz>
class SmoothGemmCube {
  using Types = GemmTypes<In, Out>;
  using Acc = typename Types::Acc;
  using Sizes = SmoothGemmBuffers;
  using Event = AscendC::HardEvent;
  static constexpr int32_t kC0 = arch::kC0<In>;
  // M_MTE1 flags: two for the L0 buffers, one for the bias table.
  static constexpr int32_t kL0Free = arch::kFirstMToMte1Event;
  static constexpr int32_t kBiasFree = kL0Free + 2;
  static_assert(kBiasFree < arch::kNumEvents, "flags");

  struct Chunk {
    GemmTile tile;
    int32_t number;  // of the tile, on this core
    int32_t k_begin;
    int32_t k;
  };

 public:
  __aicore__ inline SmoothGemmCube(const SmoothGemmParams& params, AscendC::TPipe* pipe)
      : p_(params),
        core_(static_cast<int32_t>(AscendC::GetBlockIdx())),
        walk_(params, core_, group_ends_of(params)),
        has_bias_(params.bias != nullptr && !Types::kHandsOver) {
    x_.SetGlobalBuffer(reinterpret_cast<__gm__ In*>(p_.x));
    weight_.SetGlobalBuffer(reinterpret_cast<__gm__ In*>(p_.weight));
    bias_.SetGlobalBuffer(reinterpret_cast<__gm__ Acc*>(p_.bias));
    scales_.SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(p_.scales));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(Types::kHandsOver ? p_.workspace : p_.out));
    pipe->InitBuffer(l1_, 2 * (Sizes::kL1a + Sizes::kL1b + Sizes::kL1Bias + Sizes::kL1Scales));
    pipe->InitBuffer(l0a_, 2 * Sizes::kL0a);
    pipe->InitBuffer(l0b_, 2 * Sizes::kL0b);
    pipe->InitBuffer(l0c_, arch::kL0cBytes);
    pipe->InitBuffer(bias_table_, arch::kBiasTableBytes);
    l0c_stages_ = smooth_gemm_l0c_stages(p_.m_tile, p_.n_tile);
  }

  __aicore__ inline void run() {
    open_flags();
    Chunk now;
    now.number = -1;
    bool more = next_tile(now, &now);
    if (more) {
      load(now, 0);
    }
    int32_t stage = 0;
    while (more) {
      Chunk next;
      more = advance(now, &next);
      if (more) {
        load(next, 1 - stage);
      }
      multiply(now, stage);
      if (last(now)) {
        store(now);
      }
      stage = 1 - stage;
      now = next;
    }
    close_flags();
  }

 private:
  __aicore__ inline bool last(const Chunk& c) const { return c.k_begin + c.k >= p_.k; }

  __aicore__ inline bool next_tile(const Chunk& now, Chunk* next) {
    const int32_t number = now.number + 1;
    if (!walk_.next(&next->tile)) {
      num_tiles_ = number;
      return false;
    }
    next->number = number;
    next->k_begin = 0;
    next->k = XYSERVE_BOUNDED(p_.k_tile, p_.k);
    return true;
  }

  __aicore__ inline bool advance(const Chunk& now, Chunk* next) {
    if (last(now)) {
      return next_tile(now, next);
    }
    *next = now;
    next->k_begin = now.k_begin + now.k;
    next->k = XYSERVE_BOUNDED(p_.k_tile, p_.k - next->k_begin);
    return true;
  }

  // ---- Buffers
  template <typename T>
  __aicore__ inline AscendC::LocalTensor<T> l1(int32_t offset, int32_t bytes) {
    return l1_.template GetWithOffset<T>(bytes / static_cast<int32_t>(sizeof(T)), offset);
  }
  __aicore__ inline AscendC::LocalTensor<In> l1a(int32_t stage) {
    return l1<In>(stage * Sizes::kL1a, Sizes::kL1a);
  }
  __aicore__ inline AscendC::LocalTensor<In> l1b(int32_t stage) {
    return l1<In>(2 * Sizes::kL1a + stage * Sizes::kL1b, Sizes::kL1b);
  }
  __aicore__ inline AscendC::LocalTensor<Acc> l1_bias(int32_t stage) {
    return l1<Acc>(2 * (Sizes::kL1a + Sizes::kL1b) + stage * Sizes::kL1Bias, Sizes::kL1Bias);
  }
  __aicore__ inline AscendC::LocalTensor<uint32_t> l1_scales(int32_t slot) {
    return l1<uint32_t>(2 * (Sizes::kL1a + Sizes::kL1b + Sizes::kL1Bias) + slot * Sizes::kL1Scales,
                        Sizes::kL1Scales);
  }
  __aicore__ inline int32_t l0c_stage(const Chunk& c) const { return c.number % l0c_stages_; }
  __aicore__ inline AscendC::LocalTensor<Acc> l0c(const Chunk& c) {
    constexpr int32_t kBytes = arch::kL0cBytes / 2;
    const int32_t bytes = l0c_stages_ == 2 ? kBytes : arch::kL0cBytes;
    return l0c_.template GetWithOffset<Acc>(bytes / static_cast<int32_t>(sizeof(Acc)),
                                            l0c_stage(c) * kBytes);
  }

  // ---- MTE2
  __aicore__ inline void load(const Chunk& c, int32_t stage) {
    const GemmTile& t = c.tile;
    AscendC::WaitFlag<Event::MTE1_MTE2>(stage);
    const int32_t m_pad = arch::round_up(t.m, arch::kFractalRows);
    const int32_t n_pad = arch::round_up(t.n, arch::kFractalRows);
    const int32_t whole = arch::round_down(t.n, arch::kFractalRows);
    tile::load_rows(l1a(stage), x_[t.m_begin * p_.x_row_stride + c.k_begin], t.m, c.k,
                    p_.x_row_stride, m_pad);
    tile::zero_rows(l1a(stage), t.m, c.k, m_pad);
    load_weight(l1b(stage), c, t.n_begin, whole, n_pad);
    if (whole < t.n) {
      load_weight(l1b(stage)[whole * kC0], c, t.n_begin + t.n - arch::kFractalRows,
                  arch::kFractalRows, n_pad);
    }
    if (c.k_begin == 0) {
      load_vectors(c, stage);
    }
    AscendC::SetFlag<Event::MTE2_MTE1>(stage);
  }

  __aicore__ inline void load_weight(const AscendC::LocalTensor<In>& to, const Chunk& c,
                                     int32_t n_begin, int32_t n, int32_t n_pad) {
    const int64_t group = c.tile.group * p_.weight_group_stride;
    if constexpr (kWeightNz) {
      const int64_t rows = arch::round_up(p_.n, arch::kFractalRows);
      tile::load_nz(to, weight_[group + c.k_begin * rows + int64_t{n_begin} * kC0], n, c.k, rows,
                    n_pad);
    } else {
      tile::load_rows(to, weight_[group + n_begin * p_.weight_row_stride + c.k_begin], n, c.k,
                      p_.weight_row_stride, n_pad);
    }
  }

  // The bias shares the L1 buffer's flags. The scales stay until the Fixpipe has read them, so
  // their buffers are handed back by it; that they are there it knows by way of MTE1 and M.
  __aicore__ inline void load_vectors(const Chunk& c, int32_t stage) {
    const GemmTile& t = c.tile;
    const int32_t whole = arch::round_down(t.n, arch::kFractalRows);
    const int64_t begin = int64_t{t.group} * p_.n + t.n_begin;
    const int64_t tail = begin + t.n - arch::kFractalRows;
    if (has_bias_) {
      tile::load_vector(l1_bias(stage), bias_[begin], whole);
      if (whole < t.n) {
        tile::load_vector(l1_bias(stage)[whole], bias_[tail], arch::kFractalRows);
      }
    }
    if constexpr (Types::kScaled) {
      const int32_t slot = c.number % 2;
      AscendC::WaitFlag<Event::FIX_MTE2>(slot);
      tile::load_vector(l1_scales(slot), scales_[2 * begin], 2 * whole);
      if (whole < t.n) {
        tile::load_vector(l1_scales(slot)[2 * whole], scales_[2 * tail], 2 * arch::kFractalRows);
      }
    }
  }

  // ---- MTE1 and M
  __aicore__ inline void multiply(const Chunk& c, int32_t stage) {
    const int32_t m_pad = arch::round_up(c.tile.m, arch::kFractalRows);
    const int32_t n_pad = arch::round_up(c.tile.n, arch::kFractalRows);
    AscendC::WaitFlag<Event::MTE2_MTE1>(stage);
    if (c.k_begin == 0) {
      if (has_bias_) {
        AscendC::WaitFlag<Event::M_MTE1>(kBiasFree);
        tile::load_bias(bias_table(), l1_bias(stage), n_pad);
      }
      AscendC::WaitFlag<Event::FIX_M>(l0c_stage(c));
    }
    for (int32_t k = 0; k < c.k; k += p_.k_step) {
      const int32_t step = XYSERVE_BOUNDED(p_.k_step, c.k - k);
      const int32_t l0 = l0_stage_;
      AscendC::WaitFlag<Event::M_MTE1>(kL0Free + l0);
      tile::load_a(l0a(l0), l1a(stage), m_pad, k, step);
      tile::load_b(l0b(l0), l1b(stage), n_pad, k, step);
      AscendC::SetFlag<Event::MTE1_M>(l0);
      AscendC::WaitFlag<Event::MTE1_M>(l0);
      mmad(c, m_pad, n_pad, step, c.k_begin + k == 0, l0);
      AscendC::SetFlag<Event::M_MTE1>(kL0Free + l0);
      l0_stage_ = 1 - l0;
    }
    AscendC::SetFlag<Event::MTE1_MTE2>(stage);
  }

  __aicore__ inline AscendC::LocalTensor<In> l0a(int32_t stage) {
    return l0a_.template GetWithOffset<In>(Sizes::kL0a / sizeof(In), stage * Sizes::kL0a);
  }
  __aicore__ inline AscendC::LocalTensor<In> l0b(int32_t stage) {
    return l0b_.template GetWithOffset<In>(Sizes::kL0b / sizeof(In), stage * Sizes::kL0b);
  }
  __aicore__ inline AscendC::LocalTensor<Acc> bias_table() {
    return bias_table_.template Get<Acc>();
  }

  __aicore__ inline void mmad(const Chunk& c, int32_t m_pad, int32_t n_pad, int32_t k, bool first,
                              int32_t l0) {
    AscendC::MmadParams p;
    p.m = static_cast<uint16_t>(m_pad);
    p.n = static_cast<uint16_t>(n_pad);
    p.k = static_cast<uint16_t>(k);
    p.cmatrixInitVal = first && !has_bias_;
    if (first && has_bias_) {
      AscendC::Mmad(l0c(c), l0a(l0), l0b(l0), bias_table(), p);
      AscendC::SetFlag<Event::M_MTE1>(kBiasFree);
      return;
    }
    const int32_t fractals = (m_pad / arch::kFractalRows) * (n_pad / arch::kFractalRows);
    if (!first && fractals < arch::kMmadSelfOrdering) {
      AscendC::PipeBarrier<PIPE_M>();
    }
    AscendC::Mmad(l0c(c), l0a(l0), l0b(l0), p);
  }

  // ---- FIX
  __aicore__ inline void store(const Chunk& c) {
    const GemmTile& t = c.tile;
    AscendC::SetFlag<Event::M_FIX>(l0c_stage(c));
    AscendC::WaitFlag<Event::M_FIX>(l0c_stage(c));
    const int32_t whole = arch::round_down(t.n, arch::kFractalRows);
    const int32_t slot = c.number % 2;
    int64_t to = t.m_begin * p_.out_row_stride + t.n_begin;
    int64_t stride = p_.out_row_stride;
    if constexpr (Types::kHandsOver) {
      stride = p_.n_tile;
      to = (int64_t{core_} * 2 + slot) * p_.m_tile * p_.n_tile;
      if (c.number >= 2) {
        AscendC::CrossCoreWaitFlag(kTileFree + slot);
      }
    }
    store_columns(c, to, stride, 0, whole);
    if (whole < t.n) {
      // Some of these columns were just written: the same values, but in order.
      AscendC::PipeBarrier<PIPE_FIX>();
      store_columns(c, to + t.n - arch::kFractalRows, stride, whole, arch::kFractalRows);
    }
    if constexpr (Types::kScaled) {
      AscendC::SetFlag<Event::FIX_MTE2>(slot);
    }
    if constexpr (Types::kHandsOver) {
      AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kTileReady + slot);
    }
    AscendC::SetFlag<Event::FIX_M>(l0c_stage(c));
  }

  // Columns [column, column + cols) of the tile in L0C.
  __aicore__ inline void store_columns(const Chunk& c, int64_t to, int64_t stride, int32_t column,
                                       int32_t cols) {
    const int32_t m_pad = arch::round_up(c.tile.m, arch::kFractalRows);
    const AscendC::LocalTensor<Acc> from = l0c(c)[column * m_pad];
    if constexpr (Types::kScaled) {
      tile::store_rows_dequantized(
          out_[to], from, l1_scales(c.number % 2)[2 * column].template ReinterpretCast<uint64_t>(),
          c.tile.m, cols, m_pad, stride);
    } else {
      tile::store_rows<Out, Acc>(out_[to], from, c.tile.m, cols, m_pad, stride);
    }
  }

  // ---- Every buffer starts free; at the end every flag has been waited for.
  __aicore__ inline void open_flags() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<Event::MTE1_MTE2>(i);
      AscendC::SetFlag<Event::M_MTE1>(kL0Free + i);
      if constexpr (Types::kScaled) {
        AscendC::SetFlag<Event::FIX_MTE2>(i);
      }
    }
    for (int32_t i = 0; i < l0c_stages_; ++i) {
      AscendC::SetFlag<Event::FIX_M>(i);
    }
    if (has_bias_) {
      AscendC::SetFlag<Event::M_MTE1>(kBiasFree);
    }
  }

  __aicore__ inline void close_flags() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<Event::MTE1_MTE2>(i);
      AscendC::WaitFlag<Event::M_MTE1>(kL0Free + i);
      if constexpr (Types::kScaled) {
        AscendC::WaitFlag<Event::FIX_MTE2>(i);
      }
    }
    for (int32_t i = 0; i < l0c_stages_; ++i) {
      AscendC::WaitFlag<Event::FIX_M>(i);
    }
    if (has_bias_) {
      AscendC::WaitFlag<Event::M_MTE1>(kBiasFree);
    }
    if constexpr (Types::kHandsOver) {
      for (int32_t tile = arch::max_of(num_tiles_ - 2, 0); tile < num_tiles_; ++tile) {
        AscendC::CrossCoreWaitFlag(kTileFree + tile % 2);
      }
    }
  }

  const SmoothGemmParams& p_;
  int32_t core_;
  GemmWalk<GroupEnds> walk_;
  bool has_bias_;
  int32_t l0c_stages_;
  int32_t l0_stage_ = 0;
  int32_t num_tiles_ = 0;
  AscendC::GlobalTensor<In> x_;
  AscendC::GlobalTensor<In> weight_;
  AscendC::GlobalTensor<Acc> bias_;
  AscendC::GlobalTensor<uint32_t> scales_;
  AscendC::GlobalTensor<Out> out_;
  AscendC::TBuf<AscendC::TPosition::A1> l1_;
  AscendC::TBuf<AscendC::TPosition::A2> l0a_;
  AscendC::TBuf<AscendC::TPosition::B2> l0b_;
  AscendC::TBuf<AscendC::TPosition::CO1> l0c_;
  AscendC::TBuf<AscendC::TPosition::C2> bias_table_;
};

}  // namespace xyserve::ascend

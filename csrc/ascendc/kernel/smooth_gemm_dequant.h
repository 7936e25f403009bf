// The vector half of the int8 SmoothGEMM whose output the Fixpipe cannot make: bf16, or one scale
// per row. Takes int32 tiles from the workspace that the cube half (kernel/smooth_gemm.h) fills:
//   out[r, c] = acc[r, c] * scales[c] * row_scales[r] + bias[c], in fp32, rounded once.
//
// [NOTE] Two vector cores per cube core share a tile by rows. A tile's workspace is free again when
// both have loaded their rows: before they compute, not after. Within a core, MTE2 loads a piece of
// rows while V computes on the one before and MTE3 stores the one before that.
//
// The column scales and the bias of a tile come with its first piece and need no flags of their
// own. They have two buffers, taken in turn by tile. When a piece is loaded, V is done with the
// piece before the last; the tile before the last ended there at the latest, since a tile has a
// piece.
#pragma once

#include "ascendc/arch.h"
#include "ascendc/bound.h"
#include "ascendc/kernel/gemm_walk.h"
#include "ascendc/kernel/smooth_gemm_params.h"
#include "ascendc/kernel/smooth_gemm_types.h"
#include "ascendc/tile/global_ub.h"
#include "kernel_operator.h"

namespace xyserve::ascend {

struct DequantBuffers {
  static constexpr int32_t kGroup = 64;  // fp32 columns of one vector repeat
  static constexpr int32_t kPieceElements = 8192;
  static constexpr int32_t kMaxRows = kPieceElements / kGroup;
  static constexpr int32_t kIn = kPieceElements * 4;
  static constexpr int32_t kOut = kPieceElements * 2;
  static constexpr int32_t kColumns = SmoothGemmBuffers::kMaxN * 4;
  static constexpr int32_t kRows = kMaxRows * 4;
  static constexpr int32_t kRowBlocks = kMaxRows * arch::kBlockBytes;
};
static_assert(2 * (DequantBuffers::kIn + DequantBuffers::kOut + DequantBuffers::kRows) +
                      4 * DequantBuffers::kColumns + DequantBuffers::kRowBlocks <=
                  arch::kUbUsable,
              "32 + 16 KB twice, scales beside it");
static_assert(DequantBuffers::kMaxRows <= arch::kMaxVectorRepeat, "a repeat per row");

template <typename Out>
class SmoothGemmDequant {
  using Sizes = DequantBuffers;
  using Event = AscendC::HardEvent;
  static constexpr int32_t kLanes = arch::kC0<float>;

 public:
  __aicore__ inline SmoothGemmDequant(const SmoothGemmParams& params, AscendC::TPipe* pipe)
      : p_(params),
        core_(static_cast<int32_t>(AscendC::GetBlockIdx()) / arch::kAivPerAic),
        half_(static_cast<int32_t>(AscendC::GetSubBlockIdx())),
        walk_(params, core_, group_ends_of(params)),
        pitch_(arch::round_up(params.n_tile, Sizes::kGroup)) {
    workspace_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(p_.workspace));
    scales_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p_.scales));
    row_scales_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p_.row_scales));
    bias_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(p_.bias));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(p_.out));
    pipe->InitBuffer(in_buffer_, 2 * Sizes::kIn);
    pipe->InitBuffer(out_buffer_, 2 * Sizes::kOut);
    pipe->InitBuffer(row_buffer_, 2 * Sizes::kRows);
    pipe->InitBuffer(row_blocks_, Sizes::kRowBlocks);
    pipe->InitBuffer(column_buffer_, 4 * Sizes::kColumns);
  }

  __aicore__ inline void run() {
    clear();
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<Event::V_MTE2>(i);
      AscendC::SetFlag<Event::MTE3_V>(i);
    }
    GemmTile tile;
    for (int32_t number = 0; walk_.next(&tile); ++number) {
      take(tile, number % 2);
    }
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<Event::V_MTE2>(i);
      AscendC::WaitFlag<Event::MTE3_V>(i);
    }
  }

 private:
  // Whole repeats are computed, also beyond a ragged tile's columns: nothing there may be
  // undefined.
  __aicore__ inline void clear() {
    AscendC::Duplicate(in_buffer_.template Get<int32_t>(), 0, 2 * Sizes::kPieceElements);
    AscendC::Duplicate(column_buffer_.template Get<float>(), 0.0f, 4 * SmoothGemmBuffers::kMaxN);
  }

  __aicore__ inline void take(const GemmTile& tile, int32_t slot) {
    const int32_t rows = arch::ceil_div(tile.m, arch::kAivPerAic);
    const int32_t begin = half_ * rows;
    const int32_t end = XYSERVE_BOUNDED(begin + rows, tile.m);
    const int32_t piece = Sizes::kPieceElements / pitch_;
    AscendC::CrossCoreWaitFlag(kTileReady + slot);
    if (begin >= end) {
      AscendC::CrossCoreSetFlag<2, PIPE_MTE2>(kTileFree + slot);
      return;
    }
    for (int32_t r = begin; r < end; r += piece) {
      const int32_t count = XYSERVE_BOUNDED(piece, end - r);
      AscendC::WaitFlag<Event::V_MTE2>(stage_);
      if (r == begin) {
        load_columns(tile);
      }
      load(tile, slot, r, count);
      AscendC::SetFlag<Event::MTE2_V>(stage_);
      if (r + count >= end) {
        AscendC::CrossCoreSetFlag<2, PIPE_MTE2>(kTileFree + slot);
      }
      compute(tile, count);
      store(tile, r, count);
      stage_ = 1 - stage_;
    }
    columns_ = 1 - columns_;
  }

  __aicore__ inline void load_columns(const GemmTile& tile) {
    const int64_t begin = int64_t{tile.group} * p_.n + tile.n_begin;
    const int32_t bytes = tile.n * 4;
    tile::load_to_ub(column_scales(), scales_[begin], 1, bytes, bytes, Sizes::kColumns);
    if (p_.bias != nullptr) {
      tile::load_to_ub(column_bias(), bias_[begin], 1, bytes, bytes, Sizes::kColumns);
    }
  }

  __aicore__ inline void load(const GemmTile& tile, int32_t slot, int32_t row, int32_t count) {
    const int64_t from = (int64_t{core_} * 2 + slot) * p_.m_tile * p_.n_tile + row * p_.n_tile;
    tile::load_to_ub(in(), workspace_[from], count, tile.n * 4, int64_t{p_.n_tile} * 4, pitch_ * 4);
    if (p_.row_scales != nullptr) {
      tile::load_to_ub(rows(), row_scales_[tile.m_begin + row], 1, count * 4, int64_t{count} * 4,
                       Sizes::kRows);
    }
  }

  __aicore__ inline void compute(const GemmTile& tile, int32_t count) {
    const AscendC::LocalTensor<float> value = in().template ReinterpretCast<float>();
    const auto repeats = static_cast<uint8_t>(count);
    const auto pitch = static_cast<uint8_t>(pitch_ / kLanes);
    const AscendC::BinaryRepeatParams by_column(1, 1, 1, pitch, pitch, 0);
    const AscendC::BinaryRepeatParams by_row(1, 1, 0, pitch, pitch, 1);
    AscendC::WaitFlag<Event::MTE2_V>(stage_);
    AscendC::Cast(value, in(), AscendC::RoundMode::CAST_RINT, count * pitch_);
    if (p_.row_scales != nullptr) {
      AscendC::Brcb(row_blocks_.template Get<float>(), rows(),
                    static_cast<uint8_t>(arch::ceil_div(count, kLanes)),
                    AscendC::BrcbRepeatParams(1, kLanes));
    }
    AscendC::PipeBarrier<PIPE_V>();
    for (int32_t c = 0; c < tile.n; c += Sizes::kGroup) {
      AscendC::Mul(value[c], value[c], column_scales()[c], Sizes::kGroup, repeats, by_column);
    }
    AscendC::PipeBarrier<PIPE_V>();
    if (p_.row_scales != nullptr) {
      for (int32_t c = 0; c < tile.n; c += Sizes::kGroup) {
        AscendC::Mul(value[c], value[c], row_blocks_.template Get<float>(), Sizes::kGroup, repeats,
                     by_row);
      }
      AscendC::PipeBarrier<PIPE_V>();
    }
    if (p_.bias != nullptr) {
      for (int32_t c = 0; c < tile.n; c += Sizes::kGroup) {
        AscendC::Add(value[c], value[c], column_bias()[c], Sizes::kGroup, repeats, by_column);
      }
      AscendC::PipeBarrier<PIPE_V>();
    }
    AscendC::WaitFlag<Event::MTE3_V>(stage_);
    AscendC::Cast(out(), value, AscendC::RoundMode::CAST_RINT, count * pitch_);
    AscendC::SetFlag<Event::V_MTE2>(stage_);
    AscendC::SetFlag<Event::V_MTE3>(stage_);
  }

  __aicore__ inline void store(const GemmTile& tile, int32_t row, int32_t count) {
    const int64_t to = (int64_t{tile.m_begin} + row) * p_.out_row_stride + tile.n_begin;
    AscendC::WaitFlag<Event::V_MTE3>(stage_);
    tile::store_from_ub(out_[to], out(), count, tile.n * 2, p_.out_row_stride * 2, pitch_ * 2);
    AscendC::SetFlag<Event::MTE3_V>(stage_);
  }

  __aicore__ inline AscendC::LocalTensor<int32_t> in() {
    return in_buffer_.template GetWithOffset<int32_t>(Sizes::kPieceElements, stage_ * Sizes::kIn);
  }
  __aicore__ inline AscendC::LocalTensor<Out> out() {
    return out_buffer_.template GetWithOffset<Out>(Sizes::kPieceElements, stage_ * Sizes::kOut);
  }
  __aicore__ inline AscendC::LocalTensor<float> rows() {
    return row_buffer_.template GetWithOffset<float>(Sizes::kMaxRows, stage_ * Sizes::kRows);
  }
  __aicore__ inline AscendC::LocalTensor<float> column_scales() {
    return column_buffer_.template GetWithOffset<float>(SmoothGemmBuffers::kMaxN,
                                                        2 * columns_ * Sizes::kColumns);
  }
  __aicore__ inline AscendC::LocalTensor<float> column_bias() {
    return column_buffer_.template GetWithOffset<float>(SmoothGemmBuffers::kMaxN,
                                                        (2 * columns_ + 1) * Sizes::kColumns);
  }

  const SmoothGemmParams& p_;
  int32_t core_;
  int32_t half_;
  GemmWalk<GroupEnds> walk_;
  int32_t pitch_;
  int32_t stage_ = 0;
  int32_t columns_ = 0;
  AscendC::GlobalTensor<int32_t> workspace_;
  AscendC::GlobalTensor<float> scales_;
  AscendC::GlobalTensor<float> row_scales_;
  AscendC::GlobalTensor<float> bias_;
  AscendC::GlobalTensor<Out> out_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> in_buffer_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> out_buffer_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> row_buffer_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> row_blocks_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> column_buffer_;
};

}  // namespace xyserve::ascend

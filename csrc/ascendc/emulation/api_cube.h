// Cube loads, matrix multiply and the way out of L0C.
#pragma once

#include "tensor.h"

namespace AscendC {

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src,
              const LoadData2DParams& loadDataParams, emulated::Site at = emulated::Site()) {
  emulated::engine::load_data(at, dst.local(), src.local(), loadDataParams);
}
template <typename T>
void LoadData(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
              const LoadData2DParams& loadDataParams, emulated::Site at = emulated::Site()) {
  emulated::engine::load_data(at, dst.local(), src.global(), loadDataParams);
}
template <typename T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LoadData2dTransposeParams& loadDataParams,
                           emulated::Site at = emulated::Site()) {
  emulated::engine::load_data_with_transpose(at, dst.local(), src.local(), loadDataParams);
}
template <typename T, typename U = T>
void Fill(const LocalTensor<T>& dst, const InitConstValueParams<U>& params,
          emulated::Site at = emulated::Site()) {
  emulated::engine::init_const(at, dst.local(), params.repeatTimes, params.blockNum, params.dstGap,
                               emulated::bits_of(params.initValue));
}
template <typename T, typename U = T>
void InitConstValue(const LocalTensor<T>& dst, const InitConstValueParams<U>& params,
                    emulated::Site at = emulated::Site()) {
  Fill(dst, params, at);
}

template <typename T, typename U, typename S>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter,
          const MmadParams& mmadParams, emulated::Site at = emulated::Site()) {
  emulated::engine::mmad(at, dst.local(), fm.local(), filter.local(), nullptr, mmadParams);
}
template <typename T, typename U, typename S, typename V>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter,
          const LocalTensor<V>& bias, const MmadParams& mmadParams,
          emulated::Site at = emulated::Site()) {
  const emulated::Local table = bias.local();
  emulated::engine::mmad(at, dst.local(), fm.local(), filter.local(), &table, mmadParams);
}

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
             const FixpipeParamsV220& intriParams, emulated::Site at = emulated::Site()) {
  emulated::engine::fixpipe(at, dst.global(), src.local(), nullptr, intriParams, config.format);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src,
             const FixpipeParamsV220& intriParams, emulated::Site at = emulated::Site()) {
  emulated::engine::fixpipe(at, dst.local(), src.local(), nullptr, intriParams, config.format);
}
// Per-column scales: `cbufWorkspace` holds one 64-bit word per column in L1.
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR,
          typename S = uint64_t,
          typename std::enable_if<std::is_same<S, uint64_t>::value, bool>::type = true>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
             const LocalTensor<S>& cbufWorkspace, const FixpipeParamsV220& intriParams,
             emulated::Site at = emulated::Site()) {
  const emulated::Local scale = cbufWorkspace.local();
  emulated::engine::fixpipe(at, dst.global(), src.local(), &scale, intriParams, config.format);
}

inline void SetMMRowMajor(emulated::Site at = emulated::Site()) {
  emulated::engine::set_mm_direction(at, true);
}
inline void SetMMColumnMajor(emulated::Site at = emulated::Site()) {
  emulated::engine::set_mm_direction(at, false);
}
inline void SetHF32Mode(bool on, emulated::Site at = emulated::Site()) {
  if (on)
    emulated::engine::reject(at, "SetHF32Mode", "HF32 rounding is not emulated", 1);
}

}  // namespace AscendC

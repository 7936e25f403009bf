// Data movement between global and on-chip memory. GM to UB and L1 runs on MTE2, UB and L1 to GM on
// MTE3, L1 to bias table on MTE1, L1 to fixpipe buffer on FIX, UB to UB on V.
#pragma once

#include "tensor.h"

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count,
              emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.local(), src.global(), count);
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
              emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.global(), src.local(), count);
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
              emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.local(), src.local(), count);
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
              const DataCopyParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.local(), src.global(), repeatParams);
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
              const DataCopyParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.global(), src.local(), repeatParams);
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src,
              const DataCopyParams& repeatParams, emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.local(), src.local(), repeatParams);
}
// Row-major matrices in GM to the fractal NZ layout in L1.
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& intriParams,
              emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy(at, dst.local(), src.global(), intriParams);
}

template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                 const DataCopyExtParams& dataCopyParams, const DataCopyPadExtParams<T>& padParams,
                 emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy_pad(at, dst.local(), src.global(), dataCopyParams,
                                  {padParams.isPad, padParams.leftPadding, padParams.rightPadding,
                                   emulated::bits_of(padParams.paddingValue)});
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                 const DataCopyExtParams& dataCopyParams, emulated::Site at = emulated::Site()) {
  emulated::engine::data_copy_pad(at, dst.global(), src.local(), dataCopyParams);
}
template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                 const DataCopyParams& dataCopyParams, const DataCopyPadParams& padParams,
                 emulated::Site at = emulated::Site()) {
  const DataCopyExtParams ext(dataCopyParams.blockCount, dataCopyParams.blockLen,
                              dataCopyParams.srcStride, dataCopyParams.dstStride, 0);
  emulated::engine::data_copy_pad(
      at, dst.local(), src.global(), ext,
      {padParams.isPad, padParams.leftPadding, padParams.rightPadding, padParams.paddingValue});
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                 const DataCopyParams& dataCopyParams, emulated::Site at = emulated::Site()) {
  const DataCopyExtParams ext(dataCopyParams.blockCount, dataCopyParams.blockLen,
                              dataCopyParams.srcStride, dataCopyParams.dstStride, 0);
  emulated::engine::data_copy_pad(at, dst.global(), src.local(), ext);
}

}  // namespace AscendC

// Packing of weights: once per layer at load, so plain C++ is enough.

#include <cstring>

#include "xyserve/linear_int8.h"

namespace xyserve {
namespace {

// A block of K at a time: its source lines of all 32 rows stay in the first-level cache while they
// are spread over the panel.
constexpr int64_t kBlock = 64;

template <class T, int64_t kStep>
void pack_panel(T* panel, const T* weight, int64_t row_stride, int64_t num_rows, int64_t k) {
  const int64_t k_padded = (k + kStep - 1) / kStep * kStep;
  if (num_rows < kPanelColumns || k_padded != k) {
    std::memset(panel, 0, static_cast<size_t>(k_padded * kPanelColumns) * sizeof(T));
  }
  for (int64_t block = 0; block < k; block += kBlock) {
    const int64_t end = block + kBlock < k ? block + kBlock : k;
    for (int64_t row = 0; row < num_rows; ++row) {
      const T* source = weight + row * row_stride;
      for (int64_t i = block; i < end; ++i) {
        panel[(i / kStep * kPanelColumns + row) * kStep + i % kStep] = source[i];
      }
    }
  }
}

template <class T, int64_t kStep>
void pack_panels(void* packed, const void* weight, int64_t row_stride, int64_t n, int64_t k,
                 int64_t panel_begin, int64_t panel_end) {
  const int64_t k_padded = (k + kStep - 1) / kStep * kStep;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t row = panel * kPanelColumns;
    const int64_t left = n - row;
    pack_panel<T, kStep>(static_cast<T*>(packed) + row * k_padded,
                         static_cast<const T*>(weight) + row * row_stride, row_stride,
                         left < kPanelColumns ? left : kPanelColumns, k);
  }
}

}  // namespace

void pack_linear(DType dtype, void* packed, const void* weight, int64_t weight_row_stride,
                 int64_t n, int64_t k, int64_t panel_begin, int64_t panel_end) {
  switch (dtype) {
    case DType::f32:
      return pack_panels<float, k_step(DType::f32)>(packed, weight, weight_row_stride, n, k,
                                                    panel_begin, panel_end);
    case DType::bf16:
      return pack_panels<Bf16, k_step(DType::bf16)>(packed, weight, weight_row_stride, n, k,
                                                    panel_begin, panel_end);
    case DType::f16:
      return pack_panels<F16, k_step(DType::f16)>(packed, weight, weight_row_stride, n, k,
                                                  panel_begin, panel_end);
  }
}

void pack_linear_int8(int8_t* packed, int32_t* sums, const int8_t* weight,
                      int64_t weight_row_stride, int64_t n, int64_t k, int64_t panel_begin,
                      int64_t panel_end) {
  pack_panels<int8_t, kInt8Step>(packed, weight, weight_row_stride, n, k, panel_begin, panel_end);
  for (int64_t row = panel_begin * kPanelColumns; row < panel_end * kPanelColumns; ++row) {
    int32_t sum = 0;
    for (int64_t i = 0; row < n && i < k; ++i) {
      sum += weight[row * weight_row_stride + i];
    }
    sums[row] = sum;
  }
}

}  // namespace xyserve

// What the bindings share: messages, dtypes and tensors on torch's stable ABI.
#pragma once

#include <sys/mman.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "xyserve/registry.h"

namespace xyserve {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kMaxDim = 8;

// Not STD_TORCH_CHECK: it puts function, file and line in front of what the user should read.
template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

inline std::string shape_text(const Tensor& tensor) {
  std::ostringstream text;
  text << '[';
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    text << (i == 0 ? "" : ", ") << tensor.size(i);
  }
  text << ']';
  return text.str();
}

inline const char* dtype_text(ScalarType dtype) {
  return torch::headeronly::toString(dtype);
}

// Kernel type of a float tensor.
inline DType float_type(const char* op, const char* name, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::BFloat16:
      return DType::bf16;
    case ScalarType::Half:
      return DType::f16;
    default:
      refuse(op, ": require ", name, " of dtype float32, bfloat16 or float16, got ",
             dtype_text(dtype), "; convert it with .to(...)");
  }
}

// An uninitialised contiguous CPU tensor. Straight to the allocating function: the way through the
// dispatcher costs a microsecond more.
inline Tensor empty_cpu(const int64_t* sizes, int64_t dim, ScalarType dtype) {
  int64_t strides[kMaxDim];
  int64_t stride = 1;
  for (int64_t i = dim - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i] > 0 ? sizes[i] : 1;
  }
  const int32_t type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dim, sizes, strides, type,
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

// As empty_cpu, for a packed weight: it is read from end to end in every step, so where Linux gives
// large pages on request only (its usual setting) they are asked for.
inline Tensor empty_packed(int64_t size, ScalarType dtype) {
  Tensor packed = empty_cpu(&size, 1, dtype);
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const auto first = reinterpret_cast<uintptr_t>(packed.mutable_data_ptr());
  const uintptr_t last = first + static_cast<uintptr_t>(size * packed.element_size());
  const uintptr_t begin = (first + kPage - 1) / kPage * kPage;
  const uintptr_t end = last / kPage * kPage;
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a refusal costs nothing
  }
#endif
  return packed;
}

// The shape of x with another last dimension.
inline Tensor empty_like_rows(const Tensor& x, int64_t num_columns, ScalarType dtype) {
  int64_t sizes[kMaxDim];
  const int64_t dim = x.dim();
  for (int64_t i = 0; i + 1 < dim; ++i) {
    sizes[i] = x.size(i);
  }
  sizes[dim - 1] = num_columns;
  return empty_cpu(sizes, dim, dtype);
}

// A tensor whose leading dimensions fold into rows of one stride.
struct Rows {
  int64_t num_rows;
  int64_t num_columns;
  int64_t row_stride;
};

// False where the leading dimensions do not fold, or the elements of a row are not adjacent.
inline bool fold_rows(const Tensor& tensor, Rows* rows) {
  const int64_t last = tensor.dim() - 1;
  rows->num_columns = tensor.size(last);
  rows->num_rows = 1;
  rows->row_stride = rows->num_columns;
  int64_t expected = -1;
  bool folds = rows->num_columns <= 1 || tensor.stride(last) == 1;
  for (int64_t i = last - 1; i >= 0; --i) {
    const int64_t size = tensor.size(i);
    rows->num_rows *= size;
    if (size == 1) {
      continue;
    }
    const int64_t stride = tensor.stride(i);
    if (expected < 0) {
      rows->row_stride = stride;
    } else if (stride != expected) {
      folds = false;
    }
    expected = stride * size;
  }
  return folds;
}

// Rows of a tensor that is written must not overlap.
inline void require_apart(const char* op, const char* name, const Rows& rows) {
  if (rows.num_rows > 1 && rows.row_stride < rows.num_columns) {
    refuse(op, ": require rows of ", name, " that do not overlap, got row stride ", rows.row_stride,
           " for ", rows.num_columns, " elements");
  }
}

// 8 us of silu_and_mul with AVX-512 (docs/native.md): a chunk of less is not worth waking a thread
// for.
constexpr int64_t kElementsPerThread = 16384;

// All rows of a kernel whose rows of args.d elements do not depend on one another.
template <class Args>
void run_rows(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t num_rows) {
  if (num_rows * args.d <= kElementsPerThread) {
    kernel(args, 0, num_rows);
    return;
  }
  // torch's own pool: a second OpenMP runtime in the process would fight it for the cores.
  const int64_t grain = (kElementsPerThread + args.d - 1) / args.d;
  torch::stable::parallel_for(0, num_rows, grain, [&args, kernel](int64_t begin, int64_t end) {
    kernel(args, begin, end);
  });
}

}  // namespace
}  // namespace xyserve

// Vectors at the end of a row: nothing beyond it is read or written. Internal linkage: see the note
// in vec_scalar.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace xyserve {
namespace {

// The first `count` elements, zeros above them.
template <class V, class T>
inline typename V::F load_partly(const T* p, int64_t count) {
  if (count >= V::kWidth) {
    return V::load(p);
  }
  T values[V::kWidth] = {};
  if (count > 0) {
    std::memcpy(values, p, static_cast<size_t>(count) * sizeof(T));
  }
  return V::load(values);
}

template <class V, class T>
inline void store_partly(T* p, typename V::F v, int64_t count) {
  if (count >= V::kWidth) {
    V::store(p, v);
    return;
  }
  if (count > 0) {
    T values[V::kWidth];
    V::store(values, v);
    std::memcpy(p, values, static_cast<size_t>(count) * sizeof(T));
  }
}

}  // namespace
}  // namespace xyserve

// Memory that a thread keeps from call to call. Internal linkage: see the note in vec_scalar.h; a
// std::vector would be one function for all instruction sets.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace xyserve {
namespace {

template <class T>
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  // At least `count` values, not initialised.
  T* at_least(int64_t count) {
    if (count > capacity_) {
      std::free(data_);
      capacity_ = 0;
      data_ = static_cast<T*>(std::malloc(static_cast<size_t>(count) * sizeof(T)));
      if (data_ == nullptr) {
        throw std::bad_alloc();
      }
      capacity_ = count;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace
}  // namespace xyserve

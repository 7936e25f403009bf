// What attention needs of one fp32 lane beyond vec_scalar.h.
#pragma once

#include <math.h>

#include "vec_scalar.h"

namespace xyserve {
namespace {

struct LanesScalar : VecScalar {
  static constexpr int kRows = 4;
  static constexpr int kColumns = 4;
  static constexpr int kSubs = 1;

  static F zero() { return 0.0f; }
  static F set1(float v) { return v; }
  static F sub(F a, F b) { return a - b; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F fma(F a, F b, F c) { return ::fmaf(a, b, c); }
  static float reduce_max(F v) { return v; }

  // Lane vector j of a row of pairs: 16-bit pairs lie together, fp32 ones `count` elements apart.
  static void load_pair(const float* p, int64_t count, int j, F* even, F* odd) {
    *even = p[j];
    *odd = p[count + j];
  }
  template <class T>
  static void load_pair(const T* p, int64_t, int j, F* even, F* odd) {
    *even = load(p + 2 * j);
    *odd = load(p + 2 * j + 1);
  }

  // Elements in front of column d of a row of pairs.
  template <class T>
  static int64_t offset(int64_t d) {
    return sizeof(T) == 4 ? d : 2 * d;
  }
};

}  // namespace
}  // namespace xyserve

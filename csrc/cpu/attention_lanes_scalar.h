// What attention needs of one fp32 lane beyond vec_scalar.h.
#pragma once

#include <math.h>

#include "vec_scalar.h"

namespace xyserve {
namespace {

struct LanesScalar : VecScalar {
  static constexpr int kColumns = 4;
  static constexpr int kSubs = 1;

  static F zero() { return 0.0f; }
  static F sub(F a, F b) { return a - b; }
  // One rounding, as the instructions of the other sets, and unlike VecScalar's.
  static F fma(F a, F b, F c) { return ::fmaf(a, b, c); }
  static bool any_above(F v, float limit) { return v > limit; }
  static F exp_below(F x) { return exp(x); }
  static float reduce_max(F v) { return v; }

  // Lane vector j of a row of pairs: 16-bit pairs lie together, fp32 ones `count` elements apart.
  static F load_even(const float* p, int64_t, int j) { return p[j]; }
  static F load_odd(const float* p, int64_t count, int j) { return p[count + j]; }
  template <class T>
  static F load_even(const T* p, int64_t, int j) {
    return load(p + 2 * j);
  }
  template <class T>
  static F load_odd(const T* p, int64_t, int j) {
    return load(p + 2 * j + 1);
  }

  // Elements in front of column d of a row of pairs.
  template <class T>
  static int64_t offset(int64_t d) {
    return sizeof(T) == 4 ? d : 2 * d;
  }
};

}  // namespace
}  // namespace xyserve

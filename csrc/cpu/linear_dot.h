// How one step of K multiplies: a row's value(s) of x by a vector of packed weights.
//
// kStep: values of K per step. kGroup: columns of a column group, kVecs vectors of them. kMaxRows
// (kMaxRowsSingle): rows of a tile of two groups (one group) whose sums fit the registers.
#pragma once

#include <cstdint>

#include "xyserve/linear.h"

namespace xyserve {
namespace {

// Registers of one instruction set: 12 sums of 16 registers, 24 of 32, or plain variables.
template <int64_t kWidth>
struct TileShape;
template <>
struct TileShape<1> {
  static constexpr int kVecs = 8;
  static constexpr int kMaxRows = 2;
  static constexpr int kMaxRowsSingle = 4;
};
template <>
struct TileShape<8> {
  static constexpr int kVecs = 1;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxRowsSingle = 6;
};
template <>
struct TileShape<16> {
  static constexpr int kVecs = 2;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxRowsSingle = 12;
};

template <class Vec, class Element>
struct DotBase : TileShape<Vec::kWidth> {
  using V = Vec;
  using T = Element;
  using F = typename Vec::F;
  static constexpr int64_t kGroup = TileShape<Vec::kWidth>::kVecs * Vec::kWidth;
  // 256 KB of a panel pair (fp16: 128): K above twice as much is blocked.
  static constexpr int64_t kBlockSteps = 1024;
  static F zero() { return Vec::set1(0.0f); }
};

// fp32 and fp16: one value of K at a time in fp32 lanes.
template <class Vec, class Element>
struct Dot : DotBase<Vec, Element> {
  using F = typename Vec::F;
  using A = F;
  using B = F;
  static constexpr int64_t kStep = 1;
  static B load_b(const Element* p, int v) { return Vec::load(p + v * Vec::kWidth); }
  static A load_a(const Element* p) { return Vec::broadcast(p); }
  static A load_last_a(const Element* p) { return load_a(p); }  // never called: no odd step
  static F multiply_add(A a, B b, F sum) { return Vec::fma(a, b, sum); }
};

// bf16 without a dot-product instruction: both halves of a pair widened to fp32 by shift and mask.
template <class Vec>
struct Dot<Vec, Bf16> : DotBase<Vec, Bf16> {
  using F = typename Vec::F;
  struct Pair {
    F even;
    F odd;
  };
  using A = Pair;
  using B = Pair;
  static constexpr int64_t kStep = 2;
  static B load_b(const Bf16* p, int v) {
    Pair b;
    Vec::load_pairs(p + v * Vec::kWidth * 2, &b.even, &b.odd);
    return b;
  }
  static A load_a(const Bf16* p) { return {Vec::broadcast(p), Vec::broadcast(p + 1)}; }
  // What follows the last value of a row may be anything, NaN too: it is not read.
  static A load_last_a(const Bf16* p) { return {Vec::broadcast(p), Vec::set1(0.0f)}; }
  static F multiply_add(const A& a, const B& b, F sum) {
    return Vec::fma(a.odd, b.odd, Vec::fma(a.even, b.even, sum));
  }
};

}  // namespace
}  // namespace xyserve

// How one step of K multiplies: a row's value(s) of x by a vector of packed weights.
//
// kStep: values of K per step. kGroup: columns of a column group, kVecs vectors of them. kMaxRows
// (kMaxRowsSingle): rows of a tile of two groups (one group) whose sums fit the registers. X: what
// tiles read of x, float where it is widened beforehand.
#pragma once

#include <cstdint>
#include <type_traits>

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

// Which of a step's values a pass over a tile multiplies, where it takes two of them.
using EvenPhase = std::integral_constant<int, 0>;
using OddPhase = std::integral_constant<int, 1>;

// fp32, and fp16 with a widened x: one value of K at a time in fp32 lanes.
template <class Vec, class Element>
struct Dot : DotBase<Vec, Element> {
  using F = typename Vec::F;
  using X = float;
  using A = F;
  using B = F;
  static constexpr int64_t kStep = 1;
  static constexpr int kPhases = 1;
  static B load_b(const Element* p, int v, EvenPhase) { return Vec::load(p + v * Vec::kWidth); }
  static A load_a(const float* p, EvenPhase) { return Vec::broadcast(p); }
  static A load_last_a(const float* p, EvenPhase phase) {
    return load_a(p, phase);
  }  // never called
  static F multiply_add(A a, B b, F sum) { return Vec::fma(a, b, sum); }
};

// bf16 without a dot-product instruction: both halves of a pair of weights are widened to fp32 by
// shift and mask, one half for all rows before the other, since 12 sums and both halves do not fit
// 16 registers.
template <class Vec>
struct Dot<Vec, Bf16> : DotBase<Vec, Bf16> {
  using F = typename Vec::F;
  using X = float;
  using A = F;
  using B = F;
  static constexpr int64_t kStep = 2;
  static constexpr int kPhases = 2;
  static B load_b(const Bf16* p, int v, EvenPhase) {
    return Vec::load_even(p + v * Vec::kWidth * 2);
  }
  static B load_b(const Bf16* p, int v, OddPhase) { return Vec::load_odd(p + v * Vec::kWidth * 2); }
  static A load_a(const float* p, EvenPhase) { return Vec::broadcast(p); }
  static A load_a(const float* p, OddPhase) { return Vec::broadcast(p + 1); }
  // What follows the last value of a row may be anything, NaN too: it is not read.
  static A load_last_a(const float* p, EvenPhase) { return Vec::broadcast(p); }
  static A load_last_a(const float*, OddPhase) { return Vec::set1(0.0f); }
  static F multiply_add(A a, B b, F sum) { return Vec::fma(a, b, sum); }
};

}  // namespace
}  // namespace xyserve

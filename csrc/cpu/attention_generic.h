// One step of Meta-Attention in fp32 lanes of any instruction set. Keys and values are widened as
// they are loaded; scores and weights of a group lie in a small buffer.
#pragma once

#include "attention_walk.h"

namespace xyserve {
namespace {

// V: lanes (attention_lanes_*.h). T: element type.
template <class V, class T>
struct MicroGeneric {
  using Element = T;
  using Query = float;
  using F = typename V::F;
  using Work = Scratch<float>;
  static constexpr int32_t kRows = V::kRows;
  static constexpr int32_t kWidth = static_cast<int32_t>(V::kWidth);
  static constexpr int32_t kVectors = kSubBlock / kWidth;  // of keys in a sub-block
  static constexpr int32_t kColumns = V::kColumns;         // vectors of values in registers
  static constexpr float kSlack = 5.0f;                    // in powers of e

  static void load_query(float* to, const T* from, int32_t size) {
    for (int32_t d = 0; d < size; d += kWidth) {
      V::store(to + d, V::load(from + d));
    }
  }

  // Scores are scaled when they are stored: their unit is the natural one.
  static float to_nat(const AttentionArgs&, bool, float score) { return score; }

  static void store_scaled(T* out, const float* values, float factor, int32_t size) {
    for (int32_t d = 0; d < size; d += kWidth) {
      V::store(out + d, V::mul(V::load(values + d), V::set1(factor)));
    }
  }

  struct Call {
    const AttentionArgs& args;
    Work& work;
    int32_t row;
    const Step<T>& step;
    const StepMask& mask;
    bool general;
  };

  static void step(const AttentionArgs& args, bool general, Work& work, int32_t row, int32_t count,
                   const Step<T>& step, const StepMask& mask, bool) {
    const Call call{args, work, row, step, mask, general};
    switch (count) {
      case 1:
        return tile<1>(call);
      case 2:
        return tile<2>(call);
      case 3:
        return tile<3>(call);
      default:
        return tile<4>(call);
    }
  }

 private:
  static_assert(kRows <= 4, "tile<> is instantiated for up to 4 rows");

  template <int R>
  static void tile(const Call& call) {
    const int32_t subs = call.mask.full ? kStepSubs : call.step.subs;
    int32_t sub = 0;
    for (; sub + V::kSubs <= subs; sub += V::kSubs) {
      scores<R, V::kSubs>(call, sub);
    }
    for (; sub < subs; ++sub) {
      scores<R, 1>(call, sub);
    }
    for (int r = 0; r < R; ++r) {
      row_weights(call, r, subs * kSubBlock);
    }
    const int32_t size = call.args.head_size;
    int32_t d = 0;
    for (; d + kColumns * kWidth <= size; d += kColumns * kWidth) {
      product<R, kColumns>(call, d);
    }
    for (; d < size; d += kWidth) {
      product<R, 1>(call, d);
    }
  }

  template <int R, int S>
  static void scores(const Call& call, int32_t sub) {
    constexpr int kAll = S * kVectors;
    const int32_t size = call.args.head_size;
    const float* q = call.work.query + int64_t{call.row} * size;
    F s[R][kAll];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kAll; ++j) {
        s[r][j] = V::zero();
      }
    }
    for (int32_t d = 0; d < size; d += 2) {
      F even[kAll], odd[kAll];
      for (int j = 0; j < kAll; ++j) {
        const T* k = call.step.key[sub + j / kVectors] + int64_t{d} * kSubBlock;
        V::load_pair(k, kSubBlock, j % kVectors, &even[j], &odd[j]);
      }
      for (int r = 0; r < R; ++r) {
        const F first = V::set1(q[int64_t{r} * size + d]);
        const F second = V::set1(q[int64_t{r} * size + d + 1]);
        for (int j = 0; j < kAll; ++j) {
          s[r][j] = V::fma(odd[j], second, V::fma(even[j], first, s[r][j]));
        }
      }
    }
    const F scale = V::set1(call.args.scale);
    for (int r = 0; r < R; ++r) {
      float* to = call.work.scores + r * kStepKeys + sub * kSubBlock;
      for (int j = 0; j < kAll; ++j) {
        V::store(to + j * kWidth, V::mul(s[r][j], scale));
      }
    }
  }

  // Softcap and alibi.
  static void transform(const Call& call, const RowState& row, float* s, int32_t count) {
    const float cap = call.args.softcap;
    if (cap != 0.0f) {
      // cap * tanh(x / cap) = cap * (1 - 2 / (e^(2 x / cap) + 1))
      for (int32_t i = 0; i < count; i += kWidth) {
        const F e = V::exp(V::mul(V::load(s + i), V::set1(2.0f / cap)));
        const F share = V::div(V::set1(2.0f * cap), V::add(e, V::one()));
        V::store(s + i, V::sub(V::set1(cap), share));
      }
    }
    if (row.alibi != 0.0f) {
      for (int32_t i = 0; i < count; ++i) {
        s[i] += row.alibi * static_cast<float>(call.step.first + i - row.position);
      }
    }
  }

  static void hide(const Call& call, int r, float* s, int32_t count, float with) {
    const uint64_t visible = call.mask.visible[r];
    for (int32_t i = 0; i < count; ++i) {
      s[i] = (visible >> i & 1) != 0 ? s[i] : with;
    }
  }

  static void row_weights(const Call& call, int r, int32_t count) {
    RowState& row = call.work.row[call.row + r];
    float* s = call.work.scores + r * kStepKeys;
    if (call.general) {
      transform(call, row, s, count);
    }
    if (!call.mask.full) {
      hide(call, r, s, count, -INFINITY);
    }
    F top = V::load(s);
    for (int32_t i = kWidth; i < count; i += kWidth) {
      top = V::max(top, V::load(s + i));
    }
    raise(call, r, V::reduce_max(top));
    const F reference = V::set1(row.max == -INFINITY ? 0.0f : row.max);
    float* sums = call.work.sum + (call.row + r) * 16;
    F sum = V::load(sums);
    for (int32_t i = 0; i < count; i += kWidth) {
      V::store(s + i, V::exp(V::sub(V::load(s + i), reference)));
    }
    if (!call.mask.full) {
      hide(call, r, s, count, 0.0f);
    }
    for (int32_t i = 0; i < count; i += kWidth) {
      sum = V::add(sum, V::load(s + i));
    }
    V::store(sums, sum);
  }

  static void raise(const Call& call, int r, float top) {
    RowState& row = call.work.row[call.row + r];
    if (!(top > row.max + kSlack)) {
      return;
    }
    const float alpha = row.max == -INFINITY ? 0.0f : ::expf(row.max - top);
    row.max = top;
    float* sum = call.work.sum + (call.row + r) * 16;
    for (int32_t i = 0; i < 16; ++i) {
      sum[i] *= alpha;
    }
    float* acc = call.work.acc + int64_t{call.row + r} * call.args.head_size;
    for (int32_t d = 0; d < call.args.head_size; d += kWidth) {
      V::store(acc + d, V::mul(V::load(acc + d), V::set1(alpha)));
    }
  }

  template <int R, int NC>
  static void product(const Call& call, int32_t d) {
    const int32_t size = call.args.head_size;
    float* acc = call.work.acc + int64_t{call.row} * size + d;
    const float* weights = call.work.scores;
    const int32_t begin = call.mask.full ? 0 : call.mask.pv_begin;
    const int32_t end = call.mask.full ? kStepKeys : call.mask.pv_end;
    F o[R][NC];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < NC; ++c) {
        o[r][c] = V::load(acc + int64_t{r} * size + c * kWidth);
      }
    }
    for (int32_t lane = begin & ~1; lane < end; lane += 2) {
      const T* v = call.step.value[lane / kSubBlock] + int64_t{lane % kSubBlock} * size;
      F even[NC], odd[NC];
      for (int c = 0; c < NC; ++c) {
        V::load_pair(v + V::template offset<T>(d), size, c, &even[c], &odd[c]);
        // The half of a pair that nobody sees may hold anything: zeroed, not weighted by 0.
        even[c] = lane < begin ? V::zero() : even[c];
        odd[c] = lane + 1 >= end ? V::zero() : odd[c];
      }
      for (int r = 0; r < R; ++r) {
        const F first = V::set1(weights[r * kStepKeys + lane]);
        const F second = V::set1(weights[r * kStepKeys + lane + 1]);
        for (int c = 0; c < NC; ++c) {
          o[r][c] = V::fma(odd[c], second, V::fma(even[c], first, o[r][c]));
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < NC; ++c) {
        V::store(acc + int64_t{r} * size + c * kWidth, o[r][c]);
      }
    }
  }
};

}  // namespace
}  // namespace xyserve

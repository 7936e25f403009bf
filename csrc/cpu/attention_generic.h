// One step of Meta-Attention in fp32 lanes of any instruction set. Keys and values are widened as
// they are loaded; scores and weights of a group lie in a small buffer.
#pragma once

#include "attention_walk.h"

namespace xyserve {
namespace {

// [NOTE] Where several groups of rows share a step, its keys and values are widened once into the
// thread's scratch, in the layout of fp32 pages; the bits are the same either way.

// A group of rows against a step, keys and values of type T.
template <class V, class T>
struct MicroTile {
  using F = typename V::F;
  using Work = Scratch<float>;
  static constexpr int32_t kWidth = static_cast<int32_t>(V::kWidth);
  static constexpr int32_t kVectors = kSubBlock / kWidth;
  static constexpr int32_t kColumns = V::kColumns;
  static constexpr float kSlack = 5.0f;  // in powers of e

  struct Call {
    const AttentionArgs& args;
    Work& work;
    int32_t row;
    const Step<T> step;
    const StepMask& mask;
    bool general;
    bool prefetch;  // the keys and values of the next step, as this one's are read
  };

  static void run(const Call& call, int32_t count) {
    switch (count) {
      case 1:
        return tile<1>(call);
      case 2:
        return tile<2>(call);
      case 3:
        return tile<3>(call);
      case 4:
        return tile<4>(call);
      case 5:
        return tile<5>(call);
      default:
        return tile<6>(call);
    }
  }

 private:
  template <int R>
  static void tile(const Call& call) {
    const int32_t subs = call.mask.full ? kStepSubs : call.step.subs;
    int32_t sub = 0;
    for (; sub + V::kSubs <= subs; sub += V::kSubs) {
      call.prefetch ? scores<R, V::kSubs, true>(call, sub) : scores<R, V::kSubs, false>(call, sub);
    }
    for (; sub < subs; ++sub) {
      call.prefetch ? scores<R, 1, true>(call, sub) : scores<R, 1, false>(call, sub);
    }
    for (int r = 0; r < R; ++r) {
      row_weights(call, r, subs * kSubBlock);
    }
    const int32_t size = call.args.head_size;
    int32_t d = 0;
    for (; d + kColumns * kWidth <= size; d += kColumns * kWidth) {
      call.prefetch ? product<R, kColumns, true>(call, d) : product<R, kColumns, false>(call, d);
    }
    for (; d < size; d += kWidth) {
      product<R, 1, false>(call, d);
    }
  }

  static inline __attribute__((always_inline)) void fetch(const T* from, int32_t count) {
    constexpr int32_t kLine = 64 / static_cast<int32_t>(sizeof(T));
    for (int32_t i = 0; i < count; i += kLine) {
      __builtin_prefetch(from + i);
    }
  }

  // sums[r][j] += operand[j] * factor of row r
  template <int R, int N>
  static inline __attribute__((always_inline)) void accumulate(F (&sums)[R][N],
                                                               const F (&operand)[N],
                                                               const float* factor,
                                                               int64_t stride) {
    for (int r = 0; r < R; ++r) {
      const F f = V::set1(factor[r * stride]);
      for (int j = 0; j < N; ++j) {
        sums[r][j] = V::fma(operand[j], f, sums[r][j]);
      }
    }
  }

  template <int R, int S, bool kPrefetch>
  static __attribute__((noinline)) void scores(const Call& call, int32_t sub) {
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
      if constexpr (kPrefetch) {
        for (int i = 0; i < S; ++i) {
          fetch(call.step.next_key[sub + i] + d * kSubBlock, 2 * kSubBlock);
        }
      }
      F k[kAll];
      for (int j = 0; j < kAll; ++j) {
        k[j] = V::load_even(call.step.key[sub + j / kVectors] + d * kSubBlock, kSubBlock,
                            j % kVectors);
      }
      accumulate<R, kAll>(s, k, q + d, size);
      for (int j = 0; j < kAll; ++j) {
        k[j] =
            V::load_odd(call.step.key[sub + j / kVectors] + d * kSubBlock, kSubBlock, j % kVectors);
      }
      accumulate<R, kAll>(s, k, q + d + 1, size);
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
    float* s = call.work.scores + r * kStepKeys;
    if (call.general) {
      transform(call, call.work.row[call.row + r], s, count);
    }
    if (call.mask.full) {
      return weigh<kStepKeys, false>(call, r, s);
    }
    hide(call, r, s, count, -INFINITY);
    switch (count) {
      case kSubBlock:
        return weigh<kSubBlock, true>(call, r, s);
      case 2 * kSubBlock:
        return weigh<2 * kSubBlock, true>(call, r, s);
      case 3 * kSubBlock:
        return weigh<3 * kSubBlock, true>(call, r, s);
      default:
        return weigh<kStepKeys, true>(call, r, s);
    }
  }

  // Scores become weights.
  template <int kCount, bool kMasked>
  static inline __attribute__((always_inline)) void weigh(const Call& call, int r, float* s) {
    constexpr int kNum = kCount / kWidth;
    const RowState& row = call.work.row[call.row + r];
    F top = V::load(s);
    for (int i = 1; i < kNum; ++i) {
      top = V::max(top, V::load(s + i * kWidth));
    }
    if (V::any_above(top, row.max + kSlack)) {
      raise(call, r, V::reduce_max(top));
    }
    const F reference = V::set1(row.max == -INFINITY ? 0.0f : row.max);
    for (int i = 0; i < kNum; ++i) {
      V::store(s + i * kWidth, V::exp_below(V::sub(V::load(s + i * kWidth), reference)));
    }
    if (kMasked) {
      hide(call, r, s, kCount, 0.0f);
    }
    float* sums = call.work.sum + (call.row + r) * 16;
    F sum = V::load(sums);
    for (int i = 0; i < kNum; ++i) {
      sum = V::add(sum, V::load(s + i * kWidth));
    }
    V::store(sums, sum);
  }

  static __attribute__((noinline)) void raise(const Call& call, int r, float top) {
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

  // The columns of a pair of tokens: together, or with fp32 those of one behind the other's row.
  template <int NC>
  static inline __attribute__((always_inline)) void fetch_pair(const T* pair, int32_t d,
                                                               int32_t size) {
    const T* at = pair + V::template offset<T>(d);
    if constexpr (sizeof(T) == 4) {
      fetch(at, NC * kWidth);
      fetch(at + size, NC * kWidth);
    } else {
      fetch(at, 2 * NC * kWidth);
    }
  }

  // One token of a pair: its values times its weights.
  template <int R, int NC, bool kOdd>
  static inline __attribute__((always_inline)) void token(const Call& call, F (&o)[R][NC],
                                                          const T* pair, int32_t d,
                                                          const float* weights) {
    const T* at = pair + V::template offset<T>(d);
    F value[NC];
    for (int c = 0; c < NC; ++c) {
      value[c] =
          kOdd ? V::load_odd(at, call.args.head_size, c) : V::load_even(at, call.args.head_size, c);
    }
    accumulate<R, NC>(o, value, weights + kOdd, kStepKeys);
  }

  template <int R, int NC>
  static inline __attribute__((always_inline)) void visible_pairs(const Call& call, F (&o)[R][NC],
                                                                  int32_t d) {
    const int32_t end = call.mask.pv_end;
    for (int32_t lane = call.mask.pv_begin & ~1; lane < end; lane += 2) {
      const T* v =
          call.step.value[lane / kSubBlock] + int64_t{lane % kSubBlock} * call.args.head_size;
      const float* weights = call.work.scores + lane;
      // The half of a pair that nobody sees may hold anything: skipped, not weighted by 0.
      if (lane >= call.mask.pv_begin) {
        token<R, NC, false>(call, o, v, d, weights);
      }
      if (lane + 1 < end) {
        token<R, NC, true>(call, o, v, d, weights);
      }
    }
  }

  template <int R, int NC, bool kPrefetch>
  static __attribute__((noinline)) void product(const Call& call, int32_t d) {
    const int32_t size = call.args.head_size;
    float* acc = call.work.acc + int64_t{call.row} * size + d;
    const float* weights = call.work.scores;
    F o[R][NC];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < NC; ++c) {
        o[r][c] = V::load(acc + int64_t{r} * size + c * kWidth);
      }
    }
    if (call.mask.full) {
      for (int32_t sub = 0; sub < kStepSubs; ++sub) {
        const T* v = call.step.value[sub];
        for (int32_t lane = 0; lane < kSubBlock; lane += 2) {
          const float* pair_weights = weights + sub * kSubBlock + lane;
          if constexpr (kPrefetch) {
            fetch_pair<NC>(call.step.next_value[sub] + int64_t{lane} * size, d, size);
          }
          token<R, NC, false>(call, o, v + int64_t{lane} * size, d, pair_weights);
          token<R, NC, true>(call, o, v + int64_t{lane} * size, d, pair_weights);
        }
      }
    } else {
      visible_pairs<R, NC>(call, o, d);
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < NC; ++c) {
        V::store(acc + int64_t{r} * size + c * kWidth, o[r][c]);
      }
    }
  }
};

// V: lanes (attention_lanes_*.h). T: element type.
template <class V, class T>
struct MicroGeneric {
  using Element = T;
  using Query = float;
  using F = typename V::F;
  using Work = Scratch<float>;
  // 6 x 4 (AVX2: 6 x 2) vectors of sums, 4 (2) operands and a broadcast fit the registers.
  static constexpr int32_t kRows = 6;
  static constexpr int32_t kWidth = static_cast<int32_t>(V::kWidth);
  static constexpr int32_t kVectors = kSubBlock / kWidth;  // of keys in a sub-block
  static constexpr int32_t kWidenFrom = 3;                 // groups

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

  static bool prepare(const AttentionArgs& args, const Step<T>& step, int32_t num_groups) {
    if (sizeof(T) == 4 || num_groups < kWidenFrom) {
      return false;
    }
    widen(args, step);
    return true;
  }

  static void step(const AttentionArgs& args, bool general, Work& work, int32_t row, int32_t count,
                   const Step<T>& step, const StepMask& mask, int32_t num_groups, bool widened) {
    if (widened) {
      return MicroTile<V, float>::run(
          {args, work, row, widened_step(step, args.head_size), mask, general, false}, count);
    }
    MicroTile<V, T>::run({args, work, row, step, mask, general, num_groups == 1}, count);
  }

 private:
  static float* buffer() {
    alignas(64) static thread_local float keys_and_values[2 * kStepKeys * kMaxHeadSize];
    return keys_and_values;
  }

  static Step<float> widened_step(const Step<T>& step, int32_t size) {
    Step<float> result;
    result.first = step.first;
    result.subs = step.subs;
    const float* at = buffer();
    for (int32_t sub = 0; sub < kStepSubs; ++sub) {
      result.key[sub] = at + sub * kSubBlock * size;
      result.value[sub] = at + (kStepSubs + sub) * kSubBlock * size;
      result.next_key[sub] = result.key[sub];
      result.next_value[sub] = result.value[sub];
    }
    return result;
  }

  static void widen(const AttentionArgs& args, const Step<T>& step) {
    const int32_t size = args.head_size;
    for (int32_t sub = 0; sub < step.subs; ++sub) {
      float* key = buffer() + sub * kSubBlock * size;
      for (int32_t d = 0; d < size; d += 2) {
        for (int j = 0; j < kVectors; ++j) {
          const T* from = step.key[sub] + d * kSubBlock;
          float* to = key + d * kSubBlock + j * kWidth;
          V::store(to, V::load_even(from, kSubBlock, j));
          V::store(to + kSubBlock, V::load_odd(from, kSubBlock, j));
        }
      }
      float* value = buffer() + (kStepSubs + sub) * kSubBlock * size;
      for (int32_t token = 0; token < kSubBlock; token += 2) {
        const T* from = step.value[sub] + token * size;
        for (int32_t d = 0, j = 0; d < size; d += kWidth, ++j) {
          V::store(value + token * size + d, V::load_even(from, size, j));
          V::store(value + (token + 1) * size + d, V::load_odd(from, size, j));
        }
      }
    }
  }
};

}  // namespace
}  // namespace xyserve

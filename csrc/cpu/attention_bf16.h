// One step of bf16 Meta-Attention on the bf16 dot product: scores of up to 6 rows x 64 keys stay in
// registers from the first product to the weights.
//
// [NOTE] Scores are in the raw unit q.k; one fused multiply-add brings them to base 2 and subtracts
// the reference. 2^x = 2^n * 2^f with |f| <= 0.5; adding 1.5 * 2^23 leaves n in the low bits, and
// 2^f is our own fit of degree 3, minimax in relative error by reweighted least squares: 7.5e-5,
// where rounding the weight to bf16 costs up to 2^-9 = 2e-3. The sum is over the rounded weights.
#pragma once

#include "attention_walk.h"
#include "vec_avx512_bf16.h"

namespace xyserve {
namespace {

struct MicroBf16 {
  using Element = Bf16;
  using Query = Bf16;
  using F = __m512;
  static constexpr int32_t kRows = 6;
  static constexpr float kSlack = 8.0f;  // in powers of 2

  static void load_query(Bf16* to, const Bf16* from, int32_t size) {
    std::memcpy(to, from, sizeof(Bf16) * static_cast<size_t>(size));
  }

  // Factor from the scores' unit to powers of 2.
  static float to_log2(const AttentionArgs& args, bool general) {
    return general ? kLog2E : args.scale * kLog2E;
  }
  static float to_nat(const AttentionArgs& args, bool general, float score) {
    return general ? score : score * args.scale;
  }

  static bool prepare(const AttentionArgs&, const Step<Bf16>&, int32_t) { return false; }

  static void store_scaled(Bf16* out, const float* values, float factor, int32_t size) {
    const F f = _mm512_set1_ps(factor);
    for (int32_t d = 0; d < size; d += 16) {
      VecAvx512Bf16::store(out + d, _mm512_mul_ps(_mm512_loadu_ps(values + d), f));
    }
  }

  using Work = Scratch<Query>;

  struct Call {
    const AttentionArgs& args;
    Work& work;
    int32_t row;
    const Step<Bf16>& step;
    const StepMask& mask;
    bool general;
  };

  static void step(const AttentionArgs& args, bool general, Work& work, int32_t row, int32_t count,
                   const Step<Bf16>& step, const StepMask& mask, int32_t num_groups, bool) {
    const bool prefetch = num_groups == 1;
    const Call call{args, work, row, step, mask, general};
    switch (count) {
      case 1:
        return by_keys<1>(call, prefetch);
      case 2:
        return by_keys<2>(call, prefetch);
      case 3:
        return by_keys<3>(call, prefetch);
      case 4:
        return by_keys<4>(call, prefetch);
      case 5:
        return by_keys<5>(call, prefetch);
      default:
        return by_keys<6>(call, prefetch);
    }
  }

 private:
  template <int R>
  static void by_keys(const Call& call, bool prefetch) {
    if (call.mask.full) {
      return prefetch ? tile<R, 4, true>(call) : tile<R, 4, false>(call);
    }
    switch (call.step.subs) {
      case 1:
        return tile<R, 1, false>(call);
      case 2:
        return tile<R, 2, false>(call);
      default:
        return tile<R, 4, false>(call);
    }
  }

  static __m512bh bh(__m512i v) {
    __m512bh result;
    __builtin_memcpy(&result, &v, sizeof(result));
    return result;
  }
  static __m512bh load(const Bf16* p) { return bh(_mm512_loadu_si512(p)); }
  static __m512bh broadcast(const Bf16* pair) {
    int32_t bits;
    __builtin_memcpy(&bits, pair, sizeof(bits));
    return bh(_mm512_set1_epi32(bits));
  }

  template <int R, int NV, bool kPrefetch>
  static void tile(const Call& call) {
    F s[R][NV];
    scores<R, NV, kPrefetch>(call, s);
    if (call.general) {
      transform<R, NV>(call, s);
    }
    if (!call.mask.full) {
      for (int r = 0; r < R; ++r) {
        for (int j = 0; j < NV; ++j) {
          const __mmask16 seen = static_cast<__mmask16>(call.mask.visible[r] >> (16 * j));
          s[r][j] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, s[r][j]);
        }
      }
    }
    alignas(64) Bf16 weights[R * kStepKeys];
    softmax<R, NV>(call, s, weights);
    values<R, kPrefetch>(call, weights);
  }

  template <int R, int NV, bool kPrefetch>
  static inline __attribute__((always_inline)) void scores(const Call& call, F (&s)[R][NV]) {
    const int32_t size = call.args.head_size;
    const Bf16* q = call.work.query + int64_t{call.row} * size;
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < NV; ++j) {
        s[r][j] = _mm512_setzero_ps();
      }
    }
    for (int32_t d = 0; d < size; d += 2) {
      __m512bh k[NV];
      for (int j = 0; j < NV; ++j) {
        k[j] = load(call.step.key[j] + d * kSubBlock);
        if (kPrefetch) {
          _mm_prefetch(reinterpret_cast<const char*>(call.step.next_key[j] + d * kSubBlock),
                       _MM_HINT_T0);
        }
      }
      for (int r = 0; r < R; ++r) {
        const __m512bh pair = broadcast(q + int64_t{r} * size + d);
        for (int j = 0; j < NV; ++j) {
          s[r][j] = _mm512_dpbf16_ps(s[r][j], k[j], pair);
        }
      }
    }
  }

  // Scale, softcap and alibi; the fast form needs none of them.
  template <int R, int NV>
  static __attribute__((noinline)) void transform(const Call& call, F (&s)[R][NV]) {
    const F lanes = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const float cap = call.args.softcap;
    for (int r = 0; r < R; ++r) {
      const RowState& row = call.work.row[call.row + r];
      for (int j = 0; j < NV; ++j) {
        F x = _mm512_mul_ps(s[r][j], _mm512_set1_ps(call.args.scale));
        if (cap != 0.0f) {
          // cap * tanh(x / cap) = cap * (1 - 2 / (e^(2 x / cap) + 1))
          const F e = VecAvx512::exp(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / cap)));
          const F share =
              _mm512_div_ps(_mm512_set1_ps(2.0f * cap), _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
          x = _mm512_sub_ps(_mm512_set1_ps(cap), share);
        }
        const float from = static_cast<float>(call.step.first + 16 * j - row.position);
        const F distance = _mm512_add_ps(lanes, _mm512_set1_ps(from));
        s[r][j] = _mm512_fmadd_ps(distance, _mm512_set1_ps(row.alibi), x);
      }
    }
  }

  template <int R, int NV>
  static inline __attribute__((always_inline)) void softmax(const Call& call, F (&s)[R][NV],
                                                            Bf16* weights) {
    const float unit = to_log2(call.args, call.general);
    RowState* rows = call.work.row + call.row;
    const float slack = kSlack / unit;
    unsigned above = 0;
    for (int r = 0; r < R; ++r) {
      F top = s[r][0];
      for (int j = 1; j < NV; ++j) {
        top = _mm512_max_ps(top, s[r][j]);
      }
      above |= _mm512_cmp_ps_mask(top, _mm512_set1_ps(rows[r].max + slack), _CMP_GT_OQ);
    }
    if (__builtin_expect(above != 0, 0)) {
      for (int r = 0; r < R; ++r) {
        F top = s[r][0];
        for (int j = 1; j < NV; ++j) {
          top = _mm512_max_ps(top, s[r][j]);
        }
        raise(call, r, _mm512_reduce_max_ps(top), slack, unit);
      }
    }
    const __m512bh ones = bh(_mm512_set1_epi32(0x3F803F80));
    for (int r = 0; r < R; ++r) {
      // A row that has seen no key yet has only -inf here: any finite reference gives weights of 0.
      const float reference = rows[r].max == -INFINITY ? 0.0f : -rows[r].max * unit;
      F p[4];
      for (int j = 0; j < NV; ++j) {
        p[j] = exp2(_mm512_fmadd_ps(s[r][j], _mm512_set1_ps(unit), _mm512_set1_ps(reference)));
        if (!call.mask.full) {
          const __mmask16 seen = static_cast<__mmask16>(call.mask.visible[r] >> (16 * j));
          p[j] = _mm512_maskz_mov_ps(seen, p[j]);
        }
      }
      for (int j = NV; j < 4; ++j) {
        p[j] = _mm512_setzero_ps();
      }
      F sum = _mm512_load_ps(call.work.sum + (call.row + r) * 16);
      for (int j = 0; j < (NV + 1) / 2; ++j) {
        const __m512bh w = _mm512_cvtne2ps_pbh(p[2 * j + 1], p[2 * j]);
        sum = _mm512_dpbf16_ps(sum, w, ones);
        __builtin_memcpy(weights + r * kStepKeys + 32 * j, &w, sizeof(w));
      }
      _mm512_store_ps(call.work.sum + (call.row + r) * 16, sum);
    }
  }

  // 2^x; -126 and below give 2^-126, which is lost beside the row's largest weight.
  static F exp2(F x) {
    const F magic = _mm512_set1_ps(0x1.8p23f);
    x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);  // NaN in x stays
    const F shifted = _mm512_add_ps(x, magic);
    const F f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
    F p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.c3f760p-5f), f, _mm512_set1_ps(0x1.f0de1cp-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62f31ap-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fff692p-1f));
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
  }

  static __attribute__((noinline)) void raise(const Call& call, int r, float top, float slack,
                                              float unit) {
    RowState& row = call.work.row[call.row + r];
    if (!(top > row.max + slack)) {
      return;
    }
    const float alpha = row.max == -INFINITY ? 0.0f : ::exp2f((row.max - top) * unit);
    row.max = top;
    const F factor = _mm512_set1_ps(alpha);
    float* sum = call.work.sum + (call.row + r) * 16;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), factor));
    float* acc = call.work.acc + int64_t{call.row + r} * call.args.head_size;
    for (int32_t d = 0; d < call.args.head_size; d += 16) {
      _mm512_storeu_ps(acc + d, _mm512_mul_ps(_mm512_loadu_ps(acc + d), factor));
    }
  }

  template <int R, bool kPrefetch>
  static inline __attribute__((always_inline)) void values(const Call& call, const Bf16* weights) {
    int32_t d = 0;
    for (; d + 64 <= call.args.head_size; d += 64) {
      product<R, 4, kPrefetch>(call, weights, d);
    }
    switch ((call.args.head_size - d) / 16) {
      case 1:
        return product<R, 1, kPrefetch>(call, weights, d);
      case 2:
        return product<R, 2, kPrefetch>(call, weights, d);
      case 3:
        return product<R, 3, kPrefetch>(call, weights, d);
      default:
        return;
    }
  }

  template <int R, int NC, bool kPrefetch>
  static void product(const Call& call, const Bf16* weights, int32_t d) {
    const int32_t size = call.args.head_size;
    float* acc = call.work.acc + int64_t{call.row} * size + d;
    F o[R][NC];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < NC; ++c) {
        o[r][c] = _mm512_loadu_ps(acc + int64_t{r} * size + 16 * c);
      }
    }
    if (call.mask.full) {
      for (int32_t sub = 0; sub < kStepSubs; ++sub) {
        const Bf16* v = call.step.value[sub] + 2 * d;
        for (int32_t pair = 0; pair < kSubBlock / 2; ++pair) {
          if (kPrefetch) {
            const Bf16* next = call.step.next_value[sub] + 2 * d + int64_t{2} * pair * size;
            for (int c = 0; c < NC; ++c) {
              _mm_prefetch(reinterpret_cast<const char*>(next + 32 * c), _MM_HINT_T0);
            }
          }
          multiply<R, NC>(o, v + int64_t{2} * pair * size, weights + sub * kSubBlock + 2 * pair,
                          ~__mmask32{0});
        }
      }
    } else {
      for (int32_t lane = call.mask.pv_begin & ~1; lane < call.mask.pv_end; lane += 2) {
        const Bf16* v = call.step.value[lane / kSubBlock] + 2 * d;
        // The half of a pair that nobody sees may hold anything: it is zeroed, not weighted by 0.
        const __mmask32 odd = lane < call.mask.pv_begin ? 0xAAAAAAAA : 0xFFFFFFFF;
        const __mmask32 even = lane + 1 >= call.mask.pv_end ? 0x55555555 : 0xFFFFFFFF;
        multiply<R, NC>(o, v + int64_t{lane % kSubBlock} * size, weights + lane, odd & even);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < NC; ++c) {
        _mm512_storeu_ps(acc + int64_t{r} * size + 16 * c, o[r][c]);
      }
    }
  }

  template <int R, int NC>
  static inline __attribute__((always_inline)) void multiply(F (&o)[R][NC], const Bf16* v,
                                                             const Bf16* weights, __mmask32 keep) {
    __m512bh value[NC];
    for (int c = 0; c < NC; ++c) {
      value[c] =
          keep == ~__mmask32{0} ? load(v + 32 * c) : bh(_mm512_maskz_loadu_epi16(keep, v + 32 * c));
    }
    for (int r = 0; r < R; ++r) {
      const __m512bh w = broadcast(weights + r * kStepKeys);
      for (int c = 0; c < NC; ++c) {
        o[r][c] = _mm512_dpbf16_ps(o[r][c], value[c], w);
      }
    }
  }
};

}  // namespace
}  // namespace xyserve

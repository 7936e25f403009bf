// C entry points for the tests: host arguments -> can_run -> parameters -> the
// kernel in the emulation.
#include <cstdio>
#include <cstring>

#include "ascendc/emulation/emulation.h"
#include "ascendc/emulation/kernel_operator.h"
// After the stand-in, so that the kernels see its macros.
#include "ascendc/host/cache.h"
#include "ascendc/host/smooth_gemm.h"
#include "ascendc/kernels.h"

namespace {

using namespace xyserve::ascend;
using xyserve::emulation::CLaunch;
using xyserve::emulation::run;

// The order of the fields in the tests' argument lists (tests/ascend/gemm.py,
// caches.py).
struct GemmCall {
  GemmArgs args;
  GemmTuning tuning;
  int32_t cores;
};

GemmCall gemm_call(void *const *t, const int64_t *n) {
  GemmCall c;
  c.args.form = static_cast<GemmForm>(n[0]);
  c.args.weight_nz = n[1] != 0;
  c.args.m = n[2];
  c.args.n = n[3];
  c.args.k = n[4];
  c.args.num_groups = n[5];
  c.args.x_row_stride = n[6];
  c.args.weight_row_stride = n[7];
  c.args.weight_group_stride = n[8];
  c.args.out_row_stride = n[9];
  int32_t *tuning[] = {&c.tuning.m_tile,        &c.tuning.n_tile,
                       &c.tuning.k_tile,        &c.tuning.swizzle_direction,
                       &c.tuning.swizzle_count, &c.tuning.last_split};
  for (int i = 0; i < 6; ++i) {
    *tuning[i] = static_cast<int32_t>(n[10 + i]);
  }
  c.cores = static_cast<int32_t>(n[16]);
  c.args.x = t[0];
  c.args.weight = t[1];
  c.args.bias = t[2];
  c.args.scales = t[3];
  c.args.row_scales = t[4];
  c.args.out = t[5];
  c.args.group_ends = t[7];
  return c;
}

bool answer(const CanRun &can, char *reason, int64_t room) {
  std::snprintf(reason, static_cast<size_t>(room), "%s", can.reason.c_str());
  return can.ok;
}

template <typename In, typename Out>
void cube(const SmoothGemmParams &p, bool nz) {
  nz ? run_smooth_gemm<In, Out, true>(p) : run_smooth_gemm<In, Out, false>(p);
}

template <typename Out> void mixed(const SmoothGemmParams &p, bool nz) {
  const uint64_t base = xyserve::emulation::sync_base_address();
  nz ? run_smooth_gemm_mixed<Out, true>(base, p)
     : run_smooth_gemm_mixed<Out, false>(base, p);
}

void run_form(GemmForm form, bool nz, const SmoothGemmParams &p) {
  switch (form) {
  case GemmForm::f16:
    return cube<half, half>(p, nz);
  case GemmForm::bf16:
    return cube<bfloat16_t, bfloat16_t>(p, nz);
  case GemmForm::int8_static:
    return cube<int8_t, half>(p, nz);
  case GemmForm::int8_f16:
    return mixed<half>(p, nz);
  case GemmForm::int8_bf16:
    return mixed<bfloat16_t>(p, nz);
  }
}

void fill(CacheTensor &t, void *rows, void *cache, const int64_t *n) {
  t.rows = rows;
  t.cache = cache;
  t.row_bytes = n[0];
  t.token_stride = n[1];
  t.block_stride = n[2];
}

// t: key, value, key cache, value cache, slots. n: cores, tokens, blocks, block
// size, slot bytes, then row bytes, token stride, block stride of key and of
// value.
KvWriteArgs kv_write_args(void *const *t, const int64_t *n) {
  KvWriteArgs args;
  args.num_tokens = n[1];
  args.num_blocks = n[2];
  args.block_size = n[3];
  args.slot_bytes = static_cast<int32_t>(n[4]);
  fill(args.key, t[0], t[2], n + 5);
  fill(args.value, t[1], t[3], n + 8);
  args.slot_mapping = t[4];
  return args;
}

// t: key cache, value cache, pairs. n: cores, pairs, blocks, block size, then
// as above.
BlockCopyArgs block_copy_args(void *const *t, const int64_t *n) {
  BlockCopyArgs args;
  args.num_pairs = n[1];
  args.num_blocks = n[2];
  args.block_size = n[3];
  fill(args.key, nullptr, t[0], n + 4);
  fill(args.value, nullptr, t[1], n + 7);
  args.pairs = t[2];
  return args;
}

} // namespace

extern "C" {

// plan[7]: m_tile, n_tile, k_tile, swizzle direction and count, last_split,
// workspace bytes.
int gemm_plan(void *const *t, const int64_t *n, int64_t *plan, char *reason,
              int64_t room) {
  const GemmCall c = gemm_call(t, n);
  if (!answer(smooth_gemm_can_run(c.args, c.tuning, c.cores), reason, room)) {
    return 0;
  }
  const GemmTuning tile = smooth_gemm_tile(c.args, c.tuning, c.cores);
  const int64_t values[] = {tile.m_tile,
                            tile.n_tile,
                            tile.k_tile,
                            tile.swizzle_direction,
                            tile.swizzle_count,
                            tile.last_split,
                            smooth_gemm_workspace_bytes(c.args, tile, c.cores)};
  std::memcpy(plan, values, sizeof(values));
  return 1;
}

const char *gemm(const CLaunch *launch, void *const *t, const int64_t *n) {
  const GemmCall c = gemm_call(t, n);
  const GemmTuning tile = smooth_gemm_tile(c.args, c.tuning, c.cores);
  const SmoothGemmParams params =
      smooth_gemm_params(c.args, tile, t[6], c.cores);
  return run(launch, [=] { run_form(c.args.form, c.args.weight_nz, params); });
}

uint64_t fixpipe_word(float scale) { return fixpipe_scale(scale); }

// The tiles of one core, five numbers each (group, m_begin, m, n_begin, n);
// returns how many.
int64_t gemm_tiles(void *const *t, const int64_t *n, int64_t core, int64_t *out,
                   int64_t room) {
  const GemmCall c = gemm_call(t, n);
  const GemmTuning tile = smooth_gemm_tile(c.args, c.tuning, c.cores);
  const SmoothGemmParams params =
      smooth_gemm_params(c.args, tile, nullptr, c.cores);
  const auto *ends = static_cast<const int64_t *>(t[7]);
  const auto end_of = [=](int32_t group) { return ends[group]; };
  GemmWalk<decltype(end_of)> walk(params, static_cast<int32_t>(core), end_of);
  int64_t count = 0;
  GemmTile tile_now;
  while (count < room && walk.next(&tile_now)) {
    const int64_t values[] = {tile_now.group, tile_now.m_begin, tile_now.m,
                              tile_now.n_begin, tile_now.n};
    std::memcpy(out + 5 * count, values, sizeof(values));
    ++count;
  }
  return count;
}

int kv_write_plan(void *const *t, const int64_t *n, char *reason,
                  int64_t room) {
  return answer(
      kv_write_can_run(kv_write_args(t, n), static_cast<int32_t>(n[0])), reason,
      room);
}

const char *kv_write(const CLaunch *launch, void *const *t, const int64_t *n) {
  const KvWriteArgs args = kv_write_args(t, n);
  const KvWriteParams params =
      kv_write_params(args, static_cast<int32_t>(n[0]));
  return run(launch, [=] {
    args.slot_bytes == 8 ? run_kv_write<int64_t>(params)
                         : run_kv_write<int32_t>(params);
  });
}

int block_copy_plan(void *const *t, const int64_t *n, char *reason,
                    int64_t room) {
  return answer(
      block_copy_can_run(block_copy_args(t, n), static_cast<int32_t>(n[0])),
      reason, room);
}

const char *block_copy(const CLaunch *launch, void *const *t,
                       const int64_t *n) {
  const BlockCopyArgs args = block_copy_args(t, n);
  const BlockCopyParams params =
      block_copy_params(args, static_cast<int32_t>(n[0]));
  return run(launch, [=] { xyserve_block_copy(params); });
}

} // extern "C"

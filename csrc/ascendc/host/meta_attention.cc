#include "ascendc/host/meta_attention.h"

#include <initializer_list>

namespace xyserve::meta_attention {
namespace {

std::string need(const char* what, const std::string& range, int64_t got) {
  return std::string("require ") + what + " " + range + ", got " + std::to_string(got);
}

struct Bound {
  const char* what;
  int64_t value, least, most, multiple;
};

std::string check(const Bound& bound) {
  if (bound.value >= bound.least && bound.value <= bound.most &&
      bound.value % bound.multiple == 0) {
    return "";
  }
  std::string range = "in " + std::to_string(bound.least) + ".." + std::to_string(bound.most);
  if (bound.multiple > 1) {
    range += " and a multiple of " + std::to_string(bound.multiple);
  }
  return need(bound.what, range, bound.value);
}

std::string check_shape(const Problem& problem) {
  const int64_t dim = problem.head_dim;
  const int64_t token = dim * problem.num_kv_heads;
  const int64_t query = token * problem.group_size;
  constexpr int64_t kAny = INT64_MAX;
  constexpr int64_t kMaxBlocks = INT32_MAX;
  // Strides between tokens are 16 bits: of elements where queries are read, of 32-byte blocks where
  // outputs are written.
  constexpr int64_t kMaxOutStride = int64_t{arch::kMaxStride16} * 16;
  for (const Bound& bound : {
           Bound{"num_cores", problem.num_cores, 1, arch::kMaxAic, 1},
           Bound{"block_size", problem.block_size, kPage, kPage, 1},
           Bound{"num_kv_heads", problem.num_kv_heads, 1, INT16_MAX, 1},
           Bound{"group_size", problem.group_size, 1, kMaxRows, 1},
           Bound{"tile_rows", problem.tile_rows, 16, kMaxRows, 16},
           Bound{"max_keys", problem.max_keys, 1, INT32_MAX - 2 * kPage, 1},
           Bound{"kv_heads * head_dim", token, 1, arch::kMaxStride16, 1},
           Bound{"query_token_stride", problem.query_token_stride, query, arch::kMaxStride16, 1},
           Bound{"out_token_stride", problem.out_token_stride, query, kMaxOutStride, 16},
           Bound{"key_block_stride", problem.key_block_stride, kPage * token, kAny, 1},
           Bound{"value_block_stride", problem.value_block_stride, kPage * token, kAny, 1},
           Bound{"num_blocks", problem.num_blocks, 1, kMaxBlocks, 1},
           Bound{"block_table_stride", problem.block_table_stride, 1, kAny, 1},
           Bound{"max_partial_rows", problem.max_partial_rows, 0, INT32_MAX, 1},
       }) {
    const std::string reason = check(bound);
    if (!reason.empty()) {
      return reason;
    }
  }
  for (const int64_t size : {64, 96, 128, 192, 256}) {
    if (dim == size) {
      return "";
    }
  }
  return need("head_dim", "64, 96, 128, 192 or 256", dim);
}

}  // namespace

int64_t three_stage_score_bytes(int32_t num_cores, int32_t tile_rows, int32_t max_keys) {
  const int64_t keys = arch::round_up(max_keys, kScoreAlign);
  return int64_t{num_cores} * kSlots * tile_rows * keys * static_cast<int64_t>(sizeof(float));
}

std::string can_run(const Problem& problem, Form form, const Selection& selection) {
  const std::string shape = check_shape(problem);
  if (!shape.empty()) {
    return shape;
  }
  if (!(problem.scale > 0.0f) || !(problem.softcap >= 0.0f)) {
    return "require scale > 0 and softcap >= 0, got " + std::to_string(problem.scale) + " and " +
           std::to_string(problem.softcap);
  }
  if (form == kThreeStage) {
    if (problem.splits) {
      return "the three-stage form takes whole rows: plan without key splits, or use four stages";
    }
    if (problem.max_keys > kThreeStageMaxKeys) {
      return need("max_keys",
                  "of at most " + std::to_string(kThreeStageMaxKeys) +
                      " for a row of scores to fit a vector core's memory",
                  problem.max_keys);
    }
    const int64_t bytes =
        three_stage_score_bytes(problem.num_cores, problem.tile_rows, problem.max_keys);
    if (selection.alpha * static_cast<double>(bytes) >=
        static_cast<double>(selection.cache_bytes)) {
      return need(
          "scores of the three-stage form",
          "times alpha below the cache's " + std::to_string(selection.cache_bytes) + " bytes",
          bytes);
    }
  }
  if (form == kTwoStage && (!problem.decode_only || problem.group_size > kTwoStageMaxGroup)) {
    return "the two-stage form takes decode rows of at most " + std::to_string(kTwoStageMaxGroup) +
           " query heads per KV head, got " +
           (problem.decode_only ? std::to_string(problem.group_size) + " heads"
                                : std::string("rows of several queries"));
  }
  return "";
}

Form select_form(const Problem& problem, const Selection& selection) {
  if (problem.group_size <= selection.two_stage_group &&
      can_run(problem, kTwoStage, selection).empty()) {
    return kTwoStage;
  }
  return can_run(problem, kThreeStage, selection).empty() ? kThreeStage : kFourStage;
}

int64_t workspace_bytes(const Problem& problem, Form form) {
  const int64_t slots = score_slot_bytes(form, problem.tile_rows, problem.max_keys) +
                        output_slot_bytes(form, problem.tile_rows, problem.head_dim);
  return status_bytes(problem.num_cores) +
         problem.num_cores * (kSlots * slots + exchange_bytes(form));
}

int64_t partial_floats(const Problem& problem, int64_t num_partial_rows) {
  return num_partial_rows * (problem.head_dim + kPartialTail);
}

Args make_args(const Problem& problem) {
  Args args{};
  args.out_token_stride = problem.out_token_stride;
  args.query_token_stride = problem.query_token_stride;
  args.key_block_stride = problem.key_block_stride;
  args.value_block_stride = problem.value_block_stride;
  args.block_table_stride = problem.block_table_stride;
  args.num_blocks = problem.num_blocks;
  args.max_partial_rows = problem.max_partial_rows;
  args.num_cores = problem.num_cores;
  args.num_kv_heads = problem.num_kv_heads;
  args.group_size = problem.group_size;
  args.head_dim = problem.head_dim;
  args.max_rows = problem.tile_rows;
  args.max_keys = problem.max_keys;
  args.scale = problem.scale;
  args.softcap = problem.softcap;
  return args;
}

}  // namespace xyserve::meta_attention

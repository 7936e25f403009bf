#include "ascendc/host/cache.h"

#include <utility>

namespace xyserve::ascend {
namespace {

std::string text(int64_t value) {
  return std::to_string(value);
}

int64_t pitch_of(const CacheTensor& t) {
  return arch::round_up(t.row_bytes, int64_t{arch::kBlockBytes});
}

CanRun check_common(const CacheTensor& t, const char* name, int64_t block_size) {
  if (t.row_bytes < 1) {
    return no(std::string(name) + ": a row has at least one byte, came " + text(t.row_bytes));
  }
  if (t.block_stride < t.row_bytes * block_size) {
    return no(std::string(name) + ": a block has " + text(t.row_bytes * block_size) +
              " bytes, but blocks are " + text(t.block_stride) + " bytes apart");
  }
  if (t.cache == nullptr) {
    return no(std::string(name) + ": the cache must be set");
  }
  return {};
}

CanRun check_rows(const CacheTensor& t, const char* name) {
  // The transfer keeps the gap between two rows in 32 bits.
  constexpr int64_t kMostGap = UINT32_MAX;
  if (t.rows == nullptr) {
    return no(std::string(name) + ": the new rows must be set");
  }
  if (t.token_stride < t.row_bytes || t.token_stride - t.row_bytes > kMostGap) {
    return no(std::string(name) + ": tokens must be at least a row (" + text(t.row_bytes) +
              " bytes) and less than 4 GiB apart, came " + text(t.token_stride));
  }
  return {};
}

CanRun check_launch(int64_t block_size, int64_t num_blocks, int32_t num_cores) {
  if (num_cores < 1 || num_cores > arch::kMaxAic * arch::kAivPerAic) {
    return no("1 to " + text(arch::kMaxAic * arch::kAivPerAic) + " vector cores, came " +
              text(num_cores));
  }
  if (block_size < 1 || block_size > INT32_MAX || num_blocks < 0) {
    return no("block_size >= 1 and num_blocks >= 0, came " + text(block_size) + " and " +
              text(num_blocks));
  }
  return {};
}

KvWriteSide side_of(const CacheTensor& t) {
  KvWriteSide side{};
  side.rows = static_cast<GmAddress>(const_cast<void*>(t.rows));
  side.cache = static_cast<GmAddress>(t.cache);
  side.token_stride = t.token_stride;
  side.block_stride = t.block_stride;
  side.row_bytes = static_cast<int32_t>(t.row_bytes);
  side.ub_pitch = static_cast<int32_t>(pitch_of(t));
  return side;
}

}  // namespace

CanRun kv_write_can_run(const KvWriteArgs& args, int32_t num_cores) {
  for (const CanRun& check : {check_launch(args.block_size, args.num_blocks, num_cores),
                              check_common(args.key, "key", args.block_size),
                              check_common(args.value, "value", args.block_size),
                              check_rows(args.key, "key"), check_rows(args.value, "value")}) {
    if (!check) {
      return check;
    }
  }
  const int64_t bytes = pitch_of(args.key) + pitch_of(args.value);
  if (bytes > KvWriteBuffers::kBatch) {
    return no("a token's key and value have " + text(bytes) + " bytes, but UB holds " +
              text(KvWriteBuffers::kBatch) + " at a time");
  }
  if (args.slot_bytes != 4 && args.slot_bytes != 8) {
    return no("slot_mapping must be int32 or int64, came " + text(args.slot_bytes) + " bytes");
  }
  if (args.num_tokens < 0 || args.num_tokens > INT32_MAX / 2 ||
      (args.num_tokens > 0 && args.slot_mapping == nullptr)) {
    return no("0 <= tokens < 2^30 with a slot_mapping, came " + text(args.num_tokens));
  }
  return {};
}

KvWriteParams kv_write_params(const KvWriteArgs& args, int32_t num_cores) {
  KvWriteParams p{};
  p.key = side_of(args.key);
  p.value = side_of(args.value);
  p.slot_mapping = static_cast<GmAddress>(const_cast<void*>(args.slot_mapping));
  p.num_slots = args.num_blocks * args.block_size;
  p.num_tokens = static_cast<int32_t>(args.num_tokens);
  p.tokens_per_core = arch::ceil_div(p.num_tokens, num_cores);
  p.block_size = static_cast<int32_t>(args.block_size);
  p.batch = arch::min_of(KvWriteBuffers::kBatch / (p.key.ub_pitch + p.value.ub_pitch),
                         arch::kMaxBlockCount);
  return p;
}

CanRun block_copy_can_run(const BlockCopyArgs& args, int32_t num_cores) {
  for (const CanRun& check : {check_launch(args.block_size, args.num_blocks, num_cores),
                              check_common(args.key, "key", args.block_size),
                              check_common(args.value, "value", args.block_size)}) {
    if (!check) {
      return check;
    }
  }
  if (args.num_pairs < 0 || args.num_pairs > INT32_MAX / 2 ||
      (args.num_pairs > 0 && args.pairs == nullptr)) {
    return no("0 <= pairs < 2^30 with a list, came " + text(args.num_pairs));
  }
  return {};
}

BlockCopyParams block_copy_params(const BlockCopyArgs& args, int32_t num_cores) {
  BlockCopyParams p{};
  const CacheTensor* tensors[] = {&args.key, &args.value};
  for (int32_t i = 0; i < 2; ++i) {
    p.sides[i].cache = static_cast<GmAddress>(tensors[i]->cache);
    p.sides[i].block_stride = tensors[i]->block_stride;
    p.sides[i].block_bytes = tensors[i]->row_bytes * args.block_size;
  }
  p.pairs = static_cast<GmAddress>(const_cast<void*>(args.pairs));
  p.num_blocks = args.num_blocks;
  p.num_pairs = static_cast<int32_t>(args.num_pairs);
  p.num_cores = num_cores;
  return p;
}

}  // namespace xyserve::ascend

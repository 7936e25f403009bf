// Writing new keys and values into their pages (layout in xyserve/attention.h).
//
// [NOTE] A key's 4-byte units (a pair of 16-bit elements, or one fp32) go 64 bytes apart; 16 keys
// of one sub-block are a 16 x 16 transpose instead, 16 units at a time. Two threads may write the
// two tokens of a pair: each stores its own 16 bits and never the neighbour's.
#pragma once

#include <cstdint>
#include <cstring>

#include "xyserve/attention.h"
#include "xyserve/dtype.h"

namespace xyserve {
namespace {

struct KvWriteScalar {
  static constexpr bool kTransposes = false;

  static void key(char* to, const char* from, int32_t num_units) {
    for (int32_t u = 0; u < num_units; ++u) {
      std::memcpy(to + 64 * int64_t{u}, from + 4 * int64_t{u}, 4);
    }
  }
  static void transpose(char*, const char* const*, int32_t) {}

  static void value(uint16_t* to, const uint16_t* from, int32_t size) {
    for (int32_t d = 0; d < size; ++d) {
      to[2 * int64_t{d}] = from[d];
    }
  }
  static void value_pair(uint16_t* to, const uint16_t* even, const uint16_t* odd, int32_t size) {
    for (int32_t d = 0; d < size; ++d) {
      to[2 * int64_t{d}] = even[d];
      to[2 * int64_t{d} + 1] = odd[d];
    }
  }
};

template <class Isa, int kBytes>
class KvWriter {
 public:
  explicit KvWriter(const KvWriteArgs& args) : args_(args) {}

  void tokens(int64_t begin, int64_t end) {
    int64_t token = begin;
    while (token < end) {
      const int64_t slot = args_.slot_mapping[token];
      if (slot < 0) {
        ++token;
        continue;
      }
      const int32_t count = run_length(token, end);
      for (int32_t head = 0; head < args_.num_kv_heads; ++head) {
        write(token, slot, count, head);
      }
      token += count;
    }
  }

 private:
  // Tokens from `token` on with adjacent slots of one sub-block.
  int32_t run_length(int64_t token, int64_t end) const {
    const int64_t slot = args_.slot_mapping[token];
    const int64_t room = kSubBlock - slot % kSubBlock;
    int32_t count = 1;
    while (count < room && token + count < end &&
           args_.slot_mapping[token + count] == slot + count) {
      ++count;
    }
    return count;
  }

  void write(int64_t token, int64_t slot, int32_t count, int32_t head) const {
    const int64_t block = slot / args_.block_size;
    const int64_t offset = slot % args_.block_size;
    char* page = static_cast<char*>(args_.kv_cache) +
                 (block * args_.block_stride + head * args_.page_stride) * kBytes;
    char* keys = page + offset / kSubBlock * kSubBlock * args_.head_size * kBytes;
    char* values = page + int64_t{args_.block_size} * args_.head_size * kBytes;
    const char* key = static_cast<const char*>(args_.key) +
                      (token * args_.key_token_stride + head * args_.key_head_stride) * kBytes;
    const char* value =
        static_cast<const char*>(args_.value) +
        (token * args_.value_token_stride + head * args_.value_head_stride) * kBytes;
    write_keys(keys, key, offset % kSubBlock, count);
    write_values(values, value, offset, count);
  }

  void write_keys(char* to, const char* from, int64_t lane, int32_t count) const {
    const int32_t units = args_.head_size * kBytes / 4;
    const int64_t stride = args_.key_token_stride * kBytes;
    if (Isa::kTransposes && count == kSubBlock && units % 16 == 0) {
      const char* rows[kSubBlock];
      for (int32_t i = 0; i < kSubBlock; ++i) {
        rows[i] = from + i * stride;
      }
      Isa::transpose(to, rows, units);
      return;
    }
    for (int32_t i = 0; i < count; ++i) {
      Isa::key(to + 4 * (lane + i), from + i * stride, units);
    }
  }

  void write_values(char* to, const char* from, int64_t offset, int32_t count) const {
    const int32_t size = args_.head_size;
    const int64_t stride = args_.value_token_stride * kBytes;
    if (kBytes == 4) {
      for (int32_t i = 0; i < count; ++i) {
        std::memcpy(to + (offset + i) * size * 4, from + i * stride, static_cast<size_t>(size) * 4);
      }
      return;
    }
    for (int32_t i = 0; i < count;) {
      uint16_t* pair = reinterpret_cast<uint16_t*>(to) + (offset + i) / 2 * 2 * size;
      const uint16_t* value = reinterpret_cast<const uint16_t*>(from + i * stride);
      const bool odd = (offset + i) % 2 != 0;
      if (!odd && i + 1 < count) {
        Isa::value_pair(pair, value, reinterpret_cast<const uint16_t*>(from + (i + 1) * stride),
                        size);
        i += 2;
      } else {
        Isa::value(pair + (odd ? 1 : 0), value, size);
        i += 1;
      }
    }
  }

  const KvWriteArgs& args_;
};

}  // namespace
}  // namespace xyserve

// Defines the function behind one line of kernels.inc.
#define XYSERVE_DEFINE_KV_WRITE(Isa, isa, dtype)                                               \
  namespace xyserve {                                                                          \
  void kv_write_##dtype##_##isa(const KvWriteArgs& args, int64_t begin, int64_t end) {         \
    KvWriter<Isa, static_cast<int>(sizeof(ElementOf<DType::dtype>::type))>(args).tokens(begin, \
                                                                                        end);  \
  }                                                                                            \
  }

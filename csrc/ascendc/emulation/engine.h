// The seam between the API templates that kernels see and the engine that is compiled once. Every
// call validates its arguments against the chip's rules, then queues an operation on its pipe.
#pragma once

#include <cstdint>

#include "params.h"

namespace xyserve::emulation {

// Call site of an API call in the kernel's source; mutations and findings name it.
struct Site {
  const char* file;
  int line;
  constexpr Site(const char* at = __builtin_FILE(), int on = __builtin_LINE())
      : file(at), line(on) {}
};

enum class Type : uint8_t { i8, u8, i16, u16, f16, bf16, i32, u32, f32, i64, u64 };

template <typename T>
constexpr Type type_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, half>)
    return Type::f16;
  if constexpr (std::is_same_v<U, bfloat16_t>)
    return Type::bf16;
  if constexpr (std::is_same_v<U, float>)
    return Type::f32;
  if constexpr (std::is_integral_v<U>) {
    constexpr bool negative = std::is_signed_v<U>;
    if constexpr (sizeof(U) == 1)
      return negative ? Type::i8 : Type::u8;
    if constexpr (sizeof(U) == 2)
      return negative ? Type::i16 : Type::u16;
    if constexpr (sizeof(U) == 4)
      return negative ? Type::i32 : Type::u32;
    if constexpr (sizeof(U) == 8)
      return negative ? Type::i64 : Type::u64;
  }
}

template <typename T>
uint64_t bits_of(const T& value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

enum class Buffer : uint8_t { ub, l1, l0a, l0b, l0c, bias, fixpipe, count };

// A tensor in on-chip memory: `bytes` is what lies between its start and the end of its allocation.
struct Local {
  Buffer buffer;
  Type type;
  uint32_t address;
  uint32_t bytes;
};

struct Global {
  uint64_t address;
  Type type;
};

// The active elements of a vector operation: `count` consecutive ones, or `repeat` repeats of 256
// bytes under a bit mask (one bit per element, low word first). `from_register` takes the mask that
// SetVectorMask left.
struct Lanes {
  bool counted = false;
  bool from_register = false;
  int64_t count = 0;
  uint64_t bits[2] = {0, 0};
  int32_t repeat = 1;
};

enum class Unary : uint8_t { exp, ln, abs, sqrt, rsqrt, reciprocal, relu, bit_not };
enum class Binary : uint8_t {
  add,
  sub,
  mul,
  div,
  max,
  min,
  bit_and,
  bit_or,
  mul_add_dst,
  add_relu,
  sub_relu,
  fused_mul_add,
};
enum class WithScalar : uint8_t {
  adds,
  muls,
  maxs,
  mins,
  leaky_relu,
  shift_left,
  shift_right,
  axpy
};
enum class Reduce : uint8_t { max, min, sum };

namespace engine {

// --- the core that runs this call
bool on_cube();
int64_t block_index();
int64_t block_count();
int64_t sub_block_index();
int64_t sub_block_count();
int64_t task_ratio();
void declare_kernel_type(Site, KernelMetaType);
void set_sync_base(Site, uint64_t address);
void trap(Site);
void*& tpipe_pointer();
bool cancelled();
[[noreturn]] void reject(Site, const char* api, const char* rule, int64_t value);
uint32_t capacity(Buffer);
uint8_t* host_pointer(Local);
bool bound_removed(Site);

// --- synchronisation
void set_flag(Site, AscendC::HardEvent, int32_t id, bool from_queue = false);
void wait_flag(Site, AscendC::HardEvent, int32_t id, bool from_queue = false);
void pipe_barrier(Site, pipe_t);
void data_sync_barrier(Site, AscendC::MemDsbT);
void cross_core_set(Site, uint8_t mode, pipe_t, uint16_t id);
void cross_core_wait(Site, uint8_t mode, pipe_t, uint16_t id);
void sync_all(Site, bool vector_cores_only);

// --- scalar accesses
uint64_t scalar_read(Site, Local);
void scalar_write(Site, Local, uint64_t bits);
uint64_t scalar_read(Site, Global);
void scalar_write(Site, Global, uint64_t bits);
void clean_and_invalidate(Site, Global, bool entire);

// --- data movement
void data_copy(Site, Local dst, Global src, uint32_t count);
void data_copy(Site, Global dst, Local src, uint32_t count);
void data_copy(Site, Local dst, Local src, uint32_t count);
void data_copy(Site, Local dst, Global src, const AscendC::DataCopyParams&);
void data_copy(Site, Global dst, Local src, const AscendC::DataCopyParams&);
void data_copy(Site, Local dst, Local src, const AscendC::DataCopyParams&);
void data_copy(Site, Local dst, Global src, const AscendC::Nd2NzParams&);
struct Pad {
  bool on;
  uint8_t left, right;
  uint64_t value;
};
void data_copy_pad(Site, Local dst, Global src, const AscendC::DataCopyExtParams&, const Pad&);
void data_copy_pad(Site, Global dst, Local src, const AscendC::DataCopyExtParams&);
enum class AtomicOp : uint8_t { none, add, max, min };
void set_atomic(Site, const char* api, AtomicOp, Type);

// --- cube
void load_data(Site, Local dst, Local src, const AscendC::LoadData2DParams&);
void load_data(Site, Local dst, Global src, const AscendC::LoadData2DParams&);
void load_data_with_transpose(Site, Local dst, Local src,
                              const AscendC::LoadData2dTransposeParams&);
void init_const(Site, Local dst, uint16_t repeat, uint16_t blocks, uint16_t gap, uint64_t value);
void mmad(Site, Local dst, Local a, Local b, const Local* bias, const AscendC::MmadParams&);
void fixpipe(Site, Global dst, Local src, const Local* scale, const AscendC::FixpipeParamsV220&,
             AscendC::CO2Layout);
void fixpipe(Site, Local dst, Local src, const Local* scale, const AscendC::FixpipeParamsV220&,
             AscendC::CO2Layout);
void set_mm_direction(Site, bool row_major);

// --- vector
void set_vector_mask(Site, uint64_t high, uint64_t low);
void set_mask_mode(Site, bool counter);
void unary(Site, const char* api, Unary, Local dst, Local src, const Lanes&,
           const AscendC::UnaryRepeatParams&);
void binary(Site, const char* api, Binary, Local dst, Local a, Local b, const Lanes&,
            const AscendC::BinaryRepeatParams&);
void with_scalar(Site, const char* api, WithScalar, Local dst, Local src, uint64_t scalar,
                 const Lanes&, const AscendC::UnaryRepeatParams&);
void copy(Site, Local dst, Local src, const Lanes&, const AscendC::CopyRepeatParams&);
void duplicate(Site, Local dst, uint64_t value, const Lanes&, uint16_t block_stride,
               uint8_t repeat_stride);
void create_vec_index(Site, Local dst, uint64_t first, const Lanes&, uint16_t block_stride,
                      uint8_t repeat_stride);
void cast(Site, Local dst, Local src, AscendC::RoundMode, const Lanes&,
          const AscendC::UnaryRepeatParams&);
void set_deq_scale(Site, half);
void compare(Site, Local dst, Local a, Local b, AscendC::CMPMODE, const Lanes&,
             const AscendC::BinaryRepeatParams&);
void compare_scalar(Site, Local dst, Local a, uint64_t scalar, AscendC::CMPMODE, const Lanes&,
                    const AscendC::UnaryRepeatParams&);
void compare_to_register(Site, Local a, Local b, AscendC::CMPMODE, const Lanes&,
                         const AscendC::BinaryRepeatParams&);
void get_cmp_mask(Site, Local dst);
void set_cmp_mask(Site, Local src);
void select(Site, Local dst, Local mask, Local a, Local b, AscendC::SELMODE, const Lanes&,
            const AscendC::BinaryRepeatParams&);
void select_scalar(Site, Local dst, Local mask, Local a, uint64_t b, AscendC::SELMODE, const Lanes&,
                   const AscendC::BinaryRepeatParams&);
void brcb(Site, Local dst, Local src, uint8_t repeat, const AscendC::BrcbRepeatParams&);
void whole_reduce(Site, const char* api, Reduce, Local dst, Local src, const Lanes&,
                  int32_t dst_repeat_stride, int32_t src_block_stride, int32_t src_repeat_stride,
                  AscendC::ReduceOrder);
void block_reduce(Site, const char* api, Reduce, Local dst, Local src, const Lanes&,
                  int32_t dst_repeat_stride, int32_t src_block_stride, int32_t src_repeat_stride);
void pair_reduce_sum(Site, Local dst, Local src, const Lanes&, int32_t dst_repeat_stride,
                     int32_t src_block_stride, int32_t src_repeat_stride);
void reduce(Site, const char* api, Reduce, Local dst, Local src, Local scratch, const Lanes&,
            int32_t src_repeat_stride, bool index);
void gather(Site, Local dst, Local src, Local offsets, uint32_t base, const Lanes&,
            uint16_t dst_repeat_stride);
void gather_mask(Site, Local dst, Local src, const Local* pattern, uint8_t fixed_pattern,
                 bool counted, uint32_t mask, const AscendC::GatherMaskParams&, uint64_t& written);
void transpose_16x16(Site, Local dst, Local src);

}  // namespace engine
}  // namespace xyserve::emulation

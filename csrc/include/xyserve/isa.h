// Instruction sets: what the CPU and the operating system offer, and what the user allows.
#pragma once

#include <cstdint>

namespace xyserve {

// In rising order: a kernel of one set may run wherever a later set is available.
enum class Isa : int32_t { scalar, avx2, avx512, avx512_bf16 };
inline constexpr int kNumIsas = 4;

const char* isa_name(Isa isa);
// False if the name is unknown.
bool isa_from_name(const char* name, Isa* isa);

// CPUID and the register state that the operating system saves; constant for the process.
bool isa_available(Isa isa);
Isa best_available_isa();
// AMX tiles with bf16 are reported for diagnosis only: no kernel here uses them.
bool cpu_has_amx_bf16();

// The bf16 dot product does no more multiplications per cycle than half of what fp32 can: Intel's
// cores issue one 512-bit VDPBF16PS every other cycle (measured), AMD's one per cycle.
bool cpu_has_slow_bf16_dot();

}  // namespace xyserve

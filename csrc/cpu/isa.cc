#include "xyserve/isa.h"

#include <cstring>

#ifdef XYSERVE_X86
#include <cpuid.h>
#endif

namespace xyserve {
namespace {

constexpr const char* kNames[kNumIsas] = {"scalar", "avx2", "avx512", "avx512_bf16"};

#ifdef XYSERVE_X86
// __builtin_cpu_supports also looks at XCR0: a feature that the operating system does not save is
// reported as absent.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool detect(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return has_avx2();
    case Isa::avx512:
      return has_avx512();
    case Isa::avx512_bf16:
      return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

bool detect_amx_bf16() {
  constexpr unsigned kOsxsave = 1u << 27;      // leaf 1, ECX
  constexpr unsigned kAmxBf16Tile = 5u << 22;  // leaf 7, EDX: AMX-BF16 (22) and AMX-TILE (24)
  constexpr unsigned kTileState = 3u << 17;    // XCR0: TILECFG and TILEDATA
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsxsave) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) {
    return false;
  }
  if ((edx & kAmxBf16Tile) != kAmxBf16Tile) {
    return false;
  }
  unsigned xcr0 = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
  return (xcr0 & kTileState) == kTileState;
}
#else
bool detect(Isa isa) {
  return isa == Isa::scalar;
}

bool detect_amx_bf16() {
  return false;
}
#endif

struct Features {
  bool available[kNumIsas];
  bool amx_bf16;
  bool slow_bf16_dot = false;

  Features() : amx_bf16(detect_amx_bf16()) {
#ifdef XYSERVE_X86
    __builtin_cpu_init();
    slow_bf16_dot = __builtin_cpu_is("intel");
#endif
    for (int i = 0; i < kNumIsas; ++i) {
      available[i] = detect(static_cast<Isa>(i));
    }
  }
};

const Features& features() {
  static const Features instance;
  return instance;
}

}  // namespace

const char* isa_name(Isa isa) {
  return kNames[static_cast<int>(isa)];
}

bool isa_from_name(const char* name, Isa* isa) {
  for (int i = 0; i < kNumIsas; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      *isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

bool isa_available(Isa isa) {
  return features().available[static_cast<int>(isa)];
}

Isa best_available_isa() {
  int best = 0;
  for (int i = 0; i < kNumIsas; ++i) {
    if (features().available[i]) {
      best = i;
    }
  }
  return static_cast<Isa>(best);
}

bool cpu_has_amx_bf16() {
  return features().amx_bf16;
}

bool cpu_has_slow_bf16_dot() {
  return features().slow_bf16_dot;
}

}  // namespace xyserve

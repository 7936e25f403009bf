// The Ascend 910B (vendor's architecture 2201) as numbers: capacities, alignments, limits of the
// instructions, events. Plain C++17 without a vendor header, so that kernels, the host side and the
// emulation share it. Sizes are bytes unless a name says otherwise.
#pragma once

#include <cstdint>

// In front of a function that both the host and a core call.
#if defined(__CCE__)
#define XYSERVE_HOST_DEVICE __forceinline__[host, aicore]
#else
#define XYSERVE_HOST_DEVICE inline
#endif

namespace xyserve::arch {

// ---- Cores: one cube core (AIC) with two vector cores (AIV) each
constexpr int32_t kMaxAic = 24;  // B1, B2: 24, B3, B4: 20
constexpr int32_t kAivPerAic = 2;

// ---- Memories of a core
constexpr int32_t kL1Bytes = 512 * 1024;
constexpr int32_t kL0aBytes = 64 * 1024;
constexpr int32_t kL0bBytes = 64 * 1024;
constexpr int32_t kL0cBytes = 128 * 1024;
constexpr int32_t kBiasTableBytes = 1024;
constexpr int32_t kFixpipeBytes = 2 * 1024;  // the guide's figure; some headers say 7 KB
constexpr int32_t kUbBytes = 192 * 1024;

// What the run-time keeps for itself in mixed kernels, and of UB for the library's own scratch
// unless the kernel is compiled with --cce-disable-asc-reserved-ubuf. Kernels stay below in any
// case.
constexpr int32_t kL1Reserved = 256;
constexpr int32_t kUbReserved = 256 + 8 * 1024;
constexpr int32_t kL1Usable = kL1Bytes - kL1Reserved;
constexpr int32_t kUbUsable = kUbBytes - kUbReserved;

// ---- Alignment and granularity
constexpr int32_t kBlockBytes = 32;     // UB and L1 addresses, DataCopy lengths
constexpr int32_t kRepeatBytes = 256;   // one vector instruction's repeat
constexpr int32_t kFractalBytes = 512;  // 16 rows x 32 bytes; L0A and L0B addresses
constexpr int32_t kFractalRows = 16;
constexpr int32_t kL0cFractalElements = 256;  // 16 x 16, whatever the type
constexpr int32_t kMmadOutAlign = 1024;
constexpr int32_t kL0cAlign = 64;
constexpr int32_t kBiasTableAlign = 64;
constexpr int32_t kCacheLine = 64;  // of a core's scalar data cache: write-back and incoherent
constexpr int32_t kL2Line = 512;    // global addresses that are multiples of it move fastest
constexpr int32_t kFullSpeedTransfer = 16 * 1024;  // bytes from which a transfer reaches it

// Elements of a 32-byte block: the C0 of the fractal layouts.
template <typename T>
constexpr int32_t kC0 = kBlockBytes / static_cast<int32_t>(sizeof(T));

// ---- Limits of the instructions' parameters
constexpr int32_t kMaxBlockCount = 4095;      // DataCopy, DataCopyPad
constexpr int32_t kMaxPadBlockLen = 2097151;  // DataCopyPad, bytes
constexpr int32_t kMaxStride16 = 65535;       // strides that the instruction keeps in 16 bits
constexpr int32_t kMaxNd2NzRows = 16384;
constexpr int32_t kMaxNd2NzC0Stride = 16384;
constexpr int32_t kMaxLoadRepeat = 255;
constexpr int32_t kMaxVectorRepeat = 255;
constexpr int32_t kMaxMmad = 4095;  // each of m, n, k
constexpr int32_t kMaxFixpipeN = 4095;
constexpr int32_t kMaxFixpipeM = 8192;  // with row-major output
// Below so many fractals of C an Mmad that accumulates on the one before needs a barrier.
constexpr int32_t kMmadSelfOrdering = 10;

// ---- Flags within a core, per pair of pipes
constexpr int32_t kNumEvents = 6;  // 8, of which 6 and 7 may be reserved
// TPipe of an AIC sets M_MTE1 flags 0 to 2 when it is made and waits for them when it goes.
constexpr int32_t kFirstMToMte1Event = 3;

// ---- Flags between cores
constexpr int32_t kNumCrossFlags = 11;  // 0 to 10; SyncAll owns 11 to 14
constexpr int32_t kMaxCrossFlagCount = 15;

// ---- Arithmetic
template <typename T>
XYSERVE_HOST_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <typename T>
XYSERVE_HOST_DEVICE constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}
template <typename T>
XYSERVE_HOST_DEVICE constexpr T round_down(T a, T b) {
  return a / b * b;
}
template <typename T>
XYSERVE_HOST_DEVICE constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
XYSERVE_HOST_DEVICE constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

}  // namespace xyserve::arch

"""What one core can do at most: bf16 dot products, fp32 multiply-adds, reading memory.

With AVX-512-BF16, or with AVX2, which has no bf16 dot product.

A few lines of C++, compiled where the benchmark runs: they belong to no kernel.
"""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from vllm_xyserve.ops import native

_SOURCE = r"""
#include <immintrin.h>
#include <chrono>
#include <cstddef>
using Clock = std::chrono::steady_clock;
static double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}
#ifdef __AVX512F__
using Float = __m512;
using Bits = __m512i;
#define F(name) _mm512_##name##_ps
#define LOAD(p) _mm512_loadu_si512(p)
#define XOR(a, b) _mm512_xor_si512(a, b)
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
constexpr int kSums = 16;
#else
using Float = __m256;
using Bits = __m256i;
#define F(name) _mm256_##name##_ps
#define LOAD(p) _mm256_loadu_si256((const __m256i*)(p))
#define XOR(a, b) _mm256_xor_si256(a, b)
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
constexpr int kSums = 12;
#endif
// Opaque, so that equal sums are not computed once.
#define START(i) Float a##i = F(setzero)(); asm volatile("" : "+v"(a##i));
#define DOT(i) a##i = _mm512_dpbf16_ps(a##i, x, y);
#define FMA(i) a##i = F(fmadd)(a##i, u, v);
#define END(i) asm volatile("" ::"v"(a##i));
#ifdef __AVX512BF16__
extern "C" double dot_gflops(long n) {
  ALL(START)
  __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = x;
  auto t = Clock::now();
  for (long i = 0; i < n; ++i) { asm volatile("" : "+v"(x), "+v"(y)); ALL(DOT) }
  double s = since(t);
  ALL(END)
  return n * kSums * 64 / s * 1e-9;
}
#endif
extern "C" double fma_gflops(long n) {
  ALL(START)
  Float u = F(set1)(0.5f), v = u;
  auto t = Clock::now();
  for (long i = 0; i < n; ++i) { asm volatile("" : "+v"(u), "+v"(v)); ALL(FMA) }
  double s = since(t);
  ALL(END)
  return n * kSums * (sizeof(Float) / 2) / s * 1e-9;
}
// Chunks of `bytes` in the given order, as a decode reads its pages.
extern "C" double read_gbytes(const char* const* chunk, long num, long bytes) {
  constexpr long kBytes = sizeof(Bits);
  Bits a = {}, b = a, c = a, d = a;
  auto t = Clock::now();
  for (long i = 0; i < num; ++i)
    for (long o = 0; o < bytes; o += 4 * kBytes) {
      a = XOR(a, LOAD(chunk[i] + o));
      b = XOR(b, LOAD(chunk[i] + o + kBytes));
      c = XOR(c, LOAD(chunk[i] + o + 2 * kBytes));
      d = XOR(d, LOAD(chunk[i] + o + 3 * kBytes));
    }
  double s = since(t);
  a = XOR(XOR(a, b), XOR(c, d));
  asm volatile("" ::"v"(a));
  return num * bytes / s * 1e-9;
}
"""


@cache
def _library() -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("the benchmark measures the limits of a core and needs a C++ compiler")
    folder = Path(tempfile.mkdtemp(prefix="xyserve-limits-"))
    (folder / "limits.cc").write_text(_SOURCE, encoding="utf-8")
    wide = native.load().isa == "avx512_bf16"
    isa = ["-mavx512f", "-mavx512bf16"] if wide else ["-mavx2", "-mfma"]
    flags = ["-O2", "-shared", "-fPIC", *isa]
    target = folder / "limits.so"
    subprocess.run([compiler, *flags, str(folder / "limits.cc"), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    shutil.rmtree(folder)
    for name in (*(("dot_gflops",) if wide else ()), "fma_gflops", "read_gbytes"):
        getattr(library, name).restype = ctypes.c_double
    return library


def dot_gflops() -> float:
    """bf16 dot products of one core, GFLOP/s, over about a millisecond."""
    return float(_library().dot_gflops(ctypes.c_long(100_000)))


def fma_gflops() -> float:
    """fp32 multiply-adds of one core, GFLOP/s, over about a millisecond."""
    return float(_library().fma_gflops(ctypes.c_long(100_000)))


def read_gbytes(kv_cache: torch.Tensor, block_table: torch.Tensor, num_blocks: list[int]) -> float:
    """One core reading the pages that a decode reads, in its order: GB/s."""
    page = kv_cache.shape[2] * kv_cache.shape[3] * kv_cache.element_size()
    block = kv_cache.shape[1] * page
    base = kv_cache.data_ptr()
    chunks = [
        base + int(index) * block + head * page
        for row, count in enumerate(num_blocks)
        for head in range(kv_cache.shape[1])
        for index in block_table[row, :count]
    ]
    pointers = (ctypes.c_char_p * len(chunks)).from_buffer_copy(
        (ctypes.c_size_t * len(chunks))(*chunks)
    )
    return float(_library().read_gbytes(pointers, ctypes.c_long(len(chunks)), ctypes.c_long(page)))

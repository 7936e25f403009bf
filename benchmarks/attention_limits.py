"""What one core can do at most: bf16 dot products, fp32 multiply-adds, reading memory.

A few lines of C++, compiled where the benchmark runs: they belong to no kernel.
"""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

_SOURCE = r"""
#include <immintrin.h>
#include <chrono>
#include <cstddef>
using Clock = std::chrono::steady_clock;
static double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
// Opaque, so that sixteen equal sums are not computed once.
#define START(i) __m512 a##i = _mm512_setzero_ps(); asm volatile("" : "+v"(a##i));
#define DOT(i) a##i = _mm512_dpbf16_ps(a##i, x, y);
#define FMA(i) a##i = _mm512_fmadd_ps(a##i, u, v);
#define END(i) asm volatile("" ::"v"(a##i));
extern "C" double dot_gflops(long n) {
  ALL(START)
  __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = x;
  auto t = Clock::now();
  for (long i = 0; i < n; ++i) { asm volatile("" : "+v"(x), "+v"(y)); ALL(DOT) }
  double s = since(t);
  ALL(END)
  return n * 16 * 64 / s * 1e-9;
}
extern "C" double fma_gflops(long n) {
  ALL(START)
  __m512 u = _mm512_set1_ps(0.5f), v = u;
  auto t = Clock::now();
  for (long i = 0; i < n; ++i) { asm volatile("" : "+v"(u), "+v"(v)); ALL(FMA) }
  double s = since(t);
  ALL(END)
  return n * 16 * 32 / s * 1e-9;
}
// Chunks of `bytes` in the given order, as a decode reads its pages.
extern "C" double read_gbytes(const char* const* chunk, long num, long bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  auto t = Clock::now();
  for (long i = 0; i < num; ++i)
    for (long o = 0; o < bytes; o += 256) {
      a = _mm512_xor_si512(a, _mm512_loadu_si512(chunk[i] + o));
      b = _mm512_xor_si512(b, _mm512_loadu_si512(chunk[i] + o + 64));
      c = _mm512_xor_si512(c, _mm512_loadu_si512(chunk[i] + o + 128));
      d = _mm512_xor_si512(d, _mm512_loadu_si512(chunk[i] + o + 192));
    }
  double s = since(t);
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
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
    flags = ["-O2", "-shared", "-fPIC", "-mavx512f", "-mavx512bf16"]
    target = folder / "limits.so"
    subprocess.run([compiler, *flags, str(folder / "limits.cc"), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    shutil.rmtree(folder)
    for name in ("dot_gflops", "fma_gflops", "read_gbytes"):
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

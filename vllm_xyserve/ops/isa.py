"""Instruction sets of this machine, read without torch and without the native library.

The library asks the CPU itself (CPUID and the register state that the kernel saves); this module
reads the same facts from `/proc/cpuinfo`, so that `doctor` and benchmarks can report them even
where the library is missing. A test compares the two.
"""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# In rising order: a kernel of one set runs wherever a later set is available.
ISAS = ("scalar", "avx2", "avx512", "avx512_bf16")

_FLAGS: dict[str, frozenset[str]] = {
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    # VNNI comes with every CPU that has AVX-512-BF16; the int8 kernels of that set use it.
    "avx512_bf16": frozenset({"avx512_bf16", "avx512_vnni"}),
}


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """What the CPU is and offers.

    model: name as the kernel prints it. machine: architecture (`x86_64`, `aarch64`, ...).
    isas: usable members of `ISAS`, rising. amx_bf16: AMX tiles with bf16 exist. avx_vnni: so do
    int8 dot products of 256 bits (no kernel here uses either). num_cores: logical CPUs of the
    machine. cpuset: those that this process may run on.
    """

    model: str
    machine: str
    isas: tuple[str, ...]
    amx_bf16: bool
    avx_vnni: bool
    num_cores: int
    cpuset: tuple[int, ...]


def isas_from_flags(flags: frozenset[str]) -> tuple[str, ...]:
    """Usable instruction sets for a set of `/proc/cpuinfo` flags; each set needs the one before."""
    usable = ["scalar"]
    for isa in ISAS[1:]:
        if not _FLAGS[isa] <= flags:
            break
        usable.append(isa)
    return tuple(usable)


@cache
def _cpuinfo_fields() -> dict[str, str]:
    """What `/proc/cpuinfo` says of the first CPU; empty where the file does not exist."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def _read_cpuinfo() -> tuple[str, frozenset[str]]:
    """Model name and flags of the first CPU."""
    fields = _cpuinfo_fields()
    if not fields:
        return platform.processor() or "unknown", frozenset()
    model = fields.get("model name") or fields.get("CPU part") or "unknown"
    return model, frozenset(fields.get("flags", "").split())


def device_name() -> str:
    """This CPU for tuned data: its model name, with the numbers that tell generations apart.

    Virtual machines often have a model name that says no more than the maker's.
    """
    fields = _cpuinfo_fields()
    numbers = [fields.get(name, "") for name in ("cpu family", "model", "stepping")]
    name = _read_cpuinfo()[0]
    return f"{name} {'.'.join(numbers)}" if all(numbers) else name


@cache
def cpu_info() -> CpuInfo:
    """Facts about this machine; read once per process."""
    model, flags = _read_cpuinfo()
    affinity = getattr(os, "sched_getaffinity", None)
    cpuset = sorted(affinity(0)) if affinity else range(os.cpu_count() or 1)
    return CpuInfo(
        model=model,
        machine=platform.machine(),
        isas=isas_from_flags(flags),
        amx_bf16={"amx_tile", "amx_bf16"} <= flags,
        avx_vnni="avx_vnni" in flags,
        num_cores=os.cpu_count() or 1,
        cpuset=tuple(cpuset),
    )

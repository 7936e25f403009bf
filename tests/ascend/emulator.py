"""Builds kernels against the Ascend C emulation with g++ and launches them through ctypes.

A test's C++ source has one entry point per kernel::

    #include "emulation.h"
    #include "kernel_operator.h"
    extern "C" const char* add(const xyserve::emulation::CLaunch* c, void* const* t,
                               const int64_t* n) {
      return xyserve::emulation::run(c, [=] { add_kernel((GM_ADDR)t[0], (GM_ADDR)t[1], n[0]); });
    }

and Python calls it::

    library = emulator.build([HERE / "kernels.cc"])
    y = emulator.output((64,), torch.float16)
    report = library.launch("add", [emulator.constant(x), y], [64], blocks=2)
    assert report.ok, report.message
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import hashlib
import json
import mmap
import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
EMULATION = ROOT / "csrc" / "ascendc" / "emulation"
BUILD = ROOT / "build" / "ascend-emulation"
INCLUDES = (EMULATION, ROOT / "csrc" / "ascendc", ROOT / "csrc" / "include")
FLAGS = [
    *("-std=c++17", "-fPIC", "-g1", "-march=native", "-ffp-contract=fast"),
    *("-fno-strict-aliasing", "-Wall", "-Wextra"),
]
CXX = os.environ.get("CXX", "g++")


class KernelType(enum.IntEnum):
    """The vendor's KernelMetaType."""

    AIV_ONLY = 0
    AIC_ONLY = 1
    MIX_AIV_1_0 = 2
    MIX_AIC_1_0 = 3
    MIX_AIC_1_1 = 4
    MIX_AIC_1_2 = 5


class Pipe(enum.IntEnum):
    """The vendor's pipe_t."""

    S = 0
    V = 1
    M = 2
    MTE1 = 3
    MTE2 = 4
    MTE3 = 5
    FIX = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """Who runs next; build one with the functions below."""

    kind: int = 0
    starve: int = 0
    seed: int = 0


EAGER = Schedule()


def starve_pipe(pipe: Pipe) -> Schedule:
    return Schedule(1, int(pipe))


def starve_core(index: int) -> Schedule:
    """Index among the launch's cores: AIC, AIV 0, AIV 1 of block 0, then of block 1, and so on."""
    return Schedule(2, index)


def random_order(seed: int) -> Schedule:
    return Schedule(3, 0, seed)


def directed(cores: int, cube: bool = True, vector: bool = True) -> list[Schedule]:
    """Starves each pipe and each core in turn."""
    pipes = [Pipe.MTE2, Pipe.MTE3]
    pipes += [Pipe.MTE1, Pipe.M, Pipe.FIX] if cube else []
    pipes += [Pipe.V] if vector else []
    return [starve_pipe(p) for p in pipes] + [starve_core(i) for i in range(cores)]


class Tensor:
    """A piece of global memory: a torch tensor with what the emulation is to assume of it."""

    def __init__(
        self, data: torch.Tensor, *, written: bool, constant: bool, name: str = ""
    ) -> None:
        if not data.is_contiguous():
            raise ValueError("an emulated tensor must be contiguous")
        self.data = data
        self.written = written
        self.constant = constant
        self.name = name
        self.bytes = data.numel() * data.element_size()
        # One bit per byte, in words per 32 bytes; calloc keeps it sparse. None: all written.
        self.shadow = None if written else np.zeros((self.bytes + 31) // 32, dtype=np.uint32)

    def mark(self, start: int, stop: int, written: bool) -> None:
        """Declares bytes start..stop written or never written, before a launch."""
        if self.shadow is None:
            self.shadow = np.full((self.bytes + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
        words = slice(start // 32, (stop + 31) // 32)
        bits = np.unpackbits(self.shadow[words].view(np.uint8), bitorder="little")
        offset = start // 32 * 32
        bits[start - offset : stop - offset] = written
        self.shadow[words] = np.packbits(bits, bitorder="little").view(np.uint32)

    def written_bytes(self) -> np.ndarray:
        """Which bytes are written, as booleans: what a kernel stored, if none were before."""
        if self.shadow is None:
            return np.ones(self.bytes, dtype=bool)
        bits = np.unpackbits(self.shadow.view(np.uint8), bitorder="little")
        return bits[: self.bytes].astype(bool)

    def all_written(self) -> bool:
        return bool(self.written_bytes().all())


def constant(data: torch.Tensor, name: str = "") -> Tensor:
    """An input that no kernel may write (a write is a finding)."""
    return Tensor(data, written=True, constant=True, name=name)


def inout(data: torch.Tensor, name: str = "") -> Tensor:
    """Initialised memory that a kernel may read and write."""
    return Tensor(data, written=True, constant=False, name=name)


def output(shape: Sequence[int], dtype: torch.dtype, name: str = "") -> Tensor:
    """Memory that nobody wrote: NaN, or 0xCB in integers."""
    data = torch.empty(tuple(shape), dtype=dtype)
    if dtype.is_floating_point:
        data.fill_(float("nan"))
    elif data.numel():
        data.view(torch.uint8).fill_(0xCB)
    return Tensor(data, written=False, constant=False, name=name)


def sparse(
    count: int,
    dtype: torch.dtype,
    *,
    written: bool = True,
    constant: bool = False,
    name: str = "",
) -> Tensor:
    """`count` elements of zeros that take memory only where they are touched."""
    size = torch.empty((), dtype=dtype).element_size()
    no_reserve = 0x4000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, max(count * size, 1), flags=flags)
    data = torch.frombuffer(memory, dtype=torch.uint8)[: count * size].view(dtype)
    return Tensor(data, written=written, constant=constant, name=name)


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A call that a mutation can take out."""

    key: str
    kind: str
    hits: int
    partners: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a launch found. `api`, `rule`, `value` and `message` are the first finding's."""

    ok: bool
    api: str
    rule: str
    value: int
    message: str
    counters: dict[str, int]
    per_core: list[dict[str, int]]
    sites: list[Site]

    def count(self, name: str) -> int:
        """A counter, 0 where nothing was counted."""
        return self.counters.get(name, 0)


class _Region(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("shadow", ctypes.c_void_p),
        ("written", ctypes.c_uint8),
        ("constant", ctypes.c_uint8),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("blocks", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("cores", ctypes.c_uint32),
        ("schedule", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("starve", ctypes.c_int32),
        ("happens_before", ctypes.c_uint8),
        ("check_nan", ctypes.c_uint8),
        ("reserved_ub", ctypes.c_uint8),
        ("unused", ctypes.c_uint8),
        ("regions", ctypes.POINTER(_Region)),
        ("region_count", ctypes.c_uint64),
        ("mutants", ctypes.c_char_p),
    )


class Library:
    """A built shared library of kernels."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))

    def launch(
        self,
        entry: str,
        tensors: Sequence[Tensor | None],
        scalars: Sequence[int] = (),
        *,
        blocks: int = 1,
        kernel_type: KernelType = KernelType.AIV_ONLY,
        cores: int = 24,
        schedule: Schedule = EAGER,
        happens_before: bool = True,
        check_nan: bool = True,
        reserved_ub: bool = True,
        mutants: dict[str, str] | None = None,
    ) -> Report:
        """Runs the entry point on `blocks` blocks.

        `mutants` maps a site's key to "drop" or "neutral" (`Mutation` in emulation.h).
        """
        present = [t for t in tensors if t is not None]
        regions = (_Region * max(len(present), 1))()
        names = [(t.name or f"tensor {i}").encode() for i, t in enumerate(tensors) if t is not None]
        for region, tensor, name in zip(regions, present, names, strict=False):
            region.name = name
            region.data = tensor.data.data_ptr()
            region.bytes = tensor.bytes
            region.shadow = None if tensor.shadow is None else tensor.shadow.ctypes.data
            region.written = True
            region.constant = tensor.constant
        lines = "\n".join(f"{key}\t{how}" for key, how in (mutants or {}).items())
        launch = _Launch(
            blocks, int(kernel_type), cores, schedule.kind, schedule.seed, schedule.starve,
            happens_before, check_nan, reserved_ub, 0, regions, len(present), lines.encode(),
        )  # fmt: skip
        pointers = (ctypes.c_void_p * max(len(tensors), 1))(
            *(None if t is None else t.data.data_ptr() for t in tensors)
        )
        numbers = (ctypes.c_int64 * max(len(scalars), 1))(*scalars)
        call = getattr(self._library, entry)
        call.restype = ctypes.c_char_p
        parsed = json.loads(call(ctypes.byref(launch), pointers, numbers))
        sites = [
            Site(s["key"], s["kind"], s["hits"], tuple(s["partners"])) for s in parsed["sites"]
        ]
        return Report(**(parsed | {"sites": sites}))

    def function(self, name: str) -> ctypes._CFuncPtr:
        """A plain C function of the library, for host code under test."""
        return getattr(self._library, name)


def build(sources: Sequence[Path], includes: Sequence[Path] = ()) -> Library:
    """Compiles the sources and the emulation, two files at a time, and loads the result.

    Objects are kept in build/ascend-emulation under a hash of their source, of every header that
    they could include, and of the flags.
    """
    return _build(tuple(sources), tuple(includes))


KEEP_SECONDS = 7 * 24 * 3600


def _prune() -> None:
    """Removes what no build asked for in a week."""
    for path in BUILD.iterdir():
        if time.time() - path.stat().st_mtime > KEEP_SECONDS:
            path.unlink(missing_ok=True)


@cache
def _machine() -> str:
    """What -march=native stands for here: objects of another machine must not be taken."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@cache
def _build(sources: tuple[Path, ...], includes: tuple[Path, ...]) -> Library:
    BUILD.mkdir(parents=True, exist_ok=True)
    _prune()
    folders = [*INCLUDES, *includes]
    headers = hashlib.sha256()
    for folder in folders:
        for header in sorted(folder.rglob("*.h")):
            headers.update(header.read_bytes())
    engine = hashlib.sha256()
    for header in sorted(EMULATION.glob("*.h")):
        engine.update(header.read_bytes())
    jobs = [(source, engine.hexdigest(), "-O3") for source in sorted(EMULATION.glob("*.cc"))]
    jobs += [(source, headers.hexdigest(), "-O1") for source in sources]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: _compile(*job, folders), jobs))
    digest = hashlib.sha256("\n".join(map(str, objects)).encode()).hexdigest()[:16]
    library = BUILD / f"{sources[0].stem}-{digest}.so"
    if library.exists():
        library.touch()
    else:
        _run([CXX, "-shared", "-o", str(library), *map(str, objects)], library)
    return Library(library)


def _compile(source: Path, headers: str, level: str, folders: Sequence[Path]) -> Path:
    flags = [*FLAGS, level, *(f"-I{folder}" for folder in folders)]
    digest = hashlib.sha256()
    for part in (CXX, _machine(), *flags, headers):
        digest.update(part.encode())
    digest.update(source.read_bytes())
    target = BUILD / f"{source.stem}-{digest.hexdigest()[:16]}.o"
    if target.exists():
        target.touch()
    else:
        _run([CXX, *flags, "-c", str(source), "-o", str(target)], target)
    return target


def _run(command: list[str], target: Path) -> None:
    """Runs a command that makes `target`, which appears only if it succeeds."""
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    command = [str(partial) if part == str(target) else part for part in command]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
    if result.stderr:
        print(result.stderr)
    partial.replace(target)

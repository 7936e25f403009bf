"""The native planner through ctypes: the same tables as `reference`, some fifty times faster.

`library()` never raises; without the library the NumPy planner serves and `missing()` says why.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan import layout
from vllm_xyserve.plan.rows import Rows
from vllm_xyserve.plan.spec import PlanSpec

LIBRARY: Final = Path("_native", "libxyserve_plan.so")
_PARAMS: Final = (
    "num_cores",
    "num_kv_heads",
    "group_size",
    "head_dim",
    "window",
    "causal",
    "invariant",
    "split_span",
    "split_quantum",
    "min_split_keys",
    "max_splits",
    "dealing",
    "levels",
    "cost_task_ps",
    "cost_key_ps",
    "cost_pair_ps",
    "cost_partial_ps",
    "num_tile_classes",
)
_ERRORS: Final = {
    -1: "a row has more than 32,767 key splits: use a larger split_span",
    -2: "the table would exceed 2 GiB or its partial results 2^31 rows: plan fewer rows",
    -3: "out of memory",
}


class PlanParams(ctypes.Structure):
    """`PlanParams` of csrc/include/xyserve/plan.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _PARAMS),
        ("tile_rows", ctypes.c_int32 * layout.MAX_TILE_CLASSES),
    )


def _candidates() -> Iterator[Path]:
    """An editable install keeps Python files and the library in two places: both are asked."""
    yield Path(__file__).parents[1] / LIBRARY
    package = sys.modules.get("vllm_xyserve")
    for root in getattr(package, "__path__", ()):
        yield Path(root) / LIBRARY
    try:
        distribution = importlib.metadata.distribution("vllm-xyserve")
    except importlib.metadata.PackageNotFoundError:
        return
    yield Path(str(distribution.locate_file("vllm_xyserve"))) / LIBRARY


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    path = next((path for path in _candidates() if path.is_file()), None)
    if path is None:
        return None, f"this installation has no {LIBRARY}"
    try:
        lib = ctypes.CDLL(str(path))
        lib.xyserve_planner_create.argtypes = [ctypes.POINTER(PlanParams)]
        lib.xyserve_planner_create.restype = ctypes.c_void_p
        lib.xyserve_planner_destroy.argtypes = [ctypes.c_void_p]
        lib.xyserve_planner_destroy.restype = None
        lib.xyserve_planner_plan.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        lib.xyserve_planner_plan.argtypes += [ctypes.c_void_p] * 4
        lib.xyserve_planner_plan.restype = ctypes.c_int64
        lib.xyserve_planner_write.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        lib.xyserve_planner_write.restype = None
        lib.xyserve_table_layout.argtypes = []
        lib.xyserve_table_layout.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be used: {error}"
    wrong = _layout_difference(lib.xyserve_table_layout().decode())
    return (None, f"{path} is of another version: {wrong}") if wrong else (lib, "")


def library() -> ctypes.CDLL | None:
    """The loaded library, or None."""
    return _load()[0]


def missing() -> str:
    """Why there is no library; empty if there is one."""
    return _load()[1]


def python_layout() -> dict[str, tuple[int, int]]:
    """Offset and size in bytes of every struct and field as Python sees them."""
    found: dict[str, tuple[int, int]] = {}
    structs = {
        "TableHeader": layout.HEADER,
        "Segment": layout.SEGMENT,
        "Task": layout.TASK,
        "Merge": layout.MERGE,
    }
    for name, dtype in structs.items():
        found[name] = (0, dtype.itemsize)
        for field, (kind, offset, *_) in (dtype.fields or {}).items():
            found[f"{name}.{field}"] = (offset, kind.itemsize)
    found["PlanParams"] = (0, ctypes.sizeof(PlanParams))
    for field, *_ in PlanParams._fields_:
        member = getattr(PlanParams, field)
        found[f"PlanParams.{field}"] = (member.offset, member.size)
    return found


def parse_layout(text: str) -> dict[str, tuple[int, int]]:
    """The library's answer in the form of `python_layout`."""
    lines = (line.split() for line in text.splitlines())
    return {name: (int(offset), int(size)) for name, offset, size in lines}


def _layout_difference(text: str) -> str:
    """The first difference between the compiled layout and Python's; empty if there is none."""
    compiled, ours = parse_layout(text), python_layout()
    for name in {**compiled, **ours}:
        if compiled.get(name) != ours.get(name):
            return f"{name} is at (offset, size) {compiled.get(name)}, not {ours.get(name)}"
    return ""


def _params(spec: PlanSpec) -> PlanParams:
    device, geometry, weights = spec.device, spec.geometry, spec.weights
    return PlanParams(
        num_cores=device.num_cores,
        num_kv_heads=geometry.num_kv_heads,
        group_size=geometry.group_size,
        head_dim=geometry.head_dim,
        window=geometry.window,
        causal=int(geometry.causal),
        invariant=int(spec.policy.invariant),
        split_span=device.split_span,
        split_quantum=device.split_quantum,
        min_split_keys=device.min_split_keys,
        max_splits=device.max_splits,
        dealing=layout.STRATEGIES.index(spec.policy.dealing),
        levels=spec.policy.levels,
        cost_task_ps=weights.task,
        cost_key_ps=weights.key,
        cost_pair_ps=weights.pair,
        cost_partial_ps=weights.partial,
        num_tile_classes=len(device.tile_rows),
        tile_rows=(ctypes.c_int32 * layout.MAX_TILE_CLASSES)(*device.tile_rows),
    )


class NativePlanner:
    """One native planner per thread that asks, since it keeps its memory between the steps."""

    def __init__(self, spec: PlanSpec) -> None:
        lib = library()
        if lib is None:
            raise RuntimeError(f"the native planner is missing: {missing()}")
        self._lib = lib
        self._params = _params(spec)
        self._local = threading.local()

    def _handle(self) -> int:
        handle: int | None = getattr(self._local, "handle", None)
        if handle is None:
            handle = self._lib.xyserve_planner_create(ctypes.byref(self._params))
            if not handle:
                raise MemoryError("no memory for a planner")
            self._local.handle = handle
            # Freed with the thread: the owner is reachable from the thread's own storage alone.
            self._local.owner = owner = _Owner()
            weakref.finalize(owner, self._lib.xyserve_planner_destroy, handle)
        return handle

    def plan(self, rows: Rows, step: int = 0) -> npt.NDArray[np.uint8]:
        """The packed table; raises ValueError where it would not fit its int32 fields."""
        columns = [
            np.ascontiguousarray(column, dtype=np.int32)
            for column in (rows.query_lens, rows.key_lens, rows.kinds, rows.mask_offsets)
        ]
        handle = self._handle()
        pointers = [column.ctypes.data for column in columns]
        size = self._lib.xyserve_planner_plan(handle, len(rows), *pointers)
        if size < 0:
            raise ValueError(_ERRORS[size])
        buffer = layout.aligned_buffer(size)
        # `columns` stays alive until here: writing reads them again.
        self._lib.xyserve_planner_write(handle, step, buffer.ctypes.data)
        return buffer


class _Owner:
    """Lives as long as its thread's storage."""

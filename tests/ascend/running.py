"""Runs the kernels of csrc/ascendc on the emulation and compares with what they should do."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from tests.ascend import emulator
from tests.ascend.caches import CopyProblem, WriteProblem, make_copy, make_write
from tests.ascend.emulator import EAGER, KernelType, Report, Schedule, Tensor
from tests.ascend.gemm import Problem, Tensors, assert_guard, make
from tests.helpers.compare import assert_close

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
_HOST = CSRC / "ascendc" / "host"

# fp32 sums are rounded once: half a unit in the last place of the output, and as much again for the
# order of the sum.
_RTOL = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
_ATOL = 1e-4


def library() -> emulator.Library:
    """The kernels, built once per content of their sources."""
    sources = [HERE / "kernels.cc", _HOST / "smooth_gemm.cc", _HOST / "cache.cc"]
    return emulator.build(sources, includes=[CSRC])


def fixpipe_word(scale: float) -> int:
    """A scale as the Fixpipe takes it (host/smooth_gemm.h)."""
    function = library().function("fixpipe_word")
    function.argtypes, function.restype = (ctypes.c_float,), ctypes.c_uint64
    return int(function(scale))


def _pointers(tensors: list[torch.Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))


def _numbers(values: list[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def gemm_plan(tensors: list[torch.Tensor | None], numbers: list[int]) -> list[int] | str:
    """Tile and workspace bytes (kernels.cc, gemm_plan), or why can_run says no."""
    plan, reason = (ctypes.c_int64 * 7)(), ctypes.create_string_buffer(500)
    call = library().function("gemm_plan")
    if call(_pointers(tensors), _numbers(numbers), plan, reason, ctypes.c_int64(500)):
        return list(plan)
    return reason.value.decode()


def can_run(entry: str, tensors: list[torch.Tensor | None], numbers: list[int]) -> str:
    """The reason against a KV write or block copy; empty if it can run."""
    reason = ctypes.create_string_buffer(500)
    call = library().function(f"{entry}_plan")
    call(_pointers(tensors), _numbers(numbers), reason, ctypes.c_int64(500))
    return reason.value.decode()


def gemm_memory(t: Tensors) -> list[torch.Tensor | None]:
    """Pointers in the order of kernels.cc, without a workspace."""
    return [t.x, t.weight, t.bias, t.scales, t.row_scales, t.out, None, t.group_ends]


def _input(data: torch.Tensor | None, real_columns: int | None = None) -> Tensor | None:
    """An input; what lies beyond the real columns of its rows was never written."""
    if data is None:
        return None
    if real_columns is None or data.numel() == 0 or real_columns == data.shape[-1]:
        return emulator.constant(data)
    tensor = emulator.inout(data)
    size = data.element_size()
    row = data.shape[-1] * size
    for start in range(0, tensor.bytes, row):
        tensor.mark(start + real_columns * size, start + row, False)
    return tensor


def run_gemm(
    problem: Problem,
    schedule: Schedule = EAGER,
    mutants: dict[str, str] | None = None,
    tensors: Tensors | None = None,
) -> tuple[Report, Tensors]:
    """One launch, on fresh inputs unless there are some; compares nothing."""
    t = tensors or make(problem, fixpipe_word)
    plan = gemm_plan(gemm_memory(t), t.numbers)
    assert isinstance(plan, list), plan
    workspace = emulator.output((plan[6],), torch.int8, "workspace") if plan[6] else None
    columns = None if problem.nz or not problem.int8 else problem.k
    memory: list[Tensor | None] = [
        _input(t.x, problem.k if problem.int8 else None),
        _input(t.weight, columns),
        _input(t.bias),
        _input(t.scales),
        _input(t.row_scales),
        emulator.inout(t.out, "out"),
        workspace,
        _input(t.group_ends),
    ]
    report = library().launch(
        "gemm",
        memory,
        t.numbers,
        blocks=problem.cores,
        kernel_type=KernelType.MIX_AIC_1_2 if problem.mixed else KernelType.AIC_ONLY,
        schedule=schedule,
        mutants=mutants,
    )
    return report, t


def compare_gemm(problem: Problem, t: Tensors) -> None:
    """Require the reference's values, and an untouched guard."""
    assert_guard(problem, t)
    assert_close(
        t.out[:, : problem.n],
        t.expected,
        atol=_ATOL,
        rtol=_RTOL[problem.out_dtype],
        check_dtype=False,
        allow_empty=problem.m == 0,
    )


def check_gemm(problem: Problem, schedule: Schedule = EAGER) -> Report:
    """One launch that must be right in every respect."""
    report, t = run_gemm(problem, schedule)
    assert report.ok, report.message
    compare_gemm(problem, t)
    return report


def _same(actual: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Bytes: NaN equals NaN, and nothing is rounded."""
    same = actual.view(torch.uint8) == expected.view(torch.uint8)
    assert bool(same.all()), f"{name}: {int((~same).sum())} bytes differ"


def run_write(
    problem: WriteProblem, schedule: Schedule = EAGER, mutants: dict[str, str] | None = None
) -> tuple[Report, str]:
    """A KV write; returns what is wrong with the caches, if anything."""
    t = make_write(problem)
    memory: list[Tensor | None] = [
        emulator.constant(t.key),
        emulator.constant(t.value),
        emulator.inout(t.key_cache, "key cache"),
        emulator.inout(t.value_cache, "value cache"),
        emulator.constant(t.slots),
    ]
    report = library().launch(
        "kv_write", memory, t.numbers, blocks=problem.cores, schedule=schedule, mutants=mutants
    )
    return report, _differences((t.key_cache, t.value_cache), t.expected)


def run_copy(
    problem: CopyProblem, schedule: Schedule = EAGER, mutants: dict[str, str] | None = None
) -> tuple[Report, str]:
    """A block copy; returns what is wrong with the caches, if anything."""
    t = make_copy(problem)
    memory: list[Tensor | None] = [
        emulator.inout(t.key_cache, "key cache"),
        emulator.inout(t.value_cache, "value cache"),
        emulator.constant(t.pairs),
    ]
    report = library().launch(
        "block_copy", memory, t.numbers, blocks=problem.cores, schedule=schedule, mutants=mutants
    )
    return report, _differences((t.key_cache, t.value_cache), t.expected)


def _differences(
    actual: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]
) -> str:
    for name, got, want in zip(("key cache", "value cache"), actual, expected, strict=True):
        try:
            _same(got, want, name)
        except AssertionError as error:
            return str(error)
    return ""

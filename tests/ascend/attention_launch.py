"""Runs a batch of `attention_cases` on the emulated chip and checks all that it wrote."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from tests.ascend import emulator
from tests.ascend.attention_cases import (
    PAGE,
    THREE_STAGE,
    TWO_STAGE,
    Batch,
    Case,
    reference,
)
from tests.helpers.compare import assert_close

OUTPUTS = ("out", "lse", "partials", "workspace")


class Args(ctypes.Structure):
    """csrc/ascendc/kernel/meta_attention_args.h: Args."""

    ADDRESSES = (
        "out",
        "query",
        "key_cache",
        "value_cache",
        "block_table",
        "seq_lens",
        "table",
        "partials",
        "tree_mask",
        "lse",
        "workspace",
    )
    _fields_ = [(name, ctypes.c_uint64) for name in ADDRESSES]
    _fields_ += [
        (name, ctypes.c_int64)
        for name in (
            "out_token_stride",
            "query_token_stride",
            "key_block_stride",
            "value_block_stride",
            "block_table_stride",
            "num_blocks",
            "max_partial_rows",
        )
    ]
    _fields_ += [
        (name, ctypes.c_int32)
        for name in (
            "num_cores",
            "num_kv_heads",
            "group_size",
            "head_dim",
            "max_rows",
            "max_keys",
        )
    ]
    _fields_ += [("scale", ctypes.c_float), ("softcap", ctypes.c_float)]


class Problem(ctypes.Structure):
    """csrc/ascendc/host/meta_attention.h: Problem."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "dtype",
            "num_cores",
            "num_kv_heads",
            "group_size",
            "head_dim",
            "block_size",
            "max_keys",
            "tile_rows",
        )
    ]
    _fields_ += [("decode_only", ctypes.c_bool), ("splits", ctypes.c_bool)]
    _fields_ += [("scale", ctypes.c_float), ("softcap", ctypes.c_float)]
    _fields_ += [
        (name, ctypes.c_int64)
        for name in (
            "out_token_stride",
            "query_token_stride",
            "key_block_stride",
            "value_block_stride",
            "block_table_stride",
            "num_blocks",
            "max_partial_rows",
        )
    ]


class Selection(ctypes.Structure):
    """csrc/ascendc/host/meta_attention.h: Selection."""

    _fields_ = [
        ("cache_bytes", ctypes.c_int64),
        ("alpha", ctypes.c_double),
        ("two_stage_group", ctypes.c_int32),
    ]


def default_selection() -> Selection:
    """The defaults of the header, for tests to deviate from."""
    return Selection(192 << 20, 2.0, 2)


@cache
def library() -> emulator.Library:
    """The kernels and the host side, compiled once."""
    csrc = emulator.ROOT / "csrc"
    return emulator.build(
        [
            emulator.ROOT / "tests" / "ascend" / "meta_attention_driver.cc",
            csrc / "ascendc" / "host" / "meta_attention.cc",
        ],
        [csrc],
    )


def host(name: str) -> Any:
    """A function of the host side that returns 64 bits."""
    function = library().function(name)
    function.restype = ctypes.c_int64
    return function


def can_run(problem: Problem, form: int, selection: Selection | None = None) -> str:
    """The host's reason against a form, empty if there is none."""
    buffer = ctypes.create_string_buffer(512)
    chosen = selection or default_selection()
    host("meta_attention_can_run")(
        ctypes.byref(problem), form, ctypes.byref(chosen), buffer, ctypes.c_int64(512)
    )
    return buffer.value.decode()


def select_form(problem: Problem, selection: Selection | None = None) -> int:
    chosen = selection or default_selection()
    return int(host("meta_attention_select")(ctypes.byref(problem), ctypes.byref(chosen)))


def problem_of(case: Case, num_blocks: int, block_table_stride: int, partial_rows: int) -> Problem:
    """What the host would say of a case."""
    width = case.num_heads * case.head_dim
    page = PAGE * case.num_kv_heads * case.head_dim
    decode = all(length <= 1 for length in case.query_lens)
    return Problem(
        dtype=int(case.dtype == torch.bfloat16),
        num_cores=case.cores,
        num_kv_heads=case.num_kv_heads,
        group_size=case.group_size,
        head_dim=case.head_dim,
        block_size=PAGE,
        max_keys=max(*case.key_lens, 1),
        tile_rows=case.tile_rows[-1] if case.form != TWO_STAGE else 16,
        decode_only=decode,
        splits=case.splits and case.form != THREE_STAGE,
        scale=case.head_dim**-0.5,
        softcap=case.softcap,
        out_token_stride=width,
        query_token_stride=width,
        key_block_stride=page,
        value_block_stride=page,
        block_table_stride=block_table_stride,
        num_blocks=num_blocks,
        max_partial_rows=partial_rows,
    )


def run(batch: Batch, problem_case: Case | None = None, **options: Any) -> emulator.Report:
    """Launch once; options are those of `emulator.launch`. Does not check.

    problem_case: what the graph was captured with, if not with this batch.
    """
    case, tensors = batch.case, batch.tensors
    problem = problem_of(
        problem_case or case,
        tensors["key_cache"].shape[0],
        tensors["block_table"].shape[1],
        tensors["partials"].shape[0],
    )
    reason = can_run(problem, case.form)
    assert not reason, reason
    size = host("meta_attention_workspace")(ctypes.byref(problem), case.form)
    tensors["workspace"] = torch.full((size,), -1, dtype=torch.int8)
    args = Args()
    host("meta_attention_make_args")(ctypes.byref(problem), ctypes.byref(args))
    for name in Args.ADDRESSES:
        if name in tensors:
            # Outputs have a row in front that is none of theirs.
            first = tensors[name][1:] if name in ("out", "lse") else tensors[name]
            setattr(args, name, first.data_ptr())
    return library().launch(
        "meta_attention",
        [
            emulator.Tensor(
                tensor, written=name not in OUTPUTS, constant=name not in OUTPUTS, name=name
            )
            for name, tensor in tensors.items()
            if tensor.numel()
        ],
        [case.form, problem.dtype, ctypes.addressof(args)],
        blocks=case.cores,
        kernel_type=emulator.KernelType.MIX_AIC_1_2,
        **options,
    )


def statuses(batch: Batch) -> list[int]:
    """What each of the cores reported: cube, then both vector cores."""
    words = batch.tensors["workspace"].view(torch.int32)
    return words[: batch.case.cores * 3 * 16 : 16].tolist()


def check(batch: Batch) -> None:
    """Outputs and LSE against the fp64 reference, and nothing written around them."""
    assert set(statuses(batch)) == {0}, statuses(batch)
    if batch.expected is None:
        batch.expected = reference(batch)
    expected, lse, bound = batch.expected
    out = batch.tensors["out"].to(torch.float64)
    written = torch.zeros(out.shape[0], dtype=torch.bool)
    written[1:-1] = True
    assert torch.isnan(out[~written]).all(), "rows around the output were written"
    assert_close((out[1:-1] - expected) / bound, torch.zeros_like(expected), atol=1.0, rtol=0.0)
    if "lse" in batch.tensors:
        got = batch.tensors["lse"].to(torch.float64)
        assert torch.isnan(got[~written]).all(), "rows around the LSE were written"
        assert_close(got[1:-1], lse, atol=1e-4, rtol=1e-5, name="LSE")


def check_run(batch: Batch, **options: Any) -> emulator.Report:
    report = run(batch, **options)
    assert report.ok, report.message
    check(batch)
    return report

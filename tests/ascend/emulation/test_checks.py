"""Each rule broken by a small kernel: the launch stops with the API's name and the value."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulator import KernelType as K

SOURCE = Path(__file__).with_name("check_cases.cc")

# name: (API, a part of the rule, value or None, kernel type, blocks)
BROKEN = {
    "wait_without_set": ("WaitFlag", "is set for this wait", 0, K.AIV_ONLY, 1),
    "scalar_wait_without_set": ("WaitFlag", "is set for this wait", 2, K.AIV_ONLY, 1),
    "flag_left_set": ("SetFlag", "as many waits as sets", 1, K.AIV_ONLY, 1),
    "set_twice": ("SetFlag", "a wait between two sets", 1, K.AIV_ONLY, 1),
    "event_id": ("SetFlag", "event id 0..7", 8, K.AIV_ONLY, 1),
    "event_of_other_core": ("SetFlag", "cube core, called on AIV", None, K.AIV_ONLY, 1),
    "event_of_scalar": ("SetFlag", "an event of AIC", 24, K.AIC_ONLY, 1),
    "held_event": ("SetFlag", "which holds them", 1, K.AIC_ONLY, 1),
    "barrier_of_scalar": ("PipeBarrier", "no PIPE_S", 0, K.AIV_ONLY, 1),
    "barrier_of_other_core": ("PipeBarrier", "cube core, called on AIV", None, K.AIV_ONLY, 1),
    "no_vector_barrier": ("Muls", "a PipeBarrier between operations", 0, K.AIV_ONLY, 1),
    "no_load_flag": ("Adds", "an order by flags", 0, K.AIV_ONLY, 1),
    "no_store_flag": ("DataCopy", "an order by flags", 0, K.AIV_ONLY, 1),
    "no_reuse_flag": ("DataCopy", "an order by flags", 0, K.AIV_ONLY, 1),
    "no_load_barrier": ("DataCopy", "a PipeBarrier between operations", 0, K.AIV_ONLY, 1),
    "no_scalar_flag": ("LocalTensor::GetValue", "an order by flags", 0, K.AIV_ONLY, 1),
    "no_flag_from_scalar": ("Adds", "an order by flags", 0, K.AIV_ONLY, 1),
    "cores_write_one_place": ("DataCopy", "an order by flags", 0, K.AIV_ONLY, 2),
    "ragged_count": ("DataCopy", "multiple of 32", 34, K.AIV_ONLY, 1),
    "misaligned_ub": ("DataCopy", "aligned to 32 bytes", 2, K.AIV_ONLY, 1),
    "misaligned_element": ("DataCopy", "aligned to the element size", None, K.AIV_ONLY, 1),
    "read_past_end": ("DataCopy", "global memory within a tensor", 2128, K.AIV_ONLY, 1),
    "write_past_end": ("DataCopy", "global memory within a tensor", 2080, K.AIV_ONLY, 1),
    "read_nowhere": ("DataCopy", "global memory within a tensor", 4096, K.AIV_ONLY, 1),
    "write_constant": ("DataCopy", "no write to a constant tensor", 0, K.AIV_ONLY, 1),
    "block_count": ("DataCopy", "blockCount 1..4095", 4096, K.AIV_ONLY, 1),
    "pad_length": ("DataCopyPad", "blockLen 1..2097151", 2097152, K.AIV_ONLY, 1),
    "pad_width": ("DataCopyPad", "leftPadding of at most 32 bytes", 34, K.AIV_ONLY, 1),
    "past_tensor": ("DataCopy", "within the tensor", 160, K.AIV_ONLY, 1),
    "past_ub": ("DataCopy", "within the buffer", None, K.AIV_ONLY, 1),
    "store_unwritten": ("DataCopy", "never written", 0, K.AIV_ONLY, 1),
    "store_ragged_tail": ("DataCopy", "never written", 6, K.AIV_ONLY, 1),
    "partial_copy_overlap": ("DataCopy", "completely or not at all", None, K.AIV_ONLY, 1),
    "nd2nz_stride": ("DataCopy", "dstNzC0Stride 1..16384", 16385, K.AIC_ONLY, 1),
    "atomic_left_on": ("SetAtomicNone", "switched off", 1, K.AIV_ONLY, 1),
    "atomic_type": ("DataCopy", "type of SetAtomic", None, K.AIV_ONLY, 1),
    "atomic_on_unwritten": ("DataCopy", "never written", 0, K.AIV_ONLY, 1),
    "read_unwritten": ("Adds", "never written", 256, K.AIV_ONLY, 1),
    "mask_too_long": ("Add", "a mask of 1 to the elements", 65, K.AIV_ONLY, 1),
    "mask_zero": ("Add", "a mask that is not zero", 0, K.AIV_ONLY, 1),
    "mask_high_word": ("Add", "no mask bits beyond", 1, K.AIV_ONLY, 1),
    "bf16_arithmetic": ("Add", "a type that the API supports", 5, K.AIV_ONLY, 1),
    "cast_pair": ("Cast", "a pair of types", 5, K.AIV_ONLY, 1),
    "cast_mode": ("Cast", "a RoundMode of this pair", 0, K.AIV_ONLY, 1),
    "compare_count": ("Compare", "multiple of 256", 400, K.AIV_ONLY, 1),
    "partial_overlap": ("Adds", "completely or not at all", None, K.AIV_ONLY, 1),
    "vector_past_tensor": ("Adds", "within the tensor", 256, K.AIV_ONLY, 1),
    "misaligned_operand": ("Adds", "aligned to 32 bytes", 16, K.AIV_ONLY, 1),
    "reduce_scratch": ("ReduceMax", "sharedTmpBuffer", 32, K.AIV_ONLY, 1),
    "cube_call_on_vector": ("Mmad", "cube core, called on AIV", None, K.AIV_ONLY, 1),
    "vector_call_on_cube": ("Duplicate", "vector core, called on AIC", None, K.AIC_ONLY, 1),
    "ub_overflow": ("InitBuffer", "within the buffer's capacity", 194560, K.AIV_ONLY, 1),
    "queue_exhausted": ("AllocTensor", "a free buffer", 1, K.AIV_ONLY, 1),
    "queue_empty": ("DeQue", "a tensor in the queue", 0, K.AIV_ONLY, 1),
    "event_ids": ("AllocEventID", "at most 8 event ids", 8, K.AIV_ONLY, 1),
    "tbuf_too_small": ("TBuf::Get", "within the buffer", 68, K.AIV_ONLY, 1),
    "dirty_line_left": ("SetValue", "DataCacheCleanAndInvalid for each line", None, K.AIV_ONLY, 1),
    "cores_share_line": ("DataCacheCleanAndInvalid", "an order by flags", 0, K.AIV_ONLY, 2),
    "scalar_on_cube": ("LocalTensor::GetValue", "UB on AIV", 1, K.AIC_ONLY, 1),
    "kernel_type": ("KERNEL_TASK_TYPE_DEFAULT", "the launch's kernel type", 5, K.AIV_ONLY, 1),
    "trap": ("Trap", "no trap", 1, K.AIV_ONLY, 1),
    "mmad_range": ("Mmad", "k 1..4095", 4096, K.AIC_ONLY, 1),
    "mmad_alignment": ("Mmad", "aligned to 1024 bytes", 64, K.AIC_ONLY, 1),
    "mmad_types": ("Mmad", "a float result", 6, K.AIC_ONLY, 1),
    "mmad_unwritten_a": ("Mmad", "never written", 512, K.AIC_ONLY, 1),
    "mmad_unwritten_k": ("Mmad", "never written", 512, K.AIC_ONLY, 1),
    "no_cube_barrier": ("Mmad", "PipeBarrier<PIPE_M>", 1, K.AIC_ONLY, 1),
    "accumulate_unwritten": ("Mmad", "never written", 0, K.AIC_ONLY, 1),
    "no_fixpipe_flag": ("Fixpipe", "an order by flags", 0, K.AIC_ONLY, 1),
    "fixpipe_columns": ("Fixpipe", "nSize a multiple of 16", 24, K.AIC_ONLY, 1),
    "fixpipe_rows": ("Fixpipe", "never written", 768, K.AIC_ONLY, 1),
    "fixpipe_to_bf16": ("Fixpipe", "a quantPre", 16, K.AIC_ONLY, 1),
    "fixpipe_to_ub": ("Fixpipe", "no L0C to UB", 0, K.AIC_ONLY, 1),
    "fixpipe_scale": ("Fixpipe", "a scale tensor in L1", 4, K.AIC_ONLY, 1),
    "load_transpose_type": ("LoadData", "ifTranspose with 16-bit", 1, K.AIC_ONLY, 1),
    "load_alignment": ("LoadData", "aligned to 512", 32, K.AIC_ONLY, 1),
    "load_target": ("LoadData", "L0A or L0B", 4, K.AIC_ONLY, 1),
    "past_l0a": ("LoadData", "within the buffer", 66048, K.AIC_ONLY, 1),
    "cross_id": ("CrossCoreSetFlag", "a flag id 0..10", 11, K.MIX_AIC_1_2, 1),
    "cross_plain_launch": ("CrossCoreSetFlag", "a mixed launch", 0, K.AIV_ONLY, 1),
    "cross_no_address": ("CrossCoreWaitFlag", "SetSyncBaseAddr before", 0, K.MIX_AIC_1_2, 1),
    "cross_scalar_pipe": ("CrossCoreSetFlag", "neither PIPE_S", 0, K.MIX_AIC_1_2, 1),
    "cross_wait_without_set": ("CrossCoreWaitFlag", "is set for this wait", 4, K.MIX_AIC_1_2, 1),
    "cross_half_set": ("CrossCoreSetFlag", "a set by every core", 4, K.MIX_AIC_1_2, 1),
    "cross_left_set": ("CrossCoreSetFlag", "as many waits as sets", 4, K.MIX_AIC_1_2, 1),
    "cross_counter": ("CrossCoreSetFlag", "a counter of at most 15", 16, K.MIX_AIC_1_2, 1),
    "cross_mode_one_on_cube": ("CrossCoreSetFlag", "mode 1 on AIV", 1, K.MIX_AIC_1_2, 1),
    "sync_all_on_cube": ("SyncAll", "SyncAll<false> on AIC", 1, K.MIX_AIC_1_2, 1),
    "sync_all_plain_launch": ("SyncAll", "a mixed launch", 0, K.AIV_ONLY, 1),
    "sync_all_not_resident": ("SyncAll", "no more blocks than cores", 49, K.MIX_AIV_1_0, 49),
    "sync_all_missing": ("SyncAll", "is set for this wait", 2, K.MIX_AIV_1_0, 2),
}
# What the rules above must not forbid.
LEGAL = {
    "vector_barrier": (K.AIV_ONLY, 1),
    "scalar_flag": (K.AIV_ONLY, 1),
    "cores_write_neighbours": (K.AIV_ONLY, 2),
    "fresh_line": (K.AIV_ONLY, 1),
    "mmad_numbers": (K.AIC_ONLY, 1),
}


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


def launch(
    library: emulator.Library,
    name: str,
    kernel_type: K,
    blocks: int,
    scalars: tuple[int, ...] = (),
    poison: tuple[int, ...] = (),
    **options: object,
) -> emulator.Report:
    source = torch.randn(1024, dtype=torch.float16)
    for element in poison:
        source[element] = float("nan")
    tensors = [
        emulator.constant(source, "source"),
        emulator.output((1024,), torch.float16, "target"),
        emulator.inout(torch.zeros(1024, dtype=torch.float16), "both"),
    ]
    return library.launch(
        f"check_{name}", tensors, scalars, kernel_type=kernel_type, blocks=blocks, **options
    )


@pytest.mark.parametrize("name", list(BROKEN))
def test_stops_with_api_and_value(library: emulator.Library, name: str) -> None:
    api, rule, value, kernel_type, blocks = BROKEN[name]
    report = launch(library, name, kernel_type, blocks)
    assert not report.ok
    assert report.api == api, report.message
    assert rule in report.rule, report.message
    assert value is None or report.value == value, report.message
    assert report.message.startswith(api)
    assert (
        "check_cases.cc" in report.message
        or "end of kernel" in report.message
        or (name == "cross_counter")
    )


@pytest.mark.parametrize("name", list(LEGAL))
def test_lets_pass(library: emulator.Library, name: str) -> None:
    report = launch(library, name, *LEGAL[name])
    assert report.ok, report.message


def test_stale_line(library: emulator.Library) -> None:
    # Without clocks, the old value is noticed; with them, the race.
    report = launch(library, "stale_line", K.AIV_ONLY, 1, happens_before=False)
    assert "before reading what changed" in report.rule, report.message
    report = launch(library, "stale_line", K.AIV_ONLY, 1)
    assert not report.ok


def test_nan_inside_the_product(library: emulator.Library) -> None:
    poison = (5 * 16 + 3,)
    report = launch(library, "mmad_numbers", K.AIC_ONLY, 1, poison=poison)
    assert (report.api, report.value) == ("Mmad", 5 * 16 + 3), report.message
    assert "no NaN in A" in report.rule
    assert launch(library, "mmad_numbers", K.AIC_ONLY, 1, poison=poison, check_nan=False).ok


def test_nan_outside_the_product(library: emulator.Library) -> None:
    # Row 5 and column 12 lie in the fractal but outside m, n and k.
    for poison in ((5 * 16 + 3,), (2 * 16 + 12,)):
        report = launch(library, "mmad_rows", K.AIC_ONLY, 1, scalars=(4, 10), poison=poison)
        assert report.ok, report.message


def test_select_needs_the_reserved_ub(library: emulator.Library) -> None:
    assert launch(library, "select_without_reserve", K.AIV_ONLY, 1).ok
    report = launch(library, "select_without_reserve", K.AIV_ONLY, 1, reserved_ub=False)
    assert report.api == "Select"
    assert "8 KB" in report.rule


def test_reserved_ub_can_be_had(library: emulator.Library) -> None:
    assert not launch(library, "past_ub", K.AIV_ONLY, 1).ok
    assert launch(library, "past_ub", K.AIV_ONLY, 1, reserved_ub=False).ok

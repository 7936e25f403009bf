"""The calls into the Ascend C library: schemas, forms, storage, and the errors without it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from vllm_xyserve.ops import ascend
from vllm_xyserve.ops.ascend import FOUR_STAGE, THREE_STAGE, TWO_STAGE, AttentionLaunch

ROOT = Path(__file__).parents[2]
BINDING = ROOT / "csrc" / "ascendc" / "bind_ascend.cc"
HOST = ROOT / "csrc" / "ascendc" / "host" / "meta_attention.h"
TWINS = ROOT / "tests" / "ascend_stub" / "xyserve_ops.py"


def joined(text: str) -> list[str]:
    """Schemas in a source: strings that C++ and Python put together."""
    return [
        "".join(re.findall(r'"([^"]*)"', call))
        for call in re.findall(r"m\.def\((.*?)\);", text, re.S)
    ]


@pytest.mark.skipif(not BINDING.exists(), reason="this tree has no Ascend C sources")
def test_the_twins_have_the_bindings_schemas() -> None:
    declared = set(joined(BINDING.read_text()))
    tree = ast.parse(TWINS.read_text())
    (twins,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_SCHEMAS"
    ]
    assert set(twins) <= declared


@pytest.mark.skipif(not HOST.exists(), reason="this tree has no Ascend C sources")
def test_the_forms_numbers_are_the_hosts() -> None:
    text = HOST.read_text()
    assert "int64_t cache_bytes = 192 << 20" in text
    assert ascend._CACHE_BYTES == 192 << 20
    assert "double alpha = 2.0" in text
    assert ascend._ALPHA == 2
    assert "int32_t two_stage_group = 2" in text
    assert ascend._TWO_STAGE_GROUP == 2
    arguments = (HOST.parent.parent / "kernel" / "meta_attention_args.h").read_text()
    assert "kScoreSet = 12288" in arguments
    assert "kThreeStageMaxKeys = kScoreSet - 64" in arguments
    assert ascend._THREE_STAGE_MAX_KEYS == 12288 - 64
    assert "kPartialTail = 16" in arguments
    assert ascend.PARTIAL_TAIL == 16


@pytest.mark.parametrize(
    ("launch", "group", "form"),
    [
        (AttentionLaunch(24, 128, 4096, True, True), 1, TWO_STAGE),
        (AttentionLaunch(24, 128, 4096, True, True), 2, TWO_STAGE),
        (AttentionLaunch(24, 128, 4096, True, True), 4, FOUR_STAGE),
        (AttentionLaunch(24, 128, 3840, False, False), 4, THREE_STAGE),
        (AttentionLaunch(24, 128, 4096, False, False), 4, FOUR_STAGE),  # 100 MB, twice: no
        (AttentionLaunch(24, 128, 3840, False, True), 4, FOUR_STAGE),
        (AttentionLaunch(2, 16, 13000, False, False), 4, FOUR_STAGE),
    ],
)
def test_form(launch: AttentionLaunch, group: int, form: int) -> None:
    assert launch.form(group) == form


def attention(**changes: object) -> ascend.Support:
    layer = {
        "dtype": torch.bfloat16, "head_size": 128, "num_kv_heads": 8, "group_size": 4,
        "block_size": 128,
    }  # fmt: skip
    return ascend.supports_attention(**(layer | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"head_size": 192}, ""),
        ({"dtype": torch.float32}, "attention in torch.float32"),
        ({"head_size": 80}, "head sizes are"),
        ({"block_size": 64}, "KV blocks hold 128 tokens, got 64"),
        ({"group_size": 129}, "a tile has 128 rows"),
        ({"num_kv_heads": 128}, "more than 65535 elements"),
    ],
)
def test_supported_layers(changes: dict[str, object], reason: str) -> None:
    support = attention(**changes)
    assert support.ok is (not reason)
    assert reason in support.reason


@pytest.mark.parametrize(
    ("shape", "dtype", "ok", "is_nz"),
    [
        ((64, 64), torch.bfloat16, True, True),
        ((50, 64), torch.bfloat16, True, False),
        ((64, 40), torch.float16, True, False),
        ((64, 48), torch.int8, True, False),
        ((64, 96), torch.int8, True, True),
        ((15, 64), torch.bfloat16, False, False),
        ((64, 64), torch.float32, False, True),
        ((4, 64, 64), torch.bfloat16, False, True),
        ((0, 64), torch.bfloat16, False, True),
    ],
)
def test_supported_weights(
    shape: tuple[int, ...], dtype: torch.dtype, ok: bool, is_nz: bool
) -> None:
    weight = torch.zeros(shape, dtype=dtype)
    assert ascend.supports_linear(weight).ok is ok
    if ok:
        assert ascend.takes_nz(weight) is is_nz


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend.native, "find_library", lambda library: None)
    if ascend.is_registered():
        pytest.skip("the operations are registered in this process")
    status = ascend.load()
    assert not status.loaded
    assert "python -m deploy.build_ascend" in status.mend
    with pytest.raises(RuntimeError, match=r"_C_xyserve.smooth_gemm is missing: the Ascend C lib"):
        ascend.linear(torch.zeros(1, 16), torch.zeros(16, 16), None)


def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if ascend.is_registered():
        pytest.skip("the operations are registered in this process")
    file = tmp_path / "libxyserve_ascend.so"
    file.write_bytes(b"no library")
    monkeypatch.setattr(ascend.native, "find_library", lambda library: file)
    monkeypatch.setattr(ascend, "_failure", None)
    status = ascend.load()
    assert not status.loaded
    assert f"{file} cannot be loaded" in status.reason
    assert ascend.status() == status

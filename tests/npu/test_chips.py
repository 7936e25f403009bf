"""What is stated about each chip, and the paths that follow from it."""

from __future__ import annotations

import pytest
import torch

from vllm_xyserve import parts
from vllm_xyserve.compat import ascend_chip, ascend_upstream
from vllm_xyserve.config import ConfigError, XyConfig
from vllm_xyserve.ops import ascend


@pytest.fixture
def chip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ascend_chip.Chip:
    found = ascend_chip.by_key(request.param)
    monkeypatch.setattr(ascend_chip, "detect", lambda: found)
    monkeypatch.setattr(ascend_upstream, "unrecognised", lambda part: ())
    return found


def with_library(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    reason = "" if present else "the Ascend C library is not built"
    status = ascend.AscendStatus(False, None, reason)
    monkeypatch.setattr(ascend, "status", lambda: status)


@pytest.mark.parametrize("chip", ["A2", "A3"], indirect=True)
def test_native_where_asked_for_and_built(
    chip: ascend_chip.Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_library(monkeypatch, True)
    native = XyConfig(attention="native", linear="native")
    for part in parts.PARTS:
        assert parts.resolve(part, native, "npu", torch.bfloat16).path == "native"
        choice = parts.resolve(part, XyConfig(), "npu", torch.bfloat16)
        assert str(choice) == f"upstream (auto: not measured on {chip.name} with bfloat16)"


@pytest.mark.parametrize("chip", ["A2", "_310P", "A5", "B7"], indirect=True)
def test_upstream_without_kernels(chip: ascend_chip.Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, False)
    reason = "library is not built" if chip.is_native else f"no native kernels for {chip.name}"
    for part in parts.PARTS:
        choice = parts.resolve(part, XyConfig(), "npu", torch.bfloat16)
        assert choice.path == "upstream"
        assert reason in choice.reason
        with pytest.raises(ConfigError, match=f"needs the Ascend C library.*{reason}"):
            parts.resolve(part, XyConfig(**{part: "native"}), "npu", torch.bfloat16)


@pytest.mark.parametrize("chip", ["A2"], indirect=True)
def test_upstream_where_names_have_moved(
    chip: ascend_chip.Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_library(monkeypatch, True)
    monkeypatch.setattr(ascend_upstream, "unrecognised", lambda part: ("vllm_ascend.x.Y",))
    choice = parts.resolve("attention", XyConfig(), "npu", torch.bfloat16)
    assert str(choice) == "upstream (auto: this vllm-ascend lacks vllm_ascend.x.Y)"


def test_each_chip_has_a_statement() -> None:
    assert {chip.key for chip in ascend_chip.CHIPS} == {"A2", "A3", "_310P", "A5"}
    for chip in (*ascend_chip.CHIPS, ascend_chip.UNKNOWN):
        assert "vllm-ascend's" in chip.statement or chip.is_native

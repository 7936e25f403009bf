"""What a worker does with tuned data: loads it, names broken files, and says what is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vllm_xyserve.linear import install, tuned
from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops import linear_tuned, registry
from vllm_xyserve.ops.isa import device_name
from vllm_xyserve.plan import tuning
from vllm_xyserve.plan.tuning import Tiling, TunedEntry


@pytest.fixture(autouse=True)
def _alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """No table but that of the test, and no file but in its folder."""
    monkeypatch.setenv("XYSERVE_TUNED", str(tmp_path))
    monkeypatch.setattr(tuned, "_entries", ())
    monkeypatch.setattr(tuned, "_said", set())
    tuned.logger.propagate = True
    logging.getLogger("vllm").propagate = True
    caplog.set_level(logging.DEBUG, logger=tuned.logger.name)
    yield
    linear_tuned.set_tuned([])


def entry(n: int, k: int, first: int, last: int) -> TunedEntry:
    kernel = registry.chosen("linear", torch.float32)
    return TunedEntry(
        n=n,
        k=k,
        dtype=kernel.dtype,
        isa=kernel.isa,
        threads=torch.get_num_threads(),
        m_first=first,
        m_last=last,
        tiling=Tiling(tile_rows=2),
        measured_m=last,
        measured_us=1.0,
        rule_us=2.0,
    )


def write(path: Path, *entries: TunedEntry, device: str = "") -> None:
    tuning.write(path, tuning.TunedFile(device or device_name(), "2026-01-02", entries))


class FakeLayer:
    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


def test_a_layer_uses_what_was_measured_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.json", entry(40, 24, 5, 8))
    write(tmp_path / "b.json", entry(40, 24, 9, 16), device="another CPU")
    tuned.install()
    assert "1 tuned entries for linear layers" in caplog.text
    weight = torch.randn(40, 24)
    layer = FakeLayer(weight.clone())
    bind = install._Binder(lambda dtype: "native")
    assert bind(layer, True)
    assert bind(FakeLayer(weight.clone()), True)
    for m, expected in ((4, 0), (5, 1), (8, 1), (9, 0)):
        x, before = torch.randn(m, 24), linear_tuned.tuned_calls()
        got = layer.cpu_linear(x, layer.weight, None)  # type: ignore[attr-defined]
        assert linear_tuned.tuned_calls() - before == expected, m
        torch.testing.assert_close(got, x @ weight.T)
    missing = [r.getMessage() for r in caplog.records if "no tuned entry" in r.getMessage()]
    assert len(missing) == 1
    assert "N=40 K=24 f32" in missing[0]
    assert "M = 1..1, 2..4, 9..16" in missing[0]


def test_broken_files_are_named_and_the_rule_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.json").write_text("{")
    write(tmp_path / "b.json", entry(40, 24, 5, 8))
    tuned.install()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "tuned data is not used: " in warnings[0]
    assert "a.json: is no JSON" in warnings[0]
    packed = ops.linear_pack(torch.randn(40, 24))
    before = linear_tuned.tuned_calls()
    ops.linear(torch.randn(5, 24), packed, None, 40)  # the other file still counts
    assert linear_tuned.tuned_calls() == before + 1


def test_an_instruction_set_of_another_version_is_left_out(tmp_path: Path) -> None:
    import dataclasses

    known = entry(40, 24, 5, 8)
    write(tmp_path / "a.json", known, dataclasses.replace(known, isa="avx9"))
    tuned.install()
    assert tuned.set_table(tuning.load(device_name()).entries) == 1

"""Finding the device family and other platform plugins, without vLLM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from tests.helpers.plugins import make_rival
from vllm_xyserve.platform import notes, rivals, select

Detectors = dict[str, Callable[[], str | None]]


def detectors(*hits: str) -> Detectors:
    """vLLM's detection functions, of which `hits` find their device."""
    names = ("tpu", "cuda", "rocm", "xpu", "cpu")
    return {n: (lambda n=n: f"vllm.{n}" if n in hits else None) for n in names}


@pytest.fixture
def no_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "has_npu", lambda: False)


@pytest.mark.usefixtures("no_npu")
@pytest.mark.parametrize(
    ("hits", "family"), [(["cpu"], "cpu"), (["cuda"], "cuda"), (["cpu", "cuda"], "cuda")]
)
def test_detection(hits: list[str], family: str) -> None:
    found, reason = select.detect_family({}, detectors(*hits))
    assert found == family
    assert reason == f"vLLM's own detection found {family}"


def test_npu_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "has_npu", lambda: True)
    assert select.detect_family({}, detectors("cuda", "cpu"))[0] == "npu"


@pytest.mark.parametrize("family", select.FAMILIES)
def test_override(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    monkeypatch.setattr(select, "has_npu", lambda: True)
    for value in (family, family.upper(), f" {family} "):
        found, reason = select.detect_family({"XYSERVE_DEVICE": value}, detectors())
        assert (found, reason) == (family, f"XYSERVE_DEVICE={family}")


def test_override_with_another_value() -> None:
    with pytest.raises(select.ChoiceError, match=r"one of cpu, cuda, npu or empty.*'gpu'"):
        select.detect_family({"XYSERVE_DEVICE": "gpu"}, detectors("cpu"))


def test_cpu_target_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by vLLM, which takes its CPU platform then on a machine with an accelerator, too."""
    monkeypatch.setattr(select, "has_npu", lambda: True)
    for environ in ({"VLLM_TARGET_DEVICE": "cpu"}, {"VLLM_TARGET_DEVICE": "CPU"}):
        assert select.detect_family(environ, detectors("cuda"))[0] == "cpu"
    asked = {"VLLM_TARGET_DEVICE": "cpu", "XYSERVE_DEVICE": "npu"}
    assert select.detect_family(asked, detectors("cuda"))[0] == "npu"


@pytest.mark.usefixtures("no_npu")
@pytest.mark.parametrize("device", ["rocm", "xpu", "tpu"])
def test_unsupported_device(device: str) -> None:
    with pytest.raises(select.ChoiceError, match=f"detection found {device}. Install"):
        select.detect_family({}, detectors(device))


@pytest.mark.usefixtures("no_npu")
def test_no_device() -> None:
    with pytest.raises(select.ChoiceError, match="no device that this vLLM build supports"):
        select.detect_family({}, detectors())


@pytest.mark.usefixtures("no_npu")
def test_failing_detection_counts_as_not_found() -> None:
    def fails() -> str | None:
        raise OSError("driver is gone")

    found = detectors("cpu") | {"cuda": fails}
    assert select.detect_family({}, found)[0] == "cpu"
    with pytest.raises(select.ChoiceError, match="no device"):
        select.detect_family({}, detectors() | {"cuda": fails})


@pytest.mark.parametrize(
    ("packages", "devices", "smi", "expected"),
    [
        ({"vllm_ascend", "torch_npu"}, ["/dev/davinci0"], None, True),
        ({"vllm_ascend", "torch_npu"}, [], "/usr/bin/npu-smi", True),
        ({"vllm_ascend", "torch_npu"}, [], None, False),
        ({"vllm_ascend"}, ["/dev/davinci0"], None, False),
        ({"torch_npu"}, ["/dev/davinci0"], None, False),
    ],
)
def test_has_npu(
    monkeypatch: pytest.MonkeyPatch,
    packages: set[str],
    devices: list[str],
    smi: str | None,
    expected: bool,
) -> None:
    monkeypatch.setattr(
        select.importlib.util, "find_spec", lambda name: name if name in packages else None
    )
    monkeypatch.setattr(select, "glob", lambda pattern: devices)
    monkeypatch.setattr(select.shutil, "which", lambda name: smi)
    assert select.has_npu() is expected


# rivals and notes -------------------------------------------------------------------------------


def test_our_entry_point_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    (ours,) = entry_points(group=rivals.GROUP, name=select.NAME)
    assert ours.value == rivals.OURS
    assert ours not in rivals.others()


def test_rivals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(make_rival(tmp_path, "rival"))
    found = rivals.active()
    assert [plugin.name for plugin in found] == ["rival"]
    assert rivals.describe(found) == "rival (rival_platform:register of rival-platform)"
    monkeypatch.setenv("VLLM_PLUGINS", "xyserve")
    assert not rivals.others()
    monkeypatch.setenv("VLLM_PLUGINS", "xyserve,rival")
    assert rivals.active()


@pytest.mark.parametrize("value", ["no_such_module:register", "math:pi", "sys:gettrace"])
def test_plugins_that_do_not_activate(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    plugin = EntryPoint("idle", value, rivals.GROUP)
    monkeypatch.setattr(rivals, "others", lambda: [plugin])
    monkeypatch.setattr(sys, "gettrace", lambda: None)  # a debugger or coverage would trace
    assert not rivals.active()


def test_notes_are_kept_once_and_taken_once() -> None:
    notes.take()
    for note in ("a", "b", "a"):
        notes.add(note)
    assert notes.take() == ["a", "b"]
    assert notes.take() == []

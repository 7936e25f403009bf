"""The doctor's lines about an Ascend chip."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.doctor import healthy
from vllm_xyserve.compat import ascend_chip
from vllm_xyserve.doctor import installation, render
from vllm_xyserve.doctor.facts import Facts


def facts(**changes: Any) -> Facts:
    ascend = {
        "chip": dataclasses.asdict(ascend_chip.by_key("A2")),
        "library": "/site/libxyserve_ascend.so",
        "missing": "",
        "mend": "",
        "lacks": {},
    } | changes
    found = healthy.facts()
    platform = found.children["platform"]
    data = {**platform.data, "family": "npu", "ascend": ascend}
    children = {**found.children, "platform": dataclasses.replace(platform, data=data)}
    return dataclasses.replace(found, children=children)


def rows(found: Facts) -> dict[str, str]:
    return dict(render._kernels(found))


def test_a_chip_with_its_library() -> None:
    found = rows(facts())
    assert found["chip"].startswith("Atlas A2 (910B)")
    assert found["Ascend C library"] == "/site/libxyserve_ascend.so"
    assert found["attention"] == "upstream (auto: not measured on ascend910b)"
    assert list(installation.ascend_kernels(facts())) == []


def test_a_missing_library() -> None:
    changed = facts(library=None, missing="it is not built", mend="build it")
    assert rows(changed)["Ascend C library"] == "none: it is not built"
    assert rows(changed)["linear"] == "upstream (auto: it is not built)"
    (finding,) = installation.ascend_kernels(changed)
    assert finding.is_warning
    assert (finding.kind, finding.mend) == ("ascend-library", "build it")


@pytest.mark.parametrize("part", ["attention", "scheduler"])
def test_names_that_have_moved(part: str) -> None:
    changed = facts(lacks={part: ["vllm_ascend.a.B"]})
    (finding,) = installation.ascend_kernels(changed)
    assert finding.what.startswith(f"the {part} part is off: vLLM or vllm-ascend lack")
    if part == "attention":
        assert "this vllm-ascend lacks vllm_ascend.a.B" in rows(changed)[part]


def test_nothing_is_said_elsewhere() -> None:
    assert "chip" not in rows(healthy.facts())
    assert list(installation.ascend_kernels(healthy.facts())) == []

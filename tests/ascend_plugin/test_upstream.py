"""Every upstream name that the NPU family touches is there, in the installed packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_xyserve.compat import ascend_upstream


@pytest.mark.parametrize("name", ascend_upstream.NAMES, ids=str)
def test_it_is_there(name: ascend_upstream.Name) -> None:
    """A failure is what an upgrade moved; `unrecognised` then keeps the part off."""
    assert ascend_upstream.is_there(name)


@pytest.mark.parametrize("part", ["platform", "scheduler", "worker", "attention", "linear"])
def test_nothing_is_unrecognised(part: ascend_upstream.Part) -> None:
    assert ascend_upstream.unrecognised(part) == ()


@pytest.mark.skipif("XYSERVE_TEST_UPSTREAM" not in os.environ, reason="names no source trees")
@pytest.mark.parametrize("name", ascend_upstream.NAMES, ids=str)
def test_it_is_there_in_another_version(name: ascend_upstream.Name) -> None:
    """With XYSERVE_TEST_UPSTREAM=folder[:folder] that hold vllm/ and vllm_ascend/."""
    roots = tuple(map(Path, os.environ["XYSERVE_TEST_UPSTREAM"].split(":")))
    assert ascend_upstream.is_there(name, roots)

"""The NPU family on real vLLM 0.23.0 and vllm-ascend 0.23.0, torch_npu replaced by a stand-in.

Runs in an environment of its own (`make test-ascend`); elsewhere nothing here is collected.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = ROOT / "tests" / "ascend_stub"

collect_ignore_glob = [] if find_spec("vllm_ascend") else ["test_*.py"]

if not collect_ignore_glob:
    from tests.ascend_plugin import packages

    # Before anything imports vLLM: the platform is resolved once in a process.
    os.environ.update(packages.CHOSEN)
    places = [packages.make_ours(Path(tempfile.mkdtemp(prefix="xyserve-ascend-"))), str(STUB)]
    sys.path[:0] = places
    # Also for the processes that vLLM starts to inspect a model class it has not cached.
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, str(ROOT), *filter(None, inherited)])


@pytest.fixture(scope="session")
def npu() -> Iterator[None]:
    """The platform with its patches, vllm-ascend's operations on CPU tensors, and our twins."""
    from tests.ascend_plugin import world

    with world.entered():
        yield

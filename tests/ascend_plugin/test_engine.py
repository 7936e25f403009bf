"""Cases A to C of the prefix cache on a real vLLM 0.23.0 engine with a CPU model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.ascend_plugin import packages, world
from tests.helpers.plugins import ROOT, clean_environment


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("engine")
    model = world.model_folder(num_hidden_layers=2, vocab_size=512, torch_dtype="float32")
    environment = clean_environment() | {
        "PYTHONPATH": os.pathsep.join([packages.make_ours(folder / "ours"), str(ROOT)]),
        "XYSERVE_PLATFORM": "1",
        "XYSERVE_DEVICE": "cpu",
        "VLLM_PLUGINS": "xyserve",  # vllm-ascend's own would patch the CPU engine
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    file = folder / "facts.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.ascend_plugin.engine_child", str(file), model],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_ours_runs(facts: dict[str, Any]) -> None:
    assert facts["scheduler"][:2] == ["XyScheduler", "XySchedulerMixin"]
    assert facts["off"] == []
    assert facts["worker"] == "vllm_xyserve.worker.cpu.XyCPUWorker"
    assert facts["copies"] > 10


def test_answers_are_those_of_an_empty_cache(facts: dict[str, Any]) -> None:
    for name, rows in facts["cases"].items():
        if name != "C18 salts":
            for got, want, *_ in rows:
                assert got == want, name


def test_cached_tokens_follow_the_law(facts: dict[str, Any]) -> None:
    for name, rows in facts["cases"].items():
        if name != "C18 salts":
            for _, _, hit, expected in rows:
                assert expected is None or hit == expected, name


def test_a_salt_separates(facts: dict[str, Any]) -> None:
    assert facts["cases"]["C18 salts"] == [0, 69, 0, 0, 69]


def test_preemption_changes_no_answer_and_loses_no_block(facts: dict[str, Any]) -> None:
    assert facts["pressure"]["together"] == facts["pressure"]["alone"]
    assert facts["free"] == 8  # all but the null block

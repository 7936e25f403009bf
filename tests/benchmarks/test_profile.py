"""Shares of a step from sampled stacks, and the parts of a start."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks import profile
from benchmarks.profiling import pyspy, shares, startup
from benchmarks.profiling.shares import ENGINE_RULES, OTHER, WORKER_RULES, Stack
from benchmarks.serving.client import Sample

LOOP = ("worker_busy_loop", "vllm/v1/executor/multiproc_executor.py")
ENGINE = ("run_busy_loop", "vllm/v1/engine/core.py")


def worker(seconds: float, *frames: tuple[str, str]) -> Stack:
    return Stack(2, '"MainThread"', (LOOP, *frames), seconds)


def engine(seconds: float, *frames: tuple[str, str]) -> Stack:
    return Stack(1, '"MainThread"', (ENGINE, *frames), seconds)


MODEL = ("forward", "vllm/model_executor/models/llama.py")
CALL = ("_call_impl", "torch/nn/modules/module.py")


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        ([MODEL, CALL, ("apply", "vllm/model_executor/layers/linear.py")], "linear"),
        (
            [
                ("_get_logits", "vllm/model_executor/layers/logits_processor.py"),
                ("apply", "vllm_xyserve/linear/method.py"),
            ],
            "linear: output head",
        ),
        ([MODEL, ("apply", "vllm_xyserve/linear/method.py"), CALL], "linear"),
        ([MODEL, ("forward", "vllm/v1/attention/backends/cpu_attn.py")], "attention"),
        ([MODEL, ("forward", "vllm_xyserve/attention/impl.py")], "attention"),
        ([MODEL, ("do_kv_cache_update", "vllm/v1/attention/backends/cpu_attn.py")], "KV write"),
        ([MODEL, ("do_kv_cache_update", "vllm_xyserve/attention/impl.py")], "KV write"),
        ([("build", "vllm_xyserve/attention/builder.py")], "attention metadata"),
        ([("_prepare_inputs", "vllm/v1/worker/gpu_model_runner.py")], "input preparation"),
        ([("forward", "vllm/v1/sample/sampler.py"), CALL], "sampler"),
        ([MODEL, CALL], "layers' Python between kernels"),
        ([("dequeue", "vllm/distributed/device_communicators/shm_broadcast.py")], "waiting"),
        ([("execute_model", "vllm/v1/worker/gpu_model_runner.py")], OTHER),
    ],
)
def test_a_sample_belongs_to_the_innermost_known_frame(
    frames: list[tuple[str, str]], category: str
) -> None:
    assert shares.category([LOOP, *frames], WORKER_RULES) == category


def test_shares_of_a_step_add_up_and_split_what_the_worker_waits_for() -> None:
    wait = ("acquire_read", "vllm/distributed/device_communicators/shm_broadcast.py")
    found = shares.of_step(
        [
            worker(6.0, MODEL, ("apply", "vllm/model_executor/layers/linear.py")),
            worker(1.0, MODEL),
            worker(3.0, wait),
            engine(1.0, ("schedule", "vllm/v1/core/sched/scheduler.py")),
            engine(0.5, ("encode", "vllm/v1/serial_utils.py")),
            engine(8.5, wait),
            Stack(0, '"Thread-1"', (("serve", "uvicorn/main.py"),), 10.0),
        ]
    )
    assert found.parts == pytest.approx(
        {
            "linear": 0.6,
            "layers' Python between kernels": 0.1,
            "scheduler": 0.1,
            "messages between processes": 0.05,
            shares.NOBODY: 0.15,
        }
    )
    assert sum(found.parts.values()) == pytest.approx(1)
    assert found.samples_s == 10
    assert [name for name, _ in found.largest(2)] == ["linear", shares.NOBODY]


def test_work_of_the_engine_core_beside_the_worker_is_no_part_of_the_step() -> None:
    found = shares.of_step(
        [
            worker(9.0, MODEL),
            worker(1.0, ("dequeue", "shm_broadcast.py")),
            engine(3.0, ("schedule", "vllm/v1/core/sched/scheduler.py")),
            engine(1.0, ("encode", "vllm/v1/serial_utils.py")),
            engine(6.0, ("dequeue", "shm_broadcast.py")),
        ]
    )
    assert found.parts["scheduler"] == pytest.approx(0.075)
    assert found.parts["messages between processes"] == pytest.approx(0.025)
    assert found.parts[shares.NOBODY] == pytest.approx(0)


def test_no_engine_is_an_error() -> None:
    with pytest.raises(ValueError, match="no sample of engine"):
        shares.of_step([worker(1.0, MODEL)])


def test_rules_name_functions_that_this_vllm_has() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent / "v1"
    executor = (root / "executor/multiproc_executor.py").read_text()
    runner = (root / "worker/gpu_model_runner.py").read_text()
    broadcast = (root.parent / "distributed/device_communicators/shm_broadcast.py").read_text()
    assert "def worker_busy_loop" in executor
    assert "def run_busy_loop" in (root / "engine/core.py").read_text()
    for name in ("_prepare_inputs", "_update_states", "_bookkeeping_sync", "_sample"):
        assert f"def {name}(" in runner
    assert "def _build_attention_metadata" in runner
    assert "def acquire_read" in broadcast
    categories = {rule.category for rule in (*WORKER_RULES, *ENGINE_RULES)}
    assert {"linear", "attention", "KV write", "sampler", "scheduler"} < categories


def test_speedscope_files_are_read() -> None:
    frames = [
        {"name": "main", "file": "a.py"},
        {"name": "WorkerProc.worker_busy_loop", "file": "b.py"},
    ]
    thread = {"type": "sampled", "unit": "milliseconds", "samples": [[0, 1], [0]]}
    busy = {**thread, "name": 'Process 12 Thread 34 "Thread-7"', "weights": [10.0, 20.0]}
    idle = {**thread, "name": 'Process 12 Thread 35 "Pool"', "samples": [[0]], "weights": [30.0]}
    whole = {"shared": {"frames": frames}, "profiles": [busy, idle]}
    kept = pyspy.keep_working_threads(whole)
    assert kept["profiles"] == [busy]
    assert list(pyspy.stacks(kept)) == [
        Stack(12, '"Thread-7"', (("main", "a.py"), ("worker_busy_loop", "b.py")), 0.01),
        Stack(12, '"Thread-7"', (("main", "a.py"),), 0.02),
    ]


def test_import_times_by_package() -> None:
    lines = [
        "import time: self [us] | cumulative | imported package",
        "import time:       100 |        100 |   torch._C",
        "import time:       900 |       1000 | torch",
        "import time:       300 |       1300 | vllm.config",
        "something else",
    ]
    assert startup.parse_import_times(lines) == {"torch": 0.001, "vllm": 0.0003}


def test_phases_last_until_the_next_one() -> None:
    assert startup.phase_lengths({"a": 10.0, "b": 12.5}, 20.0) == {
        "starting Python, importing vLLM": 10.0,
        "a": 2.5,
        "b": 7.5,
    }


def test_step_time_is_the_median_gap_or_first_token() -> None:
    one = Sample(0, 0, 1, 3, 0.0, 5.0, (0.01, 0.03), 5.04)
    assert profile.step_ms([one]) == pytest.approx(20)
    assert profile.step_ms([Sample(0, 0, 1, 1, 0.0, 0.5, (), 0.5)]) == pytest.approx(500)


def test_slow_steps_are_timed_less_often() -> None:
    assert profile.num_steps_in(20.0, 50.0) == 40
    assert profile.num_steps_in(20.0, 2000.0) == 10
    assert profile.num_steps_in(20.0, 11000.0) == 3


def test_summary_is_flat() -> None:
    parts = shares.Shares({"KV write": 0.25, "linear": 0.75}, 10.0)
    rows = profile.step_rows("stock", "decode", 40.0, parts)
    assert [row["part"] for row in rows] == ["linear", "KV write"]
    assert rows[0]["ms"] == 30
    assert profile.summary_of_steps(rows) == {
        "stock_decode_step_ms": 40,
        "stock_decode_linear": 0.75,
        "stock_decode_kv_write": 0.25,
    }

"""Phases, start-up line and errors in a server's log. Lines are vLLM 0.32's, shortened."""

from pathlib import Path

import pytest

from deploy import server_log

API, ENGINE = "(APIServer pid=1) INFO 11-30 02:22:25 ", "(EngineCore pid=2) INFO 11-30 02:22:43 "
WORKER = "(Worker pid=3) INFO 11-30 02:22:52 "
START = [
    f"{API}[api_utils.py:286] non-default args: {{'model_tag': '/m', 'enforce_eager': True}}",
    f"{API}[model.py:733] Resolved architecture: LlamaForCausalLM",
    f"{ENGINE}[core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m', "
    "enable_jit_warmup=False, compilation_config={'backend': 'inductor'}",
    f"{ENGINE}[ompmultiprocessing.py:185] OpenMP thread binding info: ",
    f"{WORKER}[cpu_model_runner.py:68] Starting to load model /m...",
    f"{WORKER}[cpu_worker.py:260] Explicitly set (0.5/7.96) GiB for KV cache on node 0.",
    f"{ENGINE}[core.py:402] init engine (profile, create kv cache, warmup model) took 2.17 s",
    f"{API}[entry.py:140] Starting vLLM server on http://127.0.0.1:8123",
]


def test_phases_follow_each_other() -> None:
    names = [server_log.PHASES[server_log.phase_of(line)][1] for line in START]
    assert names == [
        "reading model and configuration",
        "checking the configuration",
        "starting the engine",
        "starting the worker",
        "loading weights",
        "reserving the KV cache",
        "starting the HTTP server",
        "ready to answer",
    ]
    order = [server_log.phase_of(line) for line in START]
    assert order == sorted(order)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nothing to see",
        "(APIServer pid=1) WARNING 11-30 02:22:35 [vllm.py:1703] Enforce eager set, disabling "
        "torch.compile, CUDAGraphs, and JIT kernel warmup.",
        "(Worker pid=3) WARNING [cpu_worker.py:114] libtcmalloc is not found in LD_PRELOAD.",
    ],
)
def test_lines_that_announce_no_phase(line: str) -> None:
    assert server_log.phase_of(line) == -1


def test_startup_line_is_found_behind_prefix_and_colour() -> None:
    lines = [*START, f"{API}[summary.py:9] \x1b[32mxyserve: family=cpu isa=avx512\x1b[0m", "x"]
    assert server_log.startup_line(lines) == "xyserve: family=cpu isa=avx512"


def test_no_startup_line_on_stock_vllm() -> None:
    assert server_log.startup_line([*START, "--platform xyserve", "xyserve: other"]) is None


def test_first_errors_first_and_once() -> None:
    lines = [
        "(EngineCore pid=2) ERROR [core.py:9]     raise ValueError(text)",
        "(EngineCore pid=2) ERROR [core.py:9] ValueError: no room for the KV cache",
        "(EngineCore pid=2) ValueError: no room for the KV cache",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed.",
    ]
    assert server_log.error_lines(lines) == [
        "ValueError: no room for the KV cache",
        "RuntimeError: Engine core initialization failed.",
    ]
    assert server_log.error_lines(lines, limit=1) == ["ValueError: no room for the KV cache"]
    usage = "vllm serve: error: unrecognized arguments: --nonsense"
    assert server_log.error_lines([usage]) == ["error: unrecognized arguments: --nonsense"]
    assert server_log.error_lines(START) == []


def test_follower_returns_whole_lines_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    follower = server_log.Follower(log)
    with log.open("a") as stream:
        stream.write("one\ntw")
        stream.flush()
        assert follower.lines() == ["one"]
        stream.write("o\n")
        stream.flush()
        assert follower.lines() == ["two"]
        assert follower.lines() == []
    follower.close()

"""Starts that cannot work end soon, with a clear message, and leave no process behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.server import Ended, run_to_end


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments and variables of a start, and what has to come of it."""

    words: tuple[str, ...]
    """All of them stand in the last lines of the output."""
    arguments: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    platform: str | None = "xyserve"
    model: str | None = None
    code: int = 1
    short: bool = True
    """The output ends with one line of ours instead of a traceback of vLLM's."""


def options(text: str) -> tuple[str, str]:
    return "--additional-config", f'{{"xyserve": {text}}}'


CASES = {
    "unknown-key": Case(
        ("xyserve has no key 'atention'", "Did you mean 'attention'?", "scheduler"),
        options('{"atention": "auto"}'),
    ),
    "wrong-value": Case(
        ("xyserve.linear must be", "auto | native | reference | upstream", "'fast'"),
        options('{"linear": "fast"}'),
    ),
    "unknown-platform": Case(
        ("argument --platform", "'nonsense'", "'xyserve'"), platform="nonsense", code=2
    ),
    "unknown-device": Case(
        ("XYSERVE_DEVICE must be one of cpu, cuda, npu", "'nonsense'"),
        environ={"XYSERVE_DEVICE": "nonsense"},
    ),
    "device-not-there": Case(
        ("xyserve was chosen", "for npu (XYSERVE_DEVICE=npu)", "vllm-xyserve doctor"),
        environ={"XYSERVE_DEVICE": "npu"},
    ),
    "unknown-isa": Case(
        ("XYSERVE_ISA=nonsense is not an instruction set", "avx2"),
        environ={"XYSERVE_ISA": "nonsense"},
    ),
    "kv-cache-dtype-of-no-cpu-kernel": Case(
        ("--kv-cache-dtype must be one of auto, fp8", "bfloat16", "'nvfp4'"),
        ("--kv-cache-dtype", "nvfp4"),
    ),
    # From here on it is vLLM that finds the fault.
    "unknown-model": Case(("/no/such/model",), model="/no/such/model", short=False),
    "port-in-use": Case(("Address already in use",), short=False),
    "unknown-dtype": Case(
        ("argument --dtype: invalid choice: 'int3'", "float32"),
        ("--dtype", "int3"),
        code=2,
        short=False,
    ),
    "dtype-of-no-cpu-kernel": Case(
        ("torch.float32 is not supported for quantization method fp8", "torch.bfloat16"),
        ("--dtype", "float32", "--quantization", "fp8"),
        short=False,
    ),
    "longer-than-the-model": Case(
        ("max_model_len (9000)", "8192"), ("--max-model-len", "9000"), short=False
    ),
}


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Ended]]]:
    """The chosen cases, two at a time: most of a start is one busy core."""
    chosen: list[str] = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_bad_start_is_explained
    ]
    folder = tmp_path_factory.mktemp("bad-start")
    with socket.socket() as busy, ThreadPoolExecutor(2) as pool:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        ports = {"port-in-use": str(busy.getsockname()[1])}  # the others never get to listen
        yield {
            name: pool.submit(
                run_to_end,
                arguments(CASES[name], model, ports.get(name, "0")),
                folder / f"{name}.log",
                CASES[name].environ,
            )
            for name in chosen
        }


def arguments(case: Case, model: Path, port: str) -> list[str]:
    platform = ["--platform", case.platform] if case.platform else []
    common = ["--host", "127.0.0.1", "--port", port, "--enforce-eager"]
    return [case.model or str(model), *platform, *common, *case.arguments]


@pytest.mark.parametrize("name", CASES)
def test_bad_start_is_explained(ends: dict[str, Future[Ended]], name: str) -> None:
    case, ended = CASES[name], ends[name].result()
    assert ended.code == case.code, ended.tail(30)
    assert not ended.survivors
    for words in case.words:
        assert words in ended.tail(), ended.tail(30)
    if case.short:
        assert "Traceback" not in ended.log, ended.tail(30)
        assert ended.tail(1).startswith("vllm: error: ")

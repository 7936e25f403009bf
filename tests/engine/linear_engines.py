"""The engines behind test_linear.py and test_int8.py: native linear layers in one child."""

from __future__ import annotations

import dataclasses
import heapq
import json
from pathlib import Path
from typing import Any

from tests.engine import features
from tests.helpers import models
from tests.helpers.engine import ROOT, Engine

UPSTREAM = {"attention": "upstream", "linear": "upstream"}
NATIVE = {**UPSTREAM, "linear": "native"}
FUSED = {**NATIVE, "fuse_silu": True}
REFERENCE = {**UPSTREAM, "linear": "reference"}

# How a tiny model is rounded to int8, as arguments of `models.quantised`.
SCHEMES: dict[str, dict[str, bool]] = {
    "dynamic": {},
    "weight-per-tensor": {"per_channel": False},
    "static": {"static": True},
    "static-asymmetric": {"static": True, "symmetric": False},
    "dynamic-asymmetric": {"symmetric": False},
}
NUM_TOKENS = 12


def engines(made: features.Models, folder: Path) -> list[Engine]:
    """All of them, to run in one child; makes the int8 models below ``folder``."""
    smollm2_int8 = models.quantised(folder / "smollm2", models.smollm2())
    reload = features.reload(made)
    report = {"name": "report", "do": "report"}
    return [
        _smollm2("upstream", models.smollm2(), UPSTREAM),
        _smollm2("native", models.smollm2(), NATIVE),
        _smollm2("upstream-int8", smollm2_int8, UPSTREAM),
        _smollm2("native-int8", smollm2_int8, FUSED),
        dataclasses.replace(
            reload,
            name="fused-reload",
            llm={**reload.llm, **_options(FUSED)},
            steps=[*reload.steps, report],
        ),
        Engine("reference", {**reload.llm, **_options(REFERENCE)}, [reload.steps[0], report]),
        *[_scheme(name, made, folder) for name in SCHEMES],
    ]


def passages() -> list[str]:
    """More than two thousand tokens of prose: the tests' own, and what Python says of itself."""
    data = json.loads((ROOT / "tests" / "data" / "prompts.json").read_text(encoding="utf-8"))
    half = len(heapq.__about__) // 2
    return [*data["passages"].values(), heapq.__about__[:half], heapq.__about__[half:]]


def checkpoint(folder: Path, scheme: str) -> Path:
    """Where the tiny model in a scheme lies."""
    return folder / scheme


def _smollm2(name: str, model: Path, options: dict[str, Any]) -> Engine:
    llm = {"model": str(model), "dtype": "bfloat16", "max_model_len": 1024, **_options(options)}
    return Engine(
        name,
        {**llm, "max_num_batched_tokens": 1024},
        [
            _greedy("read", passages(), max_tokens=1, prompt_logprobs=0),
            _greedy("greedy", passages()[:-2], max_tokens=16, logprobs=2),
            {"name": "report", "do": "report"},
        ],
    )


def _scheme(name: str, made: features.Models, folder: Path) -> Engine:
    how = SCHEMES[name]
    model = models.quantised(checkpoint(folder, name), made.llama, calibration=features.TEXT, **how)
    llm = {"model": str(model), "max_model_len": 512, "block_size": 32, **_options(NATIVE)}
    steps = [
        _greedy("greedy", features.PROMPTS, max_tokens=NUM_TOKENS),
        {"name": "report", "do": "report"},
    ]
    return Engine(name, llm, steps)


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {"additional_config": {"xyserve": options}}


def _greedy(name: str, prompts: list[str], **sampling: Any) -> dict[str, Any]:
    greedy = {"temperature": 0.0, "ignore_eos": True}
    return {"name": name, "do": "generate", "prompts": prompts, **greedy, **sampling}

"""The subcommand: real children on tiny layers, children that crash or hang, files it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_xyserve import cli
from vllm_xyserve.ops.isa import device_name
from vllm_xyserve.plan import tuning
from vllm_xyserve.plan.tuning import RULE, Tiling
from vllm_xyserve.tune import command, trials
from vllm_xyserve.tune.search import Task

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "vocab_size": 96,
    "dtype": "float32",
}
TASKS = [Task(40, 24, first, last, 1) for first, last in tuning.BUCKETS[:3]]

# A child with made-up answers: crashes at M = 2, hangs at M = 5.
CRASHES_AND_HANGS = """
import json, os, sys, time
for i, task in enumerate(json.loads(sys.argv[1])["tasks"]):
    if task["m_first"] == 2:
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    if task["m_first"] == 5:
        time.sleep(60)
    print(json.dumps({"index": i, "m": task["m_first"]}), flush=True)
"""


def test_a_crash_and_a_hang_cost_their_own_task() -> None:
    tasks = [Task(40, 24, first, last, 1) for first, last in tuning.BUCKETS[:5]]
    fake = (sys.executable, "-c", CRASHES_AND_HANGS)
    found = list(trials.answers("f32", tasks, None, 3.0, fake))
    assert [answer.get("m") for answer in found] == [1, None, None, 9, 17]
    assert found[1]["error"] == "the process ended with status 3: out of luck"
    assert found[2]["error"] == "no answer within 3 s"


@pytest.mark.usefixtures("needs_native")
def test_children_measure() -> None:
    tilings = [Tiling(tile_rows=1), RULE, Tiling(block_steps=7)]
    found = list(trials.answers("f32", TASKS[:1], None, 120.0))
    found += trials.answers("f32", TASKS, tilings, 120.0)
    assert not [answer["error"] for answer in found if "error" in answer]
    assert set(found[0]) == {"index", "isa", "found"}
    for task, answer in zip(TASKS, found[1:], strict=True):
        assert answer["m"] == task.row_counts()
        assert all(0.01 < ratio < 100 for ratio in answer["ratios"])
        assert all(0 < us < 1e6 for us in answer["rule_us"])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return folder


def made_up(ratios: list[float]) -> Any:
    """`trials.answers` with one choice for all tasks, and these ratios in the second run."""

    def answers(dtype: str, tasks: list[Task], tilings: list[Tiling] | None, timeout: float) -> Any:
        for i, task in enumerate(tasks):
            answer: dict[str, Any] = {"index": i, "isa": "avx2"}
            if tilings is None:
                tiling = {"tile_rows": 4} if task.m_last > 8 else {}
                found = {"tiling": tiling, "ratio": 0.8 if tiling else 1.0, "noise": 0.02}
                yield answer | {"found": found}
            else:
                yield answer | {"ratios": ratios, "noise": 0.02, "m": [9, 16], "rule_us": [5, 10]}

    return answers


@pytest.mark.usefixtures("needs_native")
def test_writes_what_showed_twice_and_drops_what_no_longer_does(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trials, "answers", made_up([0.81, 0.8]))
    arguments = ["tune", str(model), "--max-rows", "16", "--threads", "2"]
    assert cli.main(arguments) == 0
    path = tuning.user_folder() / tuning.file_name(device_name())
    assert f"5 of 20 tasks gained over the rule, in {path}" in capsys.readouterr().out
    loaded = tuning.load(device_name())
    assert not loaded.problems
    ours = [e for e in loaded.entries if e.isa == "avx2" and e.tiling == Tiling(tile_rows=4)]
    layers = {(192, 64), (64, 64), (256, 64), (64, 128), (128, 64)}
    assert {(e.n, e.k) for e in ours} == layers
    assert all((e.m_first, e.m_last, e.measured_us) == (9, 16, 8.0) for e in ours)
    # Another number of threads is beside them; without a gain, those of this number go.
    monkeypatch.setattr(trials, "answers", made_up([0.81, 0.8]))
    assert cli.main([*arguments[:-1], "3"]) == 0
    assert {e.threads for e in tuning.read(path).entries} == {2, 3}
    monkeypatch.setattr(trials, "answers", made_up([1.0, 1.0]))
    assert cli.main(arguments) == 0
    assert {e.threads for e in tuning.read(path).entries} == {3}
    assert "dropped: 1.25 times as fast, then 1.00" in capsys.readouterr().err


@pytest.mark.usefixtures("needs_native")
def test_nothing_gained_writes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trials, "answers", made_up([1.0, 1.0]))
    assert cli.main(["tune", str(model), "--max-rows", "16"]) == 0
    assert "nothing to write" in capsys.readouterr().out
    assert not tuning.user_folder().exists()


@pytest.mark.usefixtures("needs_native")
def test_errors_are_clear(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def error(*arguments: str) -> str:
        assert cli.main(["tune", *arguments]) == 1
        return capsys.readouterr().err

    assert "neither a folder" in error(str(tmp_path / "none"))
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "requires an object with format 1" in error(str(model), "--output", str(other))
    assert other.read_text() == "{}"
    tuning.write(other, tuning.TunedFile("Another CPU", "2026-01-01", ()))
    assert "of another device (Another CPU" in error(str(model), "--output", str(other))
    monkeypatch.setattr(trials, "answers", made_up([0.81, 0.8]))
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "x.json")
    assert "cannot be written" in error(str(model), "--max-rows", "16", "--output", below)
    broken = [{"error": "no luck"}] * 100
    monkeypatch.setattr(trials, "answers", lambda dtype, tasks, *_: iter(broken[: len(tasks)]))
    assert "no task could be measured" in error(str(model), "--max-rows", "16")
    with pytest.raises(SystemExit):
        cli.main(["tune", str(model), "--threads", "0"])


def test_output_may_be_a_folder(tmp_path: Path) -> None:
    assert command.output_path(str(tmp_path)).parent == tmp_path
    assert command.output_path(str(tmp_path / "a.json")) == tmp_path / "a.json"

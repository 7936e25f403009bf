"""Files of tuned data: what is read, what wins, and what is said about a broken one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_xyserve.plan import tuning
from vllm_xyserve.plan.tuning import Tiling, TunedEntry, TunedError, TunedFile

DEVICE = "Some CPU 6.1.2"


def entry(**changes: Any) -> TunedEntry:
    fields: dict[str, Any] = {"n": 960, "k": 576, "dtype": "bf16", "isa": "avx512", "threads": 2}
    fields |= {"m_first": 9, "m_last": 16, "tiling": Tiling(tile_rows=4), "measured_m": 16}
    return TunedEntry(**{**fields, "measured_us": 90.5, "rule_us": 100, **changes})


def file(*entries: TunedEntry, device: str = DEVICE) -> TunedFile:
    return TunedFile(device, "2026-01-02", entries)


def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    written = file(entry(), entry(m_first=17, m_last=17, tiling=Tiling(split_k=2, pass_rows=48)))
    tuning.write(path, written)
    assert tuning.read(path) == written
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    tuning.write(path, file())
    assert tuning.read(path) == file()


def test_shipped_files_are_valid() -> None:
    for path in tuning.SHIPPED.glob("*.json"):
        found = tuning.read(path)
        assert path.name == tuning.file_name(found.device)
        for one in found.entries:
            assert one.measured_us < one.rule_us, one


def test_own_files_win_over_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    shipped = file(entry(), entry(m_first=1, m_last=8), entry(threads=4))
    own = file(entry(m_first=12, m_last=40, tiling=Tiling(tile_rows=3)))
    tuning.write(tmp_path / "shipped" / "x.json", shipped)
    tuning.write(tmp_path / "shipped" / "y.json", file(entry(n=7), device="another"))
    environ = environment(tmp_path)
    assert tuning.load(DEVICE, environ).entries == shipped.entries
    tuning.write(tuning.user_folder(environ) / "z.json", own)
    loaded = tuning.load(DEVICE, environ)
    assert loaded.entries == (*shipped.entries[1:], *own.entries)
    assert not loaded.problems
    assert tuning.load("a third", environ).entries == ()


def test_variable_chooses_files(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    tuning.write(tuning.user_folder(environ) / "z.json", file(entry()))
    other = tmp_path / "other.json"
    tuning.write(other, file(entry(n=33)))
    for value, expected in (("0", ()), (str(other), (entry(n=33),)), (str(tmp_path), None)):
        loaded = tuning.load(DEVICE, {**environ, tuning.ENV_TUNED: value})
        assert loaded.entries == ((entry(n=33),) if expected is None else expected)
    missing = tuning.load(DEVICE, {tuning.ENV_TUNED: str(tmp_path / "none.json")})
    assert "none.json: cannot be read: No such file" in missing.problems[0]


BROKEN: list[tuple[Any, str]] = [
    ("{", "is no JSON"),
    (b"\xff\xfe", "is no JSON"),
    ([], "requires an object with format 1, found 'list'"),
    ({"format": 2}, "format 1, found 2"),
    ({"format": 1, "device": DEVICE, "date": ""}, "requires a list of entries"),
    ({"format": 1, "device": 3, "date": "", "entries": []}, "requires a text 'device', found 3"),
    ({"entries": [3]}, "entry 0: requires the fields"),
    ({"entries": [{"n": 1}]}, "entry 0: requires the fields"),
]
CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n must be a whole number from 1 on, found 0"),
    ({"n": True}, "n must be a whole number"),
    ({"k": 2**40}, "k must be a whole number"),
    ({"m_first": 17}, "m_first 17 is above m_last 16"),
    ({"dtype": "int4"}, "requires dtype in"),
    ({"rule_us": float("nan")}, "rule_us must be a time above 0"),
    ({"tiling": {"tile_rows": -1}}, "tile_rows must be a whole number from 0 on, found -1"),
    ({"tiling": {"speed": 1}}, "tiling may have tile_rows"),
    ({"colour": 1}, "requires the fields"),
]


def _messages(path: Path, content: Any) -> str:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TunedError) as caught:
        tuning.read(path)
    return str(caught.value)


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_broken_files_are_named(tmp_path: Path, content: Any, message: str) -> None:
    if isinstance(content, dict) and "format" not in content:
        content = {"format": 1, "device": DEVICE, "date": "", **content}
    path = tmp_path / "a.json"
    text = _messages(path, content)
    assert message in text
    assert text.startswith(f"{path}: ")
    loaded = tuning.load(DEVICE, {tuning.ENV_TUNED: str(path)})
    assert loaded.entries == ()
    assert loaded.problems == (text,)


@pytest.mark.parametrize(("changes", "message"), CHANGED)
def test_broken_entries_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    row = {**dataclasses.asdict(entry()), **changes}
    head = {"format": 1, "device": DEVICE, "date": ""}
    assert message in _messages(tmp_path / "a.json", {**head, "entries": [row]})


def test_overlapping_entries_are_refused(tmp_path: Path) -> None:
    tuning.write(tmp_path / "a.json", file(entry(), entry(m_first=16, m_last=20)))
    with pytest.raises(TunedError, match="overlap at M = 16 to 16"):
        tuning.read(tmp_path / "a.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir()  # as a folder it cannot be replaced
    with pytest.raises(OSError):
        tuning.write(path, file(entry()))
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]

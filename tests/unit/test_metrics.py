"""The channel of our own figures: from counters through a file to the text of ``/metrics``."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict

from tests.helpers.figures import (
    NUM,
    expected,
    make_file,
    no_space,
    registry_of,
    scrape,
    xyserve_samples,
)
from vllm_xyserve import metrics
from vllm_xyserve.scheduler.prefix_state import PrefixCounters

ROOT = Path(__file__).parents[2]
NAMES = {f"{figure.name}_total" for figure in metrics.PREFIX_FIGURES}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No channel is open, and folders are made below the test's own."""
    monkeypatch.delenv(metrics.ENV_DIR, raising=False)
    monkeypatch.delenv(metrics.ENV_MULTIPROC_DIR, raising=False)
    monkeypatch.setattr(metrics, "_channel", None)
    monkeypatch.setattr(metrics, "_has_failed", False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(metrics.tempfile, "tempdir", str(temporary))
    yield
    if metrics._channel is not None:
        os.close(metrics._channel.lock)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the channel warns of."""
    warned: list[str] = []
    monkeypatch.setattr(metrics.logger, "warning", lambda text, *args: warned.append(text % args))
    return warned


def test_every_counter_is_a_figure() -> None:
    fields = [f.name for f in dataclasses.fields(PrefixCounters)]
    assert sorted(fields) == sorted(figure.counter for figure in metrics.PREFIX_FIGURES)


def test_every_figure_is_documented() -> None:
    document = (ROOT / "docs/metrics.md").read_text()
    assert {name for name in NAMES if f"`{name}`" not in document} == set()


def test_round_trip(tmp_path: Path) -> None:
    values = [1.0, 2.0**53 - 1, 0.0, 1e-7, 5.5, 1e300, 7.0, 8.0, 9.0]
    file = make_file(tmp_path)
    registry = registry_of(tmp_path)
    assert scrape(registry) == expected(0, [0.0] * NUM)
    file.write(values)
    assert scrape(registry) == expected(0, values)
    file.write([v + 1 for v in values])
    file.close()
    assert scrape(registry) == expected(0, [v + 1 for v in values])


def test_the_format_is_that_of_prometheus_client(tmp_path: Path) -> None:
    """Its own writer makes the same entries; keys of all lengths, for the padding."""
    keys = [f"k{'ü' * (i // 3)}{'x' * i}" for i in range(20)]
    image, places = metrics._image(keys)
    for place, value in zip(places, range(20), strict=True):
        metrics._DOUBLE.pack_into(image, place, value)
    theirs = MmapedDict(str(tmp_path / "theirs.db"))
    for value, key in enumerate(keys):
        theirs.write_value(key, value, 0.0)
    theirs.close()
    assert (tmp_path / "theirs.db").read_bytes()[: len(image)] == bytes(image)


def test_engines_stand_side_by_side(tmp_path: Path) -> None:
    ranks = [0, 1, 10]
    for rank in ranks:
        make_file(tmp_path, rank).write([float(100 * rank + i) for i in range(NUM)])
    found = scrape(registry_of(tmp_path))
    wanted: dict[Any, float] = {}
    for rank in ranks:
        wanted |= expected(rank, [float(100 * rank + i) for i in range(NUM)])
    assert found == wanted


def test_a_restarted_engine_counts_on(tmp_path: Path) -> None:
    make_file(tmp_path).write([float(i) for i in range(NUM)])
    make_file(tmp_path).write([1.0] * NUM)
    assert scrape(registry_of(tmp_path)) == expected(0, [i + 1.0 for i in range(NUM)])


@pytest.mark.parametrize("length", [0, 1, 7, 8, 11, 100, 1000, -8, -1])
def test_a_short_file_is_skipped_and_reported_once(
    tmp_path: Path, length: int, warnings: list[str]
) -> None:
    make_file(tmp_path, 1).write([3.0] * NUM)
    torn = make_file(tmp_path, 2)
    torn.path.write_bytes(torn.path.read_bytes()[:length])
    registry = registry_of(tmp_path)
    for _ in range(3):
        assert scrape(registry) == expected(1, [3.0] * NUM)
    assert len(warnings) == 1
    assert torn.path.name in warnings[0]


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 4096, b"\x40\0\0\0" + bytes(4092), b"\x28\0\0\0    \x04\0\0\0null        "],
)
def test_nonsense_is_skipped(tmp_path: Path, content: bytes) -> None:
    make_file(tmp_path, 1).write([3.0] * NUM)
    (tmp_path / "counter_other.db").write_bytes(content)
    assert scrape(registry_of(tmp_path)) == expected(1, [3.0] * NUM)


def test_a_missing_folder_is_an_empty_page(tmp_path: Path) -> None:
    assert scrape(registry_of(tmp_path / "gone")) == {}


def test_without_a_channel_there_is_no_file() -> None:
    assert metrics.open_file(0, metrics.PREFIX_FIGURES) is None


@pytest.mark.parametrize("variable", [metrics.ENV_DIR, metrics.ENV_MULTIPROC_DIR])
def test_a_folder_that_is_gone_stops_nothing(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    assert metrics.open_file(3, metrics.PREFIX_FIGURES) is None
    assert len(warnings) == 1
    assert "engine 3" in warnings[0]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(metrics.os, "pwrite", no_space)
    assert metrics.open_file(0, metrics.PREFIX_FIGURES) is None
    assert set(tmp_path.iterdir()) == before


# The channel -------------------------------------------------------------------------------------


def test_a_front_end_collects_what_its_engines_write() -> None:
    registry = CollectorRegistry(auto_describe=True)
    metrics.open_channel(registry)
    file = metrics.open_file(0, metrics.PREFIX_FIGURES)
    assert file is not None
    assert file.path.parent == Path(os.environ[metrics.ENV_DIR])
    file.write([2.0] * NUM)
    assert scrape(registry) == expected(0, [2.0] * NUM)


def test_a_second_engine_shares_the_channel() -> None:
    registry = CollectorRegistry(auto_describe=True)
    metrics.open_channel(registry)
    folder = os.environ[metrics.ENV_DIR]
    metrics.open_channel(registry)
    assert os.environ[metrics.ENV_DIR] == folder
    assert len(registry._collector_to_names) == 1


def test_several_api_servers_have_a_folder_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.ENV_MULTIPROC_DIR, str(tmp_path))
    monkeypatch.setenv(metrics.ENV_DIR, "inherited")
    untouched = CollectorRegistry()
    metrics.open_channel(untouched)
    assert not untouched._collector_to_names
    file = metrics.open_file(1, metrics.PREFIX_FIGURES)
    assert file is not None
    assert file.path.parent == tmp_path


_API_SERVERS = """
import multiprocessing, os, sys
from pathlib import Path
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.serve.instrumentator.metrics import attach_router
from vllm_xyserve import metrics

def api_server(name, shared):
    if shared:
        os.environ[metrics.ENV_MULTIPROC_DIR] = shared
    metrics.open_channel()
    if not shared:
        metrics.open_file(3, metrics.PREFIX_FIGURES).write([6.0] * len(metrics.PREFIX_FIGURES))
    app = FastAPI()
    attach_router(app)
    answer = TestClient(app).get("/metrics")
    assert answer.status_code == 200
    Path(name).write_text(answer.text)

context = multiprocessing.get_context("fork")  # so that vLLM is imported once
servers = [("alone", ""), ("first", sys.argv[1]), ("second", sys.argv[1])]
children = [context.Process(target=api_server, args=server) for server in servers]
for child in children:
    child.start()
for child in children:
    child.join()
    assert child.exitcode == 0
"""


def test_vllms_metrics_page_shows_them_with_one_and_with_two_api_servers(tmp_path: Path) -> None:
    """vLLM's own page, in processes like its API servers; fails if it reads other places."""
    shared = tmp_path / "shared"  # vLLM makes such a folder for several API servers
    shared.mkdir()
    make_file(shared, 1).write([5.0] * NUM)
    subprocess.run(
        [sys.executable, "-c", _API_SERVERS, str(shared)],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
        timeout=240,
    )
    for name in ("first", "second"):
        assert xyserve_samples((tmp_path / name).read_text()) == expected(1, [5.0] * NUM)
    assert xyserve_samples((tmp_path / "alone").read_text()) == expected(3, [6.0] * NUM)
    assert list((tmp_path / "temporary").glob(f"{metrics._PREFIX}*")) == []


def test_a_foreign_folder_in_the_environment_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a program with an engine of its own starts `vllm serve`."""
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    metrics.open_channel(CollectorRegistry())
    assert os.environ[metrics.ENV_DIR] != str(tmp_path)


def test_no_folder_can_be_made(
    monkeypatch: pytest.MonkeyPatch, warnings: list[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(metrics.ENV_DIR, "stale")
    monkeypatch.setattr(metrics.tempfile, "tempdir", str(tmp_path / "gone"))
    registry = CollectorRegistry()
    metrics.open_channel(registry)
    metrics.open_channel(registry)
    assert len(warnings) == 1
    assert metrics.ENV_DIR not in os.environ
    assert metrics.open_file(0, metrics.PREFIX_FIGURES) is None


_PARENT = """
import multiprocessing, os, sys
from pathlib import Path
from prometheus_client import REGISTRY, generate_latest
from vllm_xyserve import metrics

def engine(rank):
    metrics.open_channel()
    file = metrics.open_file(rank, metrics.PREFIX_FIGURES)
    file.write([10.0 * (rank + 1)] * len(metrics.PREFIX_FIGURES))

if __name__ == "__main__":
    metrics.open_channel()
    context = multiprocessing.get_context(sys.argv[1])
    engines = [context.Process(target=engine, args=(rank,)) for rank in range(2)]
    for child in engines:
        child.start()
    for child in engines:
        child.join()
        assert child.exitcode == 0
    folder = Path(os.environ[metrics.ENV_DIR])
    print(folder)
    print(sorted(p.name.rsplit("-", 2)[0] for p in folder.glob("*.db")))
    print(generate_latest(REGISTRY).decode())
    sys.stdout.flush()
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), 9)
"""


def run_parent(folder: Path, method: str, end: str) -> subprocess.CompletedProcess[str]:
    script = folder / "parent.py"
    script.write_text(_PARENT)
    return subprocess.run(
        [sys.executable, script, method, end],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_engines_in_child_processes(tmp_path: Path, method: str) -> None:
    """They write into their parent's folder, outlive no one, and do not remove it; it does."""
    done = run_parent(tmp_path, method, "exit")
    assert done.returncode == 0, done.stderr
    folder, files, text = done.stdout.split("\n", 2)
    assert files == "['counter_xyserve-0', 'counter_xyserve-1']"
    for engine, value in ((0, 10.0), (1, 20.0)):
        assert f'xyserve_prefix_copies_total{{engine="{engine}"}} {value}' in text
    assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()


def test_the_next_server_removes_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_parent(tmp_path, "spawn", "kill")
    assert done.returncode == -9, done.stderr
    left = Path(done.stdout.split("\n", 1)[0])
    assert left.is_dir()

    alive = tmp_path / f"{metrics._PREFIX}alive"
    alive.mkdir()
    held = os.open(alive / metrics._LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    young = tmp_path / f"{metrics._PREFIX}young"  # is being made, has no lock yet
    young.mkdir()

    monkeypatch.setattr(metrics.tempfile, "tempdir", str(tmp_path))
    metrics.open_channel(CollectorRegistry())
    assert not left.exists()
    assert alive.is_dir()
    assert young.is_dir()
    os.close(held)

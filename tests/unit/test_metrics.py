"""The channel of our own figures: from counters through a file to the text of ``/metrics``."""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families

from vllm_xyserve import metrics
from vllm_xyserve.scheduler import reporting
from vllm_xyserve.scheduler.prefix_state import PrefixCounters
from vllm_xyserve.scheduler.reporting import PrefixReport

ROOT = Path(__file__).parents[2]
NUM = len(metrics.PREFIX_FIGURES)
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
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """Warnings of the channel; vLLM's loggers do not propagate to pytest's handler."""
    logger = logging.getLogger("vllm.xyserve.metrics")
    logger.addHandler(caplog.handler)
    yield caplog.records
    logger.removeHandler(caplog.handler)


def make_file(folder: Path, engine: int = 0) -> metrics.FigureFile:
    return metrics.FigureFile(folder, engine, metrics.PREFIX_FIGURES)


def scrape(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    """``(name, engine, kind)`` of each sample, and its value."""
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    for family in families:
        assert family.type == "counter"
        assert len(family.documentation) > 10
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, s.labels["engine"], s.labels.get("kind", "")): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def registry_of(folder: Path) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(metrics.FigureCollector(folder))
    return registry


def expected(engine: int, values: list[float]) -> dict[tuple[str, str, str], float]:
    return {
        (f"{f.name}_total", str(engine), f.labels.get("kind", "")): value
        for f, value in zip(metrics.PREFIX_FIGURES, values, strict=True)
    }


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
    tmp_path: Path, length: int, warnings: list[logging.LogRecord]
) -> None:
    make_file(tmp_path, 1).write([3.0] * NUM)
    torn = make_file(tmp_path, 2)
    torn.path.write_bytes(torn.path.read_bytes()[:length])
    registry = registry_of(tmp_path)
    for _ in range(3):
        assert scrape(registry) == expected(1, [3.0] * NUM)
    assert len(warnings) == 1
    assert torn.path.name in warnings[0].getMessage()


@pytest.mark.parametrize(
    "content", [b"\xff" * 4096, b"\x40\0\0\0" + bytes(4092), b"\x28\0\0\0    \x04\0\0\0null        "]
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
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[logging.LogRecord]
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    assert metrics.open_file(3, metrics.PREFIX_FIGURES) is None
    assert len(warnings) == 1
    assert "engine 3" in warnings[0].getMessage()


def no_space(*args: Any) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(metrics.os, "pwrite", no_space)
    assert metrics.open_file(0, metrics.PREFIX_FIGURES) is None
    assert set(tmp_path.iterdir()) == before


def test_a_disk_that_fills_up_ends_the_figures_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[logging.LogRecord]
) -> None:
    counters = PrefixCounters()
    report = PrefixReport(counters, make_file(tmp_path))
    counters.num_lookups = 1
    report.publish()
    monkeypatch.setattr(metrics.os, "pwrite", no_space)
    for _ in range(3):
        counters.num_lookups += 1
        report.publish()
    assert len(warnings) == 1
    report.stop()
    assert scrape(registry_of(tmp_path))["xyserve_prefix_lookups_total", "0", ""] == 1


def test_counters_are_published_under_their_names(tmp_path: Path) -> None:
    counters = PrefixCounters()
    report = PrefixReport(counters, make_file(tmp_path, 4))
    for value, field in enumerate(dataclasses.fields(counters)):
        setattr(counters, field.name, value + 1)
    report.publish()
    report.stop()
    values = [float(getattr(counters, figure.counter)) for figure in metrics.PREFIX_FIGURES]
    assert sorted(values) == [float(i + 1) for i in range(NUM)]
    assert scrape(registry_of(tmp_path)) == expected(4, values)


def test_unchanged_counters_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = PrefixCounters()
    report = PrefixReport(counters, make_file(tmp_path))
    counters.num_copies = 1
    report.publish()
    monkeypatch.setattr(metrics.os, "pwrite", no_space)
    report.publish()
    assert report._file is not None


# The log line ------------------------------------------------------------------------------------


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the report logs."""
    logged: list[str] = []
    monkeypatch.setattr(reporting.logger, "info", logged.append)
    return logged


def test_the_log_line(lines: list[str]) -> None:
    counters = PrefixCounters(
        num_prompt_tokens=5678, block_hit_tokens=1000, sub_block_hit_tokens=234, num_copies=12
    )
    report = PrefixReport(counters, None)
    report.log()
    assert lines == [
        "xyserve: prefix hits 1,234 of 5,678 prompt tokens (21.7 %): 1,000 by blocks, 234 within "
        "blocks; 12 copies, 0 refused"
    ]
    report.log()
    assert len(lines) == 1
    counters.num_refused = 1
    report.log()
    assert lines[1].endswith("12 copies, 1 refused")


def test_nothing_is_logged_before_the_first_prompt(lines: list[str]) -> None:
    report = PrefixReport(PrefixCounters(num_lookups=3), None)
    report.log()
    report.stop()
    assert lines == []


def test_the_line_comes_by_itself_and_at_the_end(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "LOG_INTERVAL_S", 0.01)
    counters = PrefixCounters(num_prompt_tokens=1)
    report = PrefixReport(counters, None)
    report.start()
    while not lines:  # the test's time limit ends this
        pass
    report.stop()
    assert report._thread is not None
    assert not report._thread.is_alive()
    assert len(lines) == 1
    counters.num_prompt_tokens = 2
    report.stop()
    assert len(lines) == 1


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


def test_vllm_reads_the_folder_of_several_api_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With vLLM's own registry; fails if that no longer reads the folder."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    monkeypatch.setenv(metrics.ENV_MULTIPROC_DIR, str(tmp_path))
    untouched = CollectorRegistry()
    metrics.open_channel(untouched)
    assert metrics.ENV_DIR not in os.environ
    assert not untouched._collector_to_names
    file = metrics.open_file(1, metrics.PREFIX_FIGURES)
    assert file is not None
    assert file.path.parent == tmp_path
    file.write([5.0] * NUM)
    assert scrape(get_prometheus_registry()) == expected(1, [5.0] * NUM)


def test_vllm_shows_the_default_registry_with_one_api_server() -> None:
    from prometheus_client import REGISTRY
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    assert get_prometheus_registry() is REGISTRY
    assert metrics.open_channel.__defaults__ == (REGISTRY,)


def test_a_foreign_folder_in_the_environment_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a program with an engine of its own starts `vllm serve`."""
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    metrics.open_channel(CollectorRegistry())
    assert os.environ[metrics.ENV_DIR] != str(tmp_path)


def test_no_folder_can_be_made(
    monkeypatch: pytest.MonkeyPatch, warnings: list[logging.LogRecord], tmp_path: Path
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

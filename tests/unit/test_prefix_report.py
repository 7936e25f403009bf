"""What an engine core reports of its prefix counters: to a file in each step, and to the log."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from tests.helpers.figures import NUM, expected, make_file, no_space, registry_of, scrape
from vllm_xyserve import metrics
from vllm_xyserve.scheduler import reporting
from vllm_xyserve.scheduler.prefix_state import PrefixCounters
from vllm_xyserve.scheduler.reporting import PrefixReport


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the channel warns of."""
    warned: list[str] = []
    monkeypatch.setattr(metrics.logger, "warning", lambda text, *args: warned.append(text % args))
    return warned


def test_a_disk_that_fills_up_ends_the_figures_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
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
        time.sleep(0.001)
    report.stop()
    assert report._thread is not None
    assert not report._thread.is_alive()
    assert len(lines) == 1
    counters.num_prompt_tokens = 2
    report.stop()
    assert len(lines) == 1

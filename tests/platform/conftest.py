"""Starts the child processes of the selected modules at once, two at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import plugins
from tests.platform import config_cases, rows

Started = dict[str, Future[Any]]


@pytest.fixture(scope="session")
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    """Futures by name; long ones first. A module that is not selected costs nothing."""
    selected = {Path(item.path).name for item in request.session.items}
    folder = tmp_path_factory.mktemp("platform")
    futures: Started = {}
    pool = ThreadPoolExecutor(2)
    if "test_activation.py" in selected:
        fakes = rows.Fakes.make(folder)
        for name, row in rows.fresh(fakes).items():
            futures[name] = pool.submit(plugins.run_fresh, row, folder / f"{name}.fresh.json")
    if {"test_config_update.py", "test_patches.py"} & selected:
        futures["config"] = pool.submit(config_cases.run, folder)
    if "test_activation.py" in selected:
        futures["forked"] = pool.submit(plugins.run_forked, rows.forked(fakes), folder)
        for name, (args, env) in rows.commands(fakes).items():
            futures[name] = pool.submit(plugins.run_command, args, env)
    yield futures
    pool.shutdown(cancel_futures=True)

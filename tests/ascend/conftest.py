"""The full tables of the Ascend kernels run on request: `make test-ascend`."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `ascend_full`, unless `-m` names the marker."""
    if "ascend_full" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("ascend_full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("ascend_full")]

"""The real vllm-ascend beside us, discovered before and after, in processes of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.ascend_plugin import packages
from tests.ascend_plugin.conftest import STUB
from tests.helpers.plugins import Outcome, Row, run_fresh

GENERAL = ("vllm_ascend.models", "vllm_ascend.distributed.kv_transfer", "vllm_ascend.model_loader")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("registration")
    ours, stub = packages.make_ours(folder / "ours"), str(STUB)
    chosen = packages.CHOSEN
    rows = {
        # vllm-ascend lies in site-packages, so between the two ends of sys.path.
        "ours first": Row(env=chosen, before=(stub, ours), probe_modules=GENERAL),
        "ours last": Row(env=chosen, before=(stub,), after=(ours,), probe_modules=GENERAL),
        "not chosen": Row(before=(stub, ours)),
        "kept": Row(env=chosen | {"XYSERVE_KEEP_ASCEND": "1"}, before=(stub, ours)),
    }
    # What the rows put on the path is all that they get: the order is what is under test.
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.delenv("PYTHONPATH", raising=False)
        runs = {
            name: pool.submit(run_fresh, row, folder / f"{name.replace(' ', '_')}.json")
            for name, row in rows.items()
        }
        return {name: run.result() for name, run in runs.items()}


@pytest.mark.parametrize("order", ["ours first", "ours last"])
def test_ours_takes_its_place_in_either_order(outcomes: dict[str, Outcome], order: str) -> None:
    outcome = outcomes[order]
    assert outcome.code == 0, outcome.log
    assert outcome.facts["mro"][:4] == [
        "XyNpuPlatform", "XyNpuMixin", "XyPlatformMixin", "NPUPlatform",
    ]  # fmt: skip
    assert outcome.facts["enum"] == "OOT"
    assert outcome.facts["cls_before_general_plugins"] == "XyNpuPlatform"
    assert any("stays inactive" in note for note in outcome.facts["notes"])


@pytest.mark.parametrize("order", ["ours first", "ours last"])
def test_its_general_plugins_still_load(outcomes: dict[str, Outcome], order: str) -> None:
    assert outcomes[order].facts["loaded"] == dict.fromkeys(GENERAL, True)


def test_vllm_ascend_runs_alone_if_we_are_not_chosen(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["not chosen"]
    assert outcome.code == 0, outcome.log
    assert outcome.facts["cls"] == "NPUPlatform"


def test_keeping_it_ends_in_one_clear_error(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["kept"]
    assert outcome.code != 0
    assert "Only one platform plugin can be activated" in outcome.log

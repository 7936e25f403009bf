"""Several cores: every order gives the same result, and every mutation is noticed or redundant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulator import KernelType

SOURCE = Path(__file__).with_name("sync_cases.cc")
SIDE, TILES = 32, 5
SEEDS = [emulator.random_order(seed) for seed in range(8)]


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


def pipeline(
    library: emulator.Library, blocks: int = 2, **options: object
) -> tuple[emulator.Report, torch.Tensor, torch.Tensor]:
    a = torch.randn(blocks, TILES, SIDE, SIDE, dtype=torch.float16)
    b = torch.randn(SIDE, SIDE, dtype=torch.float16)
    work = emulator.output((blocks, 2, SIDE, SIDE), torch.float32, "work")
    z = emulator.output((blocks, TILES, SIDE, SIDE), torch.float32, "z")
    report = library.launch(
        "sync_pipeline", [emulator.constant(a), emulator.constant(b), work, z], [TILES],
        blocks=blocks, kernel_type=KernelType.MIX_AIC_1_2, **options,
    )  # fmt: skip
    return report, z.data, a.float() @ b.float().T + 1


def right(report: emulator.Report, actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    return report.ok and torch.allclose(actual, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", [emulator.EAGER, *emulator.directed(6), *SEEDS], ids=str)
def test_pipeline_in_every_order(library: emulator.Library, order: emulator.Schedule) -> None:
    report, actual, wanted = pipeline(library, schedule=order)
    assert report.ok, report.message
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("blocks", [20, 24])
def test_pipeline_on_a_whole_chip(library: emulator.Library, blocks: int) -> None:
    report, actual, wanted = pipeline(library, blocks=blocks, cores=blocks)
    assert report.ok, report.message
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-4)
    assert len(report.per_core) == 3 * blocks
    assert report.count("mmad.count") == blocks * TILES


def sites(library: emulator.Library, *kinds: str) -> list[emulator.Site]:
    report, _, _ = pipeline(library)
    assert report.ok
    return [site for site in report.sites if site.kind in kinds]


def test_one_side_of_a_flag_is_always_noticed(library: emulator.Library) -> None:
    found = sites(library, "set", "wait", "cross_set", "cross_wait")
    assert len(found) > 30
    for site in found:
        report, _, _ = pipeline(library, mutants={site.key: "drop"}, happens_before=False)
        assert not report.ok, site


def in_loop(site: emulator.Site) -> bool:
    """Sets before the loops only hand out the first turn: they are made once per core."""
    return site.hits > 4


def test_pairs_are_noticed(library: emulator.Library) -> None:
    """Taking out what a set orders leaves a race that the clocks see, or is proven redundant."""
    for site in sites(library, "set", "cross_set"):
        assert site.partners, site
        report, _, _ = pipeline(library, mutants={site.key: "neutral"})
        first_load = "MTE2_MTE1" in site.key and not in_loop(site)
        assert report.ok != (in_loop(site) or first_load), (site, report.message)
        if not report.ok:
            assert "an order by flags" in report.rule or "PipeBarrier" in report.rule


def test_seeds_notice_most_pairs_by_their_results(library: emulator.Library) -> None:
    """Without clocks, a missing pair passes eagerly and gives wrong numbers in other orders."""
    orders = [*emulator.directed(6), *SEEDS]
    noticed, eager = 0, 0
    found = [site for site in sites(library, "set", "cross_set") if in_loop(site)]
    for site in found:
        options = {"mutants": {site.key: "neutral"}, "happens_before": False}
        eager += right(*pipeline(library, **options))
        noticed += any(not right(*pipeline(library, schedule=o, **options)) for o in orders)
    assert eager == len(found)
    assert noticed >= len(found) // 2


def test_a_redundant_barrier_is_proven_so(library: emulator.Library) -> None:
    """PIPE_MTE3 before stores to places that nothing else stores to."""
    for site in sites(library, "barrier"):
        report, _, _ = pipeline(library, mutants={site.key: "drop"})
        assert report.ok, report.message


@pytest.mark.parametrize("order", [emulator.EAGER, *SEEDS[:4]], ids=str)
@pytest.mark.parametrize(
    ("how", "kernel_type", "blocks"),
    [
        (0, KernelType.MIX_AIV_1_0, 5),
        (0, KernelType.MIX_AIC_1_2, 3),
        (1, KernelType.MIX_AIC_1_2, 3),
        (2, KernelType.MIX_AIV_1_0, 48),
        (3, KernelType.MIX_AIC_1_2, 3),
    ],
)
def test_all_cores_wait_for_all(
    library: emulator.Library,
    how: int,
    kernel_type: KernelType,
    blocks: int,
    order: emulator.Schedule,
) -> None:
    cores = blocks * (2 if kernel_type == KernelType.MIX_AIC_1_2 else 1)
    work = emulator.output((cores, 64), torch.float32)
    z = emulator.output((cores, 64), torch.float32)
    report = library.launch(
        "sync_neighbours", [work, z], [how], blocks=blocks, kernel_type=kernel_type, schedule=order
    )
    assert report.ok, report.message
    own = torch.arange(cores)
    wanted = own ^ 1 if how == 3 else (own + 1) % cores
    assert torch.equal(z.data, wanted.float()[:, None].expand(-1, 64))


@pytest.mark.parametrize("how", [0, 1, 3])
def test_missing_synchronisation_of_cores_is_a_race(library: emulator.Library, how: int) -> None:
    work = emulator.output((6, 64), torch.float32)
    z = emulator.output((6, 64), torch.float32)

    def launch(**options: object) -> emulator.Report:
        return library.launch(
            "sync_neighbours", [work, z], [how], blocks=3,
            kernel_type=KernelType.MIX_AIC_1_2, **options,
        )  # fmt: skip

    keys = [s for s in launch().sites if s.kind in ("cross_set", "sync_all")]
    assert keys
    for site in keys:
        how_to = "drop" if site.kind == "sync_all" else "neutral"
        mutants = {s.key: how_to for s in keys} if site.kind == "sync_all" else {site.key: how_to}
        work.shadow[:] = 0xFFFFFFFF
        report = launch(mutants=mutants)
        assert not report.ok, site
        assert "an order by flags" in report.rule, report.message


def test_redundant_pair_and_bound(library: emulator.Library) -> None:
    x = torch.randn(64)
    z = emulator.output((64,), torch.float32)

    def launch(mutants: dict[str, str]) -> emulator.Report:
        return library.launch("sync_redundant", [emulator.constant(x), z], mutants=mutants)

    found = launch({}).sites
    first, second = [s.key for s in found if s.kind == "set" and "MTE2_V" in s.key]
    assert launch({first: "neutral"}).ok
    assert launch({second: "neutral"}).ok
    assert not launch({first: "neutral", second: "neutral"}).ok
    (bound,) = [s.key for s in found if s.kind == "bound"]
    assert "within the tensor" in launch({bound: "drop"}).rule

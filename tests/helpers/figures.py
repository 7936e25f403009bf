"""Reads our figures back from where they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from vllm_xyserve import metrics

NUM = len(metrics.PREFIX_FIGURES)


def make_file(folder: Path, engine: int = 0) -> metrics.FigureFile:
    return metrics.FigureFile(folder, engine, metrics.PREFIX_FIGURES)


def scrape(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    """The figures that a registry shows."""
    return xyserve_samples(generate_latest(registry).decode())


def xyserve_samples(page: str) -> dict[tuple[str, str, str], float]:
    """``(name, engine, kind)`` of each sample of ours on a page, and its value."""
    families = [f for f in text_string_to_metric_families(page) if f.name.startswith("xyserve_")]
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


def no_space(*args: Any) -> int:
    """In place of a function that writes."""
    raise OSError(28, "No space left on device")

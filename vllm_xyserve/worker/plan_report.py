"""Publishes what a worker's task tables were like, at ``/metrics``."""

from __future__ import annotations

from vllm_xyserve import metrics
from vllm_xyserve.plan.step import PlanCounters


class PlanReport:
    """Publishes the counters of one worker process.

    Args:
        counters: change while they are reported.
        file: None publishes nothing.
    """

    def __init__(self, counters: PlanCounters, file: metrics.FigureFile | None) -> None:
        self._counters = counters
        self._file = file
        self._num_tables = 0

    def publish(self) -> None:
        """Publish the totals if tables were made. A failure ends it with one warning."""
        if self._file is None or self._counters.num_tables == self._num_tables:
            return
        self._num_tables = self._counters.num_tables
        try:
            self._file.write(self._counters.totals())
        except OSError as error:
            metrics.report_failure(str(self._file.path), error)
            self._file.close()
            self._file = None

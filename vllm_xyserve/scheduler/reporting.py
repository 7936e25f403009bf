"""What an engine core says about its prefix hits: figures for ``/metrics`` and a log line."""

from __future__ import annotations

import operator
import threading

from vllm_xyserve import metrics
from vllm_xyserve.log import get_logger
from vllm_xyserve.scheduler.prefix_state import PrefixCounters

logger = get_logger("scheduler")

LOG_INTERVAL_S = 10.0

_totals = operator.attrgetter(*(figure.counter for figure in metrics.PREFIX_FIGURES))


class PrefixReport(metrics.Publisher):
    """Reports an engine core's counters.

    They are published by the step that changed them, so that they are there when its answer is, and
    logged by a thread of their own, since an idle engine core takes no steps.

    Args:
        counters: change while they are reported.
        file: None publishes nothing and only logs.
    """

    def __init__(self, counters: PrefixCounters, file: metrics.FigureFile | None) -> None:
        super().__init__(file, _totals(counters))
        self._counters = counters
        self._logged = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(self) -> None:
        """Publish the totals if they have changed."""
        self.put(_totals(self._counters))

    def log(self) -> None:
        """Log the totals if they have changed since the last time."""
        counters = self._counters
        if counters.num_prompt_tokens and (text := line(counters)) != self._logged:
            self._logged = text
            logger.info(text)

    def start(self) -> None:
        """Log every `LOG_INTERVAL_S` seconds from now on."""
        self._thread = threading.Thread(target=self._run, name="xyserve-report", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Log for the last time; idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self.log()
        self.close()

    def _run(self) -> None:
        while not self._stopped.wait(LOG_INTERVAL_S):
            self.log()


def line(counters: PrefixCounters) -> str:
    """The log line; totals since the engine started."""
    hits = counters.block_hit_tokens + counters.sub_block_hit_tokens
    share = 100 * hits / max(counters.num_prompt_tokens, 1)
    return (
        f"xyserve: prefix hits {hits:,} of {counters.num_prompt_tokens:,} prompt tokens "
        f"({share:.1f} %): {counters.block_hit_tokens:,} by blocks, "
        f"{counters.sub_block_hit_tokens:,} within blocks; {counters.num_copies:,} copies, "
        f"{counters.num_refused:,} refused"
    )

"""Makes the scheduler. vLLM calls the factory with keywords where it would construct a class."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vllm_xyserve.config import SCHEDULER_BASE_KEY, START_UP_KEY
from vllm_xyserve.log import get_logger
from vllm_xyserve.scheduler.mixin import XySchedulerMixin

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.interface import SchedulerInterface

logger = get_logger("scheduler")


def make_scheduler(*, vllm_config: VllmConfig, **kwargs: Any) -> SchedulerInterface:
    """The scheduler of an engine core: ours, mixed into the class that would run without us.

    The class is looked up now, not at import: vllm-ascend replaces vLLM's own at run time.
    """
    cls = scheduler_class(_base_class(vllm_config))
    scheduler: Any = cls(vllm_config=vllm_config, **kwargs)
    if (start_up := _additional(vllm_config, START_UP_KEY)) is not None:
        unit = scheduler.xy_prefix_unit()
        logger.info("%s prefix_unit=%s", start_up, unit)
    base = cls.__bases__[-1]
    logger.info(
        "xyserve: engine core runs %s on %s.%s", cls.__name__, base.__module__, base.__qualname__
    )
    scheduler.xy_start_report()
    made: SchedulerInterface = scheduler
    return made


@functools.cache
def scheduler_class(base: type) -> type:
    """``Xy<Base>``: the mixin in front of ``base``."""
    name = f"Xy{base.__name__}"
    namespace = {
        "__module__": __name__,
        "__doc__": f"The xyserve scheduler on {base.__module__}.{base.__qualname__}.",
    }
    return type(name, (XySchedulerMixin, base), namespace)


def _base_class(vllm_config: VllmConfig) -> type:
    path = _additional(vllm_config, SCHEDULER_BASE_KEY)
    if path is not None:
        from vllm.utils.import_utils import resolve_obj_by_qualname

        base: type = resolve_obj_by_qualname(path)
        return base
    if vllm_config.scheduler_config.async_scheduling:
        from vllm.v1.core.sched import async_scheduler

        return async_scheduler.AsyncScheduler
    from vllm.v1.core.sched import scheduler

    return scheduler.Scheduler


def _additional(vllm_config: VllmConfig, key: str) -> Any:
    additional = vllm_config.additional_config
    return additional.get(key) if isinstance(additional, dict) else None

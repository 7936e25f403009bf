"""`check_and_update_config` on vllm-ascend's platform: run twice, workers, schedulers, chips."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from tests.ascend_plugin import world
from vllm_xyserve.compat import ascend_chip, ascend_upstream
from vllm_xyserve.config import FINGERPRINT_KEY, SCHEDULER_BASE_KEY, START_UP_KEY

FACTORY = "vllm_xyserve.scheduler.factory.make_scheduler"
WORKER = "vllm_xyserve.worker.npu.XyNPUWorker"
BACKEND = "vllm_xyserve.attention.ascend.backend.XyAscendBackend"
UPSTREAM_BACKEND = "vllm_ascend.attention.attention_v1.AscendAttentionBackend"

pytestmark = pytest.mark.usefixtures("npu")


def own_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("xyserve:")]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    logger = logging.getLogger("vllm.xyserve")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_the_platform_keeps_the_parents_traits() -> None:
    from vllm.platforms import PlatformEnum, current_platform
    from vllm_ascend.platform import NPUPlatform

    cls = type(current_platform)
    assert [c.__name__ for c in cls.__mro__[:3]] == [
        "XyNpuPlatform",
        "XyNpuMixin",
        "XyPlatformMixin",
    ]
    assert issubclass(cls, NPUPlatform)
    assert current_platform._enum is PlatformEnum.OOT
    assert current_platform.device_type == "npu"
    assert current_platform.dispatch_key == "PrivateUse1"


def test_configuration_run_twice(log: Any) -> None:
    config = world.make_config(world.NATIVE)
    first = copy.deepcopy(config.additional_config)
    lines = own_lines(log)
    config.__post_init__()
    assert config.additional_config == first
    assert own_lines(log) == lines
    assert config.scheduler_config.scheduler_cls == FACTORY
    assert config.parallel_config.worker_cls == WORKER
    assert config.cache_config.block_size == 128
    assert lines[0].startswith("xyserve: Atlas A2 (910B): separate cube and vector cores")
    start_up = config.additional_config[START_UP_KEY]
    assert start_up == (
        "xyserve: family=npu isa=ascend910b scheduler=async attention=native linear=native"
    )
    assert FINGERPRINT_KEY in config.additional_config


def test_nothing_is_native_by_default() -> None:
    start_up = world.make_config().additional_config[START_UP_KEY]
    assert "attention=upstream (auto: not measured on ascend910b with bfloat16)" in start_up


@pytest.mark.parametrize(
    ("ascend", "base"),
    [
        ({"SLO_limits_for_dynamic_batch": 50}, "SchedulerDynamicBatch"),
        ({"profiling_chunk_config": {"enabled": True}}, "ProfilingChunkScheduler"),
        ({}, "AsyncScheduler"),
    ],
)
def test_whatever_scheduler_it_would_use_is_mixed_into(ascend: Any, base: str) -> None:
    from vllm_xyserve.scheduler import factory

    config = world.make_config(
        additional_config={"xyserve": {}, **ascend},
        pipeline_parallel_size=1 + ("profiling_chunk_config" in ascend),
    )
    config.__post_init__()
    assert config.scheduler_config.scheduler_cls == FACTORY
    found = factory.scheduler_class(factory._base_class(config))
    assert [c.__name__ for c in found.__mro__[:3]] == [f"Xy{base}", "XySchedulerMixin", base]
    assert (SCHEDULER_BASE_KEY in config.additional_config) == bool(ascend)


def test_the_balance_scheduler_that_takes_vllms_place_is_mixed_into() -> None:
    from vllm_xyserve.scheduler import factory

    config = world.make_config(async_scheduling=False)
    found = factory.scheduler_class(factory._base_class(config))
    assert [c.__name__ for c in found.__mro__[:3]] == [
        "XyBalanceScheduler", "XySchedulerMixin", "BalanceScheduler",
    ]  # fmt: skip


def test_310p_keeps_its_worker_and_kernels(monkeypatch: pytest.MonkeyPatch, log: Any) -> None:
    import vllm_ascend.utils as utils

    monkeypatch.setattr(utils, "_ascend_device_type", utils.AscendDeviceType._310P)
    ascend_chip.detect.cache_clear()
    try:
        config = world.make_config(quantization=None)
    finally:
        monkeypatch.undo()
        ascend_chip.detect.cache_clear()
    assert config.parallel_config.worker_cls == "vllm_ascend._310p.worker_310p.NPUWorker310"
    assert config.scheduler_config.scheduler_cls == FACTORY
    assert own_lines(log)[0].startswith("xyserve: 310P: one core does both")
    assert any("worker_310p.NPUWorker310 is kept" in line for line in own_lines(log))


def test_unrecognised_names_keep_their_part_off(monkeypatch: pytest.MonkeyPatch, log: Any) -> None:
    moved = {"attention": ("vllm_ascend.a.B",), "scheduler": ("vllm.c.D",)}
    monkeypatch.setattr(ascend_upstream, "unrecognised", lambda part: moved.get(part, ()))
    config = world.make_config({"linear": "native"})
    assert config.scheduler_config.scheduler_cls is None
    text = "\n".join(own_lines(log))
    assert "so the xyserve attention part is off: vllm_ascend.a.B" in text
    assert "so the xyserve scheduler part is off: vllm.c.D" in text
    assert "attention=upstream (auto: this vllm-ascend lacks vllm_ascend.a.B)" in text
    assert "linear=native" in text


def backend(config: Any, selected: Any = None, **flags: Any) -> str:
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import AttentionSelectorConfig

    fields = {
        "head_size": 64, "dtype": config.model_config.dtype, "kv_cache_dtype": "auto",
        "block_size": 128, "use_mla": False, "has_sink": False, "use_sparse": False,
    }  # fmt: skip
    selector = AttentionSelectorConfig(**(fields | flags))
    with world.using(config):
        found: str = current_platform.get_attn_backend_cls(
            selected, attn_selector_config=selector, num_heads=4
        )
    return found


def test_backends() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    config = world.make_config(world.NATIVE)
    assert backend(config) == BACKEND
    assert backend(config, AttentionBackendEnum.CUSTOM) == BACKEND
    assert backend(config, use_mla=True) == "vllm_ascend.attention.mla_v1.AscendMLABackend"
    sparse = backend(config, use_mla=True, use_sparse=True)
    assert sparse == "vllm_ascend.attention.sfa_v1.AscendSFABackend"
    assert backend(config, AttentionBackendEnum.FLASH_ATTN) == UPSTREAM_BACKEND
    assert backend(world.make_config()) == UPSTREAM_BACKEND
    config.parallel_config.decode_context_parallel_size = 2
    assert backend(config) == UPSTREAM_BACKEND

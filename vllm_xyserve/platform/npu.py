"""The NPU family: on vllm-ascend's platform, whose enum, patches and general plugins stay.

Imported only when the family is ``npu``: vllm-ascend's platform module needs torch_npu.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vllm_xyserve import config, parts
from vllm_xyserve.compat import ascend_chip, ascend_upstream
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops.ascend import BLOCK_SIZE
from vllm_xyserve.platform.common import ENV_VARS, XyPlatformMixin

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.platforms.interface import Platform

logger = get_logger("platform")

ATTENTION_BACKEND = "vllm_xyserve.attention.ascend.backend.XyAscendBackend"
# Of vllm-ascend, the worker class that ours takes the place of. Its others (310P, xlite) drive
# another runner and stay.
WORKERS = {"vllm_ascend.worker.worker.NPUWorker": "vllm_xyserve.worker.npu.XyNPUWorker"}

# Signals of vLLM's selector that mean another kind of attention than a paged KV cache of one
# request's keys and values; vllm-ascend's other backends answer them.
_FOREIGN_FLAGS = ("use_mla", "use_sparse", "use_compress", "use_mm_prefix", "use_non_causal")


class XyNpuMixin(XyPlatformMixin):
    """What xyserve changes about vllm-ascend's platform class."""

    family = "npu"

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Ours for paged decoder attention on a chip with kernels of ours, else the parent's.

        vLLM passes all but the first by keyword, so the names are part of the interface.
        """
        from vllm.config import get_current_vllm_config

        reasons = _reasons_against(
            get_current_vllm_config(), selected_backend, attn_selector_config
        )
        if not reasons:
            return ATTENTION_BACKEND
        backend: str = super().get_attn_backend_cls(
            selected_backend, attn_selector_config=attn_selector_config, num_heads=num_heads
        )
        logger.info("xyserve: attention backend %s (%s)", backend, "; ".join(reasons))
        return backend

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """The shared steps; the chip's statement once, in front of the start-up line."""
        additional = vllm_config.additional_config
        is_first = not (isinstance(additional, dict) and config.FINGERPRINT_KEY in additional)
        if is_first and vllm_config.model_config is not None:
            logger.info("xyserve: %s", ascend_chip.detect().statement)
            for part in ("scheduler", "worker", "attention", "linear"):
                if lacks := ascend_upstream.unrecognised(part):
                    logger.warning(
                        "xyserve: not recognised in this vLLM and vllm-ascend, so the xyserve %s "
                        "part is off: %s",
                        part,
                        ", ".join(lacks),
                    )
        super().check_and_update_config(vllm_config)

    @classmethod
    def _set_scheduler(
        cls, vllm_config: VllmConfig, options: config.XyConfig, before: object
    ) -> parts.PartChoice:
        if ascend_upstream.unrecognised("scheduler"):
            return parts.PartChoice("upstream", "this vLLM's scheduler is not recognised")
        return super()._set_scheduler(vllm_config, options, before)

    @classmethod
    def _set_worker(
        cls, vllm_config: VllmConfig, choices: dict[parts.Part, parts.PartChoice]
    ) -> None:
        parallel_config = vllm_config.parallel_config
        kept = parallel_config.worker_cls
        if ascend_upstream.unrecognised("worker"):
            choices.update(
                dict.fromkeys(choices, parts.PartChoice("upstream", "the worker is not recognised"))
            )
        elif kept in WORKERS:
            parallel_config.worker_cls = WORKERS[kept]
        elif kept not in WORKERS.values() and vllm_config.model_config is not None:
            logger.warning(
                "xyserve: the worker class %s is kept, so the xyserve linear layers and task "
                "tables are off, and prefixes match by whole blocks",
                kept,
            )
            for part in choices:
                choices[part] = parts.PartChoice("upstream", f"worker class {kept}")


def _reasons_against(vllm_config: VllmConfig, selected: Any, selector_config: Any) -> list[str]:
    """Why layers of this kind are vllm-ascend's; empty if its runner can be given ours."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    options = config.from_additional_config(vllm_config.additional_config)
    dtype = getattr(vllm_config.model_config, "dtype", None)
    choice = parts.resolve("attention", options, "npu", dtype)
    parallel = vllm_config.parallel_config
    if choice.path != "native":
        return [f"attention={choice}"]
    if selected not in (None, AttentionBackendEnum.CUSTOM):
        return [f"--attention-backend {selected.name}"]
    checks = {
        **{
            f"{flag.removeprefix('use_')} is not supported": getattr(selector_config, flag, False)
            for flag in _FOREIGN_FLAGS
        },
        "the worker is not recognised": bool(ascend_upstream.unrecognised("worker")),
        # Partial results of every split of every tile would have to be provided for.
        "batch invariance with graphs (use --enforce-eager)": bool(
            getattr(selector_config, "use_batch_invariant", False)
            and vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs()
        ),
        "context parallelism": max(
            parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
        )
        > 1,
        # A connector reads pages while steps run, and vllm-ascend's sends them layer by layer.
        "a KV connector is configured": vllm_config.kv_transfer_config is not None,
        f"KV blocks of {vllm_config.cache_config.block_size} tokens": (
            vllm_config.cache_config.block_size not in (None, BLOCK_SIZE)
        ),
        f"the worker class {parallel.worker_cls}": (
            parallel.worker_cls not in ("auto", *WORKERS, *WORKERS.values())
        ),
    }
    return [reason for reason, holds in checks.items() if holds]


@functools.cache
def platform_class() -> type[Platform]:
    """``XyNpuPlatform``, derived from vllm-ascend's platform class."""
    from vllm_ascend.platform import NPUPlatform

    class XyNpuPlatform(XyNpuMixin, NPUPlatform):
        """The xyserve platform on Ascend."""

        additional_env_vars = [*NPUPlatform.additional_env_vars, *ENV_VARS]  # noqa: RUF012

    return XyNpuPlatform

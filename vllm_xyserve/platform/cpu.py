"""The CPU family: on vLLM's CPU platform (or zentorch's, where vLLM would choose that)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vllm_xyserve import config, parts
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import native
from vllm_xyserve.platform import norms
from vllm_xyserve.platform.common import ENV_VARS, XyPlatformMixin

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.platforms.interface import Platform

logger = get_logger("platform")

ATTENTION_BACKEND = "vllm_xyserve.attention.backend.MetaAttentionBackend"
WORKER = "vllm_xyserve.worker.cpu.XyCPUWorker"
UPSTREAM_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


class XyCpuMixin(XyPlatformMixin):
    """What xyserve changes about a CPU platform class."""

    family = "cpu"

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Ours for whatever it can hold; the parent's for the rest and for an explicit other.

        vLLM passes all but the first by keyword, so the names are part of the interface.
        """
        from vllm.config import get_current_vllm_config
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        from vllm_xyserve.attention.backend import MetaAttentionBackend

        vllm_config = get_current_vllm_config()
        options = config.from_additional_config(vllm_config.additional_config)
        dtype = getattr(vllm_config.model_config, "dtype", None)
        path = parts.resolve("attention", options, cls.family, dtype).path
        if selected_backend not in (None, AttentionBackendEnum.CUSTOM):
            reasons = [f"--attention-backend {selected_backend.name}"]
        else:
            reasons = MetaAttentionBackend.reasons_against(attn_selector_config, path)
        if not reasons:
            return ATTENTION_BACKEND
        backend: str = super().get_attn_backend_cls(
            selected_backend, attn_selector_config=attn_selector_config, num_heads=num_heads
        )
        logger.info("xyserve: attention backend %s (%s)", backend, "; ".join(reasons))
        return backend

    @classmethod
    def import_ir_kernels(cls) -> None:
        """vLLM's implementations of its IR operations, and ours."""
        super().import_ir_kernels()
        norms.register()

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> Any:
        """Our norms in front of the parent's choice; ``--ir-op-priority`` goes before both."""
        priority = super().get_default_ir_op_priority(vllm_config)
        return norms.with_ours_first(priority) if norms.are_ours(vllm_config) else priority

    @classmethod
    def check_environment(cls) -> None:
        """Refuse an ``XYSERVE_ISA`` that is unknown or that this CPU lacks."""
        status = native.load()
        if status.misconfigured:
            raise config.ConfigError(f"{status.reason}; {status.mend}")

    @classmethod
    def check_kv_cache_dtype(cls, vllm_config: VllmConfig) -> None:
        """Refuse a ``--kv-cache-dtype`` that vLLM's CPU attention cannot store.

        vLLM does not check it on a CPU and answers nonsense (0.32: nvfp4, and float16 with a
        float32 model).
        """
        model_config, asked = vllm_config.model_config, vllm_config.cache_config.cache_dtype
        if model_config is None or model_config.use_mla:
            return
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        own = str(model_config.dtype).removeprefix("torch.")
        allowed = [*CPUAttentionBackend.supported_kv_cache_dtypes, own]
        if asked not in allowed:
            raise config.ConfigError(
                f"--kv-cache-dtype must be one of {', '.join(allowed)} for this {own} model on the "
                f"cpu family; it is {asked!r}"
            )

    @classmethod
    def _set_worker(
        cls, vllm_config: VllmConfig, choices: dict[parts.Part, parts.PartChoice]
    ) -> None:
        parallel_config = vllm_config.parallel_config
        if parallel_config.worker_cls == UPSTREAM_WORKER:
            parallel_config.worker_cls = WORKER
        elif parallel_config.worker_cls != WORKER:
            kept = f"--worker-cls {parallel_config.worker_cls}"
            logger.warning("xyserve: %s is kept, so the xyserve linear layers are off", kept)
            choices["linear"] = parts.PartChoice("upstream", kept)


@functools.cache
def platform_class() -> type[Platform]:
    """``XyCpuPlatform``, derived from the class that vLLM itself would use on this CPU."""
    from vllm.platforms import builtin_platform_plugins
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    path = builtin_platform_plugins["cpu"]() or "vllm.platforms.cpu.CpuPlatform"
    parent = resolve_obj_by_qualname(path)
    # Here, since this runs in every process: vLLM asks for a registered member by the backend's
    # name when it builds an attention layer.
    register_backend(AttentionBackendEnum.CUSTOM, ATTENTION_BACKEND)
    namespace = {
        "__module__": __name__,
        "__qualname__": "XyCpuPlatform",
        "__doc__": f"The xyserve platform on {path}.",
        "additional_env_vars": [*parent.additional_env_vars, *ENV_VARS],
    }
    return type("XyCpuPlatform", (XyCpuMixin, parent), namespace)

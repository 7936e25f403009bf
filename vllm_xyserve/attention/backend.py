"""The Meta-Attention backend of the CPU family."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from vllm_xyserve import parts
from vllm_xyserve.attention.builder import MetaAttentionMetadataBuilder
from vllm_xyserve.attention.impl import MetaAttentionImpl

# Signals of vLLM's selector that mean another kind of attention than a paged KV cache of one
# request's keys and values; the parent's backends answer them.
_FOREIGN_FLAGS = ("use_mla", "use_sparse", "use_mm_prefix", "use_pcp", "use_dcp", "use_rswa")


class MetaAttentionBackend(CPUAttentionBackend):
    """Derives from the parent's backend, so that a layer can delegate to the parent's kernels."""

    @staticmethod
    def get_name() -> str:
        """A registered name: vLLM looks the member up when it builds a layer."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[MetaAttentionImpl]:
        """The implementation that each layer constructs."""
        return MetaAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[MetaAttentionMetadataBuilder]:
        """The builder that each KV cache group constructs."""
        return MetaAttentionMetadataBuilder

    @classmethod
    def supports_sink(cls) -> bool:
        """Both paths compute attention sinks; the parent does too and does not declare it."""
        return True

    @classmethod
    def reasons_against(cls, selector_config: Any, path: parts.Taken) -> list[str]:
        """Why layers of this kind cannot be ours, even by delegation; empty if they can.

        Args:
            selector_config: vLLM's ``AttentionSelectorConfig``, whose fields differ by version.
            path: of attention.
        """
        reasons = [
            f"{flag.removeprefix('use_')} is not supported"
            for flag in _FOREIGN_FLAGS
            if getattr(selector_config, flag, False)
        ]
        if getattr(selector_config, "use_kv_connector", False):
            # A connector reads pages and tells backends apart by their name.
            reasons.append("a KV connector is configured")
        if getattr(selector_config, "use_batch_invariant", False) and path != "native":
            reasons.append(f"batch invariance needs native attention, and the path is {path}")
        return reasons

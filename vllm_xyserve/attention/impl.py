"""The Meta-Attention implementation of one layer, and the path that it takes."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

from vllm_xyserve import config, parts
from vllm_xyserve.attention.builder import MetaAttentionMetadata
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import attention as ops
from vllm_xyserve.ops.reference.attention import AttentionParams, paged_attention, write_kv
from vllm_xyserve.plan.spec import PlanSpec

logger = get_logger("attention")

_said: set[str] = set()


class MetaAttentionImpl(CPUAttentionBackendImpl):
    """Attention of one layer; the path is chosen here, once.

    It cannot change later: each path lays out the inside of the layer's KV pages in its own way.
    """

    sinks: torch.Tensor | None

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **extra,
        )
        self.path: parts.Taken = self._choose_path(kv_sharing_target_layer_name)
        self.num_calls = 0  # steps attended to, so that a report can prove that a path ran
        self.spec: PlanSpec | None = None  # of a native layer; set by its builder

    def _choose_path(self, shares_kv_of: str | None) -> parts.Taken:
        vllm_config = get_current_vllm_config()
        if shares_kv_of is not None:  # one set of pages, so one layout
            target = vllm_config.compilation_config.static_forward_context[shares_kv_of]
            path: parts.Taken = getattr(target.impl, "path", "upstream")
            return path
        options = config.from_additional_config(vllm_config.additional_config)
        path = parts.resolve("attention", options, "cpu", vllm_config.model_config.dtype).path
        if path != "upstream" and (reason := self._reason_against(path, vllm_config)):
            if reason not in _said:
                _said.add(reason)
                logger.info("xyserve: attention layer takes the parent's path (%s)", reason)
            return "upstream"
        return path

    def _reason_against(self, path: parts.Taken, vllm_config: Any) -> str | None:
        """Why this layer cannot leave the parent's path, or None."""
        if self.attn_type != AttentionType.DECODER:
            return f"{AttentionType(self.attn_type).value} attention"
        if self.is_fp8_kv_cache:
            return f"KV cache dtype {self.kv_cache_dtype}"
        if path == "native":
            supported = ops.supports(
                dtype=vllm_config.model_config.dtype,
                head_size=self.head_size,
                block_size=vllm_config.cache_config.block_size,
            )
            return None if supported.ok else supported.reason
        return None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: MetaAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend; this step's keys and values are in the pages already.

        Args:
            layer: vLLM's attention layer.
            query: ``[num_tokens, num_heads, head_size]``.
            key, value: ``[num_tokens, num_kv_heads, head_size]``; not read.
            kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_size]``.
            attn_metadata: of the step; None while vLLM warms up.
            output: as ``query``; written for the step's tokens, padding rows are left alone.
            output_scale, output_block_scale: must be None.

        Returns:
            ``output``.
        """
        self.num_calls += attn_metadata is not None
        if self.path == "upstream" or attn_metadata is None:
            return super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "Meta-Attention writes unquantised output, and the model asks for a quantised "
                'one; set {"xyserve": {"attention": "upstream"}} or switch the fusion off'
            )
        if self.path == "native":
            self._attend(query, kv_cache, attn_metadata, output)
            return output
        causal = attn_metadata.dynamic_causal
        key_cache, value_cache = split_pages(kv_cache)
        paged_attention(
            output.view_as(query),
            query,
            key_cache,
            value_cache,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            attn_metadata.block_table,
            attn_metadata.causal if causal is None else causal,
            self._params(),
        )
        return output

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write this step's keys and values into the layer's pages."""
        if self.path == "upstream":
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        if self.path == "native":
            ops.kv_write(key, value, kv_cache, slot_mapping)
            return
        key_cache, value_cache = split_pages(kv_cache)
        write_kv(key_cache, value_cache, key, value, slot_mapping)

    def _attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: MetaAttentionMetadata,
        output: torch.Tensor,
    ) -> None:
        """Run the native kernel over the step's task table."""
        if self.spec is None:
            raise RuntimeError("a native attention layer was given no builder of ours")
        if self.sinks is not None and self.sinks.dtype != torch.float32:
            # Not at construction: vLLM loads them afterwards.
            self.sinks = self.sinks.to(torch.float32)
        ops.meta_attention(
            output.view_as(query),
            query,
            kv_cache,
            attn_metadata.block_table,
            attn_metadata.seq_lens,
            attn_metadata.query_start_loc,
            attn_metadata.tables[self.spec],
            self.scale,
            self.logits_soft_cap,
            self.alibi_slopes,
            self.sinks,
        )

    def _params(self) -> AttentionParams:
        # Built per call: vLLM replaces the sinks when it loads weights.
        return AttentionParams(
            scale=self.scale,
            window=self.sliding_window if self.sliding_window > 0 else None,
            softcap=self.logits_soft_cap,
            alibi_slopes=self.alibi_slopes,
            sinks=self.sinks,
        )


def split_pages(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views ``[num_blocks, num_kv_heads, block_size, head_size]`` of the K and V half of each page.

    Args:
        kv_cache: ``[num_blocks, num_kv_heads, block_size, 2 * head_size]`` as vLLM shapes it.
            A page is used as K of all its tokens, then V of all, and not token by token.
    """
    num_blocks, num_kv_heads, block_size, _ = kv_cache.shape
    pages = kv_cache.view(num_blocks, num_kv_heads, 2 * block_size, -1)
    key_cache, value_cache = pages.chunk(2, dim=2)
    return key_cache, value_cache

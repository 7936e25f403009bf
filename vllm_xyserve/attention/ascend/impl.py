"""The Meta-Attention implementation of one layer of the NPU family."""

from __future__ import annotations

import copy
from typing import Any

import torch
import vllm_ascend.ops  # noqa: F401  # before attention_v1, which else imports it half-made
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.v1.attention.backend import AttentionType
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl, AscendMetadata
from vllm_ascend.memcache_comm_fence import record_attention_compute_start

from vllm_xyserve import config, parts
from vllm_xyserve.attention.ascend import step
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import ascend as ops
from vllm_xyserve.plan.spec import PlanSpec

logger = get_logger("attention")

_said: set[str] = set()


class XyAscendImpl(AscendAttentionBackendImpl):
    """Causal decoder attention in every attention state by our kernel, the rest by the parent's.

    The path is chosen here, once. A native layer still leaves single steps to the parent, whose
    cache it shares: those that are not causal, and those of a draft model.
    """

    key_cache: torch.Tensor | None
    value_cache: torch.Tensor | None

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
        sinks: torch.Tensor | None = None,
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
            sinks,
            **extra,
        )
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.path: parts.Taken = self._choose_path()
        # Steps attended to by our kernel, so that a report can prove that it ran.
        self.num_calls = 0
        self.spec: PlanSpec | None = None  # of a native layer; set by its builder

    def _choose_path(self) -> parts.Taken:
        vllm_config = get_current_vllm_config()
        options = config.from_additional_config(vllm_config.additional_config)
        dtype = vllm_config.model_config.dtype
        path = parts.resolve("attention", options, "npu", dtype).path
        if path != "native":
            return "upstream"
        reason = self._reason_against(vllm_config)
        if reason is None:
            return "native"
        if reason not in _said:
            _said.add(reason)
            logger.info("xyserve: attention layer takes the parent's path (%s)", reason)
        return "upstream"

    def _reason_against(self, vllm_config: Any) -> str | None:
        """Why this layer cannot leave the parent's path, or None."""
        checks = {
            f"{self.attn_type} attention": self.attn_type != AttentionType.DECODER,
            "attention sinks": self.sinks is not None,
            "alibi": self.alibi_slopes is not None,
            "int8 KV cache": self.enable_c8_quant,
            f"KV cache dtype {self.kv_cache_dtype}": self.kv_cache_dtype not in ("auto", None),
            "sparse KV compression": self.enable_hamming_sparse,
        }
        found = next((reason for reason, holds in checks.items() if holds), None)
        if found is not None:
            return found
        support = ops.supports_attention(
            dtype=vllm_config.model_config.dtype,
            head_size=self.head_size,
            num_kv_heads=self.num_kv_heads,
            group_size=self.num_queries_per_kv,
            block_size=vllm_config.cache_config.block_size,
        )
        return None if support.ok else support.reason

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: Any,
        attn_metadata: AscendMetadata | None,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write this step's keys and values into their pages, then attend.

        Args:
            layer: vLLM's attention layer.
            query: ``[num_tokens, num_heads, head_size]``, rows that fill a graph's batch included.
            key, value: ``[num_tokens, num_kv_heads, head_size]``, or None: written already.
            kv_cache: ``(keys, values)``, each ``[num_blocks, 128, num_kv_heads, head_size]``.
            attn_metadata: of the step; None while vLLM warms up.
            output: as ``query``; written for the rows' tokens.
            output_scale, output_block_scale: must be None.

        Returns:
            ``output``.
        """
        planned = self._step(attn_metadata)
        if planned is None:
            result: torch.Tensor = super().forward(
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
            return result
        if output is None or output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "Meta-Attention writes unquantised output into a tensor that it is given; set "
                '{"xyserve": {"attention": "upstream"}} or switch the fusion off'
            )
        if self.key_cache is None:
            self.key_cache, self.value_cache = kv_cache[0], kv_cache[1]
        if key is not None and value is not None:
            self.reshape_and_cache(query, key, value, kv_cache, attn_metadata, output)
        record_attention_compute_start()
        self._attend(query, planned, output)
        return output

    def _step(self, metadata: AscendMetadata | None) -> step.AscendStep | None:
        """What our kernel needs for this step, or None for the parent's."""
        if self.path != "native" or metadata is None:
            return None
        planned = step.step_of(metadata)
        # A drafter changes lengths in the metadata between its passes; our copies would be old.
        return None if planned is None or _EXTRA_CTX.is_draft_model else planned

    def _attend(self, query: torch.Tensor, planned: step.AscendStep, out: torch.Tensor) -> None:
        if self.spec is None:
            raise RuntimeError("a native attention layer was given no builder of ours")
        keys, values = self.key_cache, self.value_cache
        assert keys is not None
        assert values is not None
        self.num_calls += 1
        tables = planned.tables[self.spec]
        capturing = bool(_EXTRA_CTX.capturing)
        ops.meta_attention(
            out.view(-1, self.num_heads, self.head_size),
            query.view(-1, self.num_heads, self.head_size),
            keys,
            values,
            planned.block_table,
            planned.seq_lens,
            tables.table,
            tables.partials,
            ops.AttentionLaunch(
                num_cores=self.spec.device.num_cores,
                tile_rows=self.spec.device.tile_rows[-1],
                max_keys=planned.capacity_keys if capturing else planned.max_key_len,
                decode_only=_is_decode_only(planned, capturing),
                splits=tables.splits or capturing,
            ),
            self.scale,
            self.logits_soft_cap,
        )

    @staticmethod
    def update_graph_params(
        update_stream: Any,
        forward_context: Any,
        num_tokens: int,
        vllm_config: Any,
        speculative_config: Any = None,
        num_dcp_pcp_tokens: Any = None,
        draft_attn_metadatas: Any = None,
    ) -> None:
        """Before a replay: nothing for layers of ours, which read the lengths from the device.

        The parent gives its own captured calls new lengths, and pairs them with the model's layers
        in order; so it gets to see its own layers alone.
        """
        metadata = forward_context.attn_metadata
        if isinstance(metadata, dict) and not _EXTRA_CTX.is_draft_model:
            parents = step.parents_layers(metadata)
            if not parents:
                return
            if len(parents) < len(metadata):
                forward_context = copy.copy(forward_context)
                forward_context.attn_metadata = parents
        AscendAttentionBackendImpl.update_graph_params(
            update_stream,
            forward_context,
            num_tokens,
            vllm_config,
            speculative_config,
            num_dcp_pcp_tokens,
            draft_attn_metadatas,
        )


def _is_decode_only(planned: step.AscendStep, capturing: bool) -> bool:
    """Whether no row has more than one query, in this step or in any replay of its graph.

    A graph of so many tokens also serves longer rows, unless it is one of uniform decodes.
    """
    if planned.max_query_len > 1:
        return False
    if not capturing:
        return True
    return bool(getattr(get_forward_context().batch_descriptor, "uniform", False))

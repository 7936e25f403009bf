"""Where token-level hits are on, and why not elsewhere: an allow-list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_xyserve.compat import block_copies
from vllm_xyserve.config import PrefixConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Drafts of these methods are verified against the same KV cache that prefixes are taken from.
# Drafters with a cache of their own need its entry at position p - 1, which depends on token p.
_SPECULATION_ALLOWED = frozenset({"ngram", "suffix"})


def reasons_against(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    manager: KVCacheManager,
    options: PrefixConfig,
) -> list[str]:
    """Why token-level hits are off in this engine; empty where they are on."""
    if not options.token_level:
        return ["switched off"]
    if not manager.enable_caching:
        return ["prefix caching is off"]
    return [
        *_cache_reasons(vllm_config, kv_cache_config, manager),
        *_feature_reasons(vllm_config),
    ]


def _cache_reasons(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, manager: KVCacheManager
) -> list[str]:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return [f"the model has {len(groups)} KV cache groups"]
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return [f"its KV cache is a {type(spec).__name__}"]
    reasons = []
    if (reason := block_copies.reason_against(manager, vllm_config)) is not None:
        reasons.append(reason)
    if manager.block_pool.hash_block_size != spec.block_size:
        reasons.append("hash and KV block sizes differ")
    return reasons


def _feature_reasons(vllm_config: VllmConfig) -> list[str]:
    model: Any = vllm_config.model_config
    parallel: Any = vllm_config.parallel_config
    speculative: Any = vllm_config.speculative_config
    method = speculative.method if speculative is not None else None
    checks = {
        f"speculative method {method}": method is not None and method not in _SPECULATION_ALLOWED,
        "a KV connector is configured": vllm_config.kv_transfer_config is not None,
        "diffusion model": getattr(vllm_config, "diffusion_config", None) is not None,
        "encoder-decoder model": bool(getattr(model, "is_encoder_decoder", False)),
        "bidirectional multimodal prefixes": bool(getattr(model, "is_mm_prefix_lm", False)),
        "context parallelism": max(
            getattr(parallel, "decode_context_parallel_size", 1),
            getattr(parallel, "prefill_context_parallel_size", 1),
        )
        > 1,
    }
    return [reason for reason, holds in checks.items() if holds]

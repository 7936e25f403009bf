"""Fake (meta) implementations of the native operations, for torch.compile and export.

They check shapes and dtypes as the kernels do and touch no data. Registered when the library is
loaded, since they refer to its operations.
"""

import torch

from vllm_xyserve.ops.checks import check_kv_write, check_meta_attention, check_silu_and_mul


def _silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    check_silu_and_mul(out, x)


def _kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    check_kv_write(key, value, kv_cache, slot_mapping)


def _meta_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    workspace: torch.Tensor | None,
) -> None:
    check_meta_attention(out, query, kv_cache, block_table, seq_lens, query_start_loc)


def register() -> None:
    """Attach the fakes to the operations of the loaded library; called once, by `native.load`."""
    torch.library.register_fake("xyserve::silu_and_mul", _silu_and_mul)
    torch.library.register_fake("xyserve::kv_write", _kv_write)
    torch.library.register_fake("xyserve::meta_attention", _meta_attention)

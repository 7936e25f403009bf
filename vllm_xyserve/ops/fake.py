"""Fake (meta) implementations of the native operations, for torch.compile and export.

They check shapes and dtypes as the kernels do and touch no data. Registered when the library is
loaded, since they refer to its operations.
"""

import torch

from vllm_xyserve.ops.checks import (
    check_kv_write,
    check_meta_attention,
    check_rms_norm,
    check_silu_and_mul,
)


def _silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    check_silu_and_mul(out, x)


def _rms_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    epsilon: float,
) -> None:
    check_rms_norm(out, x, residual, weight)


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


def _linear_pack(weight: torch.Tensor) -> torch.Tensor:
    from vllm_xyserve.ops.linear import (
        packed_elements,
    )  # not above: it loads the library, and that loads this

    n, k = weight.shape
    return weight.new_empty(packed_elements(n, k, weight.dtype))


def _linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _linear_out(
    out: torch.Tensor, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
) -> None:
    if out.shape != (*x.shape[:-1], n):
        raise RuntimeError(f"linear_out: require out {[*x.shape[:-1], n]}, got {list(out.shape)}")


def _linear_silu_mul(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n // 2))


def _linear_add(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    n: int,
    residual: torch.Tensor,
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _linear_pack_int8(
    weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    columns = -(-weight.shape[0] // 32) * 32
    packed = weight.new_empty(columns * -(-weight.shape[1] // 4) * 4)
    return packed, weight.new_empty(columns, dtype=torch.int32)


def _quantize_rows(
    x: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_rows = x.numel() // x.shape[-1]
    stored = x.new_empty(num_rows, -(-x.shape[-1] // 4) * 4, dtype=torch.uint8)
    scales = x.new_empty(num_rows, dtype=torch.float32)
    return stored[:, : x.shape[-1]], scales, x.new_empty(num_rows, dtype=torch.int32)


def _linear_int8(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    sums: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    input_zero_point: torch.Tensor | None,
    n: int,
    symmetric: bool = True,
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


_LINEAR_FAKES = (
    _linear_pack,
    _linear,
    _linear_out,
    _linear_silu_mul,
    _linear_add,
    _linear_pack_int8,
    _quantize_rows,
    _linear_int8,
)


def register() -> None:
    """Attach the fakes to the operations of the loaded library; called once, by `native.load`."""
    torch.library.register_fake("xyserve::silu_and_mul", _silu_and_mul)
    torch.library.register_fake("xyserve::rms_norm", _rms_norm)
    torch.library.register_fake("xyserve::kv_write", _kv_write)
    torch.library.register_fake("xyserve::meta_attention", _meta_attention)
    for op in _LINEAR_FAKES:
        torch.library.register_fake(f"xyserve::{op.__name__[1:]}", op)

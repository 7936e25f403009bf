"""Static argument checks, shared by the fakes and the reference paths.

The native binding checks the same in C++ (one call costs a few microseconds there; these checks in
Python would double it). All raise RuntimeError, as torch does for wrong shapes.
"""

import torch

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    """Require x [..., 2 * d] and out [..., d] of one dtype (fp32, bf16 or fp16) on one device."""
    same_rank = x.dim() >= 1 and out.dim() == x.dim()
    if not (same_rank and x.shape[:-1] == out.shape[:-1] and x.shape[-1] == 2 * out.shape[-1]):
        raise RuntimeError(
            "silu_and_mul: require x of shape [..., 2 * d] and out of shape [..., d], "
            f"got x {list(x.shape)} and out {list(out.shape)}"
        )
    if out.dtype != x.dtype:
        raise RuntimeError(
            f"silu_and_mul: require out and x of one dtype, got out {out.dtype} and x {x.dtype}"
        )
    if x.dtype not in FLOAT_DTYPES:
        raise RuntimeError(
            f"silu_and_mul: require dtype float32, bfloat16 or float16, got {x.dtype}; "
            "convert the tensor with .to(...)"
        )
    if out.device != x.device:
        raise RuntimeError(
            f"silu_and_mul: require out and x on one device, got out {out.device} and x {x.device}"
        )


def check_rms_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
) -> None:
    """Require out and residual as x [..., d], and weight [d] of fp32 or of the dtype of x."""
    if x.dim() < 1 or x.dtype not in FLOAT_DTYPES:
        raise RuntimeError(
            "rms_norm: require x [..., d] of float32, bfloat16 or float16, "
            f"got {list(x.shape)} {x.dtype}"
        )
    for name, tensor in (("out", out), ("residual", residual)):
        if tensor is not None and (tensor.shape, tensor.dtype) != (x.shape, x.dtype):
            raise RuntimeError(
                f"rms_norm: require {name} of the shape and dtype of x, {list(x.shape)} {x.dtype}, "
                f"got {list(tensor.shape)} {tensor.dtype}"
            )
    if weight is not None:
        fits = tuple(weight.shape) == (x.shape[-1],)
        if not fits or weight.dtype not in (torch.float32, x.dtype):
            raise RuntimeError(
                f"rms_norm: require weight [{x.shape[-1]}] of float32 or {x.dtype}, "
                f"got {list(weight.shape)} {weight.dtype}"
            )


def _check_cache(op: str, kv_cache: torch.Tensor) -> tuple[int, int]:
    """Require vLLM's page shape; returns the number of KV heads and the head size."""
    shape = kv_cache.shape
    fits = kv_cache.dim() == 4 and shape[2] % 16 == 0 and shape[3] % 32 == 0
    if not fits or kv_cache.dtype not in FLOAT_DTYPES:
        raise RuntimeError(
            f"{op}: require kv_cache [num_blocks, num_kv_heads, block_size, 2 * head_size] of "
            "float32, bfloat16 or float16 with a block size and a head size that are multiples of "
            f"16, got {list(shape)} {kv_cache.dtype}"
        )
    return shape[1], shape[3] // 2


def check_kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Require key and value [>= num_slots, num_kv_heads, head_size] that fit the cache."""
    num_kv_heads, head_size = _check_cache("kv_write", kv_cache)
    for name, tensor in (("key", key), ("value", value)):
        fits = tensor.dim() == 3 and tuple(tensor.shape[1:]) == (num_kv_heads, head_size)
        if not fits or tensor.dtype != kv_cache.dtype or tensor.shape[0] < slot_mapping.shape[0]:
            raise RuntimeError(
                f"kv_write: require {name} [>= {slot_mapping.shape[0]}, {num_kv_heads}, "
                f"{head_size}] of {kv_cache.dtype}, got {list(tensor.shape)} {tensor.dtype}"
            )
    if slot_mapping.dim() != 1 or slot_mapping.dtype != torch.int64:
        raise RuntimeError(
            f"kv_write: require slot_mapping [num_slots] of int64, got "
            f"{list(slot_mapping.shape)} {slot_mapping.dtype}"
        )


def check_meta_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> None:
    """Require query and out [num_tokens, num_heads, head_size] that fit the cache, and the rows."""
    num_kv_heads, head_size = _check_cache("meta_attention", kv_cache)
    for name, tensor in (("query", query), ("out", out)):
        fits = tensor.dim() == 3 and tensor.shape[2] == head_size
        if not fits or tensor.shape[1] % num_kv_heads or tensor.dtype != kv_cache.dtype:
            raise RuntimeError(
                f"meta_attention: require {name} [num_tokens, num_heads, {head_size}] of "
                f"{kv_cache.dtype} with a multiple of {num_kv_heads} heads, got "
                f"{list(tensor.shape)} {tensor.dtype}"
            )
    rows = block_table.shape[0]
    if seq_lens.shape[0] < rows or query_start_loc.shape[0] <= rows:
        raise RuntimeError(
            f"meta_attention: require seq_lens and query_start_loc for the {rows} rows of "
            f"block_table, got {list(seq_lens.shape)} and {list(query_start_loc.shape)}"
        )

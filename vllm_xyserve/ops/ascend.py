"""The Ascend C kernels: where their library is, what they support, and the calls.

``libxyserve_ascend.so`` registers ``torch.ops._C_xyserve.*`` for torch_npu's device. It is loaded
in workers only, when their device is set up: loading it initialises the driver, which must not
happen in a front end. Operations that a process has registered by other means (the tests do, on a
CPU) are used as they are.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from vllm_xyserve.ops import native
from vllm_xyserve.ops.registry import Support

NAMESPACE: Final = "_C_xyserve"
LIBRARY: Final = Path("_native", "libxyserve_ascend.so")
BUILD: Final = "python -m deploy.build_ascend in the source tree, with CANN's set_env.sh sourced"

BLOCK_SIZE: Final = 128
HEAD_SIZES: Final = (64, 96, 128, 192, 256)
MAX_TILE_ROWS: Final = 128
MAX_TOKEN_ELEMENTS: Final = 65535
"""Of a token's keys, and of its queries: strides that the hardware keeps in 16 bits."""
DTYPES: Final = (torch.float16, torch.bfloat16)
FRACTAL_ROWS: Final = 16
FRACTAL_NZ: Final = 29
"""torch_npu's number of the fractal NZ storage format."""

calls: Counter[str] = Counter()
"""Runs of each operation from Python in this process; replays of a captured graph add nothing."""


@dataclass(frozen=True, slots=True)
class AscendStatus:
    """Whether the kernels can be used; reason and mend are empty if they can.

    path: the library file, None where there is none. loaded: its operations are registered.
    """

    loaded: bool
    path: Path | None
    reason: str = ""
    mend: str = ""


_lock = threading.Lock()
_failure: AscendStatus | None = None


def status() -> AscendStatus:
    """What is known without loading anything."""
    path = native.find_library(LIBRARY)
    if is_registered():
        return AscendStatus(True, path)
    if _failure is not None:
        return _failure
    if path is None:
        return AscendStatus(False, None, "the Ascend C library is not built", f"build it: {BUILD}")
    return AscendStatus(False, path)


def load() -> AscendStatus:
    """Load the library, in a worker whose device is set up; never raises, idempotent."""
    global _failure
    with _lock:
        found = status()
        if found.loaded or found.path is None or found.reason:
            return found
        try:
            torch.ops.load_library(str(found.path))  # type: ignore[no-untyped-call]
        except Exception as error:  # the parent's kernels still work
            lines = str(error).strip().splitlines() or [type(error).__name__]
            _failure = AscendStatus(
                False,
                found.path,
                f"{found.path} cannot be loaded: {lines[0]}",
                f"build it again for this torch and CANN: {BUILD}",
            )
        return status()


def is_registered() -> bool:
    """Whether the operations exist in this process."""
    return has("meta_attention")


def has(op: str) -> bool:
    """Whether one operation exists in this process."""
    return hasattr(getattr(torch.ops, NAMESPACE), op)


def supports_attention(
    *, dtype: torch.dtype, head_size: int, num_kv_heads: int, group_size: int, block_size: int
) -> Support:
    """Whether `meta_attention` takes a layer, with the reason if not."""
    if dtype not in DTYPES:
        return Support(False, f"attention in {dtype}")
    if head_size not in HEAD_SIZES:
        sizes = ", ".join(map(str, HEAD_SIZES))
        return Support(False, f"head sizes are {sizes}, got {head_size}")
    if block_size != BLOCK_SIZE:
        return Support(False, f"KV blocks hold {BLOCK_SIZE} tokens, got {block_size}")
    if group_size > MAX_TILE_ROWS:
        return Support(False, f"{group_size} query heads share a KV head, a tile has 128 rows")
    if head_size * num_kv_heads * group_size > MAX_TOKEN_ELEMENTS:
        return Support(False, f"a token's queries have more than {MAX_TOKEN_ELEMENTS} elements")
    return Support(True)


def supports_linear(weight: torch.Tensor) -> Support:
    """Whether `linear` or `linear_int8` takes a weight ``[N, K]``, with the reason if not."""
    if weight.dtype not in (*DTYPES, torch.int8):
        return Support(False, f"weight dtype {weight.dtype}")
    if weight.ndim != 2 or not weight.numel():
        return Support(False, f"weight of shape {tuple(weight.shape)}")
    if weight.shape[0] < FRACTAL_ROWS:
        return Support(False, f"{weight.shape[0]} output columns, fewer than {FRACTAL_ROWS}")
    return Support(True)


THREE_STAGE, FOUR_STAGE, TWO_STAGE = 0, 1, 2
_CACHE_BYTES: Final = 192 << 20
_ALPHA: Final = 2  # scores may fill one part in so many of the cache
_THREE_STAGE_MAX_KEYS: Final = 12224
_TWO_STAGE_GROUP: Final = 2
_SCORE_ALIGN: Final = 128
PARTIAL_TAIL: Final = 16
"""Floats of a partial row beyond its head_size values."""


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    """What a launch of `meta_attention` is fixed for; part of what a captured graph replays.

    Attributes:
        num_cores: cube cores, as in the task table.
        tile_rows: largest query tile of the table.
        max_keys: longest context of a row.
        decode_only: no row has more than one query.
        splits: tables may split the keys of a tile.
    """

    num_cores: int
    tile_rows: int
    max_keys: int
    decode_only: bool
    splits: bool

    def form(self, group_size: int) -> int:
        """The pipeline; the rule of csrc/ascendc/host/meta_attention.cc with its numbers.

        Two stages where the vector cores keep up with the cube cores, three where the scores of
        whole rows stay in the cache, else four.
        """
        if self.decode_only and group_size <= _TWO_STAGE_GROUP:
            return TWO_STAGE
        keys = -(-self.max_keys // _SCORE_ALIGN) * _SCORE_ALIGN
        scores = self.num_cores * 2 * self.tile_rows * keys * 4
        fits = self.max_keys <= _THREE_STAGE_MAX_KEYS and _ALPHA * scores < _CACHE_BYTES
        return THREE_STAGE if fits and not self.splits else FOUR_STAGE


def meta_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    table: torch.Tensor,
    partials: torch.Tensor,
    launch: AttentionLaunch,
    scale: float,
    softcap: float = 0.0,
) -> None:
    """Attention of every row's new tokens over its own pages, as the task table says.

    Arguments of a launch are constant between replays of a graph: sizes below are capacities, and
    what a step holds is read from ``table`` in device memory.

    Args:
        out, query: ``[num_tokens, num_heads, head_size]``; only the rows' tokens are written.
        key_cache, value_cache: ``[num_blocks, 128, num_kv_heads, head_size]``, as vllm-ascend has
            them; this step's keys and values are in them already.
        block_table: ``[max_rows, max_blocks]`` int32.
        seq_lens: ``[max_rows]`` int32, tokens of a row with this step's.
        table: ``[capacity]`` uint8 that begins with a completed task table; it has the places of
            the rows' queries.
        partials: fp32, ``head_size + 16`` for each partial row of the table at most.
        launch: what the launch is fixed for.
        scale: factor on the scores.
        softcap: 0 for none.
    """
    _count("meta_attention")
    form = launch.form(query.shape[1] // key_cache.shape[2])
    num_bytes = _op("meta_attention_workspace")(
        query, key_cache, form, launch.num_cores, launch.max_keys, launch.tile_rows
    )
    # From a graph's own pool while it is captured, so that replays find it in place.
    workspace = torch.empty(num_bytes, dtype=torch.uint8, device=query.device)
    _op("meta_attention")(
        out,
        query,
        key_cache,
        value_cache,
        block_table,
        seq_lens,
        table,
        workspace,
        partials,
        None,
        None,
        form,
        launch.num_cores,
        launch.max_keys,
        launch.tile_rows,
        launch.decode_only,
        launch.splits,
        scale,
        softcap,
    )


def takes_nz(weight: torch.Tensor) -> bool:
    """Whether a weight ``[N, K]`` is whole fractals, so that its NZ storage has no padding."""
    block = 32 if weight.dtype == torch.int8 else 16
    return weight.shape[0] % FRACTAL_ROWS == 0 and weight.shape[1] % block == 0


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``.

    Args:
        x: ``[..., K]`` fp16 or bf16.
        weight: ``[N, K]`` of the same dtype, in fractal NZ storage where `takes_nz`, else in rows.
        bias: ``[N]`` fp32 or None.

    Returns:
        ``[..., N]``, dtype of ``x``.
    """
    _count("linear")
    out: torch.Tensor = _op("smooth_gemm")(
        x.contiguous(), weight, bias, weight.shape[0], takes_nz(weight), None, []
    )
    return out


def linear_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    row_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``(x @ weight.T) * scale * row_scale + bias``, exact up to the scaling.

    Args:
        x: ``[..., K]`` int8.
        weight: ``[N, K]`` int8, stored as for `linear`.
        scale: ``[N]`` fp32.
        row_scale: fp32, one a row of ``x``, or None for 1: a static scale is in ``scale``.
        bias: ``[N]`` fp32 or None.
        dtype: of the result, fp16 or bf16.

    Returns:
        ``[..., N]``.
    """
    _count("linear_int8")
    out: torch.Tensor = _op("smooth_gemm_int8")(
        x.contiguous(),
        weight,
        scale,
        row_scale,
        bias,
        dtype,
        weight.shape[0],
        takes_nz(weight),
        None,
        [],
    )
    return out


def grouped_linear(x: torch.Tensor, weight: torch.Tensor, group_ends: torch.Tensor) -> torch.Tensor:
    """Rows up to ``group_ends[0]`` times the first weight, from there the second, and so on.

    Args:
        x: ``[M, K]`` fp16 or bf16.
        weight: ``[groups, N, K]`` of the same dtype, in rows.
        group_ends: ``[groups]`` int64 on the device, rising; rows behind the last are not written.

    Returns:
        ``[M, N]``, dtype of ``x``.
    """
    _count("grouped_linear")
    out: torch.Tensor = _op("smooth_gemm")(
        x.contiguous(), weight, None, weight.shape[1], False, group_ends, []
    )
    return out


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy whole blocks within a layer's caches, in one launch.

    Args:
        key_cache, value_cache: ``[num_blocks, block_size, num_kv_heads, head_size]``, written.
        pairs: ``[num_copies, 2]`` int64 on the device: source and target; no target is a source.
    """
    _count("copy_blocks")
    _op("copy_blocks")(key_cache, value_cache, pairs)


def _count(name: str) -> None:
    # Not while compiling: a counter would break the graph or become a guard.
    if not torch.compiler.is_compiling():
        calls[name] += 1


def _op(name: str) -> Any:
    if not has(name):
        found = status()
        raise RuntimeError(
            f"torch.ops.{NAMESPACE}.{name} is missing: "
            f"{found.reason or 'the library is not loaded'}; {found.mend or f'build it: {BUILD}'}"
        )
    return getattr(getattr(torch.ops, NAMESPACE), name)

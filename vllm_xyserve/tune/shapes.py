"""The linear layers of a model, from its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_DTYPES: Final = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "float": "f32",
}
_VOCABULARY_PADDING: Final = 64  # vLLM rounds the rows of an output layer up to it
_HEAD_MAX_ROWS: Final = 256  # an output layer sees one row per request, not a prompt's


class ShapeError(ValueError):
    """The layers of a model cannot be told; the message says why."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A weight ``[n, k]`` as a worker holds it, and the most rows that are worth tuning for."""

    name: str
    n: int
    k: int
    max_rows: int = 2048


def read_config(model: str) -> dict[str, Any]:
    """config.json of a folder, of a file, or of a model on the Hugging Face hub."""
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file():
        path = _from_hub(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ShapeError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ShapeError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ShapeError(f"{path} must hold an object, it holds a {type(config).__name__}")
    return config


def _from_hub(model: str) -> Path:
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ShapeError(f"{model} is neither a folder with a config.json nor a hub's OWNER/NAME")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ShapeError(
            f"{model} is no folder, and huggingface_hub is not installed to fetch it"
        ) from error
    try:
        return Path(hf_hub_download(model, "config.json"))
    except Exception as error:  # offline, unknown, gated: the hub's own classes differ by version
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ShapeError(f"config.json of {model} cannot be fetched: {lines[0]}") from error


def dtype_of(config: Mapping[str, Any]) -> str:
    """The dtype that a model is stored in, in the registry's names."""
    text = _text_config(config)
    name = text.get("dtype") or text.get("torch_dtype") or config.get("dtype")
    name = name or config.get("torch_dtype") or "bfloat16"
    if name not in _DTYPES:
        raise ShapeError(f"dtype {name!r} has no kernel; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]


def layers(config: Mapping[str, Any], tensor_parallel: int = 1) -> list[Layer]:
    """Distinct layers of a decoder with (grouped) attention and a gated MLP, per worker.

    ShapeError names what the configuration lacks. Experts of a mixture run vLLM's kernels and are
    left out; its gate and shared experts are there.
    """
    if config.get("quantization_config"):
        raise ShapeError("the model is quantised: only fp32, bf16 and fp16 layers can be tuned")
    text = _text_config(config)
    hidden = _number(text, "hidden_size", "n_embd")
    heads = _number(text, "num_attention_heads", "n_head")
    kv_heads = text.get("num_key_value_heads") or heads
    head_dim = text.get("head_dim") or hidden // heads
    tp = tensor_parallel
    if heads % tp:
        raise ShapeError(f"{heads} heads cannot be dealt to {tp} workers")
    query = heads // tp * head_dim
    key_value = max(1, kv_heads // tp) * head_dim
    found = [Layer("qkv", query + 2 * key_value, hidden), Layer("o", hidden, query)]
    found += _mlp(text, hidden, tp)
    vocabulary = _number(text, "vocab_size")
    padded = -(-vocabulary // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    found.append(Layer("output", -(-padded // tp), hidden, _HEAD_MAX_ROWS))
    distinct: dict[tuple[int, int], Layer] = {}
    for layer in found:
        distinct.setdefault((layer.n, layer.k), layer)
    return list(distinct.values())


def _mlp(text: Mapping[str, Any], hidden: int, tp: int) -> list[Layer]:
    experts = (
        text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts")
    )
    if experts:
        found = [Layer("gate", int(experts), hidden)]
        inner = text.get("shared_expert_intermediate_size") or 0
        if not inner:
            return found
    else:
        found = []
        inner = _number(text, "intermediate_size", "n_inner")
    if inner % tp:
        raise ShapeError(f"an MLP of {inner} columns cannot be dealt to {tp} workers")
    inner //= tp
    return [*found, Layer("gate_up", 2 * inner, hidden), Layer("down", hidden, inner)]


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a multimodal configuration."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ShapeError(f"config.json requires a number above 0 for {' or '.join(names)}")

"""Layer shapes from a model's config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_xyserve.tune import shapes

LLAMA: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49150,
    "dtype": "bfloat16",
}


def dims(config: dict[str, Any], tp: int = 1) -> dict[str, tuple[int, int]]:
    return {layer.name: (layer.n, layer.k) for layer in shapes.layers(config, tp)}


def test_decoder() -> None:
    assert dims(LLAMA) == {
        "qkv": (960, 576),
        "o": (576, 576),
        "gate_up": (3072, 576),
        "down": (576, 1536),
        "output": (49152, 576),  # rounded up to 64
    }
    assert dims({**LLAMA, "head_dim": 128, "num_key_value_heads": None})["qkv"] == (3456, 576)


def test_tensor_parallel() -> None:
    found = dims(LLAMA, 3)
    assert found["qkv"] == (320, 576)
    assert found["o"] == (576, 192)
    assert found["gate_up"] == (1024, 576)
    assert found["output"] == (16384, 576)
    # more workers than key-value heads: each has a copy of one
    assert dims({**LLAMA, "num_key_value_heads": 1}, 3)["qkv"] == (320, 576)
    with pytest.raises(shapes.ShapeError, match="9 heads cannot be dealt to 2"):
        dims(LLAMA, 2)


def test_mixture_and_multimodal() -> None:
    config = {"text_config": {**LLAMA, "num_experts": 60}, "dtype": "float16"}
    found = dims(config)
    assert found["gate"] == (60, 576)
    assert "down" not in found
    assert shapes.dtype_of({"text_config": {}, "torch_dtype": "float16"}) == "f16"
    shared = dims({**LLAMA, "num_experts": 4, "shared_expert_intermediate_size": 96})
    assert shared["down"] == (576, 96)


def test_equal_shapes_are_tuned_once() -> None:
    square = {**LLAMA, "num_attention_heads": 9, "vocab_size": 960}
    assert list(dims(square)) == ["qkv", "o", "gate_up", "down"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "number above 0 for hidden_size or n_embd"),
        ({"intermediate_size": "x"}, "intermediate_size or n_inner"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"quantization_config": {"quant_method": "awq"}}, "the model is quantised"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(shapes.ShapeError, match=message):
        shapes.layers({**LLAMA, **changes})


def test_dtypes() -> None:
    assert shapes.dtype_of(LLAMA) == "bf16"
    assert shapes.dtype_of({"torch_dtype": "float32"}) == "f32"
    assert shapes.dtype_of({}) == "bf16"
    with pytest.raises(shapes.ShapeError, match="dtype 'float8' has no kernel"):
        shapes.dtype_of({"dtype": "float8"})


def test_where_a_config_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert shapes.read_config(str(tmp_path)) == LLAMA
    assert shapes.read_config(str(path)) == LLAMA
    path.write_text("[1]")
    with pytest.raises(shapes.ShapeError, match="must hold an object, it holds a list"):
        shapes.read_config(str(path))
    path.write_text("{")
    with pytest.raises(shapes.ShapeError, match="is no JSON"):
        shapes.read_config(str(path))
    path.unlink()
    with pytest.raises(shapes.ShapeError, match=r"config\.json cannot be read"):
        shapes.read_config(str(tmp_path))
    with pytest.raises(shapes.ShapeError, match="neither a folder"):
        shapes.read_config("no-such-model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(shapes.ShapeError, match="nobody/nothing"):
        shapes.read_config("nobody/nothing")

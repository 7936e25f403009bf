"""compressed-tensors W8A8 int8 models: the tokens of a plain fp32 twin, scheme by scheme."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.engine import features
from tests.engine.linear_engines import NUM_TOKENS, SCHEMES, checkpoint
from tests.helpers.engine import Run

OURS = "SmoothGemmInt8Linear[native]"
# An activation that lies between two integers may be rounded either way, in fp32 in another order.
LEAST_GAP = 0.02


@pytest.fixture(scope="module")
def native(linear_child: Future[Run]) -> Run:
    return linear_child.result()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tokens_of_the_twin(scheme: str, native: Run, made: features.Models, folder: Path) -> None:
    got = [answer["outputs"][0]["tokens"] for answer in native[scheme, "greedy"]]
    twin, gaps = twin_answers(made.llama, checkpoint(folder / "int8", scheme))
    assert got == twin
    assert min(gaps) > LEAST_GAP, "a near tie: equal tokens say little about these"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_ran(scheme: str, native: Run) -> None:
    """Four int8 products per layer; the tied table stays in floating point."""
    report = native[scheme, "report"]
    ours = scheme != "dynamic-asymmetric"
    expected = {OURS: 8} if ours else {"upstream": 8}
    assert report["linear"] == {**expected, "SmoothGemmLinear[native]": 2}
    ran = sum(calls for name, calls in report["kernels"].items() if "int8" in name)
    assert ran == 0 if not ours else ran >= 8 * NUM_TOKENS


def test_a_refused_scheme_says_so(native: Run) -> None:
    lines = native.log_lines("int8 layer stays with vLLM", "dynamic-asymmetric")
    assert len(lines) == 1, lines
    assert "zero points per token" in lines[0]
    assert native.log_lines("int8 layer stays with vLLM", "dynamic") == []


def twin_answers(source: Path, rounded: Path) -> tuple[list[list[int]], list[float]]:
    """Greedy tokens in plain fp32 with activations rounded as the checkpoint says, and the gaps
    between the best two logits at each.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tensors = load_file(rounded / "model.safetensors")
    scheme = json.loads((rounded / "config.json").read_text())["quantization_config"]
    symmetric = scheme["config_groups"]["group_0"]["input_activations"]["symmetric"]
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    for name, module in model.named_modules():
        if f"{name}.weight_scale" in tensors:
            module.weight.data = tensors[f"{name}.weight"] * tensors[f"{name}.weight_scale"]
            scale = tensors.get(f"{name}.input_scale")
            zero = tensors.get(f"{name}.input_zero_point")
            module.register_forward_pre_hook(rounding(scale, zero, symmetric))
    tokenizer = AutoTokenizer.from_pretrained(rounded)
    answers, gaps = [], []
    for prompt in features.PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(
            ids,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=None,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        answers.append(out.sequences[0, ids.shape[1] :].tolist())
        best = torch.cat(out.logits).topk(2).values
        gaps += (best[:, 0] - best[:, 1]).tolist()
    return answers, gaps


def rounding(scale: Any, zero: Any, symmetric: bool) -> Any:
    """A hook that rounds a layer's input to int8 and back: one scale given, or one per token."""

    def hook(_: Any, inputs: Any) -> Any:
        x = inputs[0]
        step, shift = scale, 0 if zero is None else zero.float()
        if scale is None and symmetric:
            step = x.abs().amax(-1, keepdim=True) / 127
        elif scale is None:
            low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
            step = (high - low) / 255
            shift = (-128 - low / step).round()
        return (((x / step).round() + shift).clamp(-128, 127) - shift) * step

    return hook

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
# An activation halfway between two integers may be rounded either way when sums come in another
# order: about 1 part in 250 of one of 64 to 160 inputs, in logits of order 5.
LEAST_GAP = 0.02


@pytest.fixture(scope="module")
def native(linear_child: Future[Run]) -> Run:
    return linear_child.result()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tokens_of_the_twin(scheme: str, native: Run, made: features.Models, folder: Path) -> None:
    got = [answer["outputs"][0]["tokens"] for answer in native[scheme, "greedy"]]
    twin, gaps = twin_answers(made.llama, checkpoint(folder / "int8", scheme))
    compared = 0
    for mine, wanted, margins in zip(got, twin, gaps, strict=True):
        for token, want, margin in zip(mine, wanted, margins, strict=True):
            if token != want:
                assert margin < LEAST_GAP, f"{mine}, twin {wanted}"
                break  # what follows answers another question
            compared += 1
    assert compared >= 0.75 * NUM_TOKENS * len(features.PROMPTS), "too many near ties"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_ran(scheme: str, native: Run) -> None:
    """Four int8 products per layer; the tied table stays in floating point."""
    report = native[scheme, "report"]
    assert report["linear"] == {OURS: 8, "SmoothGemmLinear[native]": 2}
    ran = sum(n for name, n in report["kernels"].items() if name.startswith("linear_int8_f32"))
    assert ran >= 8 * NUM_TOKENS, report["kernels"]


def twin_answers(source: Path, rounded: Path) -> tuple[list[list[int]], list[list[float]]]:
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
        gaps.append((best[:, 0] - best[:, 1]).tolist())
    return answers, gaps


def rounding(scale: Any, zero: Any, symmetric: bool) -> Any:
    """A hook that rounds a layer's input to int8 and back: one scale given, or one per token."""

    def hook(_: Any, inputs: Any) -> Any:
        x = inputs[0]
        step, shift = scale, 0 if zero is None else zero.float()
        if scale is None and symmetric:
            step = x.abs().amax(-1, keepdim=True) / 127
        elif scale is None:
            low = x.amin(-1, keepdim=True).clamp(max=0)
            high = x.amax(-1, keepdim=True).clamp(min=0)
            step = (high - low) / 255
            shift = (-128 - low / step).round()
        return (((x / step).round() + shift).clamp(-128, 127) - shift) * step

    return hook

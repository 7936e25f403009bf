"""Convert the GGUF file of SmolLM2-135M-Instruct to a checkpoint that vLLM loads.

`python -m deploy.convert_gguf FILE.gguf FOLDER`, with gguf and accelerate importable. The
published checkpoint is in bf16, so this one is too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerBase

# Of the model card: the ids that chat templates and stopping rest on.
SPECIAL_IDS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
QUESTION = "What is the capital of France?"


def convert(gguf: Path, folder: Path) -> None:
    """Write model, generation defaults, tokenizer and chat template to folder, and try them.

    Raises ValueError if the tokenizer or an answer is not what the published model gives.
    """
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file names its pre-tokenizer ("smollm": every digit by itself, then GPT-2's split), which
    # transformers drops: "  2024" would come out in other tokens than those of the training.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes 0600; a cache may be shared
    check(folder)


def check(folder: Path) -> None:
    """Load what was written and compare token ids and one answer with what must come out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_tokenizer(tokenizer)
    # Any: the class that is annotated has a generate() whose own annotations reject it.
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    if model.dtype != torch.bfloat16:
        raise ValueError(f"the checkpoint should load as bfloat16, it loads as {model.dtype}")
    stops = model.generation_config.eos_token_id
    if stops != SPECIAL_IDS["<|im_end|>"]:
        raise ValueError(f"generation should stop at <|im_end|> (2), it stops at {stops}")
    inputs = tokenizer(chat_prompt(tokenizer, QUESTION), return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0]
    answer = str(tokenizer.decode(output[inputs["input_ids"].shape[1] :]))
    if "Paris" not in answer or not answer.endswith("<|im_end|>"):
        raise ValueError(f"{QUESTION!r} should be answered with Paris and an end, got {answer!r}")


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Compare special tokens, absence of a BOS token, digit splitting and the chat template."""
    for token, number in SPECIAL_IDS.items():
        ids = tokenizer(token).input_ids
        if ids != [number]:
            raise ValueError(f"{token} should be the single id {number} without BOS, got {ids}")
    if tokenizer.eos_token_id != SPECIAL_IDS["<|im_end|>"]:
        raise ValueError(f"the end token should be <|im_end|> (2), got {tokenizer.eos_token_id}")
    pieces = tokenizer.tokenize("  2024")
    if pieces != ["ĠĠ", "2", "0", "2", "4"]:
        raise ValueError(f"digits should be split one by one, got {pieces}")
    text = chat_prompt(tokenizer, "Hi")
    wanted_start, wanted_end = "<|im_start|>system\n", "<|im_start|>user\nHi<|im_end|>\n"
    wanted_end += "<|im_start|>assistant\n"
    if not (text.startswith(wanted_start) and text.endswith(wanted_end)):
        raise ValueError(f"the chat template gives an unexpected prompt: {text!r}")


def chat_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return the prompt that the chat template makes of one user message."""
    chat = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


if __name__ == "__main__":
    # Two threads of OpenMP wait for each other at every operation: on a busy machine the one answer
    # of the check took minutes with two, seconds with one.
    torch.set_num_threads(1)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

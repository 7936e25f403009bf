"""Answer a batch of prompts with vLLM's offline `LLM` class on the xyserve platform.

python examples/offline_batch.py --model FOLDER_OR_HUB_ID
"""

from __future__ import annotations

import argparse
import os
import time

PROMPTS = (
    "Name three primary colours.",
    "What is the boiling point of water at sea level?",
    "Write one sentence about the sea.",
    "Translate 'good morning' into French.",
    "What does a compiler do?",
    "Give a synonym for 'quick'.",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a model, or a hub id")
    parser.add_argument("--max-tokens", type=int, default=48, help="at most this many per answer")
    parser.add_argument("--repeat", type=int, default=2, help="how often to send each prompt")
    options = parser.parse_args()

    # Read when vllm is imported, here and in the processes that it starts.
    os.environ["XYSERVE_PLATFORM"] = "1"
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    print(f"platform: {type(current_platform).__module__}.{type(current_platform).__qualname__}")
    llm = LLM(options.model, max_model_len=2048, kv_cache_memory_bytes=2**29, enforce_eager=True)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS * options.repeat]
    sampling = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    started = time.perf_counter()
    answers = llm.chat(chats, sampling)
    seconds = time.perf_counter() - started

    for prompt, answer in zip(PROMPTS, answers, strict=False):
        print(f"\n> {prompt}\n{answer.outputs[0].text.strip()}")
    tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    print(
        f"\n{len(chats)} chats, {tokens} tokens in {seconds:.1f} s: {tokens / seconds:.0f} token/s"
    )


if __name__ == "__main__":
    main()

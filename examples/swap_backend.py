"""Swap the backend of an existing deployment, and check that the answers stay the same.

    python examples/swap_backend.py --model FOLDER_OR_HUB_ID

Runs the same prompts, greedy and in float32, first on stock vLLM and then on the xyserve platform.
The two runs differ in one environment variable. Ends with exit code 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "Water boils at",
    "The three laws of robotics are: 1.",
    "In the year 1969, the first",
)


@dataclass(frozen=True)
class Run:
    """What one engine answered, and on which platform class."""

    platform: str
    texts: list[str]
    token_ids: list[list[int]]


def generate(model: str, max_tokens: int) -> Run:
    """Answer PROMPTS in this process, on whichever platform the environment chooses."""
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    llm = LLM(
        model,
        dtype="float32",
        max_model_len=1024,
        kv_cache_memory_bytes=2**29,
        enforce_eager=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    outputs = [answer.outputs[0] for answer in llm.generate(list(PROMPTS), sampling)]
    kind = type(current_platform)
    return Run(
        platform=f"{kind.__module__}.{kind.__qualname__}",
        texts=[output.text for output in outputs],
        token_ids=[list(output.token_ids) for output in outputs],
    )


def run_child(options: argparse.Namespace, xyserve: bool) -> Run:
    """Run generate in a process of its own: vLLM chooses its platform once per process."""
    environment = {**os.environ, "XYSERVE_PLATFORM": "1" if xyserve else "0"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "run.json")
        command = [sys.executable, __file__, "--model", options.model, "--child", str(result)]
        command += ["--max-tokens", str(options.max_tokens)]
        pipe = None if options.verbose else subprocess.PIPE
        done = subprocess.run(
            command, env=environment, stdout=pipe, stderr=pipe and subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{(done.stdout or '')[-3000:]}\nthe engine failed, see above")
        return Run(**json.loads(result.read_text()))


def compare(before: Run, after: Run) -> bool:
    """Print each prompt with its answer, or both answers where they differ; return equality."""
    same = True
    for i, prompt in enumerate(PROMPTS):
        equal = before.token_ids[i] == after.token_ids[i]
        same &= equal
        print(f"\n> {prompt}")
        if equal:
            print(f"  both:   {before.texts[i]!r}")
        else:
            print(f"  before: {before.texts[i]!r}\n  after:  {after.texts[i]!r}")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a model, or a hub id")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--verbose", action="store_true", help="show the engines' logs")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.child.write_text(json.dumps(asdict(generate(options.model, options.max_tokens))))
        return 0

    print("before: stock vLLM ...", flush=True)
    before = run_child(options, xyserve=False)
    print("after:  xyserve ...", flush=True)
    after = run_child(options, xyserve=True)
    print(f"\nbefore: {before.platform}\nafter:  {after.platform}")
    if "xyserve" not in after.platform or "xyserve" in before.platform:
        sys.exit("the two runs should be on the stock and on the xyserve platform; they were not")
    same = compare(before, after)
    print("\nall answers are equal" if same else "\nANSWERS DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

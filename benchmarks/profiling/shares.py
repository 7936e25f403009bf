"""From sampled stacks to shares of a step.

A step on the CPU is a chain through processes: the engine core schedules and sends the step to the
worker, which computes while the engine core waits. So the wall time of a step is the worker's busy
time, and what the worker waits for: the engine core's own work, and the rest, in which nobody of
the two works. A sample belongs to the innermost frame that a rule knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Frame = tuple[str, str]  # function, file


@dataclass(frozen=True, slots=True)
class Stack:
    """A sampled stack of a thread, outermost frame first, and how many seconds it stands for."""

    process: int
    thread: str
    frames: tuple[Frame, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Rule:
    """Frames whose file and function match belong to a category (regular expressions)."""

    category: str
    file: str
    function: str = ""

    def matches(self, frame: Frame) -> bool:
        """Whether a frame belongs to it."""
        function, file = frame
        return bool(re.search(self.file, file)) and bool(re.search(self.function, function))


# The main loops of the worker and of the engine core.
LOOPS = ("worker_busy_loop", "run_busy_loop")
WAITING = "waiting"
# A reader of vLLM's message queue polls: it spins through these while there is nothing to read.
_READING = r"^(acquire_read|dequeue|wait|recv|check|should_warn|timeout_ms|memory_fence)$"
# The order counts where several rules know a frame.
WORKER_RULES = (
    Rule(WAITING, r"shm_broadcast\.py$", _READING),
    Rule("messages between processes", r"(shm_broadcast|serial_utils)\.py$"),
    Rule("messages between processes", r"multiproc_executor\.py$", r"output|response"),
    Rule("KV write", r"", r"kv_cache_update|reshape_and_cache|kv_write|write_kv"),
    Rule("attention metadata", r"", r"_build_attention_metadata|build_attn"),
    Rule("attention metadata", r"vllm_xyserve/attention/(builder|plans|inbox|complete)"),
    Rule("attention metadata", r"cpu_attn\.py$", r"^build"),
    Rule("attention", r"(cpu_attn|attention/attention|attention/impl)\.py$"),
    Rule("attention", r"vllm_xyserve/attention/"),
    Rule("linear", r"(layers/linear|layers/utils|kernels/linear/.*)\.py$"),
    Rule("linear", r"vllm_xyserve/linear/"),
    Rule("norm, rotary, activation", r"(layernorm|rotary_embedding/.*|activation)\.py$"),
    Rule("sampler", r"v1/(sample/|worker/.*sampl)"),
    Rule("sampler", r"gpu_model_runner\.py$", r"^_sample$"),
    Rule("output bookkeeping", r"gpu_model_runner\.py$", r"_bookkeeping|sample_tokens|get_output"),
    Rule(
        "input preparation",
        r"",
        r"_prepare_input|_update_states|_preprocess|_get_slot_map|_determine_batch",
    ),
    Rule("input preparation", r"v1/worker/(gpu_input_batch|block_table|cpu_input_batch)"),
    Rule("input preparation", r"vllm_xyserve/worker/"),
    Rule("layers' Python between kernels", r"models/"),
)
# A linear layer like others, but a fifth of a small model's weights: known by who calls it.
OUTPUT_HEAD = Rule("linear: output head", r"layers/logits_processor\.py$")
ENGINE_RULES = (
    Rule(WAITING, r"shm_broadcast\.py$", _READING),
    Rule(WAITING, r"multiproc_executor\.py$", r"get_response|result|wait"),
    Rule(WAITING, r"(concurrent/futures|threading|queue|selectors)", r"wait|result|^get$|select"),
    Rule("messages between processes", r"(shm_broadcast|multiproc_executor|serial_utils)\.py$"),
    Rule("messages between processes", r"(zmq/|msgspec|pickle|multiprocessing/)"),
    Rule("messages between processes", r"", r"process_(input|output)_(sockets|queue)"),
    Rule("scheduler", r"v1/core/|vllm_xyserve/(scheduler|prefix|plan)"),
    Rule("scheduler", r"v1/structured_output"),
)
OTHER = "everything else"
NOBODY = "idle: neither engine core nor worker works"


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a step's wall time, by category; they add up to 1.

    samples_s: how many seconds of the worker were sampled.
    """

    parts: Mapping[str, float]
    samples_s: float

    def largest(self, count: int) -> list[tuple[str, float]]:
        """The largest parts, the largest first."""
        ordered = sorted(self.parts.items(), key=lambda part: -part[1])
        return ordered[:count]


def category(frames: Sequence[Frame], rules: Sequence[Rule]) -> str:
    """Of the innermost frame that a rule knows; `OTHER` if none does."""
    if any(map(OUTPUT_HEAD.matches, frames)):
        return OUTPUT_HEAD.category
    for frame in reversed(frames):
        for rule in rules:
            if rule.matches(frame):
                return rule.category
    return OTHER


def totals(stacks: Iterable[Stack], rules: Sequence[Rule]) -> dict[str, float]:
    """Seconds per category."""
    found: dict[str, float] = {}
    for stack in stacks:
        name = category(stack.frames, rules)
        found[name] = found.get(name, 0.0) + stack.seconds
    return found


def roles(stacks: Iterable[Stack]) -> dict[str, list[Stack]]:
    """Stacks of the worker's and of the engine core's main loops.

    Raises:
        ValueError: one of the two is not among them.
    """
    found: dict[str, list[Stack]] = {"worker": [], "engine": []}
    for stack in stacks:
        functions = {function for function, _ in stack.frames}
        if LOOPS[0] in functions:
            found["worker"].append(stack)
        elif LOOPS[1] in functions:
            found["engine"].append(stack)
    missing = [name for name, taken in found.items() if not taken]
    if missing:
        raise ValueError(f"no sample of {' and '.join(missing)}: is this a vLLM server at work?")
    return found


def of_step(stacks: Iterable[Stack]) -> Shares:
    """Shares of the wall time of the steps during which the stacks were sampled.

    Raises:
        ValueError: worker or engine core is not among them.
    """
    found = roles(stacks)
    worker = totals(found["worker"], WORKER_RULES)
    engine = totals(found["engine"], ENGINE_RULES)
    wall, engine_wall = sum(worker.values()), sum(engine.values())
    waiting = worker.pop(WAITING, 0.0) / wall
    parts = {name: seconds / wall for name, seconds in worker.items()}
    engine.pop(WAITING, None)
    busy = sum(engine.values()) / engine_wall
    # What the engine core does while the worker computes costs no time of the step. Which part of
    # its work that is cannot be seen from samples: all of it alike.
    factor = min(1.0, waiting / busy) if busy else 0.0
    for name, seconds in engine.items():
        key = "engine core, everything else" if name == OTHER else name
        parts[key] = parts.get(key, 0.0) + factor * seconds / engine_wall
    parts[NOBODY] = max(0.0, waiting - factor * busy)
    return Shares(parts, wall)

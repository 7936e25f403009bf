"""Drives one server with one workload, through the request function of ``vllm bench serve``.

A session's requests follow one another. In a closed loop a fixed number of users each take the next
session when they are done with one; at a rate sessions come at the workload's arrival times whether
earlier ones are answered or not. Answers have exactly the tokens that the workload asks for
(``ignore_eos``), greedily.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.prefix_workloads import Session
from benchmarks.serving.servers import MODEL_NAME
from benchmarks.serving.workloads import Traffic


class RequestFailed(RuntimeError):
    """A request was refused or broke off: the cell would measure something else."""


@dataclass(frozen=True, slots=True)
class Load:
    """How hard a workload is driven: ``num_users`` in a closed loop, or sessions per second."""

    num_users: int | None = None
    sessions_per_s: float | None = None

    def __post_init__(self) -> None:
        if (self.num_users is None) == (self.sessions_per_s is None):
            raise ValueError(f"either num_users or sessions_per_s, got {self}")

    @property
    def name(self) -> str:
        return f"closed-{self.num_users}" if self.num_users else f"rate-{self.sessions_per_s:.3g}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request; times in seconds.

    start: since the cell began. late: by how much it was sent after it was due (rates). gaps:
    between the messages of the stream; under load a message can hold more than one token.
    """

    session: int
    turn: int
    prompt_len: int
    num_generated: int
    start: float
    ttft: float
    gaps: tuple[float, ...]
    latency: float
    late: float = 0.0


class Client:
    """Sends the requests. tokenizer_file: turns answers into the next turn's prompt."""

    def __init__(self, url: str, tokenizer_file: Path) -> None:
        from tokenizers import Tokenizer
        from vllm.benchmarks.lib import endpoint_request_func

        self._vllm = endpoint_request_func
        self._url = f"{url}/v1/completions"
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def run(self, traffic: Traffic, load: Load, deadline_s: float) -> tuple[list[Sample], float]:
        """All requests of a workload.

        Returns:
            The samples, and the seconds from the first request to the last answer.

        Raises:
            RequestFailed: a request failed, or the deadline passed.
        """
        return asyncio.run(self._run(traffic, load, deadline_s))

    async def _run(
        self, traffic: Traffic, load: Load, deadline_s: float
    ) -> tuple[list[Sample], float]:
        import aiohttp

        samples: list[Sample] = []
        # As vLLM's client: one connection per request in flight, reused, no proxy.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, force_close=False)
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            began = time.perf_counter()
            if load.num_users:
                queue = iter(enumerate(traffic.sessions))
                jobs = [self._user(http, queue, began, samples) for _ in range(load.num_users)]
            else:
                gap = 1 / (load.sessions_per_s or 1)
                jobs = [
                    self._session(http, number, session, began, samples, arrival * gap)
                    for number, (session, arrival) in enumerate(
                        zip(traffic.sessions, traffic.arrivals, strict=True)
                    )
                ]
            await _all(jobs, deadline_s)
            return samples, time.perf_counter() - began

    async def _user(
        self,
        http: Any,
        queue: Iterator[tuple[int, Session]],
        began: float,
        samples: list[Sample],
    ) -> None:
        for number, session in queue:
            await self._session(http, number, session, began, samples)

    async def _session(
        self,
        http: Any,
        number: int,
        session: Session,
        began: float,
        samples: list[Sample],
        due: float | None = None,
    ) -> None:
        if due is not None:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        prompt: list[int] = []
        for turn_number, turn in enumerate(session.turns):
            prompt += turn.tokens
            output = await self._request(http, prompt, turn.num_generated)
            start = output.start_time - began
            late = start - due if due is not None and turn_number == 0 else 0.0
            samples.append(
                Sample(
                    number,
                    turn_number,
                    len(prompt),
                    turn.num_generated,
                    start,
                    output.ttft,
                    tuple(output.itl),
                    output.latency,
                    late,
                )
            )
            if turn_number + 1 < len(session.turns):
                prompt += self.answer_tokens(
                    output.generated_text, turn.num_generated, session.turns[turn_number + 1].tokens
                )

    async def _request(self, http: Any, prompt: Sequence[int], num_generated: int) -> Any:
        output = await self._vllm.async_request_openai_completions(
            self._vllm.RequestFuncInput(
                prompt=list(prompt),
                api_url=self._url,
                prompt_len=len(prompt),
                output_len=num_generated,
                model=MODEL_NAME,
                ignore_eos=True,
                extra_body={"temperature": 0},
            ),
            http,
        )
        if not output.success or output.output_tokens != num_generated:
            raise RequestFailed(
                f"asked for {num_generated} tokens after {len(prompt)}, got "
                f"{output.output_tokens}: {output.error or 'no error'}"
            )
        return output

    def answer_tokens(self, text: str, length: int, filler: Sequence[int]) -> list[int]:
        """The tokens of an answer as a chat client sends them back, exactly ``length`` of them.

        A text that went through the tokenizer twice can have other tokens than were generated; so
        that lengths are the same on all servers, too long ones are cut and too short ones get
        tokens of the next question.
        """
        tokens = list(self._tokenizer.encode(text, add_special_tokens=False).ids)[:length]
        while len(tokens) < length:
            tokens += filler[: length - len(tokens)]
        return tokens


async def _all(jobs: Sequence[Coroutine[Any, Any, None]], deadline_s: float) -> None:
    """Run the jobs; the first that fails ends the others."""
    try:
        async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except TimeoutError as error:
        raise RequestFailed(f"not done after {deadline_s:.0f} s") from error
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None

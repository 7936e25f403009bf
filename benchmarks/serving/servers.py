"""The servers that are compared: what they are started with, and what they cost.

All get the same flags but for the platform and its options. A server runs alone: it is started,
measured and stopped before the next one begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy import server_log
from deploy.console import tail
from deploy.server_process import ServerProcess

MODEL_NAME = "model"
READY_S = 400.0
RESET_S = 30.0
_OTHERS = ("VLLM_", "XYSERVE_", "MAKE", "MFLAGS")
_NATIVE = {"attention": "native", "linear": "native"}


class ServerFailed(RuntimeError):
    """A server did not start, did not run what it should, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A server. options: of the plugin, below its key; None is stock vLLM."""

    name: str
    options: dict[str, Any] | None
    note: str


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("stock", None, "vLLM without the plugin's platform"),
        Variant("stock-again", None, "the same once more: the error of the harness"),
        Variant("xyserve", {}, "--platform xyserve as shipped"),
        Variant("native", _NATIVE, "attention and linear layers native"),
        Variant("no-scheduler", {**_NATIVE, "scheduler": False}, "native, vLLM's scheduler"),
        Variant("no-attention", {**_NATIVE, "attention": "upstream"}, "native, vLLM's attention"),
        Variant("no-linear", {**_NATIVE, "linear": "upstream"}, "native, vLLM's linear layers"),
    )
}
ABLATION = ("no-scheduler", "no-attention", "no-linear")


@dataclass(frozen=True, slots=True)
class Settings:
    """What all servers have in common.

    model: folder. vllm: the ``vllm`` command. arguments: more for ``vllm serve``. environ: more
    environment variables.
    """

    model: str
    dtype: str = "bfloat16"
    max_model_len: int = 8192
    kv_cache_bytes: int = 1 << 30
    eager: bool = True
    arguments: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    vllm: str = str(Path(sys.executable).parent / "vllm")

    def command(self, variant: Variant, port: int) -> list[str]:
        """The server's command."""
        command = [self.vllm, "serve", self.model, "--served-model-name", MODEL_NAME]
        if variant.options is not None:
            command += ["--platform", "xyserve"]
            if variant.options:
                command += ["--additional-config", json.dumps({"xyserve": variant.options})]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype]
        command += ["--max-model-len", str(self.max_model_len)]
        command += ["--kv-cache-memory-bytes", str(self.kv_cache_bytes)]
        command += ["--enforce-eager"] if self.eager else []
        return [*command, *self.arguments]

    def environment(self) -> dict[str, str]:
        """The server's environment: ours without what configures vLLM, the plugin or make."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OTHERS)}
        fixed = {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache: each cell begins with an empty one
            "VLLM_CPU_OMP_THREADS_BIND": "auto",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
        }
        return {**kept, **fixed, **dict(self.environ)}

    def described(self) -> dict[str, Any]:
        """For the report, as JSON."""
        fixed = {k: v for k, v in self.environment().items() if k.startswith("VLLM_")}
        return {**asdict(self), "arguments": list(self.arguments), "environ": fixed}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a server's processes have taken so far.

    cpu_s: processor time. peak_bytes: sum of each process's largest resident size; pages that
    processes share count for each.
    """

    cpu_s: float
    peak_bytes: int


@dataclass(slots=True)
class Server:
    """A server. began: monotonic time of its start.

    Filled in when it is ready: seconds until then, seconds until the log announced each phase, and
    the start-up line of the plugin.
    """

    variant: Variant
    url: str
    process: ServerProcess
    log: Path
    began: float
    startup_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    startup_line: str | None = None

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            ServerFailed: it does not, or runs on another platform than it should.
        """
        lines: list[str] = []
        with contextlib.closing(server_log.Follower(self.log)) as follower:
            while not self._answers():
                self._note(fresh := follower.lines())
                lines += fresh
                time.sleep(0.1)
            self._note(fresh := follower.lines())
            lines += fresh
        self.startup_s = time.monotonic() - self.began
        self.startup_line = server_log.startup_line(lines)
        if (self.startup_line is not None) != (self.variant.options is not None):
            raise ServerFailed(
                f"{self.variant.name}: the start-up line of xyserve is {self.startup_line!r}, "
                f"and its options are {self.variant.options}; see {self.log}"
            )

    def _answers(self) -> bool:
        code, elapsed = self.process.exit_code(), time.monotonic() - self.began
        if code is not None or elapsed > READY_S:
            what = f"not ready after {READY_S:.0f} s" if code is None else f"ended with {code}"
            raise ServerFailed(f"{self.variant.name}: {what}\n{tail(self.log, 40)}")
        with contextlib.suppress(OSError):
            _http(f"{self.url}/health", timeout=2)
            return True
        return False

    def _note(self, lines: list[str]) -> None:
        reached = max((server_log.phase_of(line) for line in lines), default=-1)
        if reached >= 0:
            name = server_log.PHASES[reached][1]
            self.phases.setdefault(name, round(time.monotonic() - self.began, 2))

    def cost(self) -> Cost:
        """Of all its processes, which are those of its session."""
        import psutil

        cpu_s, peak = 0.0, 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == self.process.pid:
                    times = process.cpu_times()
                    cpu_s += times.user + times.system
                    peak += _peak_bytes(process.pid)
        return Cost(cpu_s, peak)

    def counters(self) -> dict[str, float]:
        """Counters of ``/metrics``, summed over labels: prefix cache and preemptions."""
        return read_counters(_http(f"{self.url}/metrics").decode())

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache.

        Raises:
            ServerFailed: it stays in use, so requests still run.
        """
        deadline = time.monotonic() + RESET_S
        while not self._reset():
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.variant.name}: the prefix cache stays in use")
            time.sleep(0.1)

    def _reset(self) -> bool:
        # vLLM refuses while a request holds blocks, which it frees a step after its last token.
        answer = json.loads(_http(f"{self.url}/reset_prefix_cache", method="POST"))
        return bool(answer["success"])

    def ask(self, body: dict[str, Any]) -> Any:
        """One completion, without streaming."""
        data = json.dumps({"model": MODEL_NAME, **body}).encode()
        return json.loads(_http(f"{self.url}/v1/completions", data, "POST", timeout=300))


_COUNTERS = {
    "vllm:prefix_cache_queries_total": "prompt_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
    "vllm:num_preemptions_total": "preemptions",
}
_SUB_BLOCK = "xyserve_prefix_hit_tokens_total"


def read_counters(page: str) -> dict[str, float]:
    """The counters of a page of ``/metrics``.

    Raises:
        ServerFailed: one that vLLM always has is missing.
    """
    from prometheus_client.parser import text_string_to_metric_families

    found = {"sub_block_hit_tokens": 0.0}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in _COUNTERS:
                key = _COUNTERS[sample.name]
                found[key] = found.get(key, 0.0) + sample.value
            elif sample.name == _SUB_BLOCK and sample.labels.get("kind") == "sub_block":
                found["sub_block_hit_tokens"] += sample.value
    missing = set(_COUNTERS.values()) - set(found)
    if missing:
        raise ServerFailed(f"/metrics lacks {sorted(missing)}")
    return found


@contextlib.contextmanager
def started(variant: Variant, settings: Settings, log: Path) -> Iterator[Server]:
    """A server that begins to start; nothing of it is left after the context."""
    port = _free_port()
    began = time.monotonic()
    with ServerProcess(settings.command(variant, port), log, settings.environment()) as process:
        yield Server(variant, f"http://127.0.0.1:{port}", process, log, began)


@contextlib.contextmanager
def running(variant: Variant, settings: Settings, log: Path) -> Iterator[Server]:
    """A server that answers, for the length of the context.

    Raises:
        ServerFailed: it does not become ready, or runs on another platform than it should.
    """
    with started(variant, settings, log) as server:
        server.wait_ready()
        yield server


def _http(url: str, data: bytes | None = None, method: str = "GET", timeout: float = 30) -> bytes:
    # No proxy: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Content-Type": "application/json"} if data else {}
    message = urllib.request.Request(url, data=data, headers=headers, method=method)
    with opener.open(message, timeout=timeout) as answer:
        body: bytes = answer.read()
        return body


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    fields: Mapping[str, str] = dict(
        line.split(":", 1) for line in status.splitlines() if ":" in line
    )
    return int(fields.get("VmHWM", "0 kB").split()[0]) * 1024

"""`make serve`: start vLLM on the xyserve platform, show one answer, stay until Ctrl-C.

Run as `python -m deploy.serve` with the set-up's Python. Options can also come from the
environment (MODEL, PORT, ARGS, PLATFORM, ONCE, VERBOSE), which is how make passes its variables:
no shell then takes their quotes apart.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from deploy import prepare_model, server_log
from deploy.console import SetupError, say, tail
from deploy.environment import cache_dir
from deploy.server_process import ServerProcess, terminal_to_ourselves

QUESTION = "What is the capital of France? Answer in one sentence."
_BEAT_S = 10.0
# Eager: 40 s from start to answer on two cores, 90 s compiled; compiled serves 1.4 times the
# tokens per second (ARGS=--no-enforce-eager). `auto` takes the longest context that fits.
_DEFAULTS = ("--enforce-eager", "--max-model-len", "auto")
_KV_CACHE = ("--kv-cache-memory-bytes", "1G")


class StopRequest(BaseException):
    """Ctrl-C, or a signal that means the same."""


@dataclass(frozen=True)
class Options:
    """What to serve, where, and how much to show."""

    model: str | None
    host: str
    port: int
    arguments: tuple[str, ...]
    platform: str
    once: bool
    verbose: bool
    api_key: str | None

    @property
    def url(self) -> str:
        """The address that a client on this machine uses."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def read_options(argv: list[str] | None, environ: Mapping[str, str]) -> tuple[Options, bool]:
    """Return the options and whether only to check them; raise SetupError if they make no sense."""
    parser = argparse.ArgumentParser(prog="deploy.serve", description=__doc__)
    parser.add_argument("--model", default=environ.get("MODEL") or None, help="folder or hub id")
    parser.add_argument("--port", default=environ.get("PORT") or "8000")
    parser.add_argument("--args", default=environ.get("ARGS", ""), help="more for vllm serve")
    parser.add_argument("--platform", default=environ.get("PLATFORM") or "xyserve")
    for name, text in (("once", "stop after the answer"), ("verbose", "show the server's log")):
        on = environ.get(name.upper(), "") not in ("", "0")
        parser.add_argument(f"--{name}", action="store_true", default=on, help=text)
    parser.add_argument("--check", action="store_true", help="only check these options")
    given = parser.parse_args(argv)
    try:
        extra = shlex.split(given.args)
    except ValueError as error:
        raise SetupError(f"ARGS cannot be taken apart: {error}: {given.args}") from error
    ours = _overlap(extra)
    port = ours.port or given.port
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise SetupError(f"PORT should be a number from 1 to 65535, got {port!r}")
    options = Options(
        given.model,
        ours.host,
        int(port),
        tuple(extra),
        given.platform,
        given.once,
        given.verbose,
        ours.api_key or environ.get("VLLM_API_KEY"),
    )
    return options, given.check


def _overlap(extra: list[str]) -> argparse.Namespace:
    """Find in the arguments for vLLM what this script has to know as well."""
    dashed = [
        re.sub(r"^--[^=]+", lambda m: m[0].replace("_", "-"), text)
        for text in extra  # vLLM takes --api_key for --api-key
    ]
    odd = [text for text in dashed if text.startswith(("--ssl-", "--uds"))]
    if odd:
        raise SetupError(f"make serve talks plain HTTP; with {odd[0]} start `vllm serve` yourself")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port")
    parser.add_argument("--api-key")
    return parser.parse_known_args(dashed)[0]


def resolve_model(model: str | None, environ: Mapping[str, str]) -> str:
    """Return what to hand to vLLM: a folder or file that exists, or a hub id.

    Raises SetupError for a path that does not exist or a folder without a model.
    """
    if model is None:
        return str(prepare_model.model_dir(environ))
    path = Path(model).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "params.json")):
            raise SetupError(f"MODEL={model}: the folder holds no config.json, so no model")
        return str(path)
    if path.is_file():
        return str(path)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model) and not model.startswith("."):
        say(f"MODEL={model} is no folder here: vLLM will look for it on its model hub")
        return model
    raise SetupError(f"MODEL={model}: no such folder; give a model's folder, or a hub id ORG/NAME")


def check_port(host: str, port: int) -> None:
    """Raise SetupError if the server could not listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; "
                f"stop what uses it, or choose another: make serve PORT={port % 65535 + 1}"
            ) from error


def build_command(options: Options, model: str, environ: Mapping[str, str]) -> list[str]:
    """Return the `vllm serve` command; the user's arguments come last, so they win."""
    command = [str(Path(sys.executable).parent / "vllm"), "serve", model]
    if options.platform != "none":
        command += ["--platform", options.platform]
    if options.model is None:
        command += ["--served-model-name", prepare_model.NAME]
    command += ["--host", options.host, "--port", str(options.port), *_DEFAULTS]
    if not environ.get("VLLM_CPU_KVCACHE_SPACE"):
        command += _KV_CACHE
    return [*command, *options.arguments]


def request(options: Options, path: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request to the server and return its JSON answer, or None if it has no body."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if options.api_key:
        headers["Authorization"] = f"Bearer {options.api_key}"
    # No proxy: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    message = urllib.request.Request(options.url + path, data=data, headers=headers)
    with opener.open(message, timeout=300 if body else 5) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def wait_ready(server: ServerProcess, options: Options, follower: server_log.Follower) -> list[str]:
    """Show progress from the server's log until it answers; return the log's lines so far."""
    lines: list[str] = []
    started, next_beat, phase = time.monotonic(), _BEAT_S, -1
    while True:
        fresh = follower.lines()
        lines += fresh
        elapsed = time.monotonic() - started
        reached = max((server_log.phase_of(line) for line in fresh), default=-1)
        if options.verbose:
            _show_lines(fresh)
        elif reached > phase or elapsed >= next_beat:
            phase = max(phase, reached)
            name = server_log.PHASES[phase][1] if phase >= 0 else "starting Python"
            say(f"  {elapsed:4.0f} s  {name}")
            next_beat = elapsed + _BEAT_S
        if server.exit_code() is not None:
            _raise_failed(server, lines + follower.lines())
        if _healthy(options):
            say(f"  {elapsed:4.0f} s  the server is ready")
            return lines
        time.sleep(0.5)


def _show_lines(lines: list[str]) -> None:
    for line in lines:
        say(line)


def _healthy(options: Options) -> bool:
    try:
        request(options, "/health")
    except (OSError, ValueError):
        return False
    return True


def _raise_failed(server: ServerProcess, lines: list[str]) -> NoReturn:
    errors = server_log.error_lines(lines)
    raise SetupError(
        f"the server stopped with exit code {server.exit_code()}\n"
        f"  end of {server.log}:\n{tail(server.log, 20)}"
        + ("\n  what went wrong first:\n" + "\n".join(f"    {e}" for e in errors) if errors else "")
    )


def ask(options: Options) -> tuple[str, str, dict[str, Any]]:
    """Ask the question; return the answer, the path and the body of the request that gave it."""
    name = request(options, "/v1/models")["data"][0]["id"]
    common = {"model": name, "max_tokens": 64, "temperature": 0}
    body = {**common, "messages": [{"role": "user", "content": QUESTION}]}
    try:
        path = "/v1/chat/completions"
        return request(options, path, body)["choices"][0]["message"]["content"], path, body
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        if error.code != 400 or "chat template" not in text:
            raise SetupError(f"the chat request failed, HTTP {error.code}: {text}") from error
    # A base model has no chat template.
    path, body = "/v1/completions", {**common, "prompt": QUESTION}
    return request(options, path, body)["choices"][0]["text"], path, body


def curl(options: Options, path: str, body: dict[str, Any]) -> str:
    """Return a request to copy and paste."""
    parts = ["curl", options.url + path, "-H", "Content-Type: application/json"]
    line = " ".join(map(shlex.quote, parts))
    if options.api_key:
        line += ' -H "Authorization: Bearer $VLLM_API_KEY"'
    return f"{line} \\\n    -d {shlex.quote(json.dumps(body))}"


def show(options: Options, lines: list[str]) -> None:
    """Print question, answer, the plugin's start-up line and a request to copy.

    Raises SetupError if the server runs, but not on our platform.
    """
    answer, path, body = ask(options)
    say(f"\nQuestion: {QUESTION}\nAnswer:   {answer.strip()}\n")
    if options.platform == "xyserve":
        startup = server_log.startup_line(lines)
        if startup is None:
            raise SetupError(
                "the server answers, but its log has no line `xyserve: family=...`: it does not "
                "run on the xyserve platform; `vllm-xyserve doctor` tells why"
            )
        say(f"{startup}\n")
    say(f"Try it yourself:\n{curl(options, path, body)}\n")


def serve(options: Options) -> None:
    """Start the server, show an answer, and stay until it ends or a StopRequest comes."""
    model = resolve_model(options.model, os.environ)
    log = cache_dir(os.environ) / "logs" / f"serve-{options.port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = build_command(options, model, os.environ)
    say(f"starting: {shlex.join(command)}\nits log:  {log}")
    with ServerProcess(command, log) as server, closing(server_log.Follower(log)) as follower:
        show(options, wait_ready(server, options, follower))
        if options.once:
            return
        hint = "" if options.verbose else " (VERBOSE=1 shows the log here)"
        say(f"Serving on {options.url}; Ctrl-C stops it{hint}.")
        while server.exit_code() is None:
            fresh = follower.lines()
            if options.verbose:
                _show_lines(fresh)
            time.sleep(0.5)
        _raise_failed(server, log.read_text(errors="replace").splitlines())


def main(argv: list[str] | None = None) -> int:
    """Return 0 after ONCE=1 or Ctrl-C, 1 after a failure, 130 if stopped before the answer."""
    try:
        options, only_check = read_options(argv, os.environ)
        check_port(options.host, options.port)
        if only_check:
            if options.model is not None:
                resolve_model(options.model, os.environ)
            return 0
        with terminal_to_ourselves():
            return _until_stopped(options)
    except SetupError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1


def _until_stopped(options: Options) -> int:
    def request_stop(number: int, frame: object) -> None:
        # The server is being stopped from here on: a second Ctrl-C must not leave it half stopped.
        for again in stops:
            signal.signal(again, signal.SIG_IGN)
        say("stopping the server")
        raise StopRequest

    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in stops:
        signal.signal(number, request_stop)
    try:
        serve(options)
    except StopRequest:
        return 130 if options.once else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Options, checks, command and life cycle of `make serve`, with a small server instead of vLLM."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import prepare_model, serve
from deploy.console import SetupError
from deploy.server_process import ServerProcess

ROOT = Path(serve.__file__).resolve().parent.parent

# Answers like vLLM as far as serve.py asks, with a child of its own like vLLM's engine.
FAKE_VLLM = """#!{python}
import http.server, json, os, subprocess, sys
arguments = sys.argv[1:]
port = int(arguments[arguments.index("--port") + 1])
if "--fail" in arguments:
    print("ValueError: no room for the KV cache", flush=True)
    sys.exit(7)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({pids!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
if "--platform" in arguments and "--silent" not in arguments:
    print("INFO [summary.py:1] xyserve: family=cpu isa=test", flush=True)
chat = "--no-template" not in arguments
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, body, code=200):
        self.send_response(code); self.end_headers(); self.wfile.write(json.dumps(body).encode())
    def do_GET(self):
        self.reply({{"data": [{{"id": "tiny"}}]}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" not in body:
            self.reply({{"choices": [{{"text": " completed"}}]}})
        elif chat:
            self.reply({{"choices": [{{"message": {{"content": "Paris."}}}}]}})
        else:
            self.reply({{"error": "no chat template"}}, 400)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def options_of(*argv: str, **environ: str) -> serve.Options:
    return serve.read_options(list(argv), environ)[0]


def test_defaults() -> None:
    options = options_of()
    assert (options.model, options.host, options.port) == (None, "127.0.0.1", 8000)
    assert (options.platform, options.once, options.verbose) == ("xyserve", False, False)


def test_options_come_from_make_variables() -> None:
    environ = {"MODEL": "org/m", "PORT": "9000", "ONCE": "1", "VERBOSE": "0", "PLATFORM": "none"}
    config = '{"xyserve": {"attention": "reference"}}'
    options = options_of(ARGS=f"--additional-config '{config}' --dtype float32", **environ)
    assert (options.model, options.port, options.platform) == ("org/m", 9000, "none")
    assert (options.once, options.verbose) == (True, False)
    assert options.arguments == ("--additional-config", config, "--dtype", "float32")


def test_empty_make_variables_mean_the_defaults() -> None:
    names = ("MODEL", "PORT", "ARGS", "PLATFORM", "ONCE", "VERBOSE")
    assert options_of(**dict.fromkeys(names, "")) == options_of()


def test_host_port_and_key_for_vllm_are_used_by_the_client_too() -> None:
    options = options_of(ARGS="--host=0.0.0.0 --port 9001 --api_key secret", PORT="9000")
    assert (options.host, options.port, options.api_key) == ("0.0.0.0", 9001, "secret")
    assert options.url == "http://127.0.0.1:9001"
    assert options_of(ARGS="--host ::1").url == "http://[::1]:8000"


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "80 80"])
def test_bad_port(port: str) -> None:
    with pytest.raises(SetupError, match="PORT should be a number from 1 to 65535"):
        options_of(PORT=port)


def test_unbalanced_quotes_in_args() -> None:
    with pytest.raises(SetupError, match="ARGS cannot be taken apart"):
        options_of(ARGS="--x 'y")


def test_encrypted_serving_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match="--ssl-keyfile"):
        options_of(ARGS="--ssl_keyfile=key.pem")


def test_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=rf"port {port}: Address already in use; .*PORT="):
            serve.check_port("127.0.0.1", port)
    serve.check_port("127.0.0.1", port)


def test_port_is_checked_without_starting_anything() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run_serve("--check", "--port", str(port))
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("model", ["/no/such/folder", "./nothing", "a/b/c", "~/nothing here", ".."])
def test_missing_model(model: str) -> None:
    with pytest.raises(SetupError, match="MODEL="):
        serve.resolve_model(model, {})


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no config\.json"):
        serve.resolve_model(str(tmp_path), {})
    (tmp_path / "config.json").write_text("{}")
    assert serve.resolve_model(str(tmp_path), {}) == str(tmp_path)


def test_hub_ids_and_the_default_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.resolve_model("org/some-model_1.5", {}) == "org/some-model_1.5"
    assert "is no folder here" in capsys.readouterr().out
    found = serve.resolve_model(None, {"XYSERVE_CACHE": str(tmp_path)})
    assert found == str(tmp_path / "models" / prepare_model.NAME)


def test_command_puts_the_users_arguments_last() -> None:
    options = options_of(ARGS="--max-model-len 512 --no-enforce-eager")
    command = serve.build_command(options, "/m", {})
    assert command[1:5] == ["serve", "/m", "--platform", "xyserve"]
    assert command[-3:] == ["--max-model-len", "512", "--no-enforce-eager"]
    assert "--kv-cache-memory-bytes" in command


def test_stock_platform_and_the_users_cache_size() -> None:
    command = serve.build_command(
        options_of(PLATFORM="none"), "/m", {"VLLM_CPU_KVCACHE_SPACE": "4"}
    )
    assert "--platform" not in command
    assert "--kv-cache-memory-bytes" not in command


def test_request_to_copy_runs_in_a_shell() -> None:
    body = {"messages": [{"role": "user", "content": "What's up?"}]}
    text = serve.curl(options_of(), "/v1/chat/completions", body)
    script = f"curl() {{ printf '%s\\n' \"$@\"; }}\n{text}"
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    assert lines[0] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(lines[-1]) == body


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Path:
    """An environment whose vllm command is FAKE_VLLM; returns the file with its process ids."""
    folder, pids = tmp_path / "bin", tmp_path / "pids"
    folder.mkdir()
    command = folder / "vllm"
    command.write_text(FAKE_VLLM.format(python=sys.executable, pids=str(pids)))
    command.chmod(0o755)
    return pids


def serve_process(fake: Path, *argv: str, **environ: str) -> "subprocess.Popen[str]":
    code = (
        "import sys; from deploy import serve\n"
        f"sys.executable = {str(fake.parent / 'bin' / 'python')!r}\n"
        "sys.exit(serve.main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        cwd=ROOT,
        env={**os.environ, "XYSERVE_CACHE": str(fake.parent / "cache"), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def run_serve(*argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "deploy.serve", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not yet reaped does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def assert_all_gone(pids: Path) -> None:
    for pid in map(int, pids.read_text().split()):
        for _ in range(100):
            if not alive(pid):
                break
            time.sleep(0.05)
        assert not alive(pid)


def test_once_shows_answer_startup_line_and_request(fake_vllm: Path) -> None:
    child = serve_process(fake_vllm, "--once", "--port", str(free_port()))
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert "Answer:   Paris." in out
    assert "\nxyserve: family=cpu isa=test\n" in out
    assert '"model": "tiny"' in out
    assert_all_gone(fake_vllm)


def test_base_model_is_asked_to_complete(fake_vllm: Path) -> None:
    child = serve_process(fake_vllm, "--once", "--port", str(free_port()), ARGS="--no-template")
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert "Answer:   completed" in out
    assert "/v1/completions" in out


def test_stock_platform_in_place_of_ours_is_a_failure(fake_vllm: Path) -> None:
    child = serve_process(fake_vllm, "--once", "--port", str(free_port()), ARGS="--silent")
    _, err = child.communicate(timeout=30)
    assert child.returncode == 1
    assert "does not run on the xyserve platform" in err
    assert_all_gone(fake_vllm)


def test_failing_server_shows_its_log_and_fails(fake_vllm: Path) -> None:
    child = serve_process(fake_vllm, "--port", str(free_port()), ARGS="--fail")
    _, err = child.communicate(timeout=30)
    assert child.returncode == 1
    assert "stopped with exit code 7" in err
    assert "what went wrong first:\n    ValueError: no room for the KV cache" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_the_server_and_its_children(fake_vllm: Path, number: int) -> None:
    child = serve_process(fake_vllm, "--port", str(free_port()))
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("Serving on"):
            break
    assert all(map(alive, map(int, fake_vllm.read_text().split())))
    child.send_signal(number)
    child.communicate(timeout=30)
    assert child.returncode == 0
    assert_all_gone(fake_vllm)


def test_server_that_dies_later_ends_the_command(fake_vllm: Path) -> None:
    child = serve_process(fake_vllm, "--port", str(free_port()))
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("Serving on"):
            break
    os.kill(int(fake_vllm.read_text().split()[0]), signal.SIGKILL)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 1
    assert "stopped with exit code -9" in err
    assert_all_gone(fake_vllm)


@contextlib.contextmanager
def stubborn_server(tmp_path: Path) -> Iterator[ServerProcess]:
    code = "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    with ServerProcess(command, tmp_path / "log") as server:
        while not (tmp_path / "log").read_text():
            time.sleep(0.02)
        yield server


def test_server_that_ignores_the_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.server_process._GRACE_S", 0.2)
    with stubborn_server(tmp_path) as server:
        assert server.exit_code() is None
    assert server.exit_code() == -signal.SIGKILL


def test_makes_variables_do_not_reach_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "8000")
    monkeypatch.setenv("XYSERVE_DEVICE", "cpu")
    code = "import os; print(os.environ.get('PORT'), os.environ.get('XYSERVE_DEVICE'))"
    with ServerProcess([sys.executable, "-c", code], tmp_path / "log") as server:
        while server.exit_code() is None:
            time.sleep(0.02)
    assert (tmp_path / "log").read_text() == "None cpu\n"

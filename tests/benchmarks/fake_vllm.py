"""Stands in for the ``vllm`` command: the HTTP interface of a server without a model.

Answers depend on the prompt alone. Has a child process of its own, as vLLM has. Writes the ids of
both into the folder ``FAKE_PIDS``. With ``FAKE_WRONG`` the xyserve platform answers differently.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN_S = 0.002
ON_XYSERVE = "--platform" in sys.argv
COUNTS = {"queries": 0, "hits": 0}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(
                "\n".join(
                    f"# TYPE {name} counter\n{name}_total {value}"
                    for name, value in (
                        ("vllm:prefix_cache_queries", COUNTS["queries"]),
                        ("vllm:prefix_cache_hits", COUNTS["hits"]),
                        ("vllm:num_preemptions", 0),
                    )
                )
                + "\n"
            )
        else:
            self._send("")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/completions":
            self._send('{"success": true}')
            return
        asked = json.loads(body)
        with LOCK:
            COUNTS["queries"] += len(asked["prompt"])
            COUNTS["hits"] += len(asked["prompt"]) // 2
        tokens = answer(asked["prompt"], asked["max_tokens"])
        if asked.get("stream"):
            self._stream(asked["prompt"], tokens)
        else:
            top = (
                {"logprobs": {"top_logprobs": [{"a": -0.1, "b": -2.0}]}}
                if "logprobs" in asked
                else {}
            )
            self._send(json.dumps({"choices": [{"text": "", "token_ids": tokens, **top}]}))

    def _stream(self, prompt: list[int], tokens: list[int]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for token in tokens:
            time.sleep(TOKEN_S)
            self._message({"choices": [{"text": f" word{token % 7}"}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        self._message({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _message(self, value: Any) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """No log of requests."""


def answer(prompt: list[int], count: int) -> list[int]:
    wrong = int(ON_XYSERVE and bool(os.environ.get("FAKE_WRONG")))
    return [zlib.crc32(repr((prompt, i, wrong)).encode()) % 1000 for i in range(count)]


if __name__ == "__main__":
    child = subprocess.Popen(["sleep", "600"])
    pids = Path(os.environ["FAKE_PIDS"])
    (pids / f"{os.getpid()}").write_text("")
    (pids / f"{child.pid}").write_text("")
    if ON_XYSERVE:
        print("xyserve: family=cpu of a stand-in", flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()

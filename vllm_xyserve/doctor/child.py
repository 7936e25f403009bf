"""Runs in a child process: imports what may crash or hang, and reports line by line.

Each line on standard output is a JSON object, ``{"step": what comes next}`` or
``{"data": {...}}``; so what was reached before a crash is known. Everything that the imported
code prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from typing import Any, TextIO


class Reporter:
    """Writes the report; flushed line by line, since the process may die in the next step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def step(self, text: str) -> None:
        """Say what is tried next."""
        self._write({"step": text})

    def put(self, **data: Any) -> None:
        """Report facts."""
        self._write({"data": data})

    def _write(self, record: dict[str, Any]) -> None:
        self._stream.write(json.dumps(record, default=str) + "\n")
        self._stream.flush()


def main(name: str) -> None:
    """Run the probe ``name`` and end the process: 0 if it ran to its end, 1 if it raised.

    The process ends without finalising the interpreter: the report is out, and a library that
    crashes or waits while it is unloaded is none of the doctor's business.
    """
    report = Reporter(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    probe, _, argument = name.partition(":")
    code = 0
    try:
        _PROBES[probe](report, argument)
    except BaseException as error:  # SystemExit included: vLLM's plugins may end the process
        report.put(error=describe(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _native(report: Reporter, _: str) -> None:
    """torch, the native library, and the kernels that dispatch chooses."""
    report.step("import torch")
    import torch

    report.put(torch=torch.__version__, torch_cuda=getattr(torch.version, "cuda", None))
    report.step("load the native library")
    from vllm_xyserve.ops import native

    report.put(native=dataclasses.asdict(native.load()))
    report.step("read the kernel registry")
    from vllm_xyserve.ops import registry

    chosen = [kernel for kernel in registry.kernels() if kernel.chosen]
    report.put(
        kernels=[{"op": k.op, "dtype": k.dtype, "name": k.name, "isa": k.isa} for k in chosen]
    )


def _companion(report: Reporter, name: str) -> None:
    """A package that is compiled against torch."""
    report.step("import torch")
    import_module("torch")
    report.step(f"import {name}")
    import_module(name)


def _platform(report: Reporter, _: str) -> None:
    """What vLLM does in each of its processes, then one by one what may be in the way."""
    report.step("import torch")
    import_module("torch")
    report.step("import vllm")
    import_module("vllm.platforms")
    with _guarded(report, "family_error"):
        report.step("detect the device family")
        from vllm_xyserve.platform import select

        family, reason = select.detect_family()
        report.put(family=family, family_reason=reason)
        if family == "npu":
            report.step("find out about the Ascend chip")
            report.put(ascend=_ascend())
    with _guarded(report, "platform_error"):
        _resolve(report)
        with _guarded(report, "kernels_error"):
            report.step("load vLLM's own kernels")
            report.put(kernel_warnings=_load_kernels())
    report.step("load the platform plugins one by one")
    report.put(plugins=_try_plugins())


def _ascend() -> dict[str, Any]:
    """The chip, the state of our kernels' library, and names of vllm-ascend that have moved."""
    from vllm_xyserve.compat import ascend_chip, ascend_upstream
    from vllm_xyserve.ops import ascend

    chip, status = ascend_chip.detect(), ascend.status()
    lacks = {part: ascend_upstream.unrecognised(part) for part in ascend_upstream.PARTS}
    return {
        "chip": dataclasses.asdict(chip),
        "library": str(status.path) if status.path else None,
        "missing": status.reason if chip.is_native else f"no native kernels for {chip.name}",
        "mend": status.mend if chip.is_native else "",
        "lacks": {part: names for part, names in lacks.items() if names},
    }


@contextlib.contextmanager
def _guarded(report: Reporter, key: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        report.put(**{key: describe(error)})


def _resolve(report: Reporter) -> None:
    report.step("resolve vLLM's platform")
    from vllm.platforms import current_platform

    before = type(current_platform)
    report.step("load vLLM's general plugins")
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    after = type(current_platform)
    report.put(
        **{"class": f"{after.__module__}.{after.__qualname__}"},
        is_xyserve=any(base.__name__ == "XyPlatformMixin" for base in after.__mro__),
        taken_over=before is not after,
    )


def _try_plugins() -> dict[str, dict[str, Any]]:
    """What each platform plugin answers that ``VLLM_PLUGINS`` allows; vLLM swallows errors."""
    from vllm_xyserve.doctor.facts import PLATFORM_GROUP, plugin_key

    plugins = os.environ.get("VLLM_PLUGINS")
    answers: dict[str, dict[str, Any]] = {}
    for entry in metadata.entry_points(group=PLATFORM_GROUP):
        if plugins is None or entry.name in plugins.split(","):
            try:
                answer: dict[str, Any] = {"activates": entry.load()() is not None}
            except BaseException as error:
                answer = {"error": describe(error)}
            answers[plugin_key(entry.group, entry.name, entry.value)] = answer
    return answers


def _load_kernels() -> list[str]:
    """What vLLM warns of while it loads its compiled kernels: it goes on without them."""
    from vllm.platforms import current_platform

    if current_platform.device_type not in ("cpu", "cuda"):
        return []  # vllm-ascend loads its own when the device is set up
    collector = _Collector()
    logger = logging.getLogger("vllm")
    logger.addHandler(collector)
    try:
        current_platform.import_kernels()
    finally:
        logger.removeHandler(collector)
    return [text for text in collector.texts if "Failed to import" in text]


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


_PROBES: dict[str, Callable[[Reporter, str], None]] = {
    "native": _native,
    "companion": _companion,
    "platform": _platform,
}

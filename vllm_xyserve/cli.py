"""The command ``vllm-xyserve``."""

from __future__ import annotations

import argparse
import math
import os
import sys
import textwrap
from collections.abc import Sequence

from vllm_xyserve import __version__

_USE = (
    """vllm serve MODEL --platform xyserve --additional-config '{"xyserve": {"OPTION": VALUE}}'"""
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status; argparse exits with 2 by itself."""
    options = _parser().parse_args(argv)
    try:
        status = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`; what is still buffered must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _run(options: argparse.Namespace) -> int:
    if options.command == "doctor":
        from vllm_xyserve import doctor

        return doctor.run(as_json=options.json, timeout=options.timeout)
    if options.command == "tune":
        return _tune(options)
    print(_config_text())
    return 0


def _tune(options: argparse.Namespace) -> int:
    from vllm_xyserve.tune import command

    return command.run(
        command.Options(
            model=options.model,
            dtype=options.dtype,
            threads=tuple(options.threads),
            tensor_parallel=options.tensor_parallel_size,
            output=options.output,
            timeout=options.timeout,
            rows=options.max_rows,
        )
    )


def _parser() -> argparse.ArgumentParser:
    from vllm_xyserve.doctor import TIMEOUT_S

    parser = argparse.ArgumentParser(
        prog="vllm-xyserve", description="Look after the xyserve platform plugin of vLLM."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="say what is installed, whether xyserve would be active, and what is in the way",
        description="Says what is installed, whether vLLM would run on the xyserve platform if it "
        "is chosen, and what is in the way. Exit status 0: no problem; 1: problems, each with its "
        "mend.",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="how long each child process may take to import torch or vLLM (default: %(default)g)",
    )
    commands.add_parser(
        "config",
        help="list the plugin's options",
        description="Lists the options that --additional-config takes below the key xyserve.",
    )
    _add_tune(commands)
    return parser


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tune = commands.add_parser(
        "tune",
        help="measure how this machine best runs the linear layers of a model",
        description="Measures, for the layer shapes of a model, which tiling of the native linear "
        "kernels is faster on this machine than the built-in rule, and writes what showed twice to "
        "a file that later servers read. Takes some minutes and wants an otherwise idle machine. "
        "Answers never change: no choice alters a bit of a result.",
    )
    tune.add_argument("model", metavar="MODEL", help="folder with a config.json, or OWNER/NAME")
    tune.add_argument("--dtype", choices=("bf16", "f16", "f32"), help="default: the model's")
    tune.add_argument(
        "--threads",
        type=_count,
        nargs="+",
        default=(),
        metavar="N",
        help="threads of a worker, one or more numbers (default: all CPUs of this process)",
    )
    tune.add_argument("--tensor-parallel-size", type=_count, default=1, metavar="N")
    tune.add_argument(
        "--max-rows",
        type=_count,
        default=2048,
        metavar="M",
        help="tokens of the largest step to tune for (default: %(default)s)",
    )
    tune.add_argument(
        "--output",
        metavar="PATH",
        help="file or folder to write (default: the user's data folder, which servers read; for "
        "another place set XYSERVE_TUNED to it)",
    )
    tune.add_argument(
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="a measuring process that says nothing for so long is ended (default: %(default)g)",
    )


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0; it is {text!r}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0; it is {text!r}")
    return value


def _config_text() -> str:
    from vllm_xyserve import config

    rows = [("option", "allowed", "default", "meaning"), *config.describe()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"Options of vllm-xyserve {__version__}, given with", f"  {_USE}", ""]
    for *cells, help_text in rows:
        start = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        lines += textwrap.wrap(
            help_text, 110, initial_indent=start + "  ", subsequent_indent=" " * (len(start) + 2)
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

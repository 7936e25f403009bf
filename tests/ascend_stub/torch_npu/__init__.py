"""A stand-in for torch_npu: kernels compute by plain fp32 torch on a CPU, the rest does nothing.

What vllm-ascend only needs to import, to keep or to call for its side effect is an `Anything`. An
operation whose result matters is written out below or in `_kernels`; any other that is called
raises, so that no test passes on a result that nobody computed.
"""

from __future__ import annotations

import contextlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

__version__ = "2.10.0.post4+stub"


class Anything(ModuleType):
    """Accepts any attribute, call, index, subclassing and context; gives another of itself."""

    def __init__(self, name: str = "anything", *_: object, **__: object) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        found = Anything(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found

    def __call__(self, *args: Any, **kw: Any) -> Any:
        # As a decorator it gives back what it decorates.
        if len(args) == 1 and not kw and callable(args[0]) and not isinstance(args[0], Anything):
            return args[0]
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False


class _Finder(MetaPathFinder, Loader):
    """Finds every module below the roots that is not written out here."""

    roots = ("torch_npu", "acl", "mooncake", "memcache_hybrid", "memfabric_hybrid")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        root = name.partition(".")[0]
        if root not in self.roots or name == "torch_npu" or name.startswith("torch_npu._kernels"):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


class Event:
    """Of a stream that runs everything at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def wait(self, *_: Any) -> None:
        pass

    def reset(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class _Npu(Anything):
    """``torch.npu``: 24 cube cores, and a stream that runs everything at once."""

    Event = Event
    ExternalEvent = Event

    class Stream(Event):
        device_index = 0

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_soc_version() -> int:
        return 220  # a 910B1

    @staticmethod
    def get_device_name(device_id: int = 0) -> str:
        return "Ascend910B1"

    @staticmethod
    def get_device_properties(device_id: int = 0) -> Any:
        properties = Anything("properties")
        properties.cube_core_num, properties.vector_core_num = 24, 48
        return properties


sys.meta_path.insert(0, _Finder())
npu = _Npu("torch_npu.npu")
sys.modules["torch_npu.npu"] = npu
torch.npu = npu  # type: ignore[attr-defined]
torch.distributed.is_hccl_available = lambda: True  # type: ignore[attr-defined]
with contextlib.suppress(RuntimeError):  # it has a name already
    torch.utils.rename_privateuse1_backend("npu")

from torch_npu import _kernels  # noqa: E402


def __getattr__(name: str) -> Any:
    found = getattr(_kernels, name, None)
    if found is not None:
        return found
    if name.startswith(("npu_", "_npu_")):
        return _kernels.Missing(name)
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(f"torch_npu.{name}")

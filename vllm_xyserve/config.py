"""The plugin's options: ``--additional-config '{"xyserve": {...}}'`` as frozen dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

KEY = "xyserve"
# Keys of vLLM's additional_config that we set beside the user's own. vLLM hashes additional_config
# into its compile-cache key and carries it to every process.
FINGERPRINT_KEY = "xyserve_fingerprint"
SCHEDULER_BASE_KEY = "xyserve_scheduler_base"

Path = Literal["auto", "native", "reference", "upstream"]


class ConfigError(ValueError):
    """An option has an unknown name, a wrong type or a value that is not allowed."""


def _option(default: Any, help: str) -> Any:  # noqa: A002 - the name argparse and pydantic use
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class XyConfig:
    """Options of the plugin; every part can be taken out to compare or to find a fault."""

    scheduler: bool = _option(True, "use the xyserve scheduler; false keeps vLLM's own")
    attention: Path = _option(
        "auto",
        "attention path: native kernels, the plain fp32 reference, or the parent platform's "
        "(upstream); auto takes native where it was measured to win, else upstream",
    )
    linear: Path = _option("auto", "linear path: as for attention")


def parse(options: object, *, where: str = KEY) -> XyConfig:
    """Check the object below the key ``xyserve`` and make the config of it.

    Args:
        options: what the user gave; None stands for no options.
        where: how messages name the object.

    Raises:
        ConfigError: names the key, what is allowed, what came, and the nearest known key.
    """
    if options is None:
        return XyConfig()
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"{where} must be an object with the keys {_known_keys()}; it is {options!r}"
        )
    hints = get_type_hints(XyConfig)
    for name in options:
        if name not in hints:
            raise ConfigError(_unknown_key(where, str(name)))
    return XyConfig(
        **{name: _check(f"{where}.{name}", hints[name], value) for name, value in options.items()}
    )


def from_additional_config(additional_config: object) -> XyConfig:
    """The config in vLLM's ``additional_config``; defaults if it holds no key ``xyserve``."""
    if not isinstance(additional_config, Mapping):
        return XyConfig()
    return parse(additional_config.get(KEY))


def describe() -> list[tuple[str, str, str, str]]:
    """``(name, allowed values, default, help)`` of every option, for documents and messages."""
    hints = get_type_hints(XyConfig)
    return [
        (f.name, _allowed(hints[f.name]), _show(f.default), f.metadata["help"])
        for f in dataclasses.fields(XyConfig)
    ]


def _known_keys() -> str:
    return ", ".join(f.name for f in dataclasses.fields(XyConfig))


def _unknown_key(where: str, name: str) -> str:
    known = [f.name for f in dataclasses.fields(XyConfig)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{where} has no key {name!r}.{hint} Known keys: {', '.join(known)}"


def _allowed(hint: Any) -> str:
    return "true | false" if hint is bool else " | ".join(get_args(hint))


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(where: str, hint: Any, value: object) -> Any:
    right = isinstance(value, bool) if hint is bool else value in get_args(hint)
    if not right:
        raise ConfigError(f"{where} must be one of {_allowed(hint)}; it is {value!r}")
    return value

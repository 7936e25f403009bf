"""The plugin's options: ``--additional-config '{"xyserve": {...}}'`` as frozen dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

KEY = "xyserve"
# Keys of vLLM's additional_config that we set beside the user's own. vLLM hashes additional_config
# into its compile-cache key and carries it to every process.
FINGERPRINT_KEY = "xyserve_fingerprint"
SCHEDULER_BASE_KEY = "xyserve_scheduler_base"
START_UP_KEY = "xyserve_start_up"

Path = Literal["auto", "native", "reference", "upstream"]
Where = Literal["auto", "scheduler", "worker"]


class ConfigError(ValueError):
    """An option has an unknown name, a wrong type or a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class PrefixConfig:
    """Options of token-level prefix matching."""

    token_level: bool = field(
        default=True,
        metadata={"help": "reuse cached tokens to the last common one, within a block"},
    )
    min_match_tokens: int = field(
        default=1,
        metadata={
            "help": "fewest tokens of a partly matching block that are worth its copy",
            "least": 1,
        },
    )
    reuse_tails: bool = field(
        default=True,
        metadata={"help": "keep the partly filled last block of finished requests"},
    )


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Options of the task tables that native attention walks."""

    where: Where = field(
        default="auto",
        metadata={
            "help": "who plans a step: the scheduler that composes it, or the worker that runs it; "
            "auto takes what was measured to be faster"
        },
    )


@dataclass(frozen=True, slots=True)
class XyConfig:
    """Options of the plugin; every part can be taken out to compare or to find a fault."""

    scheduler: bool = field(
        default=True,
        metadata={"help": "use the xyserve scheduler; false keeps vLLM's own"},
    )
    attention: Path = field(
        default="auto",
        metadata={
            "help": "attention path: native kernels, the plain fp32 reference, or the parent "
            "platform's (upstream); auto takes native where it was measured to win, else upstream"
        },
    )
    linear: Path = field(default="auto", metadata={"help": "linear path: as for attention"})
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    fuse_silu: bool = field(
        default=False,
        metadata={
            "help": "let the native gate-up product of an MLP apply SiLU-and-multiply by itself, "
            "where the MLP allows it"
        },
    )
    grouped_experts: bool = field(
        default=False,
        metadata={
            "help": "npu: multiply unquantised experts by the grouped form of the native kernel"
        },
    )


def parse(options: object, *, where: str = KEY) -> XyConfig:
    """Check the object below the key ``xyserve`` and make the config of it.

    Args:
        options: what the user gave; None stands for no options.
        where: how messages name the object.

    Raises:
        ConfigError: names the key, what is allowed, what came, and the nearest known key.
    """
    config: XyConfig = _parse(XyConfig, {} if options is None else options, where)
    return config


def from_additional_config(additional_config: object) -> XyConfig:
    """The config in vLLM's ``additional_config``; defaults if it holds no key ``xyserve``."""
    if not isinstance(additional_config, Mapping):
        return XyConfig()
    return parse(additional_config.get(KEY))


def describe() -> list[tuple[str, str, str, str]]:
    """``(name, allowed values, default, help)`` of every option, for documents and messages."""
    return list(_describe(XyConfig, ""))


def _describe(cls: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    hints = get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[f.name]):
            yield from _describe(hints[f.name], f"{prefix}{f.name}.")
        else:
            allowed = _allowed(hints[f.name], f.metadata)
            yield prefix + f.name, allowed, _show(f.default), f.metadata["help"]


def _parse(cls: Any, options: object, where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"{where} must be an object with the keys {', '.join(fields)}; it is {options!r}"
        )
    hints = get_type_hints(cls)
    values = {}
    for name, value in options.items():
        if name not in fields:
            raise ConfigError(_unknown_key(where, str(name), list(fields)))
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _parse(hints[name], value, f"{where}.{name}")
        else:
            values[name] = _check(f"{where}.{name}", hints[name], fields[name].metadata, value)
    return cls(**values)


def _unknown_key(where: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{where} has no key {name!r}.{hint} Known keys: {', '.join(known)}"


def _allowed(hint: Any, metadata: Mapping[str, Any]) -> str:
    if hint is bool:
        return "true | false"
    if hint is int:
        return f"a whole number >= {metadata['least']}"
    return " | ".join(get_args(hint))


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(where: str, hint: Any, metadata: Mapping[str, Any], value: object) -> Any:
    if hint is bool:
        right = isinstance(value, bool)
    elif hint is int:
        right = type(value) is int and value >= metadata["least"]
    else:
        right = value in get_args(hint)
    if not right:
        raise ConfigError(f"{where} must be {_allowed(hint, metadata)}; it is {value!r}")
    return value

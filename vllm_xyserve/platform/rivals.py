"""Other platform plugins that are installed. Standard library only."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points

from vllm_xyserve.platform import select

GROUP = "vllm.platform_plugins"
OURS = "vllm_xyserve.plugin:register"


def others() -> list[EntryPoint]:
    """Platform plugins of other distributions that ``VLLM_PLUGINS`` does not filter out."""
    allowed = os.environ.get("VLLM_PLUGINS")
    names = None if allowed is None else allowed.split(",")
    return [
        plugin
        for plugin in entry_points(group=GROUP)
        if plugin.value != OURS and (names is None or plugin.name in names)
    ]


def active() -> list[EntryPoint]:
    """Those that activate here. vLLM has called or is about to call their functions as well."""
    return [plugin for plugin in others() if plugin.name != select.NAME and _activates(plugin)]


def describe(plugins: list[EntryPoint]) -> str:
    """``NAME (MODULE:FUNCTION of DISTRIBUTION)`` for messages."""
    return ", ".join(
        f"{p.name} ({p.value} of {p.dist.name if p.dist else 'an unknown distribution'})"
        for p in plugins
    )


def _activates(plugin: EntryPoint) -> bool:
    try:
        return plugin.load()() is not None
    except Exception:  # vLLM drops such a plugin, too
        return False

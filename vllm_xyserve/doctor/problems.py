"""From facts to a verdict: problems, each with its mend, and warnings, which change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vllm_xyserve.doctor import installation, settings
from vllm_xyserve.doctor.facts import GENERAL_GROUP, PLATFORM_GROUP, EntryPoint, Facts
from vllm_xyserve.doctor.finding import Finding
from vllm_xyserve.platform import select

_OURS = {(PLATFORM_GROUP, select.NAME), (GENERAL_GROUP, select.NAME)}
_OUR_DISTRIBUTION = "vllm-xyserve"
# Findings that explain by themselves why xyserve does not become active.
_ROOT_CAUSES = frozenset(
    {
        "vllm-missing",
        "torch-missing",
        "torch-import",
        "vllm-import",
        "not-installed",
        "wrong-build",
        "npu-packages",
        "device-variable",
        "plugins-variable",
        "platform-probe",
    }
)
_DEBUG = (
    "XYSERVE_PLATFORM=1 VLLM_LOGGING_LEVEL=DEBUG python -c "
    "'from vllm.platforms import current_platform as p; print(p)' shows how vLLM decides"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok`` is whether there are no problems. Root causes come before what follows from them."""

    problems: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether xyserve works here if it is chosen."""
        return not self.problems


def judge(facts: Facts) -> Verdict:
    """All problems and warnings that the facts show."""
    findings = [finding for check in _CHECKS for finding in check(facts)]
    kinds = {finding.kind for finding in findings}
    if not facts.would_be_active and not kinds & _ROOT_CAUSES:
        findings.append(_not_active(facts))
    return Verdict(
        tuple(f for f in findings if not f.is_warning),
        tuple(f for f in findings if f.is_warning),
    )


def _our_entry_points(facts: Facts) -> Iterator[Finding]:
    found = {(entry.group, entry.name) for entry in facts.entry_points}
    missing = sorted(f"{name} of group {group}" for group, name in _OURS - found)
    if missing:
        yield Finding(
            "not-installed",
            f"vLLM cannot find the plugin: no installed distribution declares the entry points "
            f"{', '.join(missing)}",
            "install the plugin into this environment: `make setup` in the source tree, or "
            "pip install --no-build-isolation --no-deps PATH_TO_SOURCE",
        )


def _duplicates(facts: Facts) -> Iterator[Finding]:
    owners: dict[tuple[str, str], list[str]] = {}
    for entry in facts.entry_points:
        owners.setdefault((entry.group, entry.name), []).append(entry.distribution)
    for (group, name), names in owners.items():
        if len(names) > 1:
            keep = _OUR_DISTRIBUTION if (group, name) in _OURS else names[-1]
            others = ", ".join(n for n in names if n != keep) or "one of them"
            yield Finding(
                "duplicate-entry-point",
                f"the entry point {name!r} of group {group} is declared by {' and '.join(names)}; "
                f"vLLM takes whichever it finds last",
                f"uninstall {others}",
            )


def _plugins_variable(facts: Facts) -> Iterator[Finding]:
    value = facts.environ.get("VLLM_PLUGINS")
    if value is None:
        return
    named = value.split(",")
    mend = f"unset VLLM_PLUGINS, or add {select.NAME} to it without spaces"
    if select.filtered_out(facts.environ):
        yield Finding(
            "plugins-variable", f"VLLM_PLUGINS={value!r} keeps vLLM from loading xyserve", mend
        )
        return
    for name in named:
        if name != name.strip():
            yield Finding(
                "plugins-spaces",
                f"VLLM_PLUGINS={value!r} holds a name with a space, which vLLM takes literally",
                "write the names with commas and without spaces",
            )
            return


def _probes(facts: Facts) -> Iterator[Finding]:
    """Children that did not end well: what they were importing is broken."""
    native, platform = facts.children.get("native"), facts.children.get("platform")
    in_torch = [c for c in (native, platform) if c and c.error and c.step == "import torch"]
    if in_torch:
        yield Finding(
            "torch-import",
            f"torch does not import: {in_torch[0].error}",
            "install torch again, in the version that vLLM asks for; if it only needs longer, "
            "give it time with --timeout",
        )
    elif platform and platform.error and platform.step == "import vllm":
        yield Finding(
            "vllm-import",
            f"vLLM does not import: {platform.error}",
            "install vLLM again, together with the torch that it asks for",
        )
    elif platform and platform.error:
        yield Finding(
            "platform-probe",
            f"vLLM's start-up did not end well: {platform.error}",
            "uninstall the plugin or package that the step names; if it only needs longer, give "
            f"it time with --timeout; {_DEBUG}",
        )
    if native and native.error and native.step != "import torch":
        yield Finding(
            "native-broken",
            f"the native library does not load: {native.error}",
            "build it again for this torch: "
            "pip install --no-build-isolation --no-deps --force-reinstall PATH_TO_SOURCE",
        )


def _kernels(facts: Facts) -> Iterator[Finding]:
    platform = facts.children.get("platform")
    if platform is None:
        return
    texts = [*platform.data.get("kernel_warnings", ())]
    texts += [platform.data["kernels_error"]] if "kernels_error" in platform.data else []
    if texts:
        yield Finding(
            "vllm-kernels",
            f"vLLM's compiled kernels do not load: {'; '.join(texts)}",
            "install the vLLM build for this device again, with the torch that it asks for",
        )


def _not_active(facts: Facts) -> Finding:
    """Why vLLM would run on another platform although xyserve is chosen."""
    data = facts.children["platform"].data if "platform" in facts.children else {}
    error = data.get("platform_error") or data.get("family_error") or data.get("error")
    what = f"vLLM runs on {facts.active_class or 'no known platform'} although xyserve is chosen"
    if error:
        what = error.partition(" `vllm-xyserve doctor`")[0]  # which the message sends people to
    return Finding(
        "not-active", f"xyserve would not become active: {what}", _mend_activation(facts)
    )


def _mend_activation(facts: Facts) -> str:
    if facts.environ.get("XYSERVE_KEEP_ASCEND") == "1" and "vllm-ascend" in facts.distributions:
        return "unset XYSERVE_KEEP_ASCEND: it keeps vllm-ascend's platform plugin active"
    data = facts.children["platform"].data if "platform" in facts.children else {}
    if "family_error" in data:
        return (
            "install the vLLM build for this machine's device, or name the family with "
            f"{select.ENV_DEVICE}={'|'.join(select.FAMILIES)}"
        )
    rivals = [e for e in _platform_plugins(facts) if e.name != select.NAME and facts.activates(e)]
    if rivals:
        names = ", ".join(sorted({rival.distribution for rival in rivals}))
        return (
            f"uninstall {names}, or set VLLM_PLUGINS={select.NAME} (add the general plugins "
            f"that you need)"
        )
    for entry in _platform_plugins(facts):
        if entry.name == select.NAME and (error := facts.load_error(entry)):
            return f"install vllm-xyserve again: its plugin does not load ({error})"
    return _DEBUG


def _platform_plugins(facts: Facts) -> list[EntryPoint]:
    return [entry for entry in facts.entry_points if entry.group == PLATFORM_GROUP]


_CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    installation.packages,
    installation.damaged_metadata,
    _probes,
    _our_entry_points,
    installation.build,
    installation.npu_packages,
    installation.ascend_kernels,
    _kernels,
    installation.command_metadata,
    installation.space_in_path,
    installation.companions,
    installation.native_library,
    settings.values,
    settings.unknown_variables,
    _plugins_variable,
    _duplicates,
    settings.preload,
    settings.threads,
    installation.versions,
)

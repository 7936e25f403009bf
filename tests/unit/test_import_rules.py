"""Which package may import what; the rules are explained in docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "vllm_xyserve"

# Per package: the roots that it must not import. Sibling packages of ours are named in full.
FORBIDDEN = {
    "prefix": ("torch", "vllm", "vllm_xyserve"),
    "plan": ("torch", "vllm", "vllm_xyserve"),
    "scheduler": (
        "torch",
        "vllm_xyserve.attention",
        "vllm_xyserve.linear",
        "vllm_xyserve.ops",
        "vllm_xyserve.worker",
        "vllm_xyserve.platform",
    ),
    "attention": (
        "vllm_xyserve.scheduler",
        "vllm_xyserve.prefix",
        "vllm_xyserve.worker",
        "vllm_xyserve.platform",
    ),
    "linear": (
        "vllm_xyserve.scheduler",
        "vllm_xyserve.prefix",
        "vllm_xyserve.attention",
        "vllm_xyserve.worker",
        "vllm_xyserve.platform",
    ),
    "tune": (
        "vllm",
        "vllm_xyserve.scheduler",
        "vllm_xyserve.prefix",
        "vllm_xyserve.attention",
        "vllm_xyserve.worker",
        "vllm_xyserve.platform",
    ),
    "ops": (
        "vllm",
        "vllm_xyserve.attention",
        "vllm_xyserve.linear",
        "vllm_xyserve.scheduler",
        "vllm_xyserve.platform",
        "vllm_xyserve.compat",
    ),
    "triton": ("vllm", "vllm_xyserve.attention", "vllm_xyserve.linear", "vllm_xyserve.scheduler"),
}
# In these packages a name of their own package is the one sibling that they may import.
PURE = ("prefix", "plan")
# Modules that vLLM, torch or the console script load before anything else: standard library only
# at module level, since a failing import there would leave a user with stock vLLM unnoticed.
LIGHT = ("__init__.py", "_version.py", "plugin.py", "log.py", "platform/select.py", "config.py")


def imported_names(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def breaches(package: str, source: str) -> list[str]:
    own = f"vllm_xyserve.{package}"
    found = []
    for name in imported_names(ast.parse(source)):
        if package in PURE and (name == own or name.startswith(own + ".")):
            continue
        for root in FORBIDDEN[package]:
            if name == root or name.startswith(root + "."):
                found.append(f"{package} imports {name}")
    return found


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_package_keeps_the_import_rules(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        assert breaches(package, path.read_text()) == [], path


@pytest.mark.parametrize("path", LIGHT)
def test_what_is_loaded_first_imports_only_the_standard_library(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    top = ast.Module([n for n in tree.body if not isinstance(n, ast.FunctionDef)], [])
    imports = [n for n in ast.walk(top) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {n for node in imports for n in imported_names(ast.Module([node], []))}
    outside = {n for n in names if n.split(".")[0] in ("torch", "vllm", "numpy", "yaml")}
    assert outside == set()
    allowed = ("vllm_xyserve._version", "vllm_xyserve.log", "vllm_xyserve.platform.select")
    ours = {n for n in names if n.startswith("vllm_xyserve")}
    assert all(n.startswith(allowed) for n in ours), ours


def test_only_compat_patches_vllm() -> None:
    """An assignment to an attribute of a vLLM module is a patch and belongs into compat/."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] == "compat":
            continue
        source = path.read_text()
        assert "__code__" not in source, path
        assert "setattr(vllm" not in source, path


def test_torch_headers_only_in_binding_files() -> None:
    csrc = ROOT.parent / "csrc"
    files = [p for p in csrc.rglob("*") if p.suffix in (".cc", ".cpp", ".h", ".inc")]
    assert files
    for path in files:
        if not path.name.startswith("bind_"):
            assert "#include <torch" not in path.read_text(), path
            assert "#include <ATen" not in path.read_text(), path


def test_a_breach_is_found() -> None:
    assert breaches("plan", "import numpy\nimport torch.nn") == ["plan imports torch.nn"]
    assert breaches("plan", "from vllm_xyserve.plan import pack") == []
    assert breaches("prefix", "from vllm_xyserve.plan import pack") == [
        "prefix imports vllm_xyserve.plan.pack"
    ]
    assert breaches("attention", "def f():\n    from vllm_xyserve import scheduler") == [
        "attention imports vllm_xyserve.scheduler"
    ]

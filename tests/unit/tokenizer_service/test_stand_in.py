import json
from pathlib import Path

import pytest

from protocol.model_files import LoadFormat, ModelFiles, resolve
from tokenizer_service.assets import load
from tokenizer_service.gguf_tokenizer import UnsupportedTokenizerError
from tokenizer_service.stand_in import stand_in_tokenizer
from tokenizer_service.tokenizer import Tokenizer


def test_text_is_a_token_a_byte_and_comes_back() -> None:
    tokenizer = Tokenizer(stand_in_tokenizer(1000))
    ids = tokenizer.encode_prompt("héllo <s> t300")
    assert len(ids) == len("héllo <s> t300".encode())
    assert max(ids) < 256
    assert tokenizer.decode(ids) == "héllo <s> t300"


def test_every_id_stands_for_some_text_and_none_ends_a_chat() -> None:
    table = Tokenizer(stand_in_tokenizer(1000)).bytes
    assert len(table.table) == 1000
    assert all(table.table)
    assert not table.special


def test_a_shape_serves_text_and_chats() -> None:
    assets = load(resolve("llama-3.1-8b"))
    assert len(assets.tokenizer.bytes.table) == 128256
    assert assets.template is not None
    rendered = assets.template.render([{"role": "user", "content": "x"}])
    assert rendered == "user: x\nassistant: "


def test_a_dummy_without_a_tokenizer_gets_one_of_its_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300}))
    files = ModelFiles("hf", tmp_path, "m")
    assert len(load(files, LoadFormat.DUMMY).tokenizer.bytes.table) == 300
    with pytest.raises(UnsupportedTokenizerError, match=r"no tokenizer\.json"):
        load(files)


@pytest.mark.parametrize("config", [{}, {"vocab_size": 255}])
def test_a_shape_that_no_tokenizer_fits_is_refused(
    tmp_path: Path, config: dict[str, object]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedTokenizerError, match="vocab"):
        load(ModelFiles("hf", tmp_path, "m"), LoadFormat.DUMMY)

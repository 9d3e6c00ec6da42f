"""What the gateway reads of a model: tokenizer, chat template, default sampling. No weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tokenizers
from msgspec import Meta, Struct

from protocol.model_files import LoadFormat, ModelFiles
from tokenizer_service.gguf_metadata import read_metadata
from tokenizer_service.gguf_tokenizer import UnsupportedTokenizerError, rebuild, token_at
from tokenizer_service.stand_in import TEMPLATE, stand_in_tokenizer
from tokenizer_service.templates import ChatTemplate
from tokenizer_service.tokenizer import Tokenizer


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """For what a request does not say: OpenAI's, or the model's own `generation_config.json`."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0


@dataclass(frozen=True)
class ModelAssets:
    """Of one model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: the model has none, and serves text completions only."""
    defaults: SamplingDefaults


def load(files: ModelFiles, load_format: LoadFormat = LoadFormat.AUTO) -> ModelAssets:
    """Read a model's assets. A shape, or a dummy without a tokenizer, gets stand-ins for them.

    Raises UnsupportedTokenizerError, BadGgufError, TemplateRefusedError, OSError,
    msgspec.DecodeError.
    """
    if files.kind == "gguf":
        return _from_gguf(files.path)
    if files.kind == "shape":
        return _stand_ins(files.path)
    dummy = load_format is LoadFormat.DUMMY
    if dummy and not (files.path / "tokenizer.json").is_file():
        return _stand_ins(files.path / "config.json")
    return _from_folder(files.path)


def _stand_ins(config: Path) -> ModelAssets:
    """Return what serves a model of which only the shape is there."""
    vocab_size = _read_json(config).get("vocab_size")
    if not isinstance(vocab_size, int):
        raise UnsupportedTokenizerError(f"{config} names no vocab_size")
    return ModelAssets(
        tokenizer=Tokenizer(stand_in_tokenizer(vocab_size)),
        template=_template(TEMPLATE, None, None),
        defaults=SamplingDefaults(),
    )


def _from_gguf(path: Path) -> ModelAssets:
    metadata = read_metadata(path)
    source = metadata.get("tokenizer.chat_template")
    return ModelAssets(
        tokenizer=Tokenizer(rebuild(metadata)),
        template=_template(source, token_at(metadata, "bos"), token_at(metadata, "eos")),
        defaults=SamplingDefaults(),
    )


def _from_folder(path: Path) -> ModelAssets:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise UnsupportedTokenizerError(f"{path.name} has no tokenizer.json (a fast tokenizer)")
    config = _read_json(path / "tokenizer_config.json")
    written = path / "chat_template.jinja"
    source = written.read_text() if written.is_file() else _named(config.get("chat_template"))
    return ModelAssets(
        tokenizer=Tokenizer(tokenizers.Tokenizer.from_file(str(file))),
        template=_template(source, _text(config.get("bos_token")), _text(config.get("eos_token"))),
        defaults=_defaults(_read_json(path / "generation_config.json")),
    )


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return an optional file's object; empty when there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.is_file() else {}


def _named(template: object) -> object:
    """Return the default of a list of named templates, or the one template."""
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template}
        return by_name.get("default")
    return template


def _text(token: object) -> str | None:
    """Return a token's text: it stands there as a string, or in an object's `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _template(source: object, bos: str | None, eos: str | None) -> ChatTemplate | None:
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, bos=bos or "", eos=eos or "")


def _defaults(config: Mapping[str, Any]) -> SamplingDefaults:
    known = {
        name: config[name]
        for name in SamplingDefaults.__struct_fields__
        if config.get(name) is not None
    }
    return msgspec.convert(known, SamplingDefaults)

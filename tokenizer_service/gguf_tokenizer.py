"""Rebuilds a tokenizer from a GGUF file's metadata with the `tokenizers` library.

GGUF names its pre-tokenizer by a word instead of describing it, so each word needs a recipe here;
a wrong guess would tokenize almost right, hence a word without a recipe is an error.
"""

from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from tokenizer_service.gguf_metadata import BadGgufError, Value

CONTROL = 3
USER_DEFINED = 4

# The split patterns of the models' own tokenizer.json files.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _REST
QWEN2_SPLIT = _CONTRACTIONS + _WORDS + r"|\p{N}" + _REST


def _gpt2(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _split(tokenizer: Tokenizer, pattern: str) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama_bpe(tokenizer: Tokenizer) -> None:
    _split(tokenizer, LLAMA3_SPLIT)


def _qwen2(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    _split(tokenizer, QWEN2_SPLIT)


RECIPES: Mapping[str, Callable[[Tokenizer], None]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama_bpe,
    "qwen2": _qwen2,
}
WHOLE_WORDS_FIRST = frozenset({"llama-bpe"})
"""Pre-tokenizers whose words are looked up in the vocabulary before merges apply."""


class UnsupportedTokenizerError(Exception):
    """The model's tokenizer is of a kind that this gateway cannot rebuild; names those it can."""


def _strings(metadata: Mapping[str, Value], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadGgufError(f"{key} is missing or no list of strings")
    return [str(item) for item in value]


def _recipe(metadata: Mapping[str, Value]) -> str:
    model = metadata.get("tokenizer.ggml.model")
    pre = metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in RECIPES:
        raise UnsupportedTokenizerError(
            f"tokenizer {model!r} with pre-tokenizer {pre!r}: from GGUF files only 'gpt2' "
            f"(byte-level BPE) with {', '.join(map(repr, RECIPES))} is supported; "
            "use the model's Hugging Face folder, which has a tokenizer.json"
        )
    return str(pre)


def token_at(metadata: Mapping[str, Value], name: str) -> str | None:
    """Return the text of a named token (`bos`, `eos`); None when the model has none."""
    tokens, index = metadata.get("tokenizer.ggml.tokens"), metadata.get(_id_key(name))
    if not isinstance(tokens, list) or not isinstance(index, int):
        return None
    return str(tokens[index]) if 0 <= index < len(tokens) else None


def _id_key(name: str) -> str:
    return f"tokenizer.ggml.{name}_token_id"


def _add_marked_tokens(tokenizer: Tokenizer, tokens: list[str], types: Value | None) -> None:
    if not isinstance(types, list) or len(types) != len(tokens):
        raise BadGgufError("tokenizer.ggml.token_type is missing or not as long as the vocabulary")
    for text, kind in zip(tokens, types, strict=True):
        if kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])


def rebuild(metadata: Mapping[str, Value]) -> Tokenizer:
    """Return the tokenizer that a GGUF file describes.

    Raises UnsupportedTokenizerError, BadGgufError.
    """
    pre = _recipe(metadata)
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    merges = [merge.partition(" ") for merge in _strings(metadata, "tokenizer.ggml.merges")]
    vocabulary = {text: index for index, text in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for left, _, right in merges],
            ignore_merges=pre in WHOLE_WORDS_FIRST,
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    RECIPES[pre](tokenizer)
    _add_marked_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type"))
    bos = token_at(metadata, "bos")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        tokenizer.post_processor = TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, vocabulary[bos])]
        )
    return tokenizer

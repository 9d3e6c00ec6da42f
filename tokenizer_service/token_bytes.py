"""The bytes that each token id stands for: what makes incremental detokenization exact.

A text is the concatenation of its tokens' bytes, decoded. Tokenizers hide that behind decoders
that look at whole sequences; the two families in use are read here into one plain table, so that
nothing downstream knows families.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from tokenizer_service.gguf_tokenizer import UnsupportedTokenizerError

METASPACE = "▁"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """Token id → bytes. Ids beyond the table stand for nothing."""

    table: Sequence[bytes]
    special: frozenset[int]
    """Ids of control tokens, which are not part of the text."""
    longest: int
    """Bytes of the longest token: a text of n bytes has at least n / longest tokens."""


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable character → byte (OpenAI's gpt-2 encoder, bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(hidden)})
    return alphabet


def _byte_level(vocabulary: dict[str, int]) -> dict[int, bytes]:
    alphabet = byte_alphabet()
    table = {}
    for text, index in vocabulary.items():
        known = all(character in alphabet for character in text)
        table[index] = bytes(alphabet[c] for c in text) if known else text.encode()
    return table


def _sentencepiece(vocabulary: dict[str, int]) -> dict[int, bytes]:
    table = {}
    for text, index in vocabulary.items():
        byte = BYTE_TOKEN.fullmatch(text)
        table[index] = bytes([int(byte[1], 16)]) if byte else text.replace(METASPACE, " ").encode()
    return table


def _decoder_types(tokenizer: tokenizers.Tokenizer) -> list[str]:
    if tokenizer.decoder is None:
        return []
    described: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    parts = described.get("decoders", [described])
    return [str(part.get("type")) for part in parts]


def read_token_bytes(tokenizer: tokenizers.Tokenizer) -> TokenBytes:
    """Return the table of a tokenizer. Raises UnsupportedTokenizerError for other families."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    types = _decoder_types(tokenizer)
    if "ByteLevel" in types:
        table = _byte_level(vocabulary)
    elif "Metaspace" in types or "ByteFallback" in types:
        table = _sentencepiece(vocabulary)
    else:
        raise UnsupportedTokenizerError(
            f"tokenizer.json decodes with {types or 'nothing'}; supported are ByteLevel, "
            "and Metaspace or ByteFallback (SentencePiece)"
        )
    added = tokenizer.get_added_tokens_decoder()
    table.update({index: token.content.encode() for index, token in added.items()})
    special = frozenset(index for index, token in added.items() if token.special)
    size = max(table, default=-1) + 1
    return TokenBytes(
        table=[table.get(index, b"") for index in range(size)],
        special=special,
        longest=max((len(data) for data in table.values()), default=1) or 1,
    )

"""Text to token ids, with a line between what the template wrote and what a user wrote.

A user's text that spells a control token must stay text. Where it does, the rendered prompt is cut
at the template's own control tokens and the rest is encoded as plain text; in all other prompts
(nearly every one) the whole string is encoded at once, exactly as the reference library does it.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from secrets import token_hex

import tokenizers

from tokenizer_service.limits import NORMALIZATION_SLACK
from tokenizer_service.token_bytes import TokenBytes, read_token_bytes


class Tokenizer:
    """One model's tokenizer. Thread-safe: nothing changes after the constructor."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._parsing = tokenizer
        self._plain = deepcopy(tokenizer)
        self._plain.encode_special_tokens = True
        self.bytes: TokenBytes = read_token_bytes(tokenizer)
        self._slack = NORMALIZATION_SLACK if tokenizer.normalizer is not None else 1
        added = tokenizer.get_added_tokens_decoder()
        special = [token for token in added.values() if token.special]
        self._special_ids = {t.content: index for index, t in added.items() if t.special}
        special.sort(key=lambda token: len(token.content), reverse=True)
        self._guard = f"\ufdd0{token_hex(8)}\ufdd1"
        anywhere = "|".join(re.escape(token.content) for token in special)
        self._spelled = re.compile(f"(?={anywhere})") if special else None
        written = "|".join(_with_spaces(token) for token in special)
        self._written = re.compile(f"(?<!{self._guard})(?:{written})")

    def at_least(self, text: str) -> int:
        """Return a lower bound of the number of tokens of a text, without tokenizing it."""
        return len(text.encode("utf-8", "replace")) // (self.bytes.longest * self._slack)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a raw prompt, with what the model begins a sequence with.

        The caller writes the whole prompt, so control tokens in it are meant as such.
        """
        return list(self._parsing.encode(text).ids)

    def encode_bare(self, text: str) -> list[int]:
        """Return the ids of a raw prompt and nothing before it."""
        return list(self._parsing.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens and all."""
        table = self.bytes.table
        known = (table[token] for token in ids if 0 <= token < len(table))
        return b"".join(known).decode("utf-8", "replace")

    def guard(self, text: str) -> str:
        """Mark control tokens that a user's text spells, before the text goes into a template."""
        return self._spelled.sub(self._guard, text) if self._spelled else text

    def encode_chat(self, rendered: str) -> list[int]:
        """Return the ids of a rendered template whose users' texts went through `guard`."""
        if self._guard not in rendered:
            return list(self._parsing.encode(rendered, add_special_tokens=False).ids)
        ids: list[int] = []
        position = 0
        for match in self._written.finditer(rendered):
            ids += self._encode_plain(rendered[position : match.start()])
            ids.append(self._special_ids[match[match.lastindex or 0]])
            position = match.end()
        return ids + self._encode_plain(rendered[position:])

    def _encode_plain(self, text: str) -> list[int]:
        text = text.replace(self._guard, "")
        return list(self._plain.encode(text, add_special_tokens=False).ids) if text else []


def _with_spaces(token: tokenizers.AddedToken) -> str:
    """Return a pattern of a control token and the spaces around it that it swallows."""
    before, after = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
    return f"{before}({re.escape(token.content)}){after}"

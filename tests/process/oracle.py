"""The judge of answers: transformers, walked along the text that the server streamed.

Floating point depends on what else is in a batch, so two runs may differ where the two most likely
tokens are as good as equal. The judge follows the streamed text token by token and accepts, besides
the most likely token, only those whose logit is within EPSILON of it; it counts them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from protocol.model_files import DEMO, resolve

EPSILON = 1e-3


class Differs(AssertionError):
    """The text is none that the model could have written."""


@dataclass
class Verdict:
    """The token ids behind a text, and at how many positions a tie was decided the other way."""

    ids: list[int]
    ties: int


@cache
def tokenizer() -> Any:
    """The reference's tokenizer."""
    path = resolve(DEMO).path
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@cache
def model() -> Any:
    """The reference in float32."""
    path = resolve(DEMO).path
    loaded = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return loaded.eval()


def encode(text: str) -> tuple[int, ...]:
    """Return the token ids of a prompt."""
    return tuple(tokenizer().encode(text, add_special_tokens=False))


@cache
def token_bytes() -> list[bytes]:
    """Return what each token stands for. GPT-2's table from printable characters to bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table |= {chr(256 + index): byte for index, byte in enumerate(others)}
    pieces = tokenizer().convert_ids_to_tokens(range(len(tokenizer())))
    return [
        bytes(table[c] for c in piece) if set(piece) <= set(table) else piece.encode()
        for piece in pieces
    ]


@torch.inference_mode()
def judge(prompt: tuple[int, ...], text: str, length: int) -> Verdict:
    """Find the ids behind `text`, `length` tokens long. Raises Differs."""
    rest, ids, ties = text.encode(), [], 0
    inputs, past = torch.tensor([prompt]), None
    for position in range(length):
        output = model()(inputs, past_key_values=past, use_cache=True)
        past, logits = output.past_key_values, output.logits[0, -1]
        best = float(logits.max())
        near = torch.nonzero(logits >= best - EPSILON).flatten().tolist()
        token = _match(sorted(near, key=lambda t: -float(logits[t])), rest, position, length)
        ties += token != int(logits.argmax())
        rest = rest[len(token_bytes()[token]) :]
        ids.append(token)
        inputs = torch.tensor([[token]])
    if rest and rest != "\ufffd".encode():
        raise Differs(f"{len(rest)} bytes follow after {length} tokens: {rest[:80]!r}")
    return Verdict(ids, ties)


def _match(candidates: list[int], rest: bytes, position: int, length: int) -> int:
    for token in candidates:
        piece = token_bytes()[token]
        # The last character may be cut: at most three bytes, shown as a replacement character.
        if rest.startswith(piece) or (position >= length - 3 and _is_cut(piece, rest)):
            return token
    words = [token_bytes()[token] for token in candidates]
    raise Differs(f"position {position}: {rest[:80]!r}, where the model says one of {words}")


def _is_cut(piece: bytes, rest: bytes) -> bool:
    return rest.startswith("\ufffd".encode()) and piece[:1] >= b"\x80"

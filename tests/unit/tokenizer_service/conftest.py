"""A small byte-level tokenizer with control tokens, and the embedded model's."""

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tokenizer_service.tokenizer import Tokenizer

CONTROL = ("<|im_start|>", "<|im_end|>")


def byte_tokenizer(control: tuple[str, ...] = CONTROL) -> tokenizers.Tokenizer:
    """One id per byte (0..255), a few merges, then the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in control])
    return tokenizer


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return Tokenizer(byte_tokenizer())

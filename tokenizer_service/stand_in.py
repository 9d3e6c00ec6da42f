"""A tokenizer and a chat template for a model of which only the shape is there (`dummy` weights).

Text goes in as one token a byte. Every id of the vocabulary comes out as some text, so that a
stream of random tokens is as many pieces as a real one. No control tokens: random output must not
end a chat.
"""

import tokenizers

from tokenizer_service.gguf_tokenizer import UnsupportedTokenizerError
from tokenizer_service.token_bytes import byte_alphabet

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SPACE = "Ġ"
"""A space, as byte-level tokenizers write it."""
BYTES = 256


def stand_in_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer of `vocab_size` ids: the bytes, then words that only come out.

    Raises UnsupportedTokenizerError for a vocabulary that has no room for the bytes.
    """
    if vocab_size < BYTES:
        raise UnsupportedTokenizerError(
            f"a stand-in tokenizer needs a vocabulary of at least {BYTES}, not {vocab_size}"
        )
    vocabulary = byte_alphabet()
    vocabulary.update({f"{SPACE}t{index}": index for index in range(BYTES, vocab_size)})
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made

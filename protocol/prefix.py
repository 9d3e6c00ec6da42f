"""Names of full pages by content: chained SHA-256 with a tenant's salt (DESIGN: KV pool).

The gateway hashes prompts, the worker goes on with what it generates; one function, so that both
chains meet. SHA-256 and not a fast hash: a collision would serve one tenant another's text.
"""

from collections.abc import Sequence
from hashlib import sha256

from protocol.ids import pack_tokens

HASH_BYTES = 32


def root_hash(salt: bytes, model: str) -> bytes:
    """Return the parent of a sequence's first page: equal only for equal salt and model."""
    name = model.encode()
    return sha256(len(salt).to_bytes(8, "little") + salt + name).digest()


def next_page_hash(parent: bytes, page_tokens: Sequence[int]) -> bytes:
    """Return the name of a full page that follows `parent` (32 bytes each)."""
    return sha256(parent + pack_tokens(page_tokens)).digest()


def page_hashes(root: bytes, token_ids: Sequence[int], page_size: int) -> list[bytes]:
    """Return the names of all full pages of a sequence, first to last.

    A last page that is not full has no name. `page_size` is in tokens.
    """
    hashes: list[bytes] = []
    parent = root
    for end in range(page_size, len(token_ids) + 1, page_size):
        parent = next_page_hash(parent, token_ids[end - page_size : end])
        hashes.append(parent)
    return hashes

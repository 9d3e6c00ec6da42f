"""Names of a prompt's pages, with a tenant's salt: nobody learns by timing what others asked.

The salt comes from who the tenant is, never from the request's body, and from a secret of the
server, so that names cannot be guessed either.
"""

import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from protocol.prefix import page_hashes, root_hash

MIN_SECRET_BYTES = 16


class BadSecretError(Exception):
    """The secret's file is missing or holds too little."""


def read_secret(path: str | None) -> bytes:
    """Return the secret in a file, or a random one. Raises BadSecretError."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise BadSecretError(f"cache secret {path!r}: {error.strerror}") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise BadSecretError(
            f"cache secret {path!r}: {len(secret)} bytes; at least {MIN_SECRET_BYTES} are needed"
        )
    return secret


class PrefixNames:
    """Names pages for one server."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def root(self, tenant: str, model: str) -> bytes:
        """Return the parent of a tenant's first pages."""
        name = tenant.encode()
        salt = hmac.new(self._secret, len(name).to_bytes(8, "little") + name, sha256).digest()
        return root_hash(salt, model)

    def pages(self, root: bytes, token_ids: Sequence[int], page_size: int) -> bytes:
        """Return the names of the full pages, 32 bytes each; none when pages have no size."""
        return b"".join(page_hashes(root, token_ids, page_size)) if page_size > 0 else b""

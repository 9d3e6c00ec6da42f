"""Which page holds which content: a one-to-one index from chained hashes to full pages.

Separate from the pool, which knows who holds a page but not what is in it. Names are made by
`protocol.prefix`, in the gateway for prompts and in the worker for what it generates.
"""


class PrefixIndex:
    """Hash to page and back. Each page has at most one name, each name one page."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}

    def has(self, page: int) -> bool:
        """Return whether `page` has a name."""
        return page in self._name_of

    def find(self, content: bytes) -> int | None:
        """Return the page named `content`."""
        return self._page_of.get(content)

    def add(self, page: int, content: bytes) -> bool:
        """Name `page`; False when either has a partner already."""
        if content in self._page_of or page in self._name_of:
            return False
        self._page_of[content] = page
        self._name_of[page] = content
        return True

    def remove(self, page: int) -> None:
        """Forget the name of `page`. Raises KeyError when it has none."""
        del self._page_of[self._name_of.pop(page)]

    def check(self) -> list[str]:
        """Return violated invariants: the two maps are inverse."""
        back = {page: name for name, page in self._page_of.items()}
        return [] if back == self._name_of else ["the prefix index is not one to one"]

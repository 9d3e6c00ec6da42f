"""How much more may start: rows of the decode batch and pages of the pool.

The worker decides whether a request fits, a policy when it runs (DESIGN 4). Policies share this
arithmetic, so that they differ in what their papers differ in. It reserves some growth for whoever
runs: a request admitted into a full pool is paid for by another one's retraction.
"""

from protocol.control_link import RequestView
from scheduler.requests import RESERVED_TOKENS
from scheduler.view import WorkerView, to_prefill


class Room:
    """Rows and pages left in a view; `take` uses them up."""

    def __init__(self, view: WorkerView) -> None:
        self._page_sizes = {name: max(1, model.page_size) for name, model in view.models.items()}
        started, decoding = view.started, view.decoding
        self._rows = view.limits.max_num_seqs - len(started) - len(decoding)
        self._pages = view.pool.free + view.pool.cached
        self._idle = not started and not decoding
        for request in started:
            self._pages -= self._need(request, to_prefill(request))
        self._pages -= view.requests.reserved

    def reserve(self, request: RequestView) -> None:
        """Use up what `request`, queued and already promised a start, will take."""
        self._idle = False
        self._rows -= 1
        self._pages -= self._need(request, request.prompt_tokens)

    def take(self, request: RequestView) -> bool:
        """Use up what `request`, queued, will take; False (and nothing used) if there is no room.

        Its whole prompt counts, cached or not: a page that it shares may be one of the idle ones.
        With nothing running the first one always fits, so that something always goes on.
        """
        fits = self._rows >= 1 and self._need(request, request.prompt_tokens) <= self._pages
        if not fits and not self._idle:
            return False
        self.reserve(request)
        return True

    def _need(self, request: RequestView, tokens: int) -> int:
        """Return pages for `tokens` more tokens of the prompt and the reserved growth."""
        left = max(0, request.max_tokens - request.output_tokens)
        page = self._page_sizes.get(request.model, 1)
        return -(-(tokens + min(left, RESERVED_TOKENS)) // page)

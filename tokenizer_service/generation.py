"""One request from its submit to its end: what chat and text completions have in common.

A request has one output or several; all news arrive in one inbox. Used as a context manager:
leaving it in any way, also by cancellation, aborts what is not over.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from protocol.data_link import Usage
from tokenizer_service.events import Admitted, Broken, Tell
from tokenizer_service.openai.errors import from_failure
from tokenizer_service.output import Output, Piece
from tokenizer_service.worker_link import Inbox, WorkerLink


class Generation:
    """The outputs of one request, in pieces."""

    def __init__(self, link: WorkerLink, outputs: Sequence[Output]) -> None:
        self._link = link
        self._outputs = {output.job.request: output for output in outputs}
        self._inbox: Inbox = asyncio.Queue()
        self._ahead: deque[Tell] = deque()
        """Came while the request was being admitted."""

    async def __aenter__(self) -> "Generation":
        for output in self._outputs.values():
            self._link.begin(output.job, self._inbox)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for request in self._outputs:
            self._link.cancel(request)

    @property
    def over(self) -> bool:
        """Whether all outputs have ended."""
        return all(output.end is not None for output in self._outputs.values())

    @property
    def usage(self) -> Usage:
        """Token counts of what has ended."""
        ends = [output.end for output in self._outputs.values() if output.end is not None]
        return Usage(
            prompt_tokens=sum(end.usage.prompt_tokens for end in ends),
            output_tokens=sum(end.usage.output_tokens for end in ends),
            cached_tokens=sum(end.usage.cached_tokens for end in ends),
        )

    async def admitted(self) -> None:
        """Return once the worker has taken the request. Raises ApiError when it did not."""
        waiting = set(self._outputs)
        while waiting:
            tell = await self._inbox.get()
            if isinstance(tell.news, Broken):
                raise from_failure(tell.news.code, tell.news.message)
            waiting.discard(tell.request)
            if not isinstance(tell.news, Admitted):
                self._ahead.append(tell)

    async def piece(self, timeout_s: float | None) -> Piece | None:
        """Return what is new of one output; None when nothing came in `timeout_s` seconds.

        Raises ApiError when the worker gave the request up.
        """
        if self._ahead:
            return self._take(self._ahead.popleft())
        if not self._inbox.empty():
            return self._take(self._inbox.get_nowait())
        try:
            async with asyncio.timeout(timeout_s):
                return self._take(await self._inbox.get())
        except TimeoutError:
            return None

    async def whole(self) -> list[Piece]:
        """Return each output in one piece, in the order of their indices. Raises ApiError."""
        pieces: dict[int, list[Piece]] = {o.index: [] for o in self._outputs.values()}
        while not self.over:
            piece = await self.piece(None)
            if piece is not None:
                pieces[piece.index].append(piece)
        return [_join(index, pieces[index]) for index in sorted(pieces)]

    def _take(self, tell: Tell) -> Piece:
        output = self._outputs[tell.request]
        running = output.stopped_at is None
        piece = output.take(tell.news)
        if running and output.stopped_at is not None and output.end is None:
            self._link.stop_at(tell.request, output.stopped_at)
        return piece


def _join(index: int, pieces: Sequence[Piece]) -> Piece:
    return Piece(
        index=index,
        text="".join(piece.text for piece in pieces),
        tokens=None
        if pieces[-1].tokens is None
        else tuple(token for piece in pieces for token in piece.tokens or ()),
        end=pieces[-1].end,
    )

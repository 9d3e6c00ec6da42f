"""One request from its submit to its end: what chat and text completions have in common.

All news of all outputs arrive in one inbox. Outputs of one prompt share its pages in the worker's
prefix cache: the first one goes ahead, the others follow when its prefill is done. Used as a
context manager: leaving it in any way, also by cancellation, aborts what is not over.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from protocol.data_link import Usage
from tokenizer_service.events import Admitted, Broken, Done, NewTokens, Tell
from tokenizer_service.openai.errors import from_failure
from tokenizer_service.output import Output, Piece
from tokenizer_service.worker_link import Inbox, WorkerLink


@dataclass(frozen=True)
class Group:
    """The outputs of one prompt."""

    outputs: Sequence[Output]
    """At least one."""
    shares: bool
    """Whether the prompt has pages to share; else nothing is gained by waiting."""


@dataclass
class Times:
    """When a request got how far, seconds on the generation's clock; None: not yet."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    """Of its first output."""
    ended: float | None = None


class Generation:
    """The outputs of one request, in pieces."""

    def __init__(
        self, link: WorkerLink, groups: Sequence[Group], clock: Callable[[], float], arrival: float
    ) -> None:
        """`clock` gives seconds, monotonic; the request arrived at `arrival`."""
        self.times = Times(arrival)
        self._link = link
        self._clock = clock
        self._leaders = [group.outputs[0] for group in groups]
        self._outputs = {o.job.request: o for group in groups for o in group.outputs}
        self._following = {
            group.outputs[0].job.request: group.outputs[1:] for group in groups if group.shares
        }
        """Leader → outputs that have not begun."""
        self._inbox: Inbox = asyncio.Queue()
        self._ahead: deque[Tell] = deque()
        """Came while the request was being admitted."""

    async def __aenter__(self) -> "Generation":
        waiting = {o.job.request for outputs in self._following.values() for o in outputs}
        for request, output in self._outputs.items():
            if request not in waiting:
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
        """Token counts of what has ended; a prompt counts once, however many outputs it has."""
        prompts = [output.end.usage for output in self._leaders if output.end is not None]
        ends = [output.end for output in self._outputs.values() if output.end is not None]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
            output_tokens=sum(end.usage.output_tokens for end in ends),
            cached_tokens=sum(usage.cached_tokens for usage in prompts),
        )

    @property
    def finish_reasons(self) -> list[str]:
        """How the outputs ended that have."""
        ends = (output.end for output in self._outputs.values())
        return [end.reason.value for end in ends if end is not None]

    async def admitted(self) -> None:
        """Return once the worker has taken each prompt. Raises ApiError when it did not."""
        waiting = {leader.job.request for leader in self._leaders}
        while waiting:
            tell = await self._inbox.get()
            if isinstance(tell.news, Broken):
                raise from_failure(tell.news.code, tell.news.message)
            waiting.discard(tell.request)
            if not isinstance(tell.news, Admitted):
                self._ahead.append(tell)
        self.times.admitted = self._clock()

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
        if isinstance(tell.news, NewTokens | Done):
            for sibling in self._following.pop(tell.request, ()):
                self._link.begin(sibling.job, self._inbox)
        output = self._outputs[tell.request]
        running = output.stopped_at is None
        now = self._clock()
        piece = output.take(tell.news, now)
        if isinstance(tell.news, NewTokens) and self.times.first_token is None:
            self.times.first_token = now
        if self.over:
            self.times.ended = now
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

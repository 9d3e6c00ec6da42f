"""One request from its submit to its end, as text: what chat and text completions have in common.

Used as a context manager: leaving it in any way, also by cancellation, aborts what is not over.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType

from protocol.data_link import FinishReason, Usage
from tokenizer_service.detokenize import Detokenizer
from tokenizer_service.events import Admitted, Broken, Done, Job, News, NewTokens
from tokenizer_service.openai.errors import from_failure
from tokenizer_service.worker_link import Inbox, WorkerLink


@dataclass(frozen=True, slots=True)
class End:
    """How the output ended."""

    reason: FinishReason
    usage: Usage


class Generation:
    """Text of one request, in pieces."""

    def __init__(self, link: WorkerLink, job: Job, detokenizer: Detokenizer) -> None:
        self._link = link
        self._job = job
        self._detokenizer = detokenizer
        self._inbox: Inbox
        self._ahead: News | None = None
        self.end: End | None = None
        """Set with the last piece."""

    async def __aenter__(self) -> "Generation":
        self._inbox = self._link.begin(self._job)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.cancel(self._job.request)

    async def admitted(self) -> None:
        """Return once the worker has taken the request. Raises ApiError when it did not."""
        news = await self._inbox.get()
        if isinstance(news, Broken):
            raise from_failure(news.code, news.message)
        self._ahead = None if isinstance(news, Admitted) else news

    async def piece(self, timeout_s: float | None) -> str | None:
        """Return the next text, which may be empty; None when nothing came in `timeout_s` seconds.

        Raises ApiError when the worker gave the request up.
        """
        if (news := self._ahead) is not None:
            self._ahead = None
            return self._take(news)
        if not self._inbox.empty():
            return self._take(self._inbox.get_nowait())
        try:
            async with asyncio.timeout(timeout_s):
                return self._take(await self._inbox.get())
        except TimeoutError:
            return None

    async def whole(self) -> tuple[str, End]:
        """Return the whole text. Raises ApiError."""
        pieces = []
        while self.end is None:
            pieces.append(await self.piece(None) or "")
        return "".join(pieces), self.end

    def _take(self, news: News) -> str:
        match news:
            case NewTokens(ids):
                return self._detokenize(ids)
            case Done(reason, usage):
                return self._finish(reason, usage)
            case Broken(code, message):
                raise from_failure(code, message)
            case Admitted():
                return ""

    def _detokenize(self, ids: tuple[int, ...]) -> str:
        if self._detokenizer.stopped is not None:
            return ""
        text = self._detokenizer.push(ids)
        if self._detokenizer.stopped is not None:
            self._link.stop_at(self._job.request, self._detokenizer.stopped.at_index)
        return text

    def _finish(self, reason: FinishReason, usage: Usage) -> str:
        text = self._detokenizer.finish()
        stopped = self._detokenizer.stopped
        if stopped is not None:
            reason = FinishReason.STOP
            usage = Usage(usage.prompt_tokens, stopped.at_index, usage.cached_tokens)
        self.end = End(reason, usage)
        return text

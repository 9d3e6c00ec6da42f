"""Work on text beside the event loop: bounded in threads, in what waits, and in time.

A prompt of a megabyte takes a second to tokenize; on the loop it would stop every stream. A thread
cannot be killed, so one that is late keeps its place in the bound until it has ended.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tokenizer_service.openai.errors import unavailable

T = TypeVar("T")


class TextPool:
    """Threads for rendering and tokenizing."""

    def __init__(self, *, threads: int, queue: int, timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="text")
        self._places = threading.BoundedSemaphore(threads + queue)
        self._timeout_s = timeout_s

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns. Raises ApiError 503 when full or late, or its own error."""
        if not self._places.acquire(blocking=False):
            raise unavailable("too many prompts wait to be tokenized")
        job = self._pool.submit(work)
        job.add_done_callback(self._free)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(job)
        except TimeoutError:
            raise unavailable(f"the prompt was not tokenized in {self._timeout_s:g} s") from None

    def _free(self, job: "Future[T]") -> None:
        self._places.release()

    def close(self) -> None:
        """Take nothing new; do not wait for what is late."""
        self._pool.shutdown(wait=False, cancel_futures=True)

"""Which prefill may overtake the one that runs: MuxWise 3.4.2 and DRIFT's Algorithm 1.

A long prompt holds up short ones behind it. Both papers let a batch overtake if the overtaken one
still keeps its own objective for the first token, and never a second one on top of it.
"""

from protocol.control_link import RequestView
from scheduler.batching import BatchBook, Members
from scheduler.outlook import Outlook

SHORT = 0.25
"""A prompt is short beside one that has four times as long to go: as nothing overtakes a batch that
has overtaken, a middling one would hold up the short ones behind it.
"""
LOOK = 8
"""Waiting requests that are looked at for a batch of short ones."""


class ShortFirst:
    """MuxWise: short prompts overtake a long one, wherever in the queue they are.

    Everybody that they overtake and that would keep its objective must still keep it. Looked for
    when somebody has arrived or another batch runs: what was refused before is refused again.
    """

    def __init__(self, book: BatchBook, chunk: int) -> None:
        self._book, self._chunk = book, chunk
        self._looked: tuple[Members, int] | None = None

    def find(self, outlook: Outlook) -> Members:
        """Return the batch that should overtake; empty: none."""
        view = outlook.view
        if not self._book.may_overtake(view):
            self._looked = None
            return ()
        head, *others = self._book.batches
        key = (head, view.queued.added)
        if key == self._looked:
            return ()
        self._looked = key
        return self._find(outlook, head, others)

    def _find(self, outlook: Outlook, head: Members, others: list[Members]) -> Members:
        left = outlook.left(head, self._chunk)
        finish = outlook.now + left
        spare = outlook.due(head) - finish
        for batch in others:  # as they were listed, or not at all
            if spare <= 0:
                return ()
            seconds = outlook.left(batch, self._chunk)
            if seconds <= SHORT * left and seconds <= spare:
                return batch
            finish += seconds
            spare = _with(spare, outlook.due(batch) - finish)
        queue = _Queue(outlook, left, finish, spare)
        return self._book.pick(outlook.view, queue.takes, LOOK)


class _Queue:
    """Walks the queue in order and takes what is short enough for everybody before it."""

    def __init__(self, outlook: Outlook, left: float, finish: float, spare: float) -> None:
        """`left`: of the batch that runs. `finish`: of all that is listed. Seconds."""
        self._outlook, self._left, self._finish, self._spare = outlook, left, finish, spare
        self._taken = 0.0

    def takes(self, request: RequestView) -> bool:
        """Whether `request` may overtake all before it that are not taken."""
        seconds = self._outlook.seconds((request,))
        self._finish += seconds
        short = seconds <= SHORT * self._left and self._taken + seconds < self._left
        if short and seconds <= self._spare:
            self._taken += seconds
            self._spare -= seconds
            return True
        self._spare = _with(self._spare, self._outlook.due_of(request) - self._finish)
        return False


def _with(spare: float, own: float) -> float:
    """Return what is to spare with one more that is overtaken; who is late already has no say."""
    return spare if own < 0 else min(spare, own)


def generate_pb(book: BatchBook, outlook: Outlook, chunk: int) -> Members:
    """DRIFT's GeneratePB, lines 6 to 20: the next batch overtakes if what runs can spare the time.

    Return it; empty: what runs goes on. The stack of one is the book's: nothing overtakes while a
    preempted batch waits, and when the other one is done it is the head again.
    """
    if not book.may_overtake(outlook.view) or len(book.batches) < 2:
        return ()
    running, new = book.batches[:2]
    together = outlook.left(running, chunk) + outlook.left(new, chunk)
    return new if together <= outlook.due(running) - outlook.now else ()

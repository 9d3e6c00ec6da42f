"""A gateway as the worker's tests need it: it keeps what it was sent and notices what is wrong."""

from dataclasses import dataclass, field

from protocol.data_link import (
    Accepted,
    Delivered,
    Failed,
    Finished,
    Resync,
    Status,
    Submit,
    ToGateway,
    TokenRun,
    Tokens,
)
from protocol.ids import RequestRef, pack_tokens, unpack_tokens


@dataclass
class Sent:
    """A request and all that came of it."""

    submit: Submit
    accepted: bool = False
    tokens: list[int] = field(default_factory=list)
    terminal: Finished | Failed | None = None
    terminals: int = 0


class Client:
    """One gateway. `deaf`: frames to it are lost until it resyncs."""

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.deaf = False
        self.requests: dict[RequestRef, Sent] = {}
        self.statuses: list[Status] = []

    def submit(self, submit: Submit) -> Submit:
        """Remember a request that is submitted."""
        self.requests.setdefault(submit.ref, Sent(submit))
        return submit

    def again(self, ref: RequestRef) -> Submit:
        """Return a request's submit with the output so far."""
        sent = self.requests[ref]
        old = sent.submit
        return Submit(
            ref=ref,
            model=old.model,
            token_ids=old.token_ids,
            sampling=old.sampling,
            root_hash=old.root_hash,
            output_so_far=pack_tokens(sent.tokens),
        )

    def resync(self) -> Resync:
        """Hear again; name all that is not terminal."""
        self.deaf = False
        return Resync(
            tuple(
                Delivered(ref, len(sent.tokens))
                for ref, sent in self.requests.items()
                if sent.terminal is None
            )
        )

    def hear(self, message: ToGateway) -> None:
        """Take a message; duplicates are dropped, a gap is an error."""
        if self.deaf:
            return
        if isinstance(message, Tokens):
            for run in message.runs:
                self._take(run)
        elif isinstance(message, Status):
            self.statuses.append(message)
        elif isinstance(message, Accepted) and message.ref in self.requests:
            self.requests[message.ref].accepted = True
        elif isinstance(message, Finished | Failed) and message.ref in self.requests:
            sent = self.requests[message.ref]
            assert sent.terminal in (None, message), "two different terminal messages"
            sent.terminal = message
            sent.terminals += 1

    def _take(self, run: TokenRun) -> None:
        sent = self.requests.get(run.ref)
        if sent is None:
            return
        ids = unpack_tokens(run.ids)
        assert run.first <= len(sent.tokens), f"gap in {run.ref}"
        assert sent.accepted, f"tokens of {run.ref}, which was not accepted"
        known = len(sent.tokens) - run.first
        assert ids[:known] == sent.tokens[run.first :][: len(ids)], "a token changed"
        sent.tokens += ids[known:]

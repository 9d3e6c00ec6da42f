"""Drawn tokens on their way to the gateways: stop rules, one frame per gateway and iteration.

Terminal messages wait until the frame with the last tokens is out.
"""

import struct
from array import array

from protocol.data_link import FinishReason, TokenLogprobs, TokenRun, Tokens
from protocol.ids import RequestRef, pack_tokens
from worker.core.endings import Endings
from worker.core.outbox import Outbox
from worker.core.request import Request
from worker.executors.base import SampledToken

_pack_one = struct.Struct("<i").pack


class Streams:
    """Collects one completion's tokens and ends what they end."""

    def __init__(self, outbox: Outbox, endings: Endings) -> None:
        self._outbox = outbox
        self._endings = endings
        self._runs: dict[bytes, list[TokenRun]] = {}
        self._ended: list[tuple[Request, FinishReason, int | None]] = []

    def push(self, request: Request, drawn: SampledToken) -> None:
        """Take the next token of a live request."""
        token, output = drawn.token, request.output
        if token in request.stops and len(output) >= request.min_tokens:
            self._ended.append((request, FinishReason.STOP, token))
            return
        index = len(output)
        output.append(token)
        if drawn.logprobs is None:
            run = TokenRun(request.ref, index, _pack_one(token))
        else:
            run = TokenRun(request.ref, index, _pack_one(token), (drawn.logprobs,))
        request.logprobs.append(drawn.logprobs)
        runs = self._runs.get(request.peer)
        if runs is None:
            self._runs[request.peer] = [run]
        else:
            runs.append(run)
        if index + 1 >= request.limit:
            self._ended.append((request, FinishReason.LENGTH, None))

    def flush(self) -> None:
        """Send the frames, then end the requests whose last token this was."""
        for peer, runs in self._runs.items():
            self._outbox.data(peer, Tokens(tuple(runs)))
        self._runs = {}
        ended, self._ended = self._ended, []
        for request, reason, stop in ended:
            tokens = len(request.output) + (stop is not None)
            self._endings.finish(request, reason, tokens, stop)


def run_since(
    ref: RequestRef, first: int, output: "array[int]", logprobs: list[TokenLogprobs | None]
) -> TokenRun | None:
    """Return the tokens from index `first` on, for a gateway that lost frames; None when none."""
    if first >= len(output):
        return None
    known = tuple(entry for entry in logprobs[first:] if entry is not None)
    complete = len(known) == len(output) - first
    return TokenRun(ref, first, pack_tokens(output[first:]), known if complete else ())

"""The data link: what a gateway says, and what becomes of it.

Everything here may come twice, late, or never: a submit is known by (request, incarnation), an
abort of nothing is no error, and a resync says again all that the gateway may have missed.
"""

import logging
from array import array
from collections.abc import Container

from protocol import PROTOCOL_VERSION
from protocol.control_link import Arrived
from protocol.data_link import (
    Abort,
    Accepted,
    Delivered,
    FailCode,
    Failed,
    FinishReason,
    Hello,
    ModelInfo,
    Refused,
    Resync,
    Status,
    Stop,
    Submit,
    Tokens,
    ToWorker,
    Welcome,
)
from protocol.ids import RequestRef
from worker.core.config import CoreConfig
from worker.core.deadlines import DeadlineWatch
from worker.core.parts import Parts
from worker.core.request import Request
from worker.core.screen import Refusal, Screen
from worker.core.streams import run_since
from worker.core.table import Ended
from worker.core.views import view

log = logging.getLogger(__name__)


class Intake:
    """Handles messages of gateways."""

    def __init__(
        self,
        config: CoreConfig,
        parts: Parts,
        boot: str,
        models: tuple[ModelInfo, ...],
        barred: Container[str],
    ) -> None:
        self.draining = False
        self._config = config
        self._parts = parts
        self._boot = boot
        self._models = models
        self._screen = Screen(config, parts.info, parts.table, barred)
        self._deadlines = DeadlineWatch()
        self._gateways: dict[bytes, None] = {}
        self._silent: dict[bytes, float] = {}
        """Gateways that are down, and when their requests are given up."""
        self._refused: dict[bytes, int] = {}
        """Gateways of another version."""

    def on(self, peer: bytes, message: ToWorker, now: float) -> None:
        """Handle one message."""
        self._silent.pop(peer, None)
        if isinstance(message, Hello):
            self._hello(peer, message)
        elif peer in self._refused:
            self._refuse_again(peer, message)
        elif isinstance(message, Submit):
            self._submit(peer, message, now)
        elif isinstance(message, Abort):
            self._abort(message.ref)
        elif isinstance(message, Stop):
            self._stop(message)
        else:
            self._resync(peer, message)

    def down(self, peer: bytes, now: float) -> None:
        """A gateway is not heard any more. It may come back."""
        self._refused.pop(peer, None)
        if peer in self._gateways:
            self._silent[peer] = now + self._config.gateway_grace_s

    def tick(self, now: float) -> None:
        """Give up what has waited too long."""
        for request, message in self._deadlines.passed(now):
            if self._parts.table.live.get(request.ref.request) is request:
                self._parts.endings.fail(request, FailCode.DEADLINE, message)
        for peer in [peer for peer, until in self._silent.items() if until <= now]:
            del self._silent[peer]
            self._gateways.pop(peer, None)
            grace = self._config.gateway_grace_s
            for request in self._parts.table.of_peer(peer):
                self._fail(request, FailCode.ABORTED, f"gateway silent for over {grace:g} s")

    def broadcast(self, status: Status) -> None:
        """Send the status to all gateways."""
        for peer in self._gateways:
            self._parts.outbox.data(peer, status)

    def give_up(self) -> None:
        """End all live requests: the process stops."""
        for request in list(self._parts.table.live.values()):
            self._fail(request, FailCode.SHUTDOWN, "the worker stops")

    # --- messages ---

    def _hello(self, peer: bytes, message: Hello) -> None:
        if message.version != PROTOCOL_VERSION:
            log.warning("gateway %s speaks version %d", message.gateway, message.version)
            self._refused[peer] = message.version
            self._gateways.pop(peer, None)
            self._parts.outbox.data(peer, Refused(PROTOCOL_VERSION, _versions(message.version)))
            return
        self._refused.pop(peer, None)
        self._gateways[peer] = None
        self._parts.outbox.data(
            peer,
            Welcome(
                boot=self._boot,
                version=PROTOCOL_VERSION,
                models=self._models,
                limits=self._config.limits,
                credits=self._parts.table.credits(),
            ),
        )

    def _refuse_again(self, peer: bytes, message: ToWorker) -> None:
        if isinstance(message, Submit):
            why = _versions(self._refused[peer])
            self._parts.outbox.data(peer, Failed(message.ref, FailCode.INVALID, why))

    def _submit(self, peer: bytes, submit: Submit, now: float) -> None:
        self._gateways[peer] = None
        if self._known(peer, submit):
            return
        try:
            if self.draining:
                raise Refusal(FailCode.SHUTDOWN, "the worker drains and takes nothing new")
            request = self._screen.admit(submit, peer)
        except Refusal as refusal:
            self._parts.outbox.data(peer, Failed(submit.ref, refusal.code, refusal.message))
            return
        parts = self._parts
        parts.table.add(request)
        request.arrival = now - submit.age_s
        request.cached = len(parts.memory.hits(request)) * parts.memory.page_size
        self._deadlines.add(request)
        parts.outbox.data(peer, Accepted(request.ref, request.cached))
        parts.outbox.publish(lambda n: Arrived(n, view(request)))
        if len(request.output) >= request.limit:
            parts.endings.finish(request, FinishReason.LENGTH, len(request.output))

    def _known(self, peer: bytes, submit: Submit) -> bool:
        """Answer a submit that is not new. A higher incarnation replaces a lower one."""
        ref = submit.ref
        live, ended = self._parts.table.live.get(ref.request), self._parts.table.ended(ref.request)
        newest = live.ref if live else ended.ref if ended else None
        if newest is None:
            return False
        if ref.incarnation > newest.incarnation:
            if live:
                self._fail(live, FailCode.ABORTED, f"replaced by incarnation {ref.incarnation}")
            return False
        if ref.incarnation < newest.incarnation:
            why = f"replaced by incarnation {newest.incarnation}"
            self._parts.outbox.data(peer, Failed(ref, FailCode.ABORTED, why))
            return True
        delivered = Delivered(ref, len(submit.output_so_far) // 4)
        if live:
            self._say_again(peer, live, delivered)
        elif ended:
            self._end_again(peer, ended, delivered)
        return True

    def _abort(self, ref: RequestRef) -> None:
        request = self._parts.table.live.get(ref.request)
        if request is not None and request.ref.incarnation <= ref.incarnation:
            self._fail(request, FailCode.ABORTED, "aborted by the gateway")

    def _stop(self, message: Stop) -> None:
        request = self._parts.table.find(message.ref)
        if request is not None:
            tokens = min(message.at_index, len(request.output))
            self._parts.endings.finish(request, FinishReason.STOP, tokens)

    def _resync(self, peer: bytes, message: Resync) -> None:
        self._gateways[peer] = None
        named = {delivered.ref for delivered in message.requests}
        for request in self._parts.table.of_peer(peer):
            if request.ref not in named:
                self._fail(request, FailCode.ABORTED, "not named in the gateway's resync")
        for delivered in message.requests:
            ref = delivered.ref
            live, ended = self._parts.table.find(ref), self._parts.table.ended(ref.request)
            if live:
                self._say_again(peer, live, delivered)
            elif ended and ended.ref == ref:
                self._end_again(peer, ended, delivered)
            else:
                why = f"request {ref.request} is not known to boot {self._boot}"
                self._parts.outbox.data(peer, Failed(ref, FailCode.UNKNOWN_REQUEST, why))

    # --- repetitions ---

    def _say_again(self, peer: bytes, request: Request, delivered: Delivered) -> None:
        request.peer = peer
        self._parts.outbox.data(peer, Accepted(request.ref, request.cached))
        self._tokens_again(peer, delivered, request.output, request)

    def _end_again(self, peer: bytes, ended: Ended, delivered: Delivered) -> None:
        self._parts.outbox.data(peer, Accepted(ended.ref, 0))
        self._tokens_again(peer, delivered, ended.output, ended)
        self._parts.outbox.data(peer, ended.terminal)

    def _tokens_again(
        self, peer: bytes, delivered: Delivered, output: "array[int]", of: Request | Ended
    ) -> None:
        run = run_since(of.ref, delivered.tokens, output, of.logprobs)
        if run is not None:
            self._parts.outbox.data(peer, Tokens((run,)))

    def _fail(self, request: Request, code: FailCode, message: str) -> None:
        self._parts.endings.fail(request, code, message)


def _versions(theirs: int) -> str:
    return f"this worker speaks protocol version {PROTOCOL_VERSION}, not {theirs}"

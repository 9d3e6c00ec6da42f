"""What must hold, checked at every event of a worker and at every news of a client.

Named as in the reliability matrix: O1 one terminal, O2 the fault-free tokens or a prefix of them,
O3 pages, O4 nothing is left over. Invariants of DESIGN 6 besides: one epoch acts, and a stale plan
has no effect.
"""

from collections.abc import Callable, Container

from protocol.control_link import Attach, Detach, Fenced, Plan, Snapshot
from protocol.data_link import Accepted, FailCode, Failed, Finished, FinishReason, Resync, Submit
from protocol.ids import Epoch, RequestRef
from tests.simulation.history import Call, History
from tokenizer_service.events import Admitted, Broken, Done, News, NewTokens
from worker.core.config import CoreConfig
from worker.core.events import (
    CoreEvent,
    Effect,
    FromGateway,
    FromScheduler,
    LaunchWork,
    SendControl,
    SendData,
)
from worker.core.machine import WorkerCore
from worker.core.order import Order
from worker.executors.base import DeviceInfo, Launch, PrefillQuantum
from worker.executors.simulated.forward import rows_of
from worker.suspects import MAX_DEATHS


class Violation(AssertionError):
    """Something that must never happen."""


EXCUSES = {
    FailCode.INTERNAL: {"device error", "many attempts"},
    FailCode.OVERLOADED: {"full queue", "no worker for long"},
    FailCode.SHUTDOWN: {"drain"},
}
"""Which faults allow a request to fail, and how."""


def judge_news(call: Call, news: News, history: History) -> None:
    """Check what a client is told, before it is added to the call. Raises Violation."""
    if call.end is not None or call.cancelled:
        raise Violation(f"O1: {call.request} is told {news} after its end")
    match news:
        case Admitted():
            if call.admitted:
                raise Violation(f"{call.request} is admitted twice")
        case NewTokens(ids):
            first = len(call.tokens)
            if call.right.tokens[first : first + len(ids)] != ids:
                right = call.right.tokens[first:]
                raise Violation(f"O2: {call.request} gets {ids} from {first} on, right is {right}")
        case Done(reason, usage):
            _judge_done(call, reason, usage.output_tokens)
        case Broken(code):
            excuses = history.excuses & EXCUSES.get(code, set())
            if call.admitted:  # what was let in once may not be refused for want of room
                excuses.discard("full queue")
            if code is FailCode.SUSPECT and call.deaths_on_device >= MAX_DEATHS:
                excuses.add("suspect")
            if not excuses:
                raise Violation(f"O1: {call.request} fails without a cause: {news}")


def _judge_done(call: Call, reason: FinishReason, output_tokens: int) -> None:
    got, right = tuple(call.tokens), call.right
    if call.stopped_at is not None:
        if reason is not FinishReason.STOP or output_tokens != call.stopped_at:
            raise Violation(f"{call.request} was stopped at {call.stopped_at}, says {reason}")
        return
    if got != right.tokens:
        raise Violation(f"O2: {call.request} is done with {got}, right is {right.tokens}")
    stop = right.stop_token is not None
    if (reason is FinishReason.STOP) != stop or output_tokens != len(got) + stop:
        raise Violation(f"{call.request} is done by {reason} after {output_tokens} tokens")


def _new_tokens(work: Launch) -> int:
    """Prompt tokens that a launch is the first to take."""
    if isinstance(work, PrefillQuantum) and work.layer_start:
        return 0
    return sum(len(row.token_ids) for row in rows_of(work))


class WatchedCore(WorkerCore):
    """A worker's core that is looked at after each event."""

    def __init__(
        self,
        config: CoreConfig,
        info: DeviceInfo,
        boot: str,
        history: History,
        before: Callable[[], None],
        barred: Container[str],
    ) -> None:
        """`before` is called before each event."""
        super().__init__(config, info, boot, barred)
        self._history = history
        self._before = before
        self._terminal: dict[RequestRef, Finished | Failed] = {}
        self._accepted: set[RequestRef] = set()
        self._newest = Epoch(boot, 0)
        self._given_back = True

    def on(self, event: CoreEvent, now: float) -> list[Effect]:
        """Handle `event` and check all that must hold. Raises Violation."""
        self._before()
        standing, retracted = self._control.order, self.retractions
        acting = None if self._given_back else self._newest
        effects = super().on(event, now)
        if wrong := self.check():
            raise Violation(f"invariants: {wrong} after {event}")
        if self._memory.fenced:
            self._history.retracted_in_flight += self.retractions - retracted
        for effect in effects:
            if isinstance(effect, SendData):
                self._watch_terminal(event, effect)
            elif isinstance(effect, LaunchWork):
                self._history.prefilled += _new_tokens(effect.work)
        if isinstance(event, FromScheduler):
            if isinstance(event.message, Plan):
                self._watch_plan(event.message, effects, acting, standing)
            self._watch_epoch(event, effects)
        return effects

    def _watch_plan(
        self, plan: Plan, effects: list[Effect], acting: Epoch | None, standing: Order
    ) -> None:
        """A plan of an epoch that does not act has no effect, and its sender is told."""
        self._history.plans.append(plan)
        stale = plan.epoch != acting
        if stale and self._control.order is not standing:
            raise Violation(f"a stale plan has an effect: {plan.epoch}, acting is {acting}")
        sent = [effect.message for effect in effects if isinstance(effect, SendControl)]
        if stale != any(isinstance(message, Fenced) for message in sent):
            raise Violation(f"a plan of {plan.epoch} while {acting} acts is answered {sent}")

    def _watch_epoch(self, event: FromScheduler, effects: list[Effect]) -> None:
        """Follow from outside who may act: who attached last, unless it gave the epoch back."""
        if isinstance(event.message, Detach) and event.message.epoch == self._newest:
            self._given_back = True
        for effect in effects:
            if not isinstance(effect, SendControl) or not isinstance(effect.message, Snapshot):
                continue
            if isinstance(event.message, Attach):
                if not effect.message.acting or effect.message.epoch.n != self._newest.n + 1:
                    raise Violation(f"attach gives {effect.message.epoch} after {self._newest}")
                self._newest, self._given_back = effect.message.epoch, False
            elif effect.message.epoch != self._newest:
                raise Violation(f"a snapshot says {effect.message.epoch}, not {self._newest}")

    def _watch_terminal(self, event: CoreEvent, effect: SendData) -> None:
        """One terminal message, said again only in answer to a resync or a repeated submit."""
        message = effect.message
        if isinstance(message, Accepted):
            self._accepted.add(message.ref)
            call = self._history.calls[int(message.ref.request[1:])]
            if call.deaths_on_device >= MAX_DEATHS:
                raise Violation(f"{call.request} is let in after {call.deaths_on_device} deaths")
        if not isinstance(message, Finished | Failed) or message.ref not in self._accepted:
            return
        if isinstance(message, Failed) and message.code is FailCode.UNKNOWN_REQUEST:
            return
        first = self._terminal.setdefault(message.ref, message)
        if first is not message:
            asked = isinstance(event, FromGateway) and isinstance(event.message, Resync | Submit)
            if not asked or first != message:
                raise Violation(f"O1: {message} after {first}")

"""The control link: who observes, who acts, and which plan stands.

One epoch acts at a time, and that is checked here, at the worker that plans act on: a fencing
token is only worth something at the resource. A plan of another boot, of an older epoch or of one
that was given back has no effect.
"""

import logging

from protocol import PROTOCOL_VERSION
from protocol.control_link import (
    Attach,
    ControlToWorker,
    Detach,
    Fenced,
    Observe,
    Plan,
    PlanRejected,
    RefusedScheduler,
    Snapshot,
)
from protocol.data_link import ModelInfo
from protocol.ids import Epoch
from worker.core.config import CoreConfig
from worker.core.events import SendControl
from worker.core.order import INITIAL, Order, order_of, reject
from worker.core.parts import Parts
from worker.core.views import pool_state, view

log = logging.getLogger(__name__)


class Control:
    """Handles messages of schedulers."""

    def __init__(
        self, config: CoreConfig, parts: Parts, boot: str, models: tuple[ModelInfo, ...]
    ) -> None:
        self.order: Order = INITIAL
        """What the lanes follow now."""
        self.skipped = 0
        """Names in plans of requests that were not live when the plan came."""
        self._config = config
        self._parts = parts
        self._models = models
        self._epoch = Epoch(boot, 0)
        self._holder: bytes | None = None
        """Who acts; None: autopilot."""
        self._policy = ""
        self._given_back = True
        """Whether the newest epoch's holder has detached, or none ever attached."""
        self._plan: Plan | None = None

    @property
    def policy(self) -> str:
        """Name of the acting policy; empty on autopilot."""
        return self._policy if self._holder is not None else ""

    @property
    def plan(self) -> Plan | None:
        """The standing plan; None: there was none since boot."""
        return self._plan

    def on(self, peer: bytes, message: ControlToWorker, now: float) -> None:
        """Handle one message."""
        if isinstance(message, Plan):
            self._take_plan(peer, message)
        elif isinstance(message, Detach):
            self._detach(message)
        elif message.version != PROTOCOL_VERSION:
            why = f"this worker speaks protocol version {PROTOCOL_VERSION}, not {message.version}"
            refused = RefusedScheduler(PROTOCOL_VERSION, why)
            self._parts.outbox.effect(SendControl(peer, refused))
        elif isinstance(message, Attach):
            self._attach(peer, message, now)
        else:
            self._observe(peer, message, now)

    def down(self, peer: bytes) -> None:
        """A scheduler is not heard any more. If it acted, its plan goes on without it."""
        self._parts.outbox.observers.pop(peer, None)
        if peer == self._holder:
            log.warning("the acting scheduler (%s) is gone: autopilot", self.policy)
            self._let_go()

    def _observe(self, peer: bytes, message: Observe, now: float) -> None:
        log.info("scheduler %s (%s) observes", message.scheduler, message.policy)
        self._parts.outbox.observers[peer] = None
        self._parts.outbox.control(peer, self.snapshot(peer, now))

    def _attach(self, peer: bytes, message: Attach, now: float) -> None:
        self._epoch = Epoch(self._epoch.boot, self._epoch.n + 1)
        log.info(
            "scheduler %s (%s) acts in epoch %d", message.scheduler, message.policy, self._epoch.n
        )
        before, self._holder = self._holder, peer
        if before is not None and before != peer:
            self._fence(before)
            self._parts.outbox.observers.pop(before, None)
        self._given_back = False
        self._policy = message.policy
        self._follow()
        self._parts.outbox.observers[peer] = None
        self._parts.outbox.control(peer, self.snapshot(peer, now))

    def _detach(self, message: Detach) -> None:
        if message.epoch == self._epoch and not self._given_back:
            log.info("epoch %d is given back: autopilot", self._epoch.n)
            self._given_back = True
            self._let_go()

    def _take_plan(self, peer: bytes, plan: Plan) -> None:
        if plan.epoch != self._epoch or self._given_back:
            self._fence(peer)
            return
        if self._holder is None:  # it was silent for a while, and nobody took its place
            self._holder = peer
        standing = self._plan
        if standing and standing.epoch == plan.epoch and plan.seq <= standing.seq:
            return
        outbox = self._parts.outbox
        why = reject(plan, self._parts.info.partitions)
        if why is not None:
            log.error("plan %d rejected: %s", plan.seq, why)
            outbox.control(peer, PlanRejected(outbox.event, plan.seq, why))
            return
        self._plan = plan
        self._count_skipped(plan)
        self._follow()

    def _count_skipped(self, plan: Plan) -> None:
        find = self._parts.table.find
        named = [item.ref for batch in plan.prefill.batches for item in batch.items]
        named += plan.decode.fused.requests
        self.skipped += sum(find(ref) is None for ref in named)

    def _fence(self, peer: bytes) -> None:
        self._parts.outbox.control(peer, Fenced(self._parts.outbox.event, self._epoch))

    def _let_go(self) -> None:
        self._holder = None
        self._follow()

    def _follow(self) -> None:
        if self._plan is not None:
            self.order = order_of(self._plan, autopilot=self._holder is None)

    def snapshot(self, peer: bytes, now: float) -> Snapshot:
        """Return everything that a scheduler must know."""
        parts, info = self._parts, self._parts.info
        return Snapshot(
            boot=self._epoch.boot,
            event=parts.outbox.event,
            epoch=self._epoch,
            acting=peer == self._holder,
            now=now,
            device=info.device,
            unit=info.unit,
            units=info.units,
            partitions=info.partitions,
            models=self._models,
            limits=self._config.limits,
            pool=pool_state(parts.memory.pool),
            requests=tuple(view(request) for request in parts.table.live.values()),
            batches=parts.groups.views(),
            plan_seq=self._plan.seq if self._plan else 0,
        )

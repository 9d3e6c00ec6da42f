"""The scheduler's state machine: events in, messages out, no I/O and no clock.

Observe, plan dry, attach, act (DESIGN 2 and 3). A new scheduler proves on a real snapshot that its
policy plans before it fences the one that acts; once fenced it exits and never attaches again. Lost
frames and gaps cost a new snapshot and never the epoch.
"""

import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from protocol.control_link import (
    Attach,
    ControlToWorker,
    Detach,
    Event,
    Fenced,
    Observe,
    Plan,
    PlanRejected,
    RefusedScheduler,
    Snapshot,
    ToScheduler,
)
from protocol.ids import Epoch
from protocol.lifecycle import EXIT_CONFIG
from scheduler.explain import KEPT, Decision
from scheduler.policy import Policy, PolicyPlan, check
from scheduler.view import Fold, WorkerView

log = logging.getLogger(__name__)

MAX_REASON = 2048
"""Characters of a reason on the wire."""


class CoreConfig(Struct, frozen=True, kw_only=True):
    """What the core must be told."""

    peer: str
    """Our own name on the link."""
    policy: str
    """The policy's name, for the worker's status."""
    version: int
    """Version of the protocol."""
    observe_only: bool = False
    """Plan dry for ever, never attach."""
    max_failures: int = 5
    """Failures of the policy in a row, or rejected plans in one epoch, after which to exit."""
    reply_s: float = 2.0
    """Ask again when a snapshot has not come for so long, seconds."""


class Link(Enum):
    """What happened to the link."""

    UP = "up"
    LOST = "lost"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """The process was asked to stop."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The process must end. Fenced: another scheduler acts, which is no failure."""

    reason: str
    fenced: bool = False
    status: int = 0


Input = ToScheduler | Link | Tick | Terminate
Output = ControlToWorker | Exit


class Stage(Enum):
    """How far the core is."""

    WAITING = "waiting"
    """No snapshot that counts."""
    OBSERVING = "observing"
    ATTACHING = "attaching"
    ACTING = "acting"
    GONE = "gone"


class SchedulerCore:
    """One scheduler of one worker."""

    def __init__(self, policy: Policy, config: CoreConfig) -> None:
        self.stage = Stage.WAITING
        self.view: WorkerView | None = None
        self.epoch: Epoch | None = None
        """Ours, once we act; kept through a resync."""
        self.standing: PolicyPlan | None = None
        """What the worker was sent last; None when it must be sent again."""
        self.seq = 0
        self.decisions: deque[Decision] = deque(maxlen=KEPT)
        """The last plans that were sent, oldest first."""
        self._policy = policy
        self.config = config
        self._planned: PolicyPlan | None = None
        self._failures = 0
        self._rejections = 0
        self._asked_at: float | None = None

    @property
    def ready(self) -> bool:
        """Whether it acts by a plan of its own; when it only observes, whether it has planned."""
        if self.config.observe_only:
            return self._planned is not None
        return self.stage is Stage.ACTING and self.standing is not None

    def on(self, event: Input, now: float) -> list[Output]:
        """Take one event and return what to send. `now` is monotonic, seconds."""
        match event:
            case _ if self.stage is Stage.GONE:
                return []
            case Link.UP | Link.LOST:
                return self._observe(now)
            case Link.DOWN:
                self.stage, self._asked_at = Stage.WAITING, None
                return []
            case Tick():
                late = self._asked_at is not None and now - self._asked_at >= self.config.reply_s
                return self._observe(now) if late else self._decide(now)
            case Terminate():
                return self._exit(Exit("asked to stop"))
            case RefusedScheduler(message=message):
                return self._exit(Exit(f"the worker refused: {message}", status=EXIT_CONFIG))
            case Snapshot():
                return self._on_snapshot(event, now)
            case Fenced(epoch=epoch):
                return self._on_fenced(epoch, now)
            case _:
                return self._on_event(event, now)

    # --- events ---

    def _on_snapshot(self, snapshot: Snapshot, now: float) -> list[Output]:
        attaching = self.stage is Stage.ATTACHING
        self._restore(snapshot)
        if snapshot.acting:
            self._asked_at = None
            return self._act(snapshot, now)
        if self.epoch is not None and snapshot.epoch > self.epoch:
            return self._fence(snapshot.epoch)
        if attaching:
            return []  # answers an older Observe: the answer to Attach is still to come
        self._asked_at = None
        self.epoch = None
        self.stage = Stage.OBSERVING
        return self._decide(now)

    def _restore(self, snapshot: Snapshot) -> None:
        if self.view is None:
            self.view = WorkerView(snapshot)
            return
        if snapshot.boot != self.view.boot:
            log.warning("worker restarted: boot %s, was %s", snapshot.boot, self.view.boot)
            self._forget_epoch()
        self.view.restore(snapshot)

    def _act(self, snapshot: Snapshot, now: float) -> list[Output]:
        if snapshot.epoch != self.epoch:
            log.info("acting in epoch %d of boot %s", snapshot.epoch.n, snapshot.epoch.boot)
            self._rejections = 0
            self.standing = None
        elif snapshot.plan_seq != self.seq:
            self.standing = None  # our last plan was lost: send it again
        self.epoch = snapshot.epoch
        self.seq = max(self.seq, snapshot.plan_seq)
        self.stage = Stage.ACTING
        return self._decide(now)

    def _on_fenced(self, epoch: Epoch, now: float) -> list[Output]:
        if self.epoch is None:
            return self._fence(epoch) if self.stage is Stage.ATTACHING else []
        if epoch.boot == self.epoch.boot:
            return self._fence(epoch) if epoch.n > self.epoch.n else []
        # The worker restarted: nobody has our place unless somebody attached since.
        return self._fence(epoch) if epoch.n > 0 else self._observe(now)

    def _on_event(self, event: Event, now: float) -> list[Output]:
        if isinstance(event, PlanRejected):
            log.error("plan %d rejected: %s", event.seq, event.why)
            self._rejections += 1
            if self._rejections >= self.config.max_failures:
                why = f"{self._rejections} plans rejected, the last: {event.why}"
                return self._exit(Exit(why, status=1))
        if self.view is None:
            return []
        fold = self.view.apply(event)
        if fold is Fold.GAP and self._asked_at is None:
            log.info("events lost: have %d, got %d", self.view.event, event.event)
            return self._observe(now)
        return self._decide(now) if fold is Fold.DONE else []

    # --- decisions ---

    def _observe(self, now: float) -> list[Output]:
        self._asked_at = now
        self.stage = Stage.WAITING
        config = self.config
        return [Observe(config.peer, config.policy, config.version)]

    def _decide(self, now: float) -> list[Output]:
        """Ask the policy, and attach or send its plan."""
        if self.view is None or self.stage not in (Stage.OBSERVING, Stage.ACTING):
            return []
        try:
            new = self._policy.plan(self.view, now)
            if new is not None and not (self.standing and _same(new, self.standing)):
                check(new, self.view)
            plan = new or self._planned
            if plan is None:
                raise ValueError("the policy gave no plan at all")
        except Exception as error:
            return self._failed(error)
        self._failures, self._planned = 0, plan
        if self.stage is Stage.OBSERVING:
            return self._attach(now)
        return self._send(plan, self.view, now)

    def _failed(self, error: Exception) -> list[Output]:
        """A policy's error changes nothing, until there were too many in a row."""
        self._failures += 1
        log.error("policy %s failed (%d in a row)", self.config.policy, self._failures)
        log.debug("traceback", exc_info=error)
        if self._failures < self.config.max_failures:
            return []
        why = f"the policy failed {self._failures} times in a row, the last: {error!r}"
        return self._exit(Exit(why, status=1))

    def _attach(self, now: float) -> list[Output]:
        if self.config.observe_only:
            return []
        self.stage = Stage.ATTACHING
        self._asked_at = now
        config = self.config
        return [Attach(config.peer, config.policy, config.version)]

    @property
    def latest(self) -> str:
        """Why the newest plan is as it is, sent or the same as the standing one."""
        return self._planned.why if self._planned else ""

    def _send(self, plan: PolicyPlan, view: WorkerView, now: float) -> list[Output]:
        if self.standing is not None and _same(plan, self.standing):
            return []
        assert self.epoch is not None
        self.standing = plan
        self.seq += 1
        why = plan.why
        log.debug("plan %d: %s", self.seq, why)
        self.decisions.append(
            Decision(
                at=now,
                seq=self.seq,
                event=view.event,
                sharing=str(plan.sharing),
                layers=plan.prefill.layers_per_quantum,
                batches=len(plan.prefill.batches),
                reason=why,
            )
        )
        return [
            Plan(
                epoch=self.epoch,
                seq=self.seq,
                sharing=plan.sharing,
                alone=plan.alone,
                decode=plan.decode,
                prefill=plan.prefill,
                victims=plan.victims,
                reason=why[:MAX_REASON],
            )
        ]

    # --- ends ---

    def _forget_epoch(self) -> None:
        self.epoch, self.standing, self.seq = None, None, 0
        self._rejections = 0

    def _fence(self, epoch: Epoch) -> list[Output]:
        self._forget_epoch()
        return self._exit(Exit(f"epoch {epoch.n} has taken over", fenced=True))

    def _exit(self, how: Exit) -> list[Output]:
        self.stage = Stage.GONE
        log.info("exit: %s", how.reason)
        if self.epoch is None:
            return [how]
        return [Detach(self.epoch), how]


def _same(a: PolicyPlan, b: PolicyPlan) -> bool:
    """Whether two plans say the same, whatever their reasons."""
    return a == replace(b, reason=a.reason)

"""One random life of a worker: a pure function of its seed.

Two phases. In the first anything may happen: absurd plans, aborts, lost frames, silent peers, tiny
pools, failing launches. In the second a sensible scheduler attaches, and everything must end.
"""

from random import Random

from protocol import PROTOCOL_VERSION
from protocol.control_link import (
    Attach,
    DecodePlan,
    Detach,
    Disjoint,
    Exclusive,
    FusedChunks,
    Lane,
    Observe,
    Plan,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RequestState,
    Shared,
)
from protocol.data_link import Abort, FailCode, Finished, Hello, Stop
from protocol.ids import Epoch, RequestRef
from tests.unit.worker.world import BOOT, World, device, shape
from worker.core.config import CoreConfig
from worker.core.events import PeerDown, Tick
from worker.executors.base import Launch

PEERS = (b"gw-1", b"gw-2")
SCHEDULERS = (b"sched-1", b"sched-2")


class Chaos:
    """The world and the dice."""

    def __init__(self, seed: int, events: int = 60) -> None:
        self.dice = dice = Random(seed)
        self.events = events
        self.faulty = dice.random() < 0.15
        page_size = dice.choice([1, 2, 4, 8])
        length = dice.choice([16, 40, 64])
        least = -(-length // page_size)
        info = device(
            models=(shape(layers=dice.randint(1, 5), length=length, vocab=60),),
            page_size=page_size,
            num_pages=dice.choice([least, least + 2, 2 * least, 4 * least, 8 * least]),
            max_slots=dice.choice([1, 4, 12, 12]),
            max_prefill_tokens=dice.choice([3, 16, 64, 500]),
        )
        config = CoreConfig(
            max_queued_requests=dice.choice([4, 100]),
            max_num_seqs=dice.choice([1, 3, 12]),
            max_launch_errors=1000,
        )
        self.world = World(info, config, fault=self._fault, clients=PEERS)
        self.refs: list[RequestRef] = []
        self.stopped: dict[RequestRef, int] = {}
        self.prefixes = [[dice.randrange(60) for _ in range(length)] for _ in range(2)]
        self.length = length
        self.newest = Epoch(BOOT, 0)

    def live(self) -> None:
        """Both phases."""
        actions = [
            (self._burst, 4),
            (self._step, 10),
            (self._wait, 3),
            (self._plan, 6),
            (self._abort, 2),
            (self._stop, 1),
            (self._again, 1),
            (self._lose_frames, 1),
            (self._resync, 1),
            (self._silence, 0.5),
            (self._schedulers, 1),
            (self._tick, 1),
        ]
        what, weights = zip(*actions, strict=True)
        if self.dice.random() < 0.9:
            self.world.attach(SCHEDULERS[0])
        for _ in range(self.events):
            self.dice.choices(what, weights)[0]()
        self.heal()

    def heal(self) -> None:
        """Let a sensible scheduler finish everything, and look at what came of it."""
        self.faulty = False
        world = self.world
        for peer in PEERS:
            world.run.gateway(Hello("g", PROTOCOL_VERSION), peer)
            world.run.gateway(world.client(peer).resync(), peer)
        world.attach(SCHEDULERS[0])
        for _ in range(100_000):
            if world.core.idle:
                break
            self._sensible_plan()
            world.run.step()
        world.expect_empty()
        for ref in self.refs:
            self._judge(ref)

    def trace(self) -> list[object]:
        """All that was launched and said, for comparing two runs."""
        run = self.world.run
        return [run.launches, list(run.data.items()), list(run.control.items()), run.now]

    # --- what must have come of it ---

    def _judge(self, ref: RequestRef) -> None:
        world = self.world
        sent, right = world.sent(ref), world.right(ref)
        tokens = tuple(sent.tokens)
        assert sent.terminal is not None, f"{ref} never ended"
        assert (ref in world.accepted) == (ref in world.terminal)
        if isinstance(sent.terminal, Finished) and ref not in self.stopped:
            assert tokens == right.tokens
            assert sent.terminal.stop_token == right.stop_token
        elif isinstance(sent.terminal, Finished):
            assert tokens == right.tokens[: len(tokens)]
        else:
            assert tokens == right.tokens[: len(tokens)]
            allowed = {FailCode.ABORTED, FailCode.INTERNAL}
            if ref not in world.accepted:  # or it was refused, and that was lost
                allowed = {FailCode.OVERLOADED, FailCode.TOO_LONG, FailCode.UNKNOWN_REQUEST}
            assert sent.terminal.code in allowed, sent.terminal

    def _sensible_plan(self) -> None:
        world = self.world
        waiting = [
            request
            for request in world.core.snapshot(world.run.now).requests
            if request.state is not RequestState.DECODING
        ]
        waiting.sort(key=lambda request: request.arrival)
        world.plan([[request.ref] for request in waiting], sharing=Disjoint(2), peer=SCHEDULERS[0])

    # --- what happens ---

    def _fault(self, work: Launch) -> str | None:
        return "a fault of the test" if self.faulty and self.dice.random() < 0.02 else None

    def _client(self):
        return self.world.client(self.dice.choice(PEERS))

    def _some(self, most: int) -> list[RequestRef]:
        pool = [*self.refs[-9:], RequestRef("nobody", 0)]
        live = [request.ref for request in self.world.core.snapshot(0.0).requests]
        if live and self.dice.random() < 0.8:
            pool = live
        return [self.dice.choice(pool) for _ in range(self.dice.randint(0, most))]

    def _burst(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            self._submit()

    def _submit(self) -> None:
        dice = self.dice
        prefix = dice.choice(self.prefixes)[: dice.randint(1, self.length - 1)]
        tail = [dice.randrange(60) for _ in range(dice.choice([0, 0, 1, 5]))]
        prompt = (prefix + tail)[: self.length - 1]
        ref = self.world.submit(
            f"r{len(self.refs)}",
            prompt,
            peer=dice.choice(PEERS),
            max_tokens=dice.randint(1, 30),
            seed=dice.randint(0, 3),
            temperature=dice.choice([0.0, 1.0]),
            ignore_eos=dice.random() < 0.5,
            min_tokens=dice.choice([0, 0, 4]),
            stop_token_ids=tuple(dice.sample(range(60), dice.choice([0, 1]))),
            extra={} if dice.random() < 0.8 else {"root_hash": b""},
        )
        self.refs.append(ref)

    def _step(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            self.world.run.step()

    def _wait(self) -> None:
        self.world.run.run_until(self.world.run.now + self.dice.random() * 0.05)

    def _tick(self) -> None:
        self.world.run.feed(Tick())

    def _plan(self) -> None:
        dice = self.dice
        groups = tuple(
            PrefillBatch(
                tuple(
                    PrefillItem(ref, dice.choice([0, 0, 0, dice.randint(0, 80)]))
                    for ref in self._some(5)
                )
            )
            for _ in range(dice.randint(0, 5))
        )
        fused = FusedChunks(
            tuple(self._some(3)) if dice.random() < 0.5 else (),
            dice.choice([0, 1, 8, 100]),
            dice.choice([0, 1, 8, 100]),
        )
        wanted = None if dice.random() < 0.7 else tuple(self._some(6))
        self.world.run.scheduler(
            Plan(
                epoch=self._epoch(),
                seq=self.world.seq + 1 if dice.random() < 0.9 else dice.choice([0, 3]),
                sharing=self._sharing(),
                alone=dice.choice([0, 0, 0, 0, 1, 1, 2, 2, 9]),
                decode=DecodePlan(wanted, dice.choice([0, 1, 1, 2, 5]), fused),
                prefill=PrefillPlan(
                    groups, dice.choice([0, 1, 1, 2, 99]), dice.choice([0, 0, 0, 1, 5])
                ),
                victims=tuple(self._some(3)),
            ),
            dice.choice(SCHEDULERS),
        )
        self.world.seq += 1

    def _epoch(self) -> Epoch:
        newest = self.world.core.snapshot(0.0).epoch
        stale = self.dice.choice([Epoch(BOOT, 1), Epoch("other", newest.n)])
        return stale if self.dice.random() < 0.1 else newest

    def _sharing(self):
        dice = self.dice
        lane = dice.choice([Lane.PREFILL, Lane.DECODE])
        return dice.choice(
            [
                Disjoint(dice.choice([0, 1, 1, 2, 2, 3, 3, 7])),
                Shared(),
                Exclusive(lane, dice.choice([0, 1, 1, 1, 3, 3]), dice.choice([0, 1, 4])),
            ]
        )

    def _abort(self) -> None:
        started = [
            request.ref
            for request in self.world.core.snapshot(0.0).requests
            if request.state in (RequestState.PREFILLING, RequestState.SUSPENDED)
        ]
        refs = self._some(2) if self.dice.random() < 0.5 else started[:1]
        for ref in refs:
            self.world.run.gateway(Abort(ref), self.dice.choice(PEERS))

    def _stop(self) -> None:
        for ref in self._some(1):
            at = self.dice.randint(0, 10)
            self.stopped[ref] = at
            self.world.run.gateway(Stop(ref, at), self.dice.choice(PEERS))

    def _again(self) -> None:
        """A submit comes twice."""
        client = self._client()
        if client.requests and not client.deaf:
            ref = self.dice.choice(list(client.requests))
            if client.requests[ref].terminal is None:
                self.world.run.gateway(client.again(ref), client.peer)

    def _lose_frames(self) -> None:
        self._client().deaf = True

    def _resync(self) -> None:
        client = self._client()
        self.world.run.gateway(client.resync(), client.peer)

    def _silence(self) -> None:
        """A gateway is not heard for a while, perhaps for too long."""
        client = self._client()
        self.world.run.feed(PeerDown("data", client.peer))
        client.deaf = True
        self.world.run.run_until(self.world.run.now + self.dice.choice([0.01, 1.0, 6.0]))
        self.world.run.feed(Tick())
        self.world.run.gateway(client.resync(), client.peer)

    def _schedulers(self) -> None:
        dice, run = self.dice, self.world.run
        peer = dice.choice(SCHEDULERS)
        choice = dice.randint(0, 3)
        if choice == 0:
            run.scheduler(Observe("s", "test", PROTOCOL_VERSION), peer)
        elif choice == 1:
            run.scheduler(Attach("s", "test", PROTOCOL_VERSION), peer)
            self.world.seq = 0
        elif choice == 2:
            run.feed(PeerDown("control", peer))
        else:
            run.scheduler(Detach(self._epoch()), peer)

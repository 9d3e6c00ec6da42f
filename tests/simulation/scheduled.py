"""A worker on a simulated device and the schedulers that attach to it, in virtual time.

Messages of the control link take a while in each direction, so plans always arrive on a worker that
has moved on. Its invariants are checked as it goes, and after each of its events that a mirror that
has heard everything says what a fresh snapshot says.
"""

import heapq
import itertools
import random
from dataclasses import dataclass

from protocol.control_link import (
    ControlToWorker,
    Observe,
    Partition,
    Plan,
    PlanRejected,
    Snapshot,
)
from protocol.data_link import Failed, Finished, Hello, Submit, Tokens
from protocol.ids import RequestRef, pack_tokens, unpack_tokens
from protocol.prefix import page_hashes, root_hash
from protocol.sampling import Sampling
from scheduler.core import CoreConfig as SchedulerConfig
from scheduler.core import Exit, Link, SchedulerCore, Tick
from scheduler.policy import Objectives
from scheduler.registry import make
from scheduler.view import Fold, WorkerView
from worker.core.config import CoreConfig
from worker.core.events import Effect, SendControl
from worker.core.machine import WorkerCore
from worker.executors.base import DeviceInfo, ModelShape
from worker.executors.simulated.executor import SimulatedExecutor
from worker.executors.simulated.fake_model import right_stream
from worker.executors.simulated.latency import LatencyModel
from worker.executors.simulated.virtual import VirtualWorker

MODEL = ModelShape("m", num_layers=32, vocab_size=1000, max_model_len=20_000, eos_token_ids=(7,))
PAGE = 16
ROOT = root_hash(b"", "m")
H200 = (
    Partition(0, 132, 132),
    Partition(1, 116, 16),
    Partition(2, 100, 32),
    Partition(3, 84, 48),
    Partition(4, 68, 64),
)
TWO_CORES = (Partition(0, 2, 2), Partition(1, 1, 1))
H200_8B = LatencyModel(
    prefill_launch_s=1e-4,
    prefill_token_s=1 / 42_000,
    prefill_pair_s=2.5e-10,
    decode_launch_s=5e-3,
    decode_row_s=2e-5,
    decode_context_s=2e-8,
    saturation=0.42,
    prefill_slowdown=1.1,
    decode_slowdown=1.25,
)
"""About what was measured for an 8B model: 38,600 tokens/s alone, 9 to 32 ms an iteration."""
TICK_S = 0.2
CHECK_EVERY = 5
"""Events between two checks of the worker's own invariants: they look at every page."""
MIRROR = b"mirror"
"""An observer without delay."""


@dataclass
class Client:
    """What one request asked for and got."""

    submit: Submit
    arrival: float
    tokens: list[int]
    times: list[float]
    terminal: Finished | Failed | None = None


class System:
    """One worker, its clients and schedulers. Times in virtual seconds."""

    def __init__(
        self,
        partitions: tuple[Partition, ...] = H200,
        *,
        pages: int = 1200,
        max_num_seqs: int = 64,
        delay_s: float = 2e-4,
        checked: bool = True,
    ) -> None:
        """`checked`: verify every page that is read, and all invariants after every event."""
        info = DeviceInfo(
            unit="SM" if partitions[0].decode_units > 8 else "core",
            units=partitions[0].decode_units,
            partitions=partitions,
            models=(MODEL,),
            num_pages=pages,
            page_size=PAGE,
            max_slots=max_num_seqs + 8,
            max_prefill_tokens=8192,
        )
        self.core = WorkerCore(CoreConfig(max_num_seqs=max_num_seqs), info, "boot")
        self.mirror: WorkerView | None = None
        executor = SimulatedExecutor(info, H200_8B, verify=checked)
        check = self._after_event if checked else None
        self.worker = VirtualWorker(self.core, executor, check)
        self.clients: dict[RequestRef, Client] = {}
        self.schedulers: dict[bytes, SchedulerCore] = {}
        self.exits: dict[bytes, Exit] = {}
        self.plans: list[Plan] = []
        self.rejected: list[PlanRejected] = []
        self._delay = delay_s
        self._todo: list[tuple[float, int, object]] = []
        self._order = itertools.count()
        self._events = 0
        self.worker.gateway(Hello("gw-1", 1))
        if checked:
            self.worker.scheduler(Observe("mirror", "mirror", 1), MIRROR)

    # --- what a test lets happen ---

    def request(self, at: float, prompt: list[int], **sampling: object) -> RequestRef:
        """Let a request arrive at `at`."""
        ref = RequestRef(f"r{len(self.clients)}")
        given = {"max_tokens": 32, "seed": 1} | sampling
        submit = Submit(
            ref=ref,
            model="m",
            token_ids=pack_tokens(prompt),
            sampling=Sampling(**given),
            page_hashes=b"".join(page_hashes(ROOT, prompt, PAGE)),
            root_hash=ROOT,
        )
        self.clients[ref] = Client(submit, at, [], [])
        self._at(at, submit)
        return ref

    def scheduler(
        self, at: float, policy: str, *options: str, tbt_s: float = 0.05, ttft_s: float = 1.0
    ) -> bytes:
        """Let a scheduler start at `at`; return its name on the link."""
        peer = f"sched-{len(self.schedulers)}".encode()
        objectives = Objectives(tbt_s=tbt_s, ttft_s=ttft_s)
        config = SchedulerConfig(peer=peer.decode(), policy=policy, version=1)
        self.schedulers[peer] = SchedulerCore(make(policy, objectives, options), config)
        self._at(at, (peer, Link.UP))
        return peer

    def run(self, until: float = 1e9) -> None:
        """Go on until all requests have ended, or until `until`."""
        tick = itertools.count(1)
        next_tick = 0.0
        while not all(client.terminal for client in self.clients.values()):
            soonest = self._todo[0][0] if self._todo else float("inf")
            done = self.worker.executor.next_completion()
            if min(soonest, done if done is not None else float("inf"), next_tick) > until:
                return
            if next_tick <= soonest and (done is None or next_tick <= done):
                self._tick(next_tick)
                next_tick = next(tick) * TICK_S
                assert next_tick < 3600, "an hour has passed and requests are left"
            elif done is not None and done <= soonest:
                self.worker.run_until(done)
            else:
                when, _, what = heapq.heappop(self._todo)
                self.worker.run_until(when)
                self._deliver(what)
            self._collect()

    # --- moving messages ---

    def _at(self, when: float, what: object) -> None:
        heapq.heappush(self._todo, (when, next(self._order), what))

    def _tick(self, now: float) -> None:
        self.worker.run_until(now)
        for peer in self.schedulers:
            self._deliver((peer, Tick()))

    def _deliver(self, what: object) -> None:
        if isinstance(what, Submit):
            self.worker.gateway(what)
            return
        peer, message = what
        if isinstance(message, ControlToWorker):
            if isinstance(message, Plan):
                self.plans.append(message)
            self.worker.scheduler(message, peer)
            return
        for out in self.schedulers[peer].on(message, self.worker.now):
            if isinstance(out, Exit):
                self.exits[peer] = out
            else:
                self._at(self.worker.now + self._delay, (peer, out))

    def _collect(self) -> None:
        now = self.worker.now
        for peer, told in self.worker.control.items():
            for message in told:
                if isinstance(message, PlanRejected):
                    self.rejected.append(message)
                self._at(now + self._delay, (peer, message))
            told.clear()
        for message in self.worker.data.pop(b"gw-1", []):
            if isinstance(message, Tokens):
                for run in message.runs:
                    client = self.clients[run.ref]
                    assert run.first == len(client.tokens)
                    client.tokens += unpack_tokens(run.ids)
                    client.times += [now] * (len(run.ids) // 4)
            elif isinstance(message, Finished | Failed):
                client = self.clients[message.ref]
                assert client.terminal is None, "two terminal messages"
                client.terminal = message

    def _after_event(self, event: object, effects: list[Effect]) -> None:
        assert self.worker.fatal is None
        self._events += 1
        if self._events % CHECK_EVERY == 0:
            assert self.core.check() == []
        for effect in effects:
            if isinstance(effect, SendControl) and effect.peer == MIRROR:
                if isinstance(effect.message, Snapshot):
                    self.mirror = WorkerView(effect.message)
                elif self.mirror is not None:
                    assert self.mirror.apply(effect.message) is Fold.DONE
        self.worker.control.pop(MIRROR, None)
        if self.mirror is not None:
            fresh = WorkerView(self.core._control.snapshot(MIRROR, self.worker.now))
            # Launches take pages without an event: the pool is as of the last one.
            fresh.pool = self.mirror.pool
            assert self.mirror.facts() == fresh.facts()

    # --- what came of it ---

    def check_outputs(self) -> None:
        """Every request has finished with the tokens of an undisturbed run."""
        for ref, client in self.clients.items():
            assert isinstance(client.terminal, Finished), (ref, client.terminal)
            prompt = unpack_tokens(client.submit.token_ids)
            assert client.tokens == list(
                right_stream(prompt, client.submit.sampling, MODEL).tokens
            ), ref

    def gaps(self) -> list[float]:
        """All times between tokens, ascending, seconds."""
        pairs = (itertools.pairwise(client.times) for client in self.clients.values())
        return sorted(b - a for pair in pairs for a, b in pair)

    def first_tokens(self) -> list[float]:
        """All times to the first token, ascending, seconds."""
        return sorted(c.times[0] - c.arrival for c in self.clients.values() if c.times)


def random_requests(system: System, seed: int, count: int, over_s: float, longest: int) -> None:
    """Let `count` random requests arrive; some share a prefix, some are sampled."""
    rng = random.Random(seed)
    shared = [rng.randrange(10, 1000) for _ in range(longest // 2)]
    for _ in range(count):
        prompt = [rng.randrange(10, 1000) for _ in range(rng.randint(1, longest))]
        if rng.random() < 0.3:
            prompt = shared + prompt[: longest // 4]
        system.request(
            rng.uniform(0, over_s),
            prompt,
            max_tokens=rng.randint(1, 60),
            temperature=rng.choice((0.0, 1.0)),
            seed=rng.randrange(1000),
        )


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the ascending `values` are."""
    return values[min(len(values) - 1, int(share * len(values)))]

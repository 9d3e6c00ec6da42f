"""A worker in virtual time with clients and a scheduler, and its invariants checked at every event.

`World` is what the tests of the core are written in: submit, plan, let time pass, expect.
"""

from collections.abc import Sequence
from typing import Any

from protocol import PROTOCOL_VERSION
from protocol.control_link import (
    Attach,
    DecodePlan,
    Disjoint,
    Event,
    Exclusive,
    Partition,
    Plan,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RequestState,
    Shared,
    Snapshot,
    ToScheduler,
)
from protocol.data_link import FailCode, Failed, Finished, Hello, Resync, Status, Submit
from protocol.ids import Epoch, RequestRef, pack_tokens
from protocol.sampling import Sampling
from scheduler.view import Fold, WorkerView
from tests.unit.worker.client import Client
from worker.core.config import CoreConfig
from worker.core.events import CoreEvent, Effect, FromGateway, SendControl, SendData
from worker.core.machine import WorkerCore
from worker.executors.base import DecodeBatch, DeviceInfo, ModelShape, PrefillQuantum
from worker.executors.simulated.executor import Fault, SimulatedExecutor
from worker.executors.simulated.fake_model import Stream, right_stream
from worker.executors.simulated.latency import LatencyModel
from worker.executors.simulated.virtual import VirtualWorker

ROOT = b"r" * 32
BOOT = "boot-1"
PARTITIONS = (
    Partition(0, 16, 16),
    Partition(1, 12, 4),
    Partition(2, 8, 8),
    Partition(3, 4, 12),
)
LATENCY = LatencyModel(
    prefill_launch_s=1e-4,
    prefill_token_s=1e-3,
    prefill_pair_s=1e-6,
    decode_launch_s=5e-3,
    decode_row_s=1e-4,
    decode_context_s=1e-6,
    saturation=0.5,
    prefill_slowdown=1.1,
    decode_slowdown=1.2,
)


def shape(name: str = "m", layers: int = 4, length: int = 128, vocab: int = 1000) -> ModelShape:
    """A model whose end of sequence is token 0."""
    return ModelShape(name, layers, vocab, length, (0,))


def device(**changes: Any) -> DeviceInfo:
    """A small device; `changes` to its fields."""
    fields: dict[str, Any] = {
        "unit": "SM",
        "units": 16,
        "partitions": PARTITIONS,
        "models": (shape(),),
        "num_pages": 64,
        "page_size": 4,
        "max_slots": 16,
        "max_prefill_tokens": 64,
    }
    return DeviceInfo(**(fields | changes))


def batches(*lists: Sequence[RequestRef]) -> tuple[PrefillBatch, ...]:
    """Prefill batches of whole prompts."""
    return tuple(PrefillBatch(tuple(PrefillItem(ref) for ref in refs)) for refs in lists)


class World:
    """One worker, its clients and its scheduler."""

    def __init__(
        self,
        info: DeviceInfo | None = None,
        config: CoreConfig | None = None,
        fault: Fault | None = None,
        clients: Sequence[bytes] = (b"gw-1",),
    ) -> None:
        self.info = info or device()
        self.core = WorkerCore(config or CoreConfig(), self.info, BOOT)
        executor = SimulatedExecutor(self.info, LATENCY, verify=True, fault=fault)
        self.run = VirtualWorker(self.core, executor, self._after_event)
        self.terminal: dict[RequestRef, Finished | Failed] = {}
        """First terminal message of each accepted request."""
        self.accepted: set[RequestRef] = set()
        self.mirrors: dict[bytes, WorkerView] = {}
        self.seq = 0
        self.epoch = Epoch(BOOT, 0)
        self.clients = {peer: Client(peer) for peer in clients}
        for peer in clients:
            self.run.gateway(Hello("g", PROTOCOL_VERSION), peer)

    # --- gateways ---

    def client(self, peer: bytes = b"gw-1") -> Client:
        """A gateway."""
        return self.clients[peer]

    def submit(
        self,
        name: str,
        prompt: Sequence[int] | int = 8,
        *,
        peer: bytes = b"gw-1",
        incarnation: int = 0,
        extra: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> RequestRef:
        """Submit a request; `prompt` is its tokens or their number."""
        ref = RequestRef(name, incarnation)
        tokens = prompt_of(name, prompt) if isinstance(prompt, int) else list(prompt)
        fields = {"max_tokens": 8, "seed": 7, "ignore_eos": True} | sampling
        submit = Submit(
            ref=ref,
            model="m",
            token_ids=pack_tokens(tokens),
            sampling=Sampling(**fields),
            **({"root_hash": ROOT} | (extra or {})),
        )
        self.run.gateway(self.clients[peer].submit(submit), peer)
        return ref

    def sent(self, ref: RequestRef) -> Any:
        """What a gateway has of a request."""
        return next(c.requests[ref] for c in self.clients.values() if ref in c.requests)

    def right(self, ref: RequestRef) -> Stream:
        """The output of an undisturbed run."""
        submit = self.sent(ref).submit
        model = next(model for model in self.info.models if model.name == submit.model)
        prompt = memoryview(submit.token_ids).cast("i").tolist()
        return right_stream(prompt, submit.sampling, model)

    def expect_right(self, *refs: RequestRef) -> None:
        """All of `refs` have finished with exactly the right output."""
        for ref in refs:
            sent, right = self.sent(ref), self.right(ref)
            assert isinstance(sent.terminal, Finished), (ref, sent.terminal)
            assert tuple(sent.tokens) == right.tokens, ref
            assert sent.terminal.stop_token == right.stop_token
            counted = len(right.tokens) + (right.stop_token is not None)
            assert sent.terminal.usage.output_tokens == counted

    # --- scheduler ---

    def attach(self, peer: bytes = b"sched-1") -> Snapshot:
        """A scheduler begins to act."""
        self.run.scheduler(Attach("s", "test", PROTOCOL_VERSION), peer)
        snapshot = self.run.control[peer][-1]
        assert isinstance(snapshot, Snapshot)
        self.epoch, self.seq = snapshot.epoch, 0
        return snapshot

    def plan(
        self,
        prefill: Sequence[Sequence[RequestRef]] = (),
        *,
        sharing: Disjoint | Shared | Exclusive | None = None,
        decode: DecodePlan | None = None,
        layers: int = 0,
        chunk: int = 0,
        peer: bytes = b"sched-1",
        **fields: Any,
    ) -> list[Effect]:
        """Send the next plan: `prefill` lists batches of whole prompts."""
        self.seq += 1
        return self.run.scheduler(
            Plan(
                epoch=self.epoch,
                seq=self.seq,
                sharing=sharing or Disjoint(2),
                decode=decode or DecodePlan(),
                prefill=PrefillPlan(batches(*prefill), layers, chunk),
                **fields,
            ),
            peer,
        )

    def state(self, ref: RequestRef) -> RequestState | None:
        """Where a request is; None: it has left."""
        requests = self.core.snapshot(self.run.now).requests
        return next((request.state for request in requests if request.ref == ref), None)

    # --- launches ---

    def quanta(self) -> list[PrefillQuantum]:
        """All prefill quanta so far."""
        return [work for work in self.run.launches if isinstance(work, PrefillQuantum)]

    def iterations(self) -> list[DecodeBatch]:
        """All decode iterations so far."""
        return [work for work in self.run.launches if isinstance(work, DecodeBatch)]

    def expect_empty(self) -> None:
        """Nothing is left of anything."""
        assert self.core.idle
        assert self.core.referenced_pages == 0
        assert self.run.executor.parked == []
        assert self.run.fatal is None

    # --- after every event ---

    def _after_event(self, event: CoreEvent, effects: list[Effect]) -> None:
        wrong = self.core.check()
        assert not wrong, (wrong, event)
        for effect in effects:
            if isinstance(effect, SendData):
                self._watch_terminal(event, effect)
                if effect.peer in self.clients:
                    self.clients[effect.peer].hear(effect.message)
            elif isinstance(effect, SendControl):
                self._fold(effect.peer, effect.message)
        self._compare_mirrors()

    def _watch_terminal(self, event: CoreEvent, effect: SendData) -> None:
        """Exactly one terminal message; another one only as a repetition that was asked for."""
        message = effect.message
        if not isinstance(message, Finished | Failed):
            self.accepted.update([message.ref] if type(message).__name__ == "Accepted" else [])
            return
        forgotten = isinstance(message, Failed) and message.code is FailCode.UNKNOWN_REQUEST
        if message.ref not in self.accepted or forgotten:
            return
        first = self.terminal.setdefault(message.ref, message)
        if first is not message:
            asked = isinstance(event, FromGateway) and isinstance(event.message, Resync | Submit)
            assert asked, f"a second terminal message of {message.ref}"
            assert first == message

    def _fold(self, peer: bytes, message: ToScheduler) -> None:
        if isinstance(message, Snapshot):
            self.mirrors[peer] = WorkerView(message)
        elif isinstance(message, Event) and peer in self.mirrors:
            assert self.mirrors[peer].apply(message) is not Fold.GAP, message

    def _compare_mirrors(self) -> None:
        """What a scheduler's mirror has from events is what a snapshot says."""
        observing = set(self.core.observers)
        self.mirrors = {peer: view for peer, view in self.mirrors.items() if peer in observing}
        snapshot = self.core.snapshot(self.run.now) if self.mirrors else None
        for mirror in self.mirrors.values():
            assert snapshot is not None
            number, _, requests, started = mirror.facts()
            assert number == snapshot.event
            assert requests == {request.ref: request for request in snapshot.requests}
            assert started == snapshot.batches


def prompt_of(name: str, length: int) -> list[int]:
    """A prompt that no other name has."""
    start = sum(ord(letter) * 31**place for place, letter in enumerate(name))
    return [1 + (start + 7 * i * i) % 997 for i in range(length)]


def answers(effects: Sequence[Effect]) -> list[Any]:
    """Messages to gateways, status left out."""
    told = [effect.message for effect in effects if isinstance(effect, SendData)]
    return [message for message in told if not isinstance(message, Status)]


def served(world: World, name: str = "r", **options: Any) -> RequestRef:
    """Submit a request that a plan serves at once, and go on until it has some output."""
    ref = world.submit(name, **options)
    world.attach()
    world.plan([[ref]])
    while not world.sent(ref).tokens:
        assert world.run.step()
    return ref

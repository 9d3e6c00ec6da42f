"""A thousand requests through the worker's core on the GPU, under plans that keep changing.

Splits, sharing, fused chunks, suspensions, aborts and a pool that is too small for all: at the end
every request has ended once, with as many tokens as it asked for, and no page is referenced.
"""

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from protocol import PROTOCOL_VERSION
from protocol.control_link import (
    Attach,
    DecodePlan,
    Disjoint,
    Exclusive,
    FusedChunks,
    Lane,
    Plan,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    RequestState,
    Shared,
    Snapshot,
)
from protocol.data_link import Abort, Finished, Hello, Submit
from protocol.ids import Epoch, RequestRef, pack_tokens
from protocol.model_files import ModelFiles
from protocol.sampling import Sampling
from tests.gpu import families
from tests.unit.worker.client import Client
from worker.core.config import CoreConfig
from worker.core.events import (
    Completed,
    CoreEvent,
    DiscardBatch,
    Fatal,
    FromGateway,
    FromScheduler,
    LaunchWork,
    SendControl,
    SendData,
    Tick,
)
from worker.core.machine import WorkerCore
from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.start import start
from worker.loaders import load_model, silent
from worker.models.weights import Model

pytestmark = pytest.mark.gpu

REQUESTS = 1000
PATIENCE_S = 120.0
GATEWAY, SCHEDULER = b"gw-1", b"sched-1"


class Run:
    """Core, executor and a client that keeps changing its mind."""

    def __init__(self, executor: Any, seed: int) -> None:
        self.executor, self.dice = executor, Random(seed)
        self.core = WorkerCore(CoreConfig(max_num_seqs=24), executor.info, "boot")
        self.client = Client(GATEWAY)
        self.epoch, self.seq = Epoch("boot", 0), 0
        self.prefixes = [self._tokens(600) for _ in range(4)]
        self.feed(FromGateway(GATEWAY, Hello("g", PROTOCOL_VERSION)))
        self.feed(FromScheduler(SCHEDULER, Attach("s", "test", PROTOCOL_VERSION)))

    def _tokens(self, count: int) -> list[int]:
        return [self.dice.randrange(1000) for _ in range(count)]

    def feed(self, event: CoreEvent) -> None:
        for effect in self.core.on(event, time.monotonic()):
            match effect:
                case LaunchWork(work=work):
                    self.executor.launch(work)
                case DiscardBatch(batch=batch):
                    self.executor.discard(batch)
                case SendData(message=message):
                    self.client.hear(message)
                case SendControl(message=Snapshot(epoch=epoch)):
                    self.epoch = epoch
                case Fatal(reason=reason):
                    pytest.fail(reason)

    def submit(self, number: int) -> None:
        prefix = self.dice.choice(self.prefixes)[: self.dice.choice((0, 64, 200, 600))]
        prompt = prefix + self._tokens(self.dice.randint(1, 120))
        greedy = self.dice.random() < 0.5
        sampling = Sampling(
            max_tokens=self.dice.randint(1, 24),
            seed=number,
            temperature=0.0 if greedy else 0.8,
            top_k=0 if greedy else 50,
            top_p=1.0 if greedy else 0.9,
            repetition_penalty=self.dice.choice((1.0, 1.0, 1.1)),
            ignore_eos=True,
        )
        submit = Submit(
            ref=RequestRef(f"r{number}"),
            model=self.executor.info.models[0].name,
            token_ids=pack_tokens(prompt),
            sampling=sampling,
            root_hash=b"r" * 32,
        )
        self.feed(FromGateway(GATEWAY, self.client.submit(submit)))

    def plan(self) -> None:
        """Any split, any order of what waits: started batches are often suspended."""
        dice = self.dice
        requests = self.core.snapshot(time.monotonic()).requests
        waiting = [r.ref for r in requests if r.state is not RequestState.DECODING]
        dice.shuffle(waiting)
        chunked = waiting[:2] if dice.random() < 0.3 else []
        lanes = [ref for ref in waiting if ref not in chunked][:12]
        size = dice.randint(1, 4)
        groups = [lanes[i : i + size] for i in range(0, len(lanes), size)]
        row = dice.randrange(1, len(self.executor.info.partitions))
        exclusive = Exclusive(dice.choice(list(Lane)), quanta=2, iterations=2)
        sharing: Disjoint | Shared | Exclusive = dice.choice(
            (Disjoint(row), Disjoint(row), Shared(), exclusive)
        )
        self.seq += 1
        fused = FusedChunks(tuple(chunked), token_budget=256, max_chunk=dice.choice((16, 200)))
        plan = Plan(
            epoch=self.epoch,
            seq=self.seq,
            sharing=sharing,
            decode=DecodePlan(depth=dice.choice((0, 1, 2)), fused=fused),
            prefill=PrefillPlan(
                tuple(PrefillBatch(tuple(PrefillItem(ref) for ref in group)) for group in groups),
                layers_per_quantum=dice.choice((0, 1, 2)),
                token_chunk=dice.choice((0, 300)),
            ),
        )
        self.feed(FromScheduler(SCHEDULER, plan))

    def abort_one(self) -> None:
        alive = [ref for ref, sent in self.client.requests.items() if sent.terminal is None]
        if alive:
            self.feed(FromGateway(GATEWAY, Abort(self.dice.choice(alive))))

    def live(self) -> None:
        submitted, until = 0, time.monotonic() + PATIENCE_S
        while submitted < REQUESTS or not self.core.idle:
            assert time.monotonic() < until, f"{len(self.core.snapshot(0.0).requests)} never ended"
            done = self.executor.poll()
            for completion in done:
                assert completion.error is None
                self.feed(Completed(completion))
            if submitted < REQUESTS and len(self.core.snapshot(0.0).requests) < 80:
                self.submit(submitted)
                submitted += 1
                if self.dice.random() < 0.1:
                    self.abort_one()
            quiet = not any(self.core.in_flight(lane) for lane in Lane)
            if quiet or (done and self.dice.random() < 0.2):
                self.plan()
                self.feed(Tick())
                assert not self.core.check()


def test_a_thousand_requests_with_aborts_and_suspensions_leave_no_page_referenced(
    tmp_path: Path,
) -> None:
    families.write("llama3", tmp_path)
    device = torch.device("cuda", 0)
    files = ModelFiles("hf", tmp_path, "llama3")
    model = Model(*load_model(files, device, torch.bfloat16, silent))
    config = CudaConfig(
        device=0,
        max_slots=32,
        max_model_len=1024,
        max_prefill_tokens=2048,
        page_size=16,
        num_pages=400,
        memory_utilization=0.9,
        require_partitions=True,
        graph_rows=(1, 4, 8, 16, 24),
    )
    executor = start("llama3", model, config, lambda *_: None)
    run = Run(executor, seed=11)
    run.live()
    assert run.core.referenced_pages == 0
    assert not run.core.check()
    assert executor.parked_batches == 0
    ends = [sent.terminal for sent in run.client.requests.values()]
    assert len(ends) == REQUESTS
    assert all(sent.terminals == 1 for sent in run.client.requests.values())
    for sent in run.client.requests.values():
        if isinstance(sent.terminal, Finished) and sent.terminal.reason.value == "length":
            assert len(sent.tokens) == sent.submit.sampling.max_tokens
    assert sum(isinstance(end, Finished) for end in ends) > REQUESTS * 0.8
    executor.close()

"""A real worker process, with a gateway and a scheduler that a test plays itself.

Both speak the real protocol over the real sockets, token ids included, so a test can put a request
into any state and look at what the worker says of it.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from protocol import PROTOCOL_VERSION
from protocol.control_link import (
    Attach,
    Exclusive,
    Lane,
    Observe,
    Plan,
    PrefillBatch,
    PrefillItem,
    PrefillPlan,
    Snapshot,
    ToScheduler,
)
from protocol.data_link import (
    Abort,
    Accepted,
    Hello,
    Status,
    Submit,
    ToGateway,
    Tokens,
    Welcome,
)
from protocol.endpoint import Endpoint, Received, Up
from protocol.ids import RequestRef, new_id, pack_tokens
from protocol.lifecycle import Ready, parse_report
from protocol.link import LINK
from protocol.sampling import Sampling
from protocol.transport.zeromq import connect

WAIT_S = 60.0

M = TypeVar("M")


@contextlib.contextmanager
def worker(folder: Path, *flags: str) -> Iterator[subprocess.Popen]:
    """Run a worker of the embedded model on the CPU, ready."""
    ready, ready_child = os.pipe()
    line = [sys.executable, "-P", "-m", "worker.main", f"--run-dir={folder}", "--model=demo"]
    line += ["--device=cpu", f"--ready-fd={ready_child}", *flags]
    process = subprocess.Popen(line, pass_fds=(ready_child,))
    os.close(ready_child)
    try:
        with os.fdopen(ready, "rb") as reports:
            assert any(isinstance(parse_report(report), Ready) for report in reports)
            yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


class Peer:
    """One side of a link to the worker."""

    def __init__(self, address: str, name: str, accepts: Any) -> None:
        transport = connect(address, name.encode())
        self.endpoint: Endpoint[Any, Any] = Endpoint(transport, accepts, LINK)
        self.name = name
        self.log: list[Any] = []
        """Every message received, oldest first."""

    def close(self) -> None:
        self.endpoint.close()

    def send(self, message: Any) -> None:
        assert self.endpoint.send(message, time.monotonic()), message

    def turn(self, timeout_s: float) -> None:
        """Take in what has come, or wait for something."""
        now = time.monotonic()
        wait = max(0.0, min(timeout_s, self.endpoint.deadline(now) - now))
        select.select([self.endpoint], [], [], wait)
        for event in self.endpoint.poll(time.monotonic()):
            if isinstance(event, Received):
                self.log.append(event.message)
            elif isinstance(event, Up):
                self.greet()

    def greet(self) -> None:
        """Say what this peer says first."""
        raise NotImplementedError


def wait_for(find: Callable[[], M | None], *peers: Peer) -> M:
    """Serve the peers until `find` returns something."""
    end = time.monotonic() + WAIT_S
    while (found := find()) is None:
        assert time.monotonic() < end, [peer.log[-5:] for peer in peers]
        for peer in peers:
            peer.turn(0.01)
    return found


class Gateway(Peer):
    """A gateway that deals in token ids."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"ipc://{folder}/data", f"gw-{new_id()}", ToGateway)

    def greet(self) -> None:
        self.send(Hello(self.name, PROTOCOL_VERSION))

    def last(self, kind: type[M]) -> M | None:
        return next((m for m in reversed(self.log) if isinstance(m, kind)), None)

    def submit(self, prompt: list[int], max_tokens: int, model: str) -> RequestRef:
        ref = RequestRef(new_id())
        sampling = Sampling(max_tokens=max_tokens, seed=0, temperature=0, ignore_eos=True)
        tokens = pack_tokens(prompt)
        self.send(Submit(ref=ref, model=model, token_ids=tokens, sampling=sampling))
        return ref

    def accepted(self, ref: RequestRef) -> bool | None:
        return any(isinstance(m, Accepted) and m.ref == ref for m in self.log) or None

    def token_count(self, ref: RequestRef) -> int:
        """How many tokens of a request have come."""
        runs = (run for m in self.log if isinstance(m, Tokens) for run in m.runs)
        return sum(len(run.ids) // 4 for run in runs if run.ref == ref)

    def streams(self, ref: RequestRef) -> bool | None:
        """Whether tokens of a request have come."""
        return self.token_count(ref) > 0 or None

    def abort(self, ref: RequestRef) -> None:
        """Leave, and forget what the worker has said of its load."""
        self.send(Abort(ref))
        self.log = [m for m in self.log if not isinstance(m, Status)]

    def load_is(self, **expected: object) -> Callable[[], bool | None]:
        """Return a condition on the last status that has come."""

        def holds() -> bool | None:
            status = self.last(Status)
            if status is None:
                return None
            load = status.load
            return all(getattr(load, name) == value for name, value in expected.items()) or None

        return holds

    def model(self) -> str:
        """Return the worker's model once it has said welcome."""
        welcome = wait_for(lambda: self.last(Welcome), self)
        return welcome.models[0].name


class Scheduler(Peer):
    """A scheduler that does what the test says, and nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"ipc://{folder}/control", f"sched-{new_id()}", ToScheduler)
        self._seq = 0

    def greet(self) -> None:
        self.send(Observe(self.name, "test", PROTOCOL_VERSION))
        self.send(Attach(self.name, "test", PROTOCOL_VERSION))

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot in which we act."""
        own = (m for m in reversed(self.log) if isinstance(m, Snapshot) and m.acting)
        return next(own, None)

    def plan(self, *heads: RequestRef, layers: int = 0, chunk: int = 0) -> None:
        """Prefill these requests, one after the other, the first one first."""
        snapshot = wait_for(self.snapshot, self)
        self._seq += 1
        batches = tuple(PrefillBatch((PrefillItem(ref),)) for ref in heads)
        prefill = PrefillPlan(batches, layers_per_quantum=layers, token_chunk=chunk)
        sharing = Exclusive(first=Lane.PREFILL)
        self.send(Plan(epoch=snapshot.epoch, seq=self._seq, sharing=sharing, prefill=prefill))

    def saw(self, kind: type[M], where: Callable[[M], bool]) -> Callable[[], M | None]:
        """Return a condition: an event of a kind has come."""
        return lambda: next((m for m in self.log if isinstance(m, kind) and where(m)), None)

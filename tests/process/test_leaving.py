"""A client that leaves frees its pages, in whichever state its request is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.control_link import Left, QuantumDone
from protocol.ids import RequestRef
from tests.process.peers import Gateway, Scheduler, wait_for, worker

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(300)]

LONG = [7] * 600
"""A prompt whose prefill takes many quanta of one layer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    with worker(folder):
        yield folder


class Stage:
    """A gateway and a scheduler at one worker; leaving must bring it back to nothing."""

    def __init__(self, folder: Path) -> None:
        self.gateway, self.scheduler = Gateway(folder), Scheduler(folder)
        self.model = self.gateway.model()
        wait_for(self.scheduler.snapshot, self.scheduler)
        self.submitted: list[RequestRef] = []

    def submit(self, prompt: list[int], max_tokens: int = 64) -> RequestRef:
        ref = self.gateway.submit(prompt, max_tokens, self.model)
        self.wait(lambda: self.gateway.accepted(ref))
        self.submitted.append(ref)
        return ref

    def wait(self, find) -> None:
        wait_for(find, self.gateway, self.scheduler)

    def quantum_of(self, ref: RequestRef, *, suspended: bool) -> None:
        """Wait until a quantum of a request has run that was not its last."""

        def unfinished(done: QuantumDone) -> bool:
            return ref in done.batch and done.suspended is suspended

        self.wait(self.scheduler.saw(QuantumDone, unfinished))

    def leave(self) -> None:
        """Abort everything; the worker must end up with nothing referenced."""
        for ref in self.submitted:
            self.gateway.abort(ref)
        for ref in self.submitted:
            self.wait(self.scheduler.saw(Left, lambda left, ref=ref: left.ref == ref))
        self.wait(self.gateway.load_is(pages_referenced=0, queued=0, running=0))


@pytest.fixture
def stage(folder: Path) -> Iterator[Stage]:
    stage = Stage(folder)
    yield stage
    stage.leave()
    stage.gateway.close()
    stage.scheduler.close()


def test_while_it_is_queued(stage: Stage) -> None:
    stage.submit(LONG)
    stage.leave()


def test_while_it_is_prefilled_by_layers(stage: Stage) -> None:
    ref = stage.submit(LONG)
    stage.scheduler.plan(ref, layers=1)
    stage.quantum_of(ref, suspended=False)
    stage.leave()


def test_while_it_is_suspended_behind_another(stage: Stage) -> None:
    first, second = stage.submit(LONG), stage.submit([9] * 600)
    stage.scheduler.plan(first, second, layers=1)
    stage.quantum_of(first, suspended=False)
    stage.scheduler.plan(second, first, layers=1)
    stage.quantum_of(first, suspended=True)
    stage.leave()


def test_between_two_chunks_of_its_prompt(stage: Stage) -> None:
    ref = stage.submit([11] * 600)
    stage.scheduler.plan(ref, chunk=64)
    stage.quantum_of(ref, suspended=False)
    stage.leave()


def test_while_it_decodes(stage: Stage) -> None:
    ref = stage.submit([5] * 40, max_tokens=2000)
    stage.scheduler.plan(ref)
    stage.wait(lambda: stage.gateway.streams(ref))
    stage.leave()


def test_while_one_that_shares_its_prefix_goes_on(stage: Stage) -> None:
    first, second = stage.submit(LONG, 2000), stage.submit(LONG, 2000)
    stage.scheduler.plan(first, second)
    for ref in (first, second):
        stage.wait(lambda ref=ref: stage.gateway.streams(ref))
    stage.gateway.abort(first)
    stage.wait(stage.scheduler.saw(Left, lambda left: left.ref == first))
    before = stage.gateway.token_count(second)
    stage.wait(lambda: stage.gateway.token_count(second) > before + 5 or None)
    stage.leave()

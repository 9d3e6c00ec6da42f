"""A worker that speaks the real protocol over a real socket and does what a test tells it to."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from protocol import PROTOCOL_VERSION
from protocol.data_link import (
    Accepted,
    Credits,
    FailCode,
    Failed,
    Finished,
    FinishReason,
    Hello,
    Load,
    ModelInfo,
    Status,
    Submit,
    ToGateway,
    TokenLogprobs,
    TokenRun,
    Tokens,
    ToWorker,
    Usage,
    Welcome,
    WorkerLimits,
)
from protocol.endpoint import Endpoint, Received
from protocol.ids import RequestRef, new_id, pack_tokens, unpack_tokens
from protocol.link import LinkConfig
from protocol.pump import pump
from protocol.transport.zeromq import bind

FAST = LinkConfig(window=4096, heartbeat_s=0.02, silence_s=20.0)
MODEL = ModelInfo(
    name="tiny", num_layers=1, vocab_size=262, max_model_len=256, page_size=4, eos_token_ids=(261,)
)
LIMITS = WorkerLimits(max_queued_requests=9, max_queued_tokens=200, max_num_seqs=4)

M = TypeVar("M")


class ScriptedWorker:
    """Binds the data link of a run directory; greets and reports by itself, the rest on order."""

    def __init__(self, run_dir: Path, *, vocab_size: int = MODEL.vocab_size) -> None:
        self._model = msgspec.structs.replace(MODEL, vocab_size=vocab_size)
        self._address = f"ipc://{run_dir}/data"
        self._gateway = b""
        self._inbox: asyncio.Queue[ToWorker] = asyncio.Queue()
        self.credits = Credits(requests=9, tokens=200)
        self.load = Load(scheduler="scripted")
        self.seen: list[ToWorker] = []

    def start(self) -> None:
        """Come up, as another boot than before."""
        self._boot = new_id()
        transport = bind(self._address)
        self._endpoint = Endpoint[ToWorker, ToGateway](transport, ToWorker, FAST)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Die: what is in flight is lost."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._endpoint.close()

    async def _run(self) -> None:
        async for event in pump(self._endpoint, time.monotonic):
            if isinstance(event, Received):
                self._on(event.peer, event.message)

    def _on(self, peer: bytes, message: ToWorker) -> None:
        self._gateway = peer
        self.seen.append(message)
        if isinstance(message, Hello):
            self.send(
                Welcome(
                    boot=self._boot,
                    version=PROTOCOL_VERSION,
                    models=(self._model,),
                    limits=LIMITS,
                    credits=self.credits,
                )
            )
            self.report()
        else:
            self._inbox.put_nowait(message)

    def send(self, message: ToGateway) -> None:
        self._endpoint.send(message, time.monotonic(), self._gateway)

    def report(self) -> None:
        self.send(Status(self.credits, self.load))

    async def expect(self, kind: type[M]) -> M:
        """Return the next message, which must be of this kind (resyncs aside)."""
        message = await self._inbox.get()
        assert isinstance(message, kind), f"{message} is no {kind.__name__}"
        return message

    async def submit(self, cached: int = 0) -> Submit:
        """Take the next submit into the table."""
        message = await self.expect(Submit)
        self.send(Accepted(message.ref, cached))
        return message

    def tokens(
        self,
        ref: RequestRef,
        first: int,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        self.send(Tokens((TokenRun(ref, first, pack_tokens(ids), tuple(logprobs)),)))

    def finish(
        self, submit: Submit, output: int, reason: FinishReason = FinishReason.STOP, cached: int = 0
    ) -> None:
        prompt = len(unpack_tokens(submit.token_ids))
        self.send(Finished(submit.ref, reason, Usage(prompt, output, cached)))

    def fail(self, ref: RequestRef, code: FailCode, message: str = "because") -> None:
        self.send(Failed(ref, code, message))

    async def answer(self, ids: Sequence[int], *, one_by_one: bool = True) -> Submit:
        """Serve the next request completely."""
        submit = await self.submit()
        step = 1 if one_by_one else max(1, len(ids))
        for first in range(0, len(ids), step):
            self.tokens(submit.ref, first, ids[first : first + step])
        self.finish(submit, len(ids))
        return submit

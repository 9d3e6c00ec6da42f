"""A small byte-level tokenizer with control tokens, and a gateway in front of a scripted worker."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from aiohttp.test_utils import TestClient, TestServer
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from protocol.data_link import ToGateway, ToWorker
from protocol.endpoint import Endpoint
from protocol.transport.zeromq import connect
from tokenizer_service import app
from tokenizer_service.assets import ModelAssets, SamplingDefaults
from tokenizer_service.gateway import Gateway
from tokenizer_service.prefix_names import PrefixNames
from tokenizer_service.registry import Registry
from tokenizer_service.router import Router
from tokenizer_service.settings import GatewaySettings
from tokenizer_service.templates import ChatTemplate
from tokenizer_service.tokenizer import Tokenizer
from tokenizer_service.worker_link import WorkerLink

from .scripted_worker import FAST, ScriptedWorker

CONTROL = ("<|im_start|>", "<|im_end|>")


def byte_tokenizer(control: tuple[str, ...] = CONTROL) -> tokenizers.Tokenizer:
    """One id per byte (0..255), a few merges, then the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in control])
    return tokenizer


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return Tokenizer(byte_tokenizer())


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


class Stack:
    """A gateway over HTTP with a scripted worker behind it."""

    def __init__(self, run_dir: Path, tokenizer: Tokenizer, **changes: object) -> None:
        values: dict[str, object] = {
            "run_dir": str(run_dir),
            "served_model_name": ("tiny-model", "alias/tiny"),
            "keep_alive_s": 30.0,
            **changes,
        }
        self.settings = GatewaySettings(**values)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.worker = ScriptedWorker(run_dir)
        transport = connect(f"ipc://{run_dir}/data", b"gw-test")
        self._endpoint = Endpoint[ToGateway, ToWorker](transport, ToGateway, FAST)
        registry = Registry("gw-test", worker_wait_s=60.0, now=time.monotonic())
        self.link = WorkerLink(self._endpoint, registry, time.monotonic)
        self.registry = registry
        self.gateway = Gateway(
            self.settings,
            ModelAssets(
                tokenizer, ChatTemplate(TEMPLATE, bos="", eos="<|im_end|>"), SamplingDefaults()
            ),
            Router([self.link], self.settings.served_model_name),
            PrefixNames(b"0123456789abcdef"),
            time.monotonic,
        )

    async def start(self, *, with_worker: bool = True) -> None:
        self._running = asyncio.create_task(self.link.run())
        # The test server cancels handlers of clients that leave, as `main` does.
        self.client = TestClient(TestServer(app.build(self.gateway)))
        await self.client.start_server()
        if with_worker:
            self.worker.start()
            await self.until_ready()

    async def when(self, happened: Callable[[], bool]) -> None:
        """Let the other tasks run until something has happened."""
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def until_ready(self) -> None:
        await self.when(lambda: self.gateway.not_ready() is None)

    async def stop(self) -> None:
        await self.client.close()
        self._running.cancel()
        await asyncio.wait({self._running})
        await self.worker.stop()
        self._endpoint.close()
        self.gateway.pool.close()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode_prompt(text)

    def chat(self, text: str = "hi", **fields: object) -> Any:
        body = {"model": "tiny-model", "messages": [{"role": "user", "content": text}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def complete(self, prompt: object = "hi", **fields: object) -> Any:
        body = {"model": "tiny-model", "prompt": prompt, **fields}
        return self.client.post("/v1/completions", json=body)


MakeStack = Callable[..., Awaitable[Stack]]


@pytest.fixture
async def make_stack(small_tokenizer: Tokenizer) -> AsyncIterator[MakeStack]:
    stacks: list[Stack] = []
    with tempfile.TemporaryDirectory() as directory:

        async def make(*, with_worker: bool = True, **changes: object) -> Stack:
            stack = Stack(Path(directory), small_tokenizer, **changes)
            stacks.append(stack)
            await stack.start(with_worker=with_worker)
            return stack

        yield make
        for stack in stacks:
            await stack.stop()


@pytest.fixture
async def stack(make_stack: MakeStack) -> Stack:
    return await make_stack()

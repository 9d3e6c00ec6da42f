"""What request handlers share: the model's assets, the workers, and whether the door is open.

Separate from the HTTP application, which only knows requests and responses.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.ids import pack_tokens
from protocol.slo import Slo
from tokenizer_service.assets import ModelAssets
from tokenizer_service.detokenize import Detokenizer
from tokenizer_service.events import Job
from tokenizer_service.generation import Generation, Group
from tokenizer_service.logprobs import LogprobReader
from tokenizer_service.metrics import Metrics
from tokenizer_service.openai.errors import invalid, unavailable
from tokenizer_service.openai.params import sampling
from tokenizer_service.openai.schema import Request
from tokenizer_service.output import Output
from tokenizer_service.prefix_names import PrefixNames
from tokenizer_service.router import Route, Router, check_credits, check_length
from tokenizer_service.settings import GatewaySettings
from tokenizer_service.text_pool import TextPool
from tokenizer_service.tracing import NoTracing, Tracing

TENANT = ""
"""There are no API keys yet, so all requests are one tenant's."""


@dataclass(frozen=True)
class Prompt:
    """A prompt that is still to be tokenized."""

    encode: Callable[[], list[int]]
    """Runs beside the event loop. Raises ApiError."""
    at_least: int
    """Tokens that it surely has."""
    limit: int | None
    """Output tokens that the request asks for."""
    most_likely: int | None
    """Tokens to tell with log-probabilities beside the drawn one; None: no log-probabilities."""


@dataclass(frozen=True)
class _Tokenized:
    prompt: Prompt
    packed: bytes
    pages: bytes
    root: bytes


class Gateway:
    """One gateway process, without its sockets."""

    def __init__(
        self,
        settings: GatewaySettings,
        assets: ModelAssets,
        router: Router,
        names: PrefixNames,
        clock: Callable[[], float],
        tracing: Tracing | NoTracing | None = None,
    ) -> None:
        """`clock` gives seconds, monotonic."""
        self.tracing = tracing or NoTracing()
        self.settings = settings
        self.assets = assets
        self.router = router
        self.pool = TextPool(
            threads=settings.tokenizer_threads,
            queue=settings.tokenizer_queue,
            timeout_s=settings.tokenizer_timeout_s,
        )
        self.metrics = Metrics(router.served[0], router.links, settings.metrics_compat)
        self._names = names
        self._clock = clock
        self._serving = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    def not_ready(self) -> str | None:
        """Return why this gateway should get no requests; None: it should."""
        if self.draining:
            return "the gateway is draining"
        return self.router.not_ready(self._clock(), self.settings.stall_s)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request for the drain. Raises ApiError 503 when none is taken any more."""
        if self.draining:
            raise unavailable("the gateway is draining", close=True)
        self._serving += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._serving -= 1
            if self._serving == 0:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return whether all requests have ended in `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def generation(
        self, request_id: str, request: Request, prompts: Sequence[Prompt]
    ) -> Generation:
        """Return a request's generation, not yet begun. Raises ApiError."""
        arrival = self._clock()
        requests = len(prompts) * request.choices
        route = self.router.choose([prompt.at_least for prompt in prompts], requests)
        vocabulary = route.model.vocab_size
        _check_token_ids(request.stop_token_ids or (), vocabulary, "stop_token_ids")
        _check_token_ids(tuple(request.logit_bias or ()), vocabulary, "logit_bias")
        ready = await self.pool.run(lambda: [self._tokenize(one, route) for one in prompts])
        check_credits(route, sum(len(one.packed) // 4 for one in ready), requests)
        groups = [
            self._group(request_id, at * request.choices, request, one, route, arrival)
            for at, one in enumerate(ready)
        ]
        return Generation(route.link, groups, self._clock, arrival)

    def _tokenize(self, prompt: Prompt, route: Route) -> _Tokenized:
        """Return a prompt's tokens and the names of its pages. Runs beside the event loop."""
        ids = prompt.encode()
        check_length(route, len(ids))
        _check_token_ids(ids, route.model.vocab_size, "prompt")
        root = self._names.root(TENANT, route.model.name)
        pages = self._names.pages(root, ids, route.model.page_size)
        return _Tokenized(prompt, pack_tokens(ids), pages, root)

    def _group(
        self,
        request_id: str,
        first: int,
        request: Request,
        prompt: _Tokenized,
        route: Route,
        arrival: float,
    ) -> Group:
        """Return the outputs of one prompt; `first` is the index of the first of them."""
        indices = range(first, first + request.choices)
        jobs = [self._job(request_id, index, first, request, prompt, route) for index in indices]
        outputs = [
            self._output(index, request, prompt.prompt, job, arrival)
            for index, job in zip(indices, jobs, strict=True)
        ]
        # What a sibling can take from the prefix cache: full pages before the last token.
        tokens, page_size = len(prompt.packed) // 4, route.model.page_size
        return Group(outputs, shares=page_size > 0 and tokens > page_size)

    def _output(
        self, index: int, request: Request, prompt: Prompt, job: Job, arrival: float
    ) -> Output:
        tokens = self.assets.tokenizer.bytes
        skip_special = request.skip_special_tokens is not False
        reader = None
        if prompt.most_likely is not None:
            reader = LogprobReader(tokens, skip_special=skip_special)
        detokenizer = Detokenizer(tokens, request.stops, skip_special=skip_special)
        meter = self.metrics.meter(arrival, self.settings.promised(job.slo), job.prompt_tokens)
        return Output(index, job, detokenizer, reader, meter)

    def _job(
        self,
        request_id: str,
        index: int,
        first: int,
        request: Request,
        prompt: _Tokenized,
        route: Route,
    ) -> Job:
        return Job(
            request=f"{request_id}-{index}" if index else request_id,
            model=route.model.name,
            prompt=prompt.packed,
            sampling=sampling(
                request,
                self.assets.defaults,
                limit=prompt.prompt.limit,
                room=route.context - len(prompt.packed) // 4,
                most_likely=prompt.prompt.most_likely,
                choice=index - first,
            ),
            tenant=TENANT,
            page_hashes=prompt.pages,
            root_hash=prompt.root,
            slo=request.slo.slo if request.slo else Slo(),
            priority=request.priority or 0,
        )


def _check_token_ids(ids: list[int] | tuple[int, ...], vocabulary: int, param: str) -> None:
    """Raise ApiError 400 for an id outside the vocabulary, before it indexes anything."""
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
        wrong = next(token for token in ids if not 0 <= token < vocabulary)
        raise invalid(f"{param}: token id {wrong} is not in the vocabulary of {vocabulary}", param)

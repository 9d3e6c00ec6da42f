"""Which worker a request goes to, and whether it is taken at all.

Refusing here, from the credits that workers hand out, costs nothing: no prompt is tokenized for a
queue that is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.data_link import ModelInfo
from tokenizer_service.openai.errors import invalid, model_not_found, too_long, unavailable
from tokenizer_service.worker_link import WorkerLink
from tokenizer_service.worker_state import Phase


@dataclass(frozen=True)
class Route:
    """A worker that takes a request now, and its model."""

    link: WorkerLink
    model: ModelInfo

    @property
    def context(self) -> int:
        """Tokens of prompt and output together: the model's, or what the whole pool can hold."""
        pool = self.link.worker.load.pages_total * self.model.page_size
        return min(self.model.max_model_len, pool) if pool else self.model.max_model_len


class Router:
    """Chooses among workers that serve the same model under the same names."""

    def __init__(self, links: Sequence[WorkerLink], served: tuple[str, ...]) -> None:
        """`served` are the names that requests may use, the first one is shown."""
        self._links = tuple(links)
        self.served = served

    @property
    def links(self) -> tuple[WorkerLink, ...]:
        """All workers."""
        return self._links

    def check_name(self, name: str) -> None:
        """Raise ApiError 404 for a model that is not served."""
        if name not in self.served:
            raise model_not_found(name, self.served)

    def choose(self, tokens: Sequence[int], requests: int) -> Route:
        """Return the worker with the most room for prompts of at least so many tokens each.

        `requests`: outputs of all prompts together.

        Raises ApiError: 503 when none is there or has room, 400 when none could ever take it.
        """
        routes = [
            Route(link, model)
            for link in self._links
            if link.worker.phase is Phase.READY
            and not link.worker.load.draining
            and (model := link.model(self.served)) is not None
        ]
        if not routes:
            raise unavailable("no worker is there")
        route = max(routes, key=lambda route: route.link.worker.credits.requests)
        check_length(route, max(tokens), at_least=True)
        check_credits(route, sum(tokens), requests)
        return route

    def known_model(self) -> ModelInfo | None:
        """Return what is known of the model, also while its worker is away."""
        models = (link.model(self.served) for link in self._links)
        return next((model for model in models if model is not None), None)

    def not_ready(self, now: float, stall_s: float) -> str | None:
        """Return why no worker is ready; None: one is."""
        reasons = [link.worker.not_ready(now, stall_s) for link in self._links]
        return None if None in reasons else reasons[0]


def check_length(route: Route, tokens: int, *, at_least: bool = False) -> None:
    """Raise ApiError 400 for a prompt that leaves no room for one token of output."""
    limit = min(route.context, route.link.worker.max_prompt_tokens + 1)
    if tokens >= limit:
        raise too_long(tokens, limit, at_least=at_least)


def check_credits(route: Route, tokens: int, requests: int) -> None:
    """Raise ApiError 503 when the worker's queue has no room now, 400 when it never has.

    Outputs of one prompt prefill it once, so its tokens count once.
    """
    worker = route.link.worker
    if requests > worker.max_requests:
        raise invalid(
            f"{requests} outputs are more than the queue of {worker.max_requests} takes", "n"
        )
    if tokens > worker.max_prompt_tokens:
        limit = worker.max_prompt_tokens
        raise invalid(f"{tokens} prompt tokens are more than the queue of {limit} takes", "prompt")
    credits = worker.credits
    if credits.requests < 1:
        raise unavailable("the queue is full")
    if credits.requests < requests:
        raise unavailable(f"the queue has room for {credits.requests} outputs, not for {requests}")
    if credits.tokens < tokens:
        raise unavailable(f"the queue has room for {credits.tokens} tokens, not for {tokens}")

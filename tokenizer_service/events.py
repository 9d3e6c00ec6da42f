"""What goes into the registry of requests and what comes out, as plain data.

Tells one thing from another that looks alike: what the client's side asks for, what the worker
says, what the link notices.
"""

from dataclasses import dataclass, field

from protocol.data_link import (
    FailCode,
    FinishReason,
    Priority,
    ToGateway,
    TokenLogprobs,
    ToWorker,
    Usage,
)
from protocol.sampling import Sampling
from protocol.slo import Deadlines, Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as the worker will get it, in all its attempts."""

    request: str
    model: str
    """The worker's name of it."""
    prompt: bytes
    """Packed token ids."""
    sampling: Sampling
    tenant: str = ""
    page_hashes: bytes = b""
    root_hash: bytes = b""
    slo: Slo = field(default_factory=Slo)
    deadlines: Deadlines = field(default_factory=Deadlines)
    priority: Priority = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt) // 4


# --- events ---


@dataclass(frozen=True, slots=True)
class Begin:
    """A client's request was validated and tokenized."""

    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client left. Nothing more is delivered."""

    request: str


@dataclass(frozen=True, slots=True)
class StopAt:
    """A stop string ended in token `at_index - 1`: the request ends here and now."""

    request: str
    at_index: int


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message came in."""

    message: ToGateway


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link has (re)started."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """Frames were lost, in either direction."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The worker is not heard."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Begin | Cancel | StopAt | FromWorker | LinkUp | LinkLost | LinkDown | Tick


# --- effects ---


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the worker."""

    message: ToWorker


@dataclass(frozen=True, slots=True)
class Admitted:
    """The worker has the request in its table. At most once."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The next tokens of the output."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each id, or none when the request does not ask for them."""


@dataclass(frozen=True, slots=True)
class Done:
    """Terminal: the output is complete."""

    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Broken:
    """Terminal: there will be no more output."""

    code: FailCode
    message: str


News = Admitted | NewTokens | Done | Broken


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the client's side of a request."""

    request: str
    news: News


Effect = Send | Tell

"""A request, and its stay on the device: the two things that everything else refers to.

They are separate because a request outlives its stay: retracted, it gives slot and pages back and
starts again later, while launches of the old stay may still be in flight. A completion looks at the
stay (`open`), so nothing stale is ever taken for the new one.
"""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.control_link import Lane, RequestState
from protocol.data_link import Submit, TokenLogprobs
from protocol.ids import RequestRef
from protocol.prefix import HASH_BYTES, next_page_hash
from worker.executors.base import ModelShape
from worker.kv.table import PageTable

if TYPE_CHECKING:
    from worker.core.batch import Chunk


class Request:
    """One accepted request."""

    __slots__ = (
        "age",
        "arrival",
        "cached",
        "hashes",
        "last",
        "limit",
        "logprobs",
        "min_tokens",
        "model",
        "output",
        "peer",
        "prompt",
        "ref",
        "retracted",
        "started",
        "stay",
        "stops",
        "submit",
    )

    def __init__(
        self,
        submit: Submit,
        prompt: "array[int]",
        output: "array[int]",
        model: ModelShape,
        peer: bytes,
    ) -> None:
        """Take a checked `submit`; `prompt` and `output` are its tokens, unpacked."""
        sampling = submit.sampling
        self.submit = submit
        self.ref: RequestRef = submit.ref
        self.peer = peer
        self.model = model
        self.prompt = prompt
        self.output = output
        self.limit = min(sampling.max_tokens, model.max_model_len - len(prompt))
        """Output tokens at most."""
        self.last = len(prompt) + self.limit - 1
        """Positions that can ever need a page: the last token drawn is never fed."""
        self.min_tokens = sampling.min_tokens
        stops = set(sampling.stop_token_ids)
        self.stops = frozenset(stops if sampling.ignore_eos else stops | set(model.eos_token_ids))
        self.logprobs: list[TokenLogprobs | None] = [None] * len(output)
        self.hashes = [
            submit.page_hashes[i : i + HASH_BYTES]
            for i in range(0, len(submit.page_hashes), HASH_BYTES)
        ]
        """Names of the first full pages of prompt and output, as far as computed."""
        self.arrival = 0.0
        """Worker's clock."""
        self.age = 0
        """Rises with each accepted request: smaller is older."""
        self.cached = 0
        """Tokens found in the prefix cache, when accepted or at the last start."""
        self.started = False
        """Whether a prefill of it was ever launched."""
        self.retracted = False
        """Whether it is queued again after a stay."""
        self.stay: Stay | None = None

    @property
    def known(self) -> int:
        """Tokens of prompt and output so far: what a prefill that starts now computes."""
        return len(self.prompt) + len(self.output)

    @property
    def state(self) -> RequestState:
        """Where it is."""
        return self.stay.state if self.stay else RequestState.QUEUED

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Return tokens `start` to `end` (exclusive) of prompt and output."""
        split = len(self.prompt)
        if end <= split:
            return tuple(self.prompt[start:end])
        if start >= split:
            return tuple(self.output[start - split : end - split])
        return tuple(self.prompt[start:]) + tuple(self.output[: end - split])

    def extend_hashes(self, tokens: int, page_size: int) -> None:
        """Name all full pages of the first `tokens` tokens. Without a root nothing has a name."""
        if not self.submit.root_hash:
            return
        for page in range(len(self.hashes), tokens // page_size):
            parent = self.hashes[-1] if page else self.submit.root_hash
            content = self.tokens(page * page_size, (page + 1) * page_size)
            self.hashes.append(next_page_hash(parent, content))


@dataclass(slots=True, eq=False)
class Stay:
    """A request on the device: a slot, a page table, and how far its work has got.

    Positions: `computed` of them are written, `launched` will be by what is in flight. A decode row
    feeds the last drawn token at position `launched`.
    """

    request: Request
    slot: int
    table: PageTable
    total: int
    """Tokens to prefill."""
    launched: int
    computed: int
    left: int
    """Tokens that may still be drawn, those in flight counted as drawn."""
    open: bool = True
    """False: retracted or terminal; results are discarded, pages wait behind a fence."""
    introduced: bool = False
    """Whether the slot's `SlotInit` was launched."""
    state: RequestState = RequestState.PREFILLING
    lane: Lane | None = None
    """The lane that prefills it."""
    chunk: "Chunk | None" = None
    """The started chunk with more layers to launch that it is in."""
    last_prefill: int = 0
    """Last ticket of the prefill lane that touches it."""
    last_decode: int = 0

    @property
    def prefilled(self) -> bool:
        """Whether all of its prefill is launched."""
        return self.launched >= self.total

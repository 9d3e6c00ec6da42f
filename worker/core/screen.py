"""What a submit must satisfy before it becomes a request. Each refusal names limit and value.

Checked here although the gateway has checked: nothing unchecked, no index and no length, may reach
the device, whoever the peer is.
"""

from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from protocol.data_link import FailCode, Submit
from protocol.ids import unpack_tokens
from protocol.prefix import HASH_BYTES
from worker.core.config import CoreConfig
from worker.core.request import Request
from worker.core.table import RequestTable
from worker.executors.base import DeviceInfo, ModelShape
from worker.kv.table import pages_for


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """Why a submit is not taken."""

    code: FailCode
    message: str


class Screen:
    """Turns a submit into a request, or refuses it."""

    def __init__(
        self, config: CoreConfig, info: DeviceInfo, table: RequestTable, barred: Container[str]
    ) -> None:
        """`barred`: ids of requests that took the process down before."""
        self._config = config
        self._barred = barred
        self._info = info
        self._table = table
        self._models: Mapping[str, ModelShape] = {model.name: model for model in info.models}

    def admit(self, submit: Submit, peer: bytes) -> Request:
        """Return the request. Raises Refusal."""
        if submit.ref.request in self._barred:
            raise Refusal(
                FailCode.SUSPECT, "it was on the device each time when the worker died, twice"
            )
        model = self._models.get(submit.model)
        if model is None:
            known = ", ".join(self._models)
            raise Refusal(
                FailCode.UNKNOWN_MODEL, f"model {submit.model!r} is not served, only {known}"
            )
        prompt = _tokens("prompt", submit.token_ids, model)
        output = _tokens("output so far", submit.output_so_far, model)
        self._check_sampling(submit, model)
        self._check_hashes(submit, len(prompt))
        self._check_length(submit, len(prompt), len(output), model)
        if not submit.ref.incarnation:
            self._check_room(len(prompt) + len(output))
        return Request(submit, prompt, output, model, peer)

    def _check_sampling(self, submit: Submit, model: ModelShape) -> None:
        sampling = submit.sampling
        ids = (*sampling.stop_token_ids, *(bias.token for bias in sampling.logit_bias))
        _check_ids("stop token ids and logit bias", ids, model)

    def _check_hashes(self, submit: Submit, prompt: int) -> None:
        want = HASH_BYTES * (prompt // self._info.page_size)
        if submit.page_hashes and len(submit.page_hashes) != want:
            raise Refusal(
                FailCode.INVALID,
                f"page hashes are {len(submit.page_hashes)} bytes, {want} for {prompt} tokens in "
                f"pages of {self._info.page_size}",
            )
        if submit.root_hash and len(submit.root_hash) != HASH_BYTES:
            raise Refusal(
                FailCode.INVALID,
                f"the root hash is {len(submit.root_hash)} bytes, {HASH_BYTES} are needed",
            )

    def _check_length(self, submit: Submit, prompt: int, output: int, model: ModelShape) -> None:
        if prompt >= model.max_model_len:
            raise Refusal(
                FailCode.TOO_LONG,
                f"the prompt has {prompt} tokens, the context is {model.max_model_len} and must "
                "leave one for the output",
            )
        drawn = min(submit.sampling.max_tokens, model.max_model_len - prompt)
        pages = pages_for(prompt + drawn - 1, self._info.page_size)
        if pages > self._info.num_pages:
            raise Refusal(
                FailCode.TOO_LONG,
                f"{prompt} prompt tokens and {drawn} output tokens need {pages} pages, the pool "
                f"has {self._info.num_pages}",
            )
        limit = self._config.max_queued_tokens
        if prompt + output > limit:
            raise Refusal(
                FailCode.TOO_LONG, f"{prompt + output} tokens to prefill, the queue takes {limit}"
            )

    def _check_room(self, tokens: int) -> None:
        """Refuse what is new to a full queue. What comes again was let in before, and may be more
        than the queue takes: a worker that restarts gets all at once that its predecessor ran.
        """
        left = self._table.credits()
        if not left.requests:
            limit = self._config.max_queued_requests
            raise Refusal(FailCode.OVERLOADED, f"the queue is full: limit {limit} requests")
        if tokens > left.tokens:
            limit = self._config.max_queued_tokens
            raise Refusal(
                FailCode.OVERLOADED,
                f"the queue takes {left.tokens} tokens more (limit {limit}), this has {tokens}",
            )


def _tokens(what: str, data: bytes, model: ModelShape) -> "array[int]":
    try:
        ids = array("i", unpack_tokens(data))
    except ValueError:
        raise Refusal(
            FailCode.INVALID, f"{what}: {len(data)} bytes are not a number of int32"
        ) from None
    if what == "prompt" and not ids:
        raise Refusal(FailCode.INVALID, "the prompt has 0 tokens, at least 1 is needed")
    _check_ids(what, ids, model)
    return ids


def _check_ids(what: str, ids: Sequence[int], model: ModelShape) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < model.vocab_size):
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise Refusal(FailCode.INVALID, f"{what}: token {wrong} is not below {model.vocab_size}")

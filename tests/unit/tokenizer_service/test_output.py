"""One output: its positions are told once, in order, with the text that they belong to."""

import math

from hypothesis import given
from hypothesis import strategies as st

from protocol.data_link import FinishReason, TokenLogprobs, Usage
from protocol.sampling import Sampling
from protocol.slo import RequestObjectives
from tokenizer_service.detokenize import Detokenizer
from tokenizer_service.events import Done, Job, NewTokens
from tokenizer_service.logprobs import FLOOR, LogprobReader
from tokenizer_service.metrics import Compat, Metrics
from tokenizer_service.output import Output, Piece
from tokenizer_service.token_bytes import TokenBytes

TABLE = [b"a", b"b", b"\xc3", b"\xa9", b"STOP", b"ST", b"<end>"]
TOKENS = TokenBytes(table=TABLE, special=frozenset({6}), longest=5)
DONE = Done(FinishReason.LENGTH, Usage(prompt_tokens=1, output_tokens=1))
METER = Metrics("m", [], Compat.NONE).meter(
    0.0, RequestObjectives(tbt_s=1.0, ttft_s=1.0, ttft_per_token_s=0.0), 1
)
JOB = Job(request="r", model="m", prompt=b"", sampling=Sampling(max_tokens=9, seed=1))


def output(*, logprobs: bool = True) -> Output:
    reader = LogprobReader(TOKENS, skip_special=True) if logprobs else None
    return Output(3, JOB, Detokenizer(TOKENS, ["STOP"]), reader, METER)


def news(ids: list[int]) -> NewTokens:
    entries = (TokenLogprobs(-float(token), (token, 0), (-float(token), -9.0)) for token in ids)
    return NewTokens(tuple(ids), tuple(entries))


def run(parts: list[list[int]], *, logprobs: bool = True) -> list[Piece]:
    grown = output(logprobs=logprobs)
    return [grown.take(news(part), 0.0) for part in parts] + [grown.take(DONE, 0.0)]


def told(pieces: list[Piece]) -> list[tuple[str, float, int]]:
    return [
        (token.drawn.text, token.drawn.logprob, token.offset)
        for piece in pieces
        for token in piece.tokens or ()
    ]


def test_each_token_has_its_text_its_bytes_and_its_place() -> None:
    assert told(run([[0, 2, 3, 6, 1]])) == [
        ("a", 0.0, 0),
        ("bytes:\\xc3", -2.0, 1),
        ("bytes:\\xa9", -3.0, 1),
        ("<end>", -6.0, 2),
        ("b", -1.0, 2),
    ]


def test_positions_wait_for_the_text_that_they_belong_to() -> None:
    pieces = run([[2], [3], [5]])
    assert [piece.text for piece in pieces] == ["", "é", "", "ST"]
    assert [len(piece.tokens or ()) for piece in pieces] == [0, 2, 0, 1]


def test_nothing_behind_a_stop_string_is_told() -> None:
    pieces = run([[0, 4, 1], [1]])
    assert "".join(piece.text for piece in pieces) == "a"
    assert [text for text, _, _ in told(pieces)] == ["a", "STOP"]
    assert pieces[-1].end is FinishReason.STOP


def test_without_the_wish_there_are_none() -> None:
    assert all(piece.tokens is None for piece in run([[0], [1]], logprobs=False))


def test_a_token_that_cannot_be_drawn_has_a_number() -> None:
    reader = LogprobReader(TOKENS, skip_special=True)
    (token,) = reader.read([0], [TokenLogprobs(-1.0, (1,), (-math.inf,))])
    assert token.top[0].logprob == FLOOR


@given(st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=8))
def test_how_tokens_come_does_not_change_what_is_told(parts: list[list[int]]) -> None:
    one_by_one = [[token] for part in parts for token in part]
    assert told(run(parts)) == told(run(one_by_one))
    together = "".join(piece.text for piece in run(parts))
    assert together == "".join(piece.text for piece in run(one_by_one))
    assert {piece.index for piece in run(parts)} == {3}

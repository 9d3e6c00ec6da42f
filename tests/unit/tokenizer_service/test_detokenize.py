"""The text that leaves must not depend on how bytes were cut into tokens."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tokenizer_service.detokenize import Detokenizer, StopFinder
from tokenizer_service.token_bytes import TokenBytes

# Few letters, so that stop strings really occur and overlap; multi-byte ones among them.
texts = st.text(alphabet="ab<|é€😀\n", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab<|é€😀", min_size=1, max_size=4), max_size=4)


@st.composite
def cut_bytes(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    whole = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=len(whole))))
    edges = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


def run(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], Detokenizer]:
    tokens = TokenBytes(table=list(pieces), special=frozenset(), longest=1)
    detokenizer = Detokenizer(tokens, stops)
    sent = [detokenizer.push([index]) for index in range(len(pieces))]
    return [*sent, detokenizer.finish()], detokenizer


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """By brute force: begin and end of the stop string that ends first (longest on a tie)."""
    for end in range(len(text) + 1):
        ending = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end - max(ending), end
    return None


@given(cut_bytes(st.binary(max_size=40)))
@example([b"\xf0\x9f", b"\x98", b"\x80"])
@example([b"\xf0\x9f", b"a"])
@example([b"\xe2\x82"])
def test_any_bytes_in_any_tokens_give_the_text_of_all_bytes_at_once(pieces: list[bytes]) -> None:
    sent, _ = run(pieces, [])
    assert "".join(sent) == b"".join(pieces).decode("utf-8", "replace")


@given(cut_bytes(texts.map(str.encode)))
def test_whole_characters_are_sent_with_the_token_that_completes_them(pieces: list[bytes]) -> None:
    sent, _ = run(pieces, [])
    so_far = b""
    for index, piece in enumerate(pieces):
        so_far += piece
        assert "".join(sent[: index + 1]) == so_far.decode("utf-8", "ignore")


@given(cut_bytes(texts.map(str.encode)), stop_lists)
@example([b"a<", b"|a", b"b"], ["<|", "|ab"])
@example([b"ab"], ["b", "ab"])
@example([b"aaab"], ["aab"])
def test_text_ends_exactly_at_the_first_stop_string(pieces: list[bytes], stops: list[str]) -> None:
    sent, detokenizer = run(pieces, stops)
    whole = b"".join(pieces).decode()
    found = first_stop(whole, stops)
    expected = whole if found is None else whole[: found[0]]
    assert "".join(sent) == expected
    assert (detokenizer.stopped is not None) == (found is not None)


@given(cut_bytes(texts.map(str.encode)), stop_lists)
def test_at_index_is_after_the_token_that_completed_the_stop_string(
    pieces: list[bytes], stops: list[str]
) -> None:
    _, detokenizer = run(pieces, stops)
    if detokenizer.stopped is None:
        return
    at = detokenizer.stopped.at_index

    def complete(count: int) -> str:
        return b"".join(pieces[:count]).decode("utf-8", "ignore")

    assert first_stop(complete(at), stops) is not None
    assert first_stop(complete(at - 1), stops) is None


@given(cut_bytes(texts.map(str.encode)), stop_lists)
def test_all_tokens_in_one_push_give_the_same_as_one_by_one(
    pieces: list[bytes], stops: list[str]
) -> None:
    sent, one_by_one = run(pieces, stops)
    tokens = TokenBytes(table=pieces, special=frozenset(), longest=1)
    together = Detokenizer(tokens, stops)
    text = together.push(range(len(pieces))) + together.finish()
    assert (text, together.stopped) == ("".join(sent), one_by_one.stopped)


@given(cut_bytes(texts.map(str.encode)), stop_lists)
def test_held_back_text_is_always_shorter_than_the_longest_stop(
    pieces: list[bytes], stops: list[str]
) -> None:
    finder = StopFinder(stops)
    pushed = sent = 0
    for piece in b"".join(pieces).decode():
        text, stop = finder.push(piece)
        pushed, sent = pushed + len(piece), sent + len(text)
        if stop is not None:
            return
        assert pushed - sent <= max((len(stop) for stop in stops), default=1) - 1


def test_text_that_only_began_like_a_stop_string_is_sent_as_soon_as_that_is_clear() -> None:
    sent, _ = run([b"x<", b"|", b"y", b"<"], ["<|end|>"])
    assert sent == ["x", "", "<|y", "", "<"]


def test_text_that_only_began_like_a_stop_string_is_sent_at_the_end() -> None:
    sent, detokenizer = run([b"x<|en"], ["<|end|>"])
    assert sent == ["x", "<|en"]
    assert detokenizer.stopped is None


def test_nothing_is_sent_after_a_stop_string_even_in_the_same_push() -> None:
    tokens = TokenBytes(table=[b"a", b"STOP", b"b"], special=frozenset(), longest=4)
    detokenizer = Detokenizer(tokens, ["STOP"])
    assert detokenizer.push([0, 1, 2]) == "a"
    assert detokenizer.push([2]) == ""
    assert detokenizer.finish() == ""
    assert detokenizer.stopped is not None
    assert detokenizer.stopped.at_index == 2


def test_a_stop_string_that_the_last_broken_character_completes_is_found() -> None:
    sent, detokenizer = run([b"a\xe2\x82"], ["a\ufffd"])
    assert "".join(sent) == ""
    assert detokenizer.stopped is not None


def test_special_tokens_are_no_text_unless_asked_for() -> None:
    tokens = TokenBytes(table=[b"a", b"<|im_end|>"], special=frozenset({1}), longest=10)
    assert Detokenizer(tokens, []).push([0, 1, 0]) == "aa"
    assert Detokenizer(tokens, [], skip_special=False).push([0, 1, 0]) == "a<|im_end|>a"


def test_an_id_beyond_the_vocabulary_is_no_text_and_still_counts() -> None:
    tokens = TokenBytes(table=[b"a"], special=frozenset(), longest=1)
    detokenizer = Detokenizer(tokens, ["aa"])
    assert detokenizer.push([0, 7, -1, 0]) == ""
    assert detokenizer.stopped is not None
    assert detokenizer.stopped.at_index == 4


def test_the_cost_of_a_step_does_not_grow_with_the_text() -> None:
    class Counting(str):
        scanned = 0

        def find(self, *arguments: object) -> int:  # type: ignore[override]
            Counting.scanned += len(self) - int(arguments[1])  # type: ignore[call-overload]
            return super().find(*arguments)  # type: ignore[arg-type]

        def __radd__(self, other: str) -> "Counting":
            return Counting(other + str(self))

    finder = StopFinder(["x" * 64])
    for _ in range(1000):
        finder.push(Counting("ab"))
    assert Counting.scanned <= 1000 * (2 + 64)

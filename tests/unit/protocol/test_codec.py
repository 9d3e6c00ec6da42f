"""Whatever the bytes, the outcome is a message of the accepted types or Malformed."""

import math
import pickle
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import MAX_ELEMENTS, MAX_FIELDS, MAX_MESSAGE_BYTES, Codec, Malformed, encode
from protocol.control_link import ControlToWorker, QuantumDone, ToScheduler
from protocol.data_link import (
    Hello,
    Resync,
    Status,
    Submit,
    ToGateway,
    TokenLogprobs,
    TokenRun,
    Tokens,
    ToWorker,
)
from protocol.ids import RequestRef, pack_tokens
from tests.contract.samples import SAMPLES

TO_WORKER = Codec[ToWorker](ToWorker)
TO_GATEWAY = Codec[ToGateway](ToGateway)
ALL = [TO_WORKER, TO_GATEWAY, Codec(ControlToWorker), Codec(ToScheduler)]
HELLO = {"type": "Hello", "gateway": "gw-1", "version": 1}

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
)
trees = st.recursive(
    scalars | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


def assert_message_or_malformed(data: bytes) -> None:
    for codec in ALL:
        try:
            message = codec.decode(data)
        except Malformed:
            continue
        assert codec.decode(encode(message)) == message


def refuses(data: bytes) -> str:
    with pytest.raises(Malformed) as caught:
        TO_WORKER.decode(data)
    return str(caught.value)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_each_kind_of_message_survives_the_wire(message):
    accepting = [codec for codec in ALL if _accepts(codec, message)]
    assert accepting
    assert all(codec.decode(encode(message)) == message for codec in accepting)


def _accepts(codec: Codec, message: object) -> bool:
    return isinstance(message, codec._accepts)


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_random_bytes_never_raise_anything_else(data):
    assert_message_or_malformed(data)


@given(trees)
@settings(max_examples=300)
def test_random_well_formed_trees_never_raise_anything_else(tree):
    assert_message_or_malformed(msgpack.packb(tree))


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=500)
def test_messages_with_a_field_of_another_type_never_raise_anything_else(message, data):
    plain = msgpack.unpackb(encode(message))
    key = data.draw(st.sampled_from(sorted(plain)))
    plain[key] = data.draw(trees)
    assert_message_or_malformed(msgpack.packb(plain))


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=500)
def test_truncated_and_altered_messages_never_raise_anything_else(message, data):
    wire = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    assert_message_or_malformed(bytes(wire))
    assert_message_or_malformed(bytes(wire[: data.draw(st.integers(0, len(wire)))]))


@pytest.mark.parametrize("depth", [100, 1_000, 10_000, 1_000_000])
def test_deep_nesting_is_malformed(depth):
    refuses(b"\x91" * depth + b"\x00")
    refuses(msgpack.packb(HELLO)[:-1] + b"\x91" * depth + b"\x00")


def test_deep_nesting_in_a_field_nobody_reads_is_harmless():
    nested = msgpack.packb(HELLO | {"more": 0})[:-1] + b"\x91" * 900
    assert TO_WORKER.decode(nested + b"\x00") == Hello(gateway="gw-1", version=1)
    assert refuses(nested + msgpack.packb(math.nan)) == "a float is not finite"


@pytest.mark.parametrize("code", [-1, 0, 5, 127])
@pytest.mark.parametrize("size", [0, 1, 4, 8, 12])
def test_extension_types_and_timestamps_are_malformed_also_where_nobody_reads_them(code, size):
    extension = bytes([0xC7, size, code % 256]) + bytes(size)
    refuses(msgpack.packb(HELLO | {"more": 0})[:-1] + extension)


def test_pickles_are_malformed_and_not_run(tmp_path):
    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self):
            return (open, (str(canary), "w"))

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        refuses(pickle.dumps(Payload(), protocol))
    assert not canary.exists()


@pytest.mark.parametrize(
    "plain",
    [
        HELLO | {"version": -1},
        HELLO | {"version": True},
        HELLO | {"version": "1"},
        HELLO | {"version": 2**53 + 1},
        HELLO | {"gateway": ""},
        HELLO | {"gateway": "g" * 65},
        HELLO | {"gateway": b"gw"},
        HELLO | {"type": "Welcome"},
        {"gateway": "gw-1", "version": 1},
        [HELLO],
        {1: 2},
        HELLO | {"more": {1: 2}},
    ],
)
def test_wrong_types_ranges_and_tags_are_malformed(plain):
    refuses(msgpack.packb(plain))


def test_text_where_bytes_belong_is_malformed():
    sample = next(m for m in SAMPLES if isinstance(m, Submit))
    refuses(msgpack.packb(msgpack.unpackb(encode(sample)) | {"token_ids": "AAAA"}))


def test_bytes_after_the_message_and_bad_unicode_are_malformed():
    assert TO_WORKER.decode(msgpack.packb(HELLO)) == Hello(gateway="gw-1", version=1)
    refuses(msgpack.packb(HELLO) + b"\x00")
    refuses(msgpack.packb(HELLO).replace(b"gw-1", b"gw-\xff"))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_floats_that_are_not_finite_are_refused_in_both_directions(bad):
    sample = next(m for m in SAMPLES if isinstance(m, Submit))
    plain = msgpack.unpackb(encode(sample)) | {"age_s": bad}
    refuses(msgpack.packb(plain))
    refuses(msgpack.packb(plain, use_single_float=True))
    logprobs = TokenLogprobs(drawn=bad, top_ids=(), top=())
    run = TokenRun(ref=RequestRef("r"), first=0, ids=pack_tokens([1]), logprobs=(logprobs,))
    with pytest.raises(ValueError, match="Tokens holds a float that is not finite"):
        encode(Tokens(runs=(run,)))


def test_token_ids_that_look_like_a_nan_are_no_float():
    ids = bytes.fromhex("cb7ff8000000000000cbfff0")
    message = Tokens(runs=(TokenRun(ref=RequestRef("r"), first=0, ids=ids),))
    assert TO_GATEWAY.decode(encode(message)) == message


def test_a_message_over_the_limit_is_refused_at_both_ends():
    sample = next(m for m in SAMPLES if isinstance(m, Submit))
    plain = msgpack.unpackb(encode(sample)) | {"token_ids": bytes(MAX_MESSAGE_BYTES)}
    with pytest.raises(ValueError, match=f"Submit of .* bytes, the limit is {MAX_MESSAGE_BYTES}"):
        encode(
            Submit(
                **{f: getattr(sample, f) for f in ("ref", "model", "sampling")},
                token_ids=bytes(MAX_MESSAGE_BYTES),
            )
        )
    assert str(MAX_MESSAGE_BYTES) in refuses(msgpack.packb(plain))


def test_an_array_over_the_limit_is_refused():
    rows = [[["r", 0], 0]] * (MAX_ELEMENTS + 1)
    refuses(msgpack.packb({"type": "Resync", "requests": rows}))
    assert isinstance(
        TO_WORKER.decode(msgpack.packb({"type": "Resync", "requests": rows[:-1]})), Resync
    )


def test_a_map_over_the_limit_is_refused():
    more = {str(number): None for number in range(MAX_FIELDS - len(HELLO))}
    assert TO_WORKER.decode(msgpack.packb(HELLO | more)) == Hello(gateway="gw-1", version=1)
    refuses(msgpack.packb(HELLO | more | {"one too many": None}))


def test_a_header_that_claims_billions_of_elements_allocates_next_to_nothing():
    tracemalloc.start()
    refuses(b"\xdd\xff\xff\xff\xff" * 1000)
    refuses(b"\xdf\xff\xff\xff\xff" * 1000)
    refuses(b"\xc6\xff\xff\xff\xff")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_malformed_text_is_short_enough_to_log():
    assert len(refuses(msgpack.packb(HELLO | {"type": "x" * 60_000}))) < 300


def test_samples_cover_what_the_worker_sends_at_each_iteration():
    kinds = {type(message) for message in SAMPLES}
    assert {Tokens, QuantumDone, Status} <= kinds

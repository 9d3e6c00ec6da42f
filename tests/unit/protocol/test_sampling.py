"""Sampling parameters out of range never become a Sampling."""

import msgspec
import pytest

from protocol.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS, Sampling

PLAIN = {"max_tokens": 1, "seed": 0}

BAD_NUMBERS = (float("nan"), float("inf"), -1, 2**63, 2**64, True, "3", None, [])
"""No field takes any of them (None only where it says so)."""


def read(**fields) -> Sampling:
    return msgspec.convert(PLAIN | fields, Sampling)


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "field",
    ["max_tokens", "seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
     "min_tokens", "logprobs"],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(field, bad):
    if field == "logprobs" and bad is None:
        assert read(logprobs=None).logprobs is None
        return
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read(**{field: bad})


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("max_tokens", [1, 2**31 - 1], [0, 2**31, 1.5]),
        ("seed", [0, 2**63 - 1], [-1]),
        ("temperature", [0, 0.0, 100], [-0.01, 100.1]),
        ("top_k", [0, 2**31 - 1], [2**31]),
        ("top_p", [1e-9, 1], [0, 1.01]),
        ("min_p", [0, 1], [-0.01, 1.01]),
        ("repetition_penalty", [1e-9, 10], [0, 10.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1, float("nan")]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1, float("nan")]),
        ("logprobs", [0, MAX_LOGPROBS], [MAX_LOGPROBS + 1]),
        (
            "stop_token_ids",
            [[], [0, 2**31 - 1], [1] * MAX_STOP_TOKEN_IDS],
            [[-1], [2**31], [1] * (MAX_STOP_TOKEN_IDS + 1), 5],
        ),
        (
            "logit_bias",
            [[], [[0, -100]], [[1, 100.0]] * MAX_LOGIT_BIAS],
            [[[0, 101]], [[-1, 0]], [[0]], [[1, 1.0]] * (MAX_LOGIT_BIAS + 1)],
        ),
    ],
)
def test_limits_are_part_of_what_is_accepted(field, accepted, refused):
    for value in accepted:
        read(**{field: value})
    for value in refused:
        with pytest.raises(msgspec.ValidationError):
            read(**{field: value})


def test_only_penalties_depend_on_earlier_tokens():
    assert not read(temperature=0.5, top_k=3, logit_bias=[[1, 2.0]]).has_penalties
    assert read(repetition_penalty=1.1).has_penalties
    assert read(presence_penalty=-0.1).has_penalties
    assert read(frequency_penalty=0.1).has_penalties


def test_the_seed_and_the_length_must_be_given():
    for missing in PLAIN:
        with pytest.raises(msgspec.ValidationError, match=missing):
            msgspec.convert({k: v for k, v in PLAIN.items() if k != missing}, Sampling)

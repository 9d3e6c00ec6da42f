"""Each bad request is a 400 that names its field; each harmless one is taken."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sampling import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from tokenizer_service.assets import SamplingDefaults
from tokenizer_service.limits import (
    MAX_CHOICES,
    MAX_JSON_DEPTH,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_STOP_CHARS,
    MAX_STOPS,
)
from tokenizer_service.openai.errors import ApiError
from tokenizer_service.openai.params import sampling
from tokenizer_service.openai.schema import (
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
    check_depth,
    parse,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}


def chat(**fields: Any) -> ChatRequest:
    return parse(msgspec.json.encode(CHAT | fields), ChatRequest)


def text(**fields: Any) -> CompletionRequest:
    return parse(msgspec.json.encode(TEXT | fields), CompletionRequest)


def refused(body: bytes, kind: Any = ChatRequest) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse(body, kind)
    assert error.value.status == 400
    assert error.value.type == "invalid_request_error"
    return error.value


WRONG_NUMBERS: list[Any] = [True, "3", [], {}, -1, 2**63]
FLOATS = ["temperature", "top_p", "min_p", "repetition_penalty"]
PENALTIES = ["presence_penalty", "frequency_penalty"]
COUNTS = ["max_tokens", "max_completion_tokens", "min_tokens", "n"]


@pytest.mark.parametrize("field", [*FLOATS, *COUNTS])
@pytest.mark.parametrize("value", WRONG_NUMBERS)
def test_a_number_of_a_wrong_type_or_range_is_refused_by_name(field: str, value: object) -> None:
    error = refused(msgspec.json.encode(CHAT | {field: value}))
    assert error.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in PENALTIES for value in (-2.1, 2.1, True, "1")),
        *((field, 1.5) for field in COUNTS),
        ("n", 0),
        ("n", 1.5),
        ("n", MAX_CHOICES + 1),
        ("max_tokens", 0),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", 1.01),
        ("temperature", 101),
        ("repetition_penalty", 0),
        ("top_k", -2),
        ("top_k", 1.0),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 0.5),
        ("priority", 1001),
        ("stream", "yes"),
        ("stream", 1),
        ("stop", ""),
        ("stop", "x" * (MAX_STOP_CHARS + 1)),
        ("stop", ["x"] * (MAX_STOPS + 1)),
        ("stop", 5),
        ("stop_token_ids", [1] * (MAX_STOP_TOKEN_IDS + 1)),
        ("model", "m" * (MAX_NAME_CHARS + 1)),
        ("model", None),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"role": "user"}] * (MAX_MESSAGES + 1)),
        ("stream_options", True),
        ("ignore_eos", "true"),
        ("logprobs", 5),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
    ],
)
def test_a_field_out_of_its_bounds_is_refused_by_name(field: str, value: object) -> None:
    assert refused(msgspec.json.encode(CHAT | {field: value})).param == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias[...]"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[...]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(MAX_LOGIT_BIAS + 1)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"slo": {"ttft_ms": 0}}, "slo.ttft_ms"),
        ({"slo": {"tbt_ms": 3_600_001}}, "slo.tbt_ms"),
        ({"slo": {"tbt_ms": "50"}}, "slo.tbt_ms"),
        ({"slo": {"ttft": 1}}, "slo"),
        ({"slo": 50}, "slo"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [5]}, "messages[0]"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_value_inside_is_named_with_its_path(fields: dict[str, Any], param: str) -> None:
    assert refused(msgspec.json.encode(CHAT | fields)).param == param


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing: str) -> None:
    body = {key: value for key, value in CHAT.items() if key != missing}
    assert refused(msgspec.json.encode(body)).param == missing


@pytest.mark.parametrize("prompt", [5, None, [1.5], {"a": 1}, [True]])
def test_a_prompt_of_another_type_is_refused(prompt: object) -> None:
    error = refused(msgspec.json.encode(TEXT | {"prompt": prompt}), CompletionRequest)
    assert error.param is not None
    assert error.param.startswith("prompt")


# --- what is known and not served ---

WANTED: dict[str, object] = {
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "functions": [{}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_object"},
    "structured_outputs": {"json": {}},
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "a",
    "regex": "a",
    "ebnf": "a",
    "grammar": "a",
    "top_logprobs": 3,
    "prompt_logprobs": 0,
    "best_of": 2,
    "use_beam_search": True,
    "suffix": "a",
    "echo": True,
    "audio": {"voice": "x"},
    "prompt_embeds": "",
    "chat_template": "{{ 1 }}",
    "chat_template_kwargs": {"tokenize": True},
    "continue_final_message": True,
    "truncate_prompt_tokens": 5,
    "bad_words": ["x"],
    "allowed_token_ids": [1],
    "return_token_ids": True,
}


def test_the_table_of_wanted_values_is_complete() -> None:
    assert set(WANTED) == set(UNSUPPORTED)


@pytest.mark.parametrize(("field", "value"), WANTED.items())
def test_what_is_not_served_and_changes_the_answer_is_refused(field: str, value: object) -> None:
    chat_serves = field in ChatRequest.__struct_fields__
    body, kind = (TEXT, CompletionRequest) if chat_serves else (CHAT, ChatRequest)
    error = refused(msgspec.json.encode(body | {field: value}), kind)
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert "not supported" in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, None) for field in UNSUPPORTED),
        ("tools", []),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("logit_bias", {}),
        ("best_of", 1),
        ("suffix", ""),
        ("echo", False),
        ("user", "someone"),
        ("store", True),
        ("metadata", {"a": "b"}),
        ("some_future_field", [1]),
    ],
)
def test_what_means_nothing_and_what_is_unknown_is_ignored(field: str, value: object) -> None:
    assert chat(**{field: value}).model == "m"


def test_each_endpoint_has_its_own_form_of_logprobs() -> None:
    assert chat().most_likely is None
    assert chat(logprobs=False).most_likely is None
    assert chat(logprobs=True).most_likely == 0
    assert chat(logprobs=True, top_logprobs=20).most_likely == 20
    assert text(logprobs=0).logprobs == 0
    for value in (True, -1, 21, "3"):
        assert refused(msgspec.json.encode(TEXT | {"logprobs": value}), CompletionRequest).param
    assert refused(msgspec.json.encode(TEXT | {"top_logprobs": 2}), CompletionRequest).param == (
        "top_logprobs"
    )


def test_a_bias_is_by_token_id() -> None:
    assert chat(logit_bias={"7": 5, "8": -100}).logit_bias == {7: 5.0, 8: -100.0}


# --- bodies ---


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"{",
        b"{} x",
        b"\xef\xbb\xbf{}",
        b'{"model": NaN}',
        b'{"model": 1e999}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"model": "a\x00b"}',
        b"\x80\x05\x95",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    refused(body)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_a_deeply_nested_body_is_refused_before_it_is_parsed(opening: bytes) -> None:
    assert "deeper than 32" in refused(opening * 100_000).message


def test_nesting_up_to_the_limit_is_taken() -> None:
    check_depth(b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH)
    with pytest.raises(ApiError):
        check_depth(b"[" * (MAX_JSON_DEPTH + 1))


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_brackets_inside_strings_are_no_nesting(value: object) -> None:
    def depth(value: object) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    data = msgspec.json.encode(value)
    check_depth(data, limit=depth(value))
    if depth(value) > 0:
        with pytest.raises(ApiError):
            check_depth(data, limit=depth(value) - 1)


def test_the_depth_of_an_unfinished_string_costs_one_pass() -> None:
    check_depth(b'"' + b'\\"' * 500_000)


# --- sampling ---


def test_what_a_request_leaves_out_is_the_models_own() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1)
    drawn = sampling(chat(top_p=0.5), defaults, limit=None, room=9, most_likely=None, choice=0)
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p) == (0.6, 20, 0.5, 0.1)
    assert drawn.max_tokens == 9


def test_zero_is_a_value_not_an_omission() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    drawn = sampling(
        chat(temperature=0, top_k=0, seed=0),
        defaults,
        limit=None,
        room=9,
        most_likely=None,
        choice=0,
    )
    assert (drawn.temperature, drawn.top_k, drawn.seed) == (0.0, 0, 0)


def test_without_a_models_own_the_defaults_are_openais() -> None:
    drawn = sampling(chat(), SamplingDefaults(), limit=None, room=9, most_likely=None, choice=0)
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p) == (1.0, 1.0, 0, 0.0)
    assert not drawn.has_penalties


def test_more_output_at_least_than_at_most_is_refused() -> None:
    with pytest.raises(ApiError) as error:
        sampling(
            chat(min_tokens=10), SamplingDefaults(), limit=5, room=9, most_likely=None, choice=0
        )
    assert error.value.param == "min_tokens"


def test_a_text_completion_has_sixteen_tokens_unless_it_says_more() -> None:
    assert text().output_limit == 16
    assert text(max_tokens=3).output_limit == 3


def test_the_newer_name_of_the_output_limit_wins() -> None:
    assert chat(max_tokens=3, max_completion_tokens=4).output_limit == 4
    assert chat(max_tokens=3).output_limit == 3
    assert chat().output_limit is None

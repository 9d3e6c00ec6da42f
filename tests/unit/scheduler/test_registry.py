from importlib.metadata import EntryPoint

import pytest

from scheduler import registry
from scheduler.policies.chunked import Chunked
from scheduler.policies.muxwise import MuxWise
from scheduler.policy import Objectives
from scheduler.registry import PolicyError, describe, known, load, make

OBJECTIVES = Objectives(tbt_s=0.05, ttft_s=1.0)


def test_our_own_policies_are_found_in_a_checkout_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    ours = ["chunked", "drift", "muxwise", "prefill_first", "static", "streams", "temporal"]
    assert list(known()) == ours
    for name in known():
        assert make(name, OBJECTIVES) is not None


def test_an_installed_entry_point_is_found(monkeypatch):
    point = EntryPoint("mine", "scheduler.policies.chunked:Chunked", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert load("mine") is Chunked
    assert "mine" in known()


def test_any_class_can_be_named():
    assert load("scheduler.policies.muxwise:MuxWise") is MuxWise


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(PolicyError, match=r"'nix'.*chunked.*muxwise.*prefill_first"):
        load("nix")


@pytest.mark.parametrize(
    "target", ["no.such:Thing", "scheduler.registry:Nothing", "scheduler.registry:make"]
)
def test_what_cannot_be_loaded_says_why(target):
    with pytest.raises(PolicyError, match=target):
        load(target)


def test_options_are_typed_by_the_policy():
    policy = make("chunked", OBJECTIVES, ["token_budget=512", "depth=2"])
    assert policy._options == Chunked.Options(token_budget=512, depth=2)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("token_budget", "key=value"),
        ("budget=1", "no option 'budget'; known: token_budget, depth"),
        ("token_budget=0", "token_budget"),
        ("token_budget=many", "token_budget"),
    ],
)
def test_a_wrong_option_names_itself_and_what_there_is(option, why):
    with pytest.raises(PolicyError, match=why):
        make("chunked", OBJECTIVES, [option])


def test_options_describe_themselves():
    assert any(line.startswith("guard=0.0  worst slowdown") for line in describe("muxwise"))

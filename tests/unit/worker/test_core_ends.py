"""How a request ends: stop rules, limits, aborts in each state. Once, and with nothing left."""

import pytest

from protocol.control_link import Lane, RequestState
from protocol.data_link import Abort, FailCode, Finished, FinishReason, Stop, Tokens
from protocol.ids import RequestRef
from protocol.sampling import Sampling
from tests.unit.worker.world import World, answers, device, served, shape
from worker.executors.simulated.fake_model import right_stream

# --- ends ---


def test_end_of_sequence_ends_the_output_and_is_counted_but_not_delivered():
    world = World()
    prompt = next(p for p in ([i] for i in range(1, 400)) if stops_within(p, 30))
    ref = served(world, prompt=prompt, max_tokens=30, ignore_eos=False)
    world.run.run_idle()
    world.expect_right(ref)
    finished = world.sent(ref).terminal
    assert finished.reason is FinishReason.STOP
    assert finished.stop_token == 0


def stops_within(prompt: list[int], tokens: int) -> bool:
    """Whether the model draws the end of sequence after some tokens, and before `tokens`."""
    right = right_stream(prompt, Sampling(max_tokens=tokens, seed=7), shape())
    return right.stop_token is not None and len(right.tokens) > 2


def test_a_stop_id_at_the_last_allowed_index_is_one_end_and_its_reason_is_stop():
    world = World()
    probe = served(world, "probe", prompt=[1, 2, 3], max_tokens=5)
    world.run.run_idle()
    fifth = world.sent(probe).tokens[4]
    ref = world.submit("r", [1, 2, 3], max_tokens=5, stop_token_ids=(fifth,))
    world.plan([[ref]])
    world.run.run_idle()
    assert world.sent(ref).terminal.reason is FinishReason.STOP
    assert world.sent(ref).tokens == world.sent(probe).tokens[:4]
    world.expect_right(ref)


def test_no_stop_id_ends_the_output_before_min_tokens():
    world = World(device(models=(shape(vocab=3),)))
    ref = served(world, prompt=[1, 2], max_tokens=40, min_tokens=9, ignore_eos=False)
    world.run.run_idle()
    assert len(world.sent(ref).tokens) >= 9
    world.expect_right(ref)


def test_output_ends_with_the_context_even_if_more_was_asked_for():
    world = World(device(models=(shape(length=20),)))
    ref = served(world, prompt=17, max_tokens=100)
    world.run.run_idle()
    assert len(world.sent(ref).tokens) == 3
    world.expect_right(ref)


@pytest.mark.parametrize("tokens", [1, 2])
def test_one_token_of_output_needs_no_iteration_and_two_need_one(tokens):
    world = World()
    ref = served(world, max_tokens=tokens)
    world.run.run_idle()
    world.expect_right(ref)
    assert len(world.iterations()) == tokens - 1


def test_a_stop_string_found_by_the_gateway_ends_the_request_at_its_index():
    world = World()
    ref = served(world, max_tokens=50)
    world.run.run_until(world.run.now + 0.05)
    finished = answers(world.run.gateway(Stop(ref, 2)))[0]
    assert finished == Finished(ref, FinishReason.STOP, finished.usage)
    assert finished.usage.output_tokens == 2
    assert answers(world.run.gateway(Stop(ref, 2))) == []
    world.run.run_idle()
    world.expect_empty()


# --- aborts, in each state ---


def queued(world: World) -> RequestRef:
    return world.submit("r", 24)


def prefilling(world: World) -> RequestRef:
    ref = world.submit("r", 24)
    world.attach()
    world.plan([[ref]], layers=1)
    world.run.step()
    assert world.state(ref) is RequestState.PREFILLING
    return ref


def suspended(world: World) -> RequestRef:
    ref = prefilling(world)
    other = world.submit("other", 24)
    world.plan([[other], [ref]], layers=1)
    for _ in range(3):
        world.run.step()
    assert world.state(ref) is RequestState.SUSPENDED
    world.run.gateway(Abort(other))
    world.plan([])
    return ref


def decoding(world: World) -> RequestRef:
    ref = served(world, max_tokens=50)
    assert world.state(ref) is RequestState.DECODING
    return ref


@pytest.mark.parametrize("reach", [queued, prefilling, suspended, decoding])
def test_an_abort_frees_everything_by_the_end_of_the_launched_work(reach):
    world = World()
    ref = reach(world)
    in_flight = world.core.in_flight(Lane.PREFILL) + world.core.in_flight(Lane.DECODE)
    launched = len(world.run.launches)
    failed = answers(world.run.gateway(Abort(ref)))[0]
    assert failed.code is FailCode.ABORTED
    assert answers(world.run.gateway(Abort(ref))) == []
    for _ in range(in_flight):
        world.run.step()
    assert len(world.run.launches) == launched, "nothing is launched for the dead"
    world.expect_empty()


def test_an_abort_of_the_unknown_and_of_the_finished_is_no_error():
    world = World()
    assert answers(world.run.gateway(Abort(RequestRef("never", 0)))) == []
    ref = served(world)
    world.run.run_idle()
    assert answers(world.run.gateway(Abort(ref))) == []
    assert answers(world.run.gateway(Stop(ref, 0))) == []


def test_an_abort_that_races_the_end_leaves_one_terminal_message_in_both_orders():
    for early in (True, False):
        world = World()
        ref = served(world, max_tokens=3)
        while world.core.in_flight(Lane.DECODE) and not early:
            world.run.step()
        world.run.gateway(Abort(ref))
        world.run.run_idle()
        assert world.sent(ref).terminals == 1
        world.expect_empty()


def test_tokens_of_one_iteration_come_as_one_frame_a_gateway():
    world = World(clients=(b"gw-1", b"gw-2"))
    refs = [world.submit(f"r{i}", 4, peer=b"gw-%d" % (1 + i % 2)) for i in range(6)]
    world.attach()
    world.plan([refs])
    world.run.run_idle()
    world.expect_right(*refs)
    for peer in (b"gw-1", b"gw-2"):
        frames = [m for m in world.run.data[peer] if isinstance(m, Tokens)]
        assert len(frames) == 8, "8 tokens each, all in the same iterations"
        assert all(len(frame.runs) == 3 for frame in frames)

"""The simulated device: it takes the time its model says, and catches what memory would not."""

from typing import Any

import pytest

from protocol.control_link import Lane
from protocol.sampling import Sampling
from tests.unit.worker.world import LATENCY, device, shape
from worker.executors.base import (
    DecodeBatch,
    Executor,
    PrefillQuantum,
    PrefillRow,
    SlotInit,
    TableUpdate,
)
from worker.executors.simulated.executor import SimulatedExecutor
from worker.executors.simulated.fake_model import mix, origin, right_stream
from worker.executors.simulated.forward import BadLaunch
from worker.executors.simulated.pages import KvCorruption

GREEDY = Sampling(max_tokens=8, seed=1, temperature=0.0, ignore_eos=True)


def executor(**options: Any) -> SimulatedExecutor:
    """A device in virtual time."""
    return SimulatedExecutor(device(), LATENCY, **({"verify": True} | options))


def quantum(
    ticket: int,
    tokens: int = 6,
    *,
    slot: int = 0,
    start: int = 0,
    pages: Any = (0, 1),
    text: int = 1,
    **fields: Any,
) -> PrefillQuantum:
    """A quantum of a prompt that counts up from `text`, by default through all layers."""
    first = text + start
    row = PrefillRow(slot, start, tuple(range(first, first + tokens)), sample=True)
    values: dict[str, Any] = {
        "ticket": ticket,
        "model": "m",
        "partition": 0,
        "batch": ticket,
        "layer_start": 0,
        "layer_end": 4,
        "rows": (row,),
        "inits": (SlotInit(slot, "m", GREEDY, ()),),
        "tables": (TableUpdate(slot, 0, tuple(pages)),),
    }
    return PrefillQuantum(**(values | fields))


def iteration(ticket: int, position: int, slot: int = 0, **fields: Any) -> DecodeBatch:
    """An iteration of one row."""
    values: dict[str, Any] = {"partition": 0, "slots": (slot,), "positions": (position,)}
    return DecodeBatch(ticket=ticket, model="m", **(values | fields))


def run(device_: SimulatedExecutor, *works: Any) -> list[Any]:
    """Launch one after the other, each when the one before has completed."""
    done = []
    for work in works:
        device_.launch(work)
        device_.advance(device_.next_completion() or 0.0)
        done += device_.poll()
    return done


def test_it_is_an_executor():
    device_: Executor = executor()
    assert device_.fileno() is None
    assert device_.info.num_pages == 64


def test_tokens_are_a_pure_function_of_the_context():
    done = run(executor(), quantum(1), iteration(2, 6), iteration(3, 7))
    drawn = [token.token for completion in done for token in completion.tokens]
    assert tuple(drawn) == right_stream(range(1, 7), GREEDY, shape()).tokens[:3]


def test_a_lane_runs_in_order_and_the_lanes_beside_each_other():
    device_ = executor()
    run(device_, quantum(1))
    for ticket, position in ((2, 6), (3, 7)):
        device_.launch(iteration(ticket, position))
    device_.launch(quantum(4, slot=1, pages=(4, 5)))
    device_.advance(1.0)
    done = {completion.ticket: completion for completion in device_.poll()}
    assert done[3].started == done[2].finished
    assert done[4].started == done[2].started
    assert done[4].overlap_s == pytest.approx(done[4].finished - done[4].started)
    assert done[2].overlap_s == pytest.approx(done[2].finished - done[2].started)


def test_times_follow_the_latency_model_and_contention_stretches_them():
    alone = run(executor(), quantum(1))[0]
    expected = 1e-4 + 6e-3 + 18e-6
    assert alone.finished - alone.started == pytest.approx(expected)
    half = run(executor(), quantum(1, partition=2))[0]
    assert half.units == 8
    assert half.finished - half.started == pytest.approx(1e-4 + 2 * (6e-3 + 18e-6))
    device_ = executor()
    run(device_, quantum(1))
    device_.launch(iteration(2, 6, partition=2))
    device_.launch(quantum(3, 40, slot=1, pages=range(10, 20), partition=2))
    device_.advance(device_.next_completion() or 0.0)
    beside = device_.poll()[0]
    assert beside.lane is Lane.DECODE
    solo = 5e-3 + 1e-4 + 6e-6
    assert beside.finished - beside.started == pytest.approx(1.2 * solo)


def test_layers_go_one_quantum_after_the_other_and_are_parked_between():
    device_ = executor()
    parts = [
        quantum(i + 1, batch=9, layer_start=i, layer_end=i + 1, **({} if not i else {"inits": ()}))
        for i in range(4)
    ]
    done = run(device_, *parts[:3])
    assert device_.parked == [9]
    assert all(completion.tokens == () for completion in done)
    [last] = run(device_, parts[3])
    assert [t.token for t in last.tokens] == [
        *right_stream(range(1, 7), GREEDY, shape()).tokens[:1]
    ]
    assert device_.parked == []


def test_a_skipped_layer_is_an_error():
    device_ = executor()
    run(device_, quantum(1, layer_end=1, batch=5))
    with pytest.raises(BadLaunch, match="batch 5 is not parked at layer 2"):
        run(device_, quantum(2, layer_start=2, batch=5, inits=(), tables=()))


def test_a_discarded_batch_is_gone_and_one_in_flight_cannot_be_discarded():
    device_ = executor()
    device_.launch(quantum(1, layer_end=1, batch=5))
    with pytest.raises(ValueError, match="ticket 1 queued"):
        device_.discard(5)
    device_.advance(1.0)
    device_.discard(5)
    assert device_.parked == []


def test_reading_positions_that_were_never_written_is_found():
    with pytest.raises(KvCorruption, match="page 0 offset 0, read as position 0, has 0 layers"):
        run(executor(), quantum(1, start=4))


def test_a_page_table_that_points_elsewhere_is_found():
    device_ = executor()
    run(device_, quantum(1), quantum(2, 9, slot=1, pages=(4, 5, 6), text=50))
    wrong = iteration(3, 6, tables=(TableUpdate(0, 0, (4, 1)),))
    with pytest.raises(KvCorruption, match="holds another context"):
        run(device_, wrong)


def test_a_page_that_gets_a_new_owner_while_it_is_read_is_found():
    device_ = executor()
    run(device_, quantum(1))
    device_.launch(iteration(2, 6))
    device_.launch(quantum(3, 2, slot=1, pages=(1,)))
    with pytest.raises(KvCorruption, match="page 1 offset 0, read as position 4"):
        device_.advance(1.0)


def test_a_position_out_of_step_is_found():
    device_ = executor()
    run(device_, quantum(1))
    with pytest.raises(BadLaunch, match="position 7, 6 are written"):
        run(device_, iteration(2, 7))


def test_a_slot_with_two_rows_is_found():
    device_ = executor()
    run(device_, quantum(1))
    with pytest.raises(BadLaunch, match="two rows"):
        run(device_, iteration(2, 6, slots=(0, 0), positions=(6, 6)))


def test_more_tokens_than_the_device_takes_are_found():
    with pytest.raises(BadLaunch, match="65 tokens in a quantum, the limit is 64"):
        run(executor(), quantum(1, 65, pages=range(20)))


def test_a_fault_is_reported_and_its_slots_are_not_trusted_until_they_start_anew():
    device_ = executor(fault=lambda work: "broken" if work.ticket == 1 else None)
    failed, after = run(device_, quantum(1), iteration(2, 6))
    assert (failed.error, failed.tokens) == ("broken", ())
    assert after.error is None
    anew = run(device_, quantum(3))[0]
    assert anew.tokens[0].token == right_stream(range(1, 7), GREEDY, shape()).tokens[0]


def test_with_a_clock_it_advances_by_itself():
    time = [10.0]
    device_ = executor(clock=lambda: time[0])
    device_.launch(quantum(1))
    time[0] = 10.005
    assert device_.poll() == []
    time[0] = 10.007
    [done] = device_.poll()
    assert done.finished == pytest.approx(10.0 + 6.118e-3)


def test_states_depend_on_every_token_and_on_the_order():
    start = origin("m")
    assert mix(mix(start, 1), 2) != mix(mix(start, 2), 1)
    assert len({mix(start, token) for token in range(1000)}) == 1000


def test_a_seed_matters_only_when_tokens_are_drawn():
    hot = [Sampling(max_tokens=8, seed=seed, ignore_eos=True) for seed in (1, 2)]
    cold = [Sampling(max_tokens=8, seed=s, temperature=0.0, ignore_eos=True) for s in (1, 2)]
    streams = [right_stream([1, 2], sampling, shape()) for sampling in (*hot, *cold)]
    assert streams[0] != streams[1]
    assert streams[2] == streams[3]

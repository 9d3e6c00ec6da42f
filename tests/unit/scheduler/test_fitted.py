import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.control_link import WHOLE, Lane, PoolState, QuantumDone, StepDone
from scheduler.estimator import soft_state
from scheduler.estimator.fitted import FittedEstimator
from scheduler.estimator.guard import WINDOW
from scheduler.estimator.loads import NOTHING, DecodeLoad, PrefillLoad
from scheduler.estimator.profile import ProfileError
from scheduler.estimator.table import SplitTable
from tests.unit.scheduler.profiles import SLOWDOWN, decode_law, prefill_law, profile
from tests.unit.scheduler.world import H200, LAYERS, TWO_CORES, snapshot, view, work

PROFILE = profile()
LOAD = DecodeLoad(64, 64 * 2048)
PROMPT = PrefillLoad.of_prompts([(8192, 0)])


def step(number, seconds, *, overlap=0.0, partition=1, units=16, chunk=0):
    done = replace(
        work(Lane.DECODE, partition, seconds, batch_size=64, context_tokens=64 * 2048),
        units=units,
        overlap_s=overlap * seconds,
        new_tokens=chunk,
    )
    return StepDone(number, done, (), PoolState(1, 1, 0))


def prefilled(number, seconds, *, units=116, layers=LAYERS):
    sizes = {"new_tokens": 8192, "new_squared": 8192**2, "layers": layers}
    done = replace(work(Lane.PREFILL, 1, seconds, **sizes), units=units)
    return QuantumDone(number, (), layers, LAYERS, done, ())


def learn(estimator, mirror, *events):
    for event in events:
        mirror.apply(event)
        estimator.learn(mirror, 0.0)


def test_each_partition_is_predicted_by_its_own_fit():
    estimator, mirror = FittedEstimator(PROFILE), view()
    for split in H200[1:]:
        decode = estimator.decode_s(mirror, split.index, LOAD, 0.0)
        assert decode == pytest.approx(decode_law(split.decode_units, *LOAD), rel=0.02)
        prefill = estimator.prefill_s(mirror, split.index, PROMPT, LAYERS, 0.0)
        assert prefill == pytest.approx(prefill_law(split.prefill_units, [(8192, 0)]), rel=0.02)
    whole = estimator.decode_s(mirror, WHOLE, LOAD, 0.0)
    assert whole == pytest.approx(decode_law(132, *LOAD), rel=0.02)


def test_a_quantum_takes_its_share_of_the_layers():
    estimator, mirror = FittedEstimator(PROFILE), view()
    whole = estimator.prefill_s(mirror, 1, PROMPT, LAYERS, 0.0)
    assert estimator.prefill_s(mirror, 1, PROMPT, LAYERS // 4, 0.0) == pytest.approx(whole / 4)
    assert estimator.prefill_s(mirror, 1, NOTHING, LAYERS, 0.0) == 0.0


def test_the_worst_case_is_the_solo_time_times_what_the_pair_was_seen_to_lose():
    estimator, mirror = FittedEstimator(PROFILE), view()
    solo = estimator.decode_s(mirror, 1, LOAD, 0.0)
    worst = estimator.worst_decode_s(mirror, LOAD, PROMPT, 0.0)[1]
    assert worst == pytest.approx(SLOWDOWN * solo, rel=0.01)


def test_real_iterations_beside_a_prefill_refine_the_worst_case():
    estimator, mirror = FittedEstimator(PROFILE), view()
    solo = estimator.decode_s(mirror, 1, LOAD, 0.0)
    steps = [step(n, 1.6 * solo, overlap=1.0) for n in range(2, 2 + WINDOW)]
    learn(estimator, mirror, prefilled(1, 0.3), *steps)
    worst = estimator.worst_decode_s(mirror, LOAD, PROMPT, 0.0)[1]
    assert worst == pytest.approx(1.6 * solo, rel=0.01)
    assert estimator.errors.guard.count == WINDOW
    assert 1 <= estimator.errors.guard.exceeded <= 2
    assert estimator.decode_s(mirror, 1, LOAD, 0.0) == solo, "the solo fit stays"


@pytest.mark.parametrize("odd", [{"overlap": 0.0}, {"overlap": 0.3}, {"chunk": 64, "overlap": 1.0}])
def test_iterations_that_say_nothing_of_contention_leave_the_guard_alone(odd):
    estimator, mirror = FittedEstimator(PROFILE), view()
    before = estimator.worst_decode_s(mirror, LOAD, PROMPT, 0.0)[1]
    learn(estimator, mirror, prefilled(1, 0.3), *(step(n, 9.0, **odd) for n in range(2, 50)))
    assert estimator.worst_decode_s(mirror, LOAD, PROMPT, 0.0)[1] == before


def test_iterations_alone_tell_how_far_off_the_solo_fit_is():
    estimator, mirror = FittedEstimator(PROFILE), view()
    solo = estimator.decode_s(mirror, 1, LOAD, 0.0)
    learn(estimator, mirror, *(step(n, solo / 1.05) for n in range(1, 40)))
    assert estimator.errors.decode.count == 39
    assert estimator.errors.decode.mean == pytest.approx(0.05)
    assert estimator.errors.decode.bias == pytest.approx(0.05)


def test_prefill_is_predicted_as_far_off_as_it_was_lately():
    estimator, mirror = FittedEstimator(PROFILE), view()
    before = estimator.prefill_s(mirror, 1, PROMPT, LAYERS, 0.0)
    learn(estimator, mirror, *(prefilled(n, 1.3 * before / 4, layers=8) for n in range(1, 200)))
    after = estimator.prefill_s(mirror, 1, PROMPT, LAYERS, 0.0)
    assert after == pytest.approx(1.3 * before, rel=0.01)
    assert estimator.errors.prefill.mean < 0.05, "the error is that of the corrected prediction"


@pytest.mark.parametrize("odd", [{"layers": 48}, {"unit": "core"}])
def test_a_profile_of_something_else_leaves_predicting_to_the_measured_table(odd, caplog):
    estimator, mirror, table = FittedEstimator(profile(**odd)), view(), SplitTable()
    events = [step(n, 0.033, overlap=1.0) for n in range(1, 20)]
    learn(estimator, mirror, *events)
    table.learn(mirror, 0.0)
    assert estimator.decode_s(mirror, 1, LOAD, 0.0) == table.decode_s(mirror, 1, LOAD, 0.0)
    assert estimator.worst_decode_s(mirror, LOAD, PROMPT, 0.0) == table.worst_decode_s(
        mirror, LOAD, PROMPT, 0.0
    )
    assert estimator.prefill_s(mirror, 1, PROMPT, 8, 0.0) == table.prefill_s(
        mirror, 1, PROMPT, 8, 0.0
    )
    assert caplog.text.count("is not of this worker") == 1


def test_a_worker_that_restarts_with_other_partitions_is_looked_at_anew():
    estimator, mirror = FittedEstimator(PROFILE), view()
    assert estimator.decode_s(mirror, 1, LOAD, 0.0) < 1
    mirror.restore(snapshot(boot="second", partitions=TWO_CORES))
    seconds = estimator.decode_s(mirror, 1, LOAD, 0.0)
    assert seconds == SplitTable().decode_s(mirror, 1, LOAD, 0.0)


def test_a_profile_without_a_fit_is_refused():
    with pytest.raises(ProfileError, match="no fit: 150 prefill and 90 decode samples"):
        FittedEstimator(profile(fitted=False))


loads = st.builds(
    lambda rows, each: DecodeLoad(rows, rows * each), st.integers(1, 300), st.integers(1, 10**5)
)
prompts = st.builds(
    lambda new, reused: PrefillLoad.of_prompts([(new, reused)]),
    st.integers(1, 10**5),
    st.integers(0, 10**5),
)
SHARED = FittedEstimator(profile(noise=0.1))


@given(loads, prompts, st.lists(st.floats(0.5, 3), max_size=30), st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_more_units_are_never_predicted_slower_whatever_was_learnt(load, beside, slow, where):
    estimator, mirror = SHARED, view(event=0)
    split = H200[where]
    solo = estimator.decode_s(mirror, where, load, 0.0)
    for number, factor in enumerate(slow, 1):
        done = replace(
            work(Lane.DECODE, where, solo * factor, batch_size=load.rows),
            units=split.decode_units,
            context_tokens=load.context,
            overlap_s=solo * factor,
        )
        learn(estimator, mirror, StepDone(number, done, (), PoolState(1, 1, 0)))
    found = estimator.worst_decode_s(mirror, load, beside, 0.0)
    worst = [found[p.index] for p in H200[1:]]
    alone = [estimator.decode_s(mirror, p.index, load, 0.0) for p in H200[1:]]
    assert worst == sorted(worst, reverse=True)
    assert alone == sorted(alone, reverse=True)
    assert all(a <= b for a, b in zip(alone, worst, strict=True))


# --- soft state ---


def test_what_was_learnt_survives_a_restart(tmp_path):
    first, mirror, path = FittedEstimator(PROFILE), view(), tmp_path / "soft.json"
    solo = first.decode_s(mirror, 1, LOAD, 0.0)
    steps = [step(n, 1.6 * solo, overlap=1.0) for n in range(2, 3 + WINDOW)]
    learn(first, mirror, prefilled(1, 0.9), *steps)
    assert soft_state.write(path, first.soft_state())
    second = FittedEstimator(PROFILE)
    state = soft_state.read(path)
    assert state is not None
    assert second.restore(state)
    for ask in (first, second):
        assert ask.worst_decode_s(mirror, LOAD, PROMPT, 0.0)[1] == pytest.approx(1.6 * solo)
    assert second.prefill_s(mirror, 1, PROMPT, 8, 0.0) == first.prefill_s(mirror, 1, PROMPT, 8, 0.0)


def test_soft_state_of_another_profile_is_not_used():
    other = FittedEstimator(profile(noise=0.05))
    assert not other.restore(FittedEstimator(PROFILE).soft_state())


@pytest.mark.parametrize("content", [b"", b"{}", b'{"profile": 3}', b"\xff\x00"])
def test_a_broken_soft_state_is_as_good_as_none(tmp_path, content, caplog):
    path = tmp_path / "soft.json"
    path.write_bytes(content)
    assert soft_state.read(path) is None
    assert "is not used" in caplog.text


def test_no_soft_state_yet_is_nothing_to_say(tmp_path, caplog):
    assert soft_state.read(tmp_path / "none") is None
    assert not caplog.text


def test_a_soft_state_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    assert not soft_state.write(tmp_path / "no" / "dir", FittedEstimator(PROFILE).soft_state())
    assert "is not written" in caplog.text


def test_a_keeper_writes_every_period_and_when_told(tmp_path):
    path = tmp_path / "soft.json"
    keeper = soft_state.Keeper(path, FittedEstimator(PROFILE))
    assert not keeper.restore(), "there is nothing yet"
    keeper.tick(100.0)
    keeper.tick(100.0 + soft_state.PERIOD_S / 2)
    assert not path.exists()
    keeper.tick(100.0 + soft_state.PERIOD_S)
    assert keeper.restore()
    path.unlink()
    keeper.tick(101.0 + soft_state.PERIOD_S)
    assert not path.exists()
    keeper.save()
    assert path.exists()

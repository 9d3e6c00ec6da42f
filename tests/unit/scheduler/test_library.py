"""Which profile is used for which worker, and what happens where there is none."""

import logging

import pytest
from msgspec.structs import replace

from scheduler.estimator import library
from scheduler.estimator.automatic import AutomaticEstimator
from scheduler.estimator.fitted import FittedEstimator
from scheduler.estimator.loads import NOTHING, DecodeLoad
from scheduler.estimator.profile import save
from scheduler.estimator.table import SplitTable
from tests.unit.scheduler.profiles import profile
from tests.unit.scheduler.world import LAYERS, snapshot, view

LOAD = DecodeLoad(64, 64 * 2048)
TAKEN = profile()
TAKEN = replace(TAKEN, model=replace(TAKEN.model, vocab_size=1))


def put(folder, name="p.json", **changes):
    folder.mkdir(exist_ok=True)
    save(folder / name, replace(TAKEN, **changes))


def test_a_file_is_named_after_model_device_and_spread():
    assert (
        library.file_name("Llama-3.1-8B", "NVIDIA H200", 1) == "llama-3.1-8b.nvidia-h200.tp1.json"
    )
    assert "/" not in library.file_name("org/model", "Intel(R) Xeon(R) @ 2.10GHz", 2)


def test_the_users_own_folder_is_looked_at_first(tmp_path):
    assert library.own_folder({"XDG_DATA_HOME": "/data"}).as_posix() == "/data/tandem/profiles"
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    put(shipped, seconds=1.0)
    assert library.find(view(), (own, shipped)).seconds == 1.0
    put(own, seconds=2.0)
    assert library.find(view(), (own, shipped)).seconds == 2.0


def test_the_models_own_name_goes_before_the_date(tmp_path):
    other = replace(TAKEN.model, name="tuned")
    put(tmp_path, "a.json", model=other, taken_at="2027-01-01T00:00:00Z", seconds=1.0)
    put(tmp_path, "b.json", taken_at="2026-02-01T00:00:00Z", seconds=2.0)
    put(tmp_path, "c.json", taken_at="2026-03-01T00:00:00Z", seconds=3.0)
    assert library.find(view(), [tmp_path]).seconds == 3.0


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": replace(TAKEN.hardware, name="H100")},
        {"hardware": replace(TAKEN.hardware, units=108)},
        {"hardware": replace(TAKEN.hardware, unit="core")},
        {"model": replace(TAKEN.model, num_layers=LAYERS + 1)},
        {"model": replace(TAKEN.model, vocab_size=2)},
        {"model": replace(TAKEN.model, tensor_parallel=2)},
        {"fit": None},
    ],
)
def test_a_profile_of_something_else_is_not_taken(tmp_path, change):
    put(tmp_path)
    assert library.find(view(), [tmp_path]) is not None
    put(tmp_path, **change)
    assert library.find(view(), [tmp_path]) is None


def test_a_broken_file_is_said_and_passed_over(tmp_path, caplog):
    put(tmp_path, "good.json")
    (tmp_path / "bad.json").write_text("{")
    assert library.find(view(), [tmp_path]) is not None
    assert "bad.json" in caplog.text


def test_the_estimator_is_fitted_where_a_profile_matches_and_measured_where_none_does(tmp_path):
    put(tmp_path)
    estimator, mirror = AutomaticEstimator([tmp_path]), view()
    estimator.learn(mirror, 0.0)
    assert estimator.decode_s(mirror, 1, LOAD, 0.0) == FittedEstimator(TAKEN).decode_s(
        mirror, 1, LOAD, 0.0
    )
    assert estimator.errors is not None
    mirror.restore(snapshot(boot="another", device="H100"))
    estimator.learn(mirror, 0.0)
    table = SplitTable()
    assert estimator.worst_decode_s(mirror, LOAD, NOTHING, 0.0) == table.worst_decode_s(
        mirror, LOAD, NOTHING, 0.0
    )
    assert estimator.errors is None


def test_without_a_profile_it_says_what_was_looked_for(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    AutomaticEstimator([tmp_path]).learn(view(), 0.0)
    assert "no profile of ['m'] on H200 (132 SMs)" in caplog.text


def test_what_was_learnt_outlives_the_worker_and_the_scheduler(tmp_path):
    put(tmp_path)
    fitted = FittedEstimator(TAKEN)
    fitted._ratios[100] = 1.5
    estimator, mirror = AutomaticEstimator([tmp_path]), view()
    estimator.restore(fitted.soft_state())
    assert estimator.soft_state() == fitted.soft_state(), "kept until a worker is seen"
    estimator.learn(mirror, 0.0)
    assert estimator.soft_state().prefill == {100: 1.5}
    mirror.restore(snapshot(boot="another"))
    estimator.learn(mirror, 0.0)
    assert estimator.soft_state().prefill == {100: 1.5}

import msgspec
import pytest
from msgspec.structs import replace

from scheduler.estimator.profile import ProfileError, load, save, write_atomically
from tests.unit.scheduler.profiles import profile


def test_what_is_saved_is_what_is_loaded(tmp_path):
    path, taken = tmp_path / "p.json", profile()
    save(path, taken)
    assert load(path) == taken
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"gone\.json: No such file"):
        load(tmp_path / "gone.json")


def test_another_version_is_refused_with_both_numbers(tmp_path):
    save(tmp_path / "p.json", replace(profile(fitted=False), version=7))
    with pytest.raises(ProfileError, match="version 7, this reads 1"):
        load(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seconds": -1.0}, "seconds"),
        ({"partitions": []}, "partitions"),
        ({"decode": [{"units": 0, "rows": 1, "context": 1, "seconds": 1.0}]}, r"decode\[0\].units"),
        ({"hardware": {"name": "x"}}, "hardware"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(tmp_path, change, what):
    path = tmp_path / "p.json"
    data = msgspec.to_builtins(profile(fitted=False)) | change
    path.write_bytes(msgspec.json.encode(data))
    with pytest.raises(ProfileError, match=what):
        load(path)


def test_half_a_file_is_refused(tmp_path):
    path = tmp_path / "p.json"
    save(path, profile(fitted=False))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ProfileError, match="truncated"):
        load(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_atomically(path, "no bytes")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

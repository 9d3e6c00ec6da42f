import pytest
from msgspec.structs import replace

from ops import profile_report
from scheduler.estimator.profile import save
from tests.unit.scheduler.profiles import SLOWDOWN, profile

PROFILE = profile()


def test_the_page_names_the_device_the_errors_and_the_contention():
    page = profile_report.page(PROFILE, ["fit"])
    assert "# Profile of m on H200" in page
    assert "116 + 16, 100 + 32, 84 + 48, 68 + 64" in page
    off = PROFILE.fit.decode_deviation
    assert f"| decode | {off.largest:.1%} |" in page
    assert f"| 16 | 4 | {SLOWDOWN:.2f} | {SLOWDOWN:.2f} |" in page
    assert "![fit](fit.svg)" in page


def test_a_profile_without_a_fit_says_so():
    page = profile_report.page(replace(PROFILE, fit=None, corun=()), [])
    assert "too few samples for a fit" in page
    assert "slowdown" not in page


def test_predictions_are_paired_with_what_was_measured():
    told = profile_report.predictions(PROFILE)
    assert len(told["prefill"]) == len(PROFILE.prefill)
    for measured, predicted in (*told["prefill"], *told["decode"]):
        assert predicted == pytest.approx(measured, rel=0.05)


def test_the_command_writes_page_and_pictures(tmp_path, capsys):
    save(tmp_path / "p.json", PROFILE)
    line = [f"--profile={tmp_path / 'p.json'}", f"--output={tmp_path / 'page'}"]
    assert profile_report.main(line) == 0
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert names == {"README.md", "fit.svg", "contention.svg"}


def test_a_file_that_is_no_profile_is_an_error(tmp_path, capsys):
    line = [f"--profile={tmp_path / 'no.json'}", f"--output={tmp_path}"]
    assert profile_report.main(line) == 1
    assert "no.json" in capsys.readouterr().err

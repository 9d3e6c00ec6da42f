"""Who was on the device in a death is known to the next process, whenever the death comes."""

import os
import stat

import pytest

from worker import suspects
from worker.suspects import MAX_NOTED, MAX_REMEMBERED, Suspects, after, open_suspects


class Deaths:
    """Processes that come one after the other; each is killed, or ends by itself."""

    def __init__(self) -> None:
        self.memory = bytearray(after(b""))

    def one(self, *notes: list[str], by_itself: bool = False) -> Suspects:
        """Let a process note and end; return what the next one knows."""
        process = Suspects(self.memory)
        for note in notes:
            process.note(note)
        if by_itself:
            process.close()
        self.memory = bytearray(after(bytes(self.memory)))
        return Suspects(self.memory)


def test_a_request_that_was_on_the_device_in_two_deaths_is_barred():
    deaths = Deaths()
    assert "poison" not in deaths.one(["poison", "a"])
    last = deaths.one(["poison", "b"])
    assert "poison" in last
    assert "a" not in last
    assert "b" not in last


def test_only_what_was_noted_last_is_suspected():
    deaths = Deaths()
    for _ in range(3):
        last = deaths.one(["a", "b"], ["b"], [], ["c"])
    assert "a" not in last
    assert "b" not in last
    assert "c" in last


def test_deaths_need_not_follow_each_other():
    deaths = Deaths()
    deaths.one(["poison"])
    deaths.one(["other"])
    deaths.one([])
    assert "poison" in deaths.one(["poison"])


def test_a_process_that_ends_by_itself_accuses_nobody():
    deaths = Deaths()
    deaths.one(["a"], by_itself=True)
    assert "a" not in deaths.one(["a"], by_itself=True)
    assert "a" not in deaths.one(["a"])


def test_a_death_in_the_middle_of_a_note_leaves_the_note_before(monkeypatch):
    """The note is written, the byte that makes it count is not."""
    memory = Torn(after(b""))
    process = Suspects(memory)
    process.note(["before"])
    memory.torn = True
    process.note(["after", "x", "y"])
    deaths = Deaths()
    deaths.memory = bytearray(memory)
    deaths.memory = bytearray(after(bytes(deaths.memory)))
    last = deaths.one(["before", "after"])
    assert "before" in last
    assert "after" not in last


class Torn(bytearray):
    """Memory in which single bytes are not written any more."""

    torn = False

    def __setitem__(self, key, value):
        if not (self.torn and isinstance(key, int)):
            super().__setitem__(key, value)


def test_more_than_fit_are_cut_and_the_newest_suspects_are_remembered():
    deaths = Deaths()
    first = [f"old{i}" for i in range(MAX_NOTED + 5)]
    deaths.one(first)
    last = deaths.one(["new", *first[:10]])
    assert "old0" in last
    assert "old10" not in last
    for _ in range(2):
        last = deaths.one([f"other{i}" for i in range(MAX_REMEMBERED)])
    assert "other5" in last
    assert "old0" not in last, "only so many are remembered"


@pytest.mark.parametrize(
    "left",
    [b"", b"short", bytes(suspects.FILE_BYTES), b"TNDMSUS1", b"TNDMSUS1" + b"\xff" * 900_000],
)
def test_whatever_the_file_holds_the_worker_starts(left):
    assert "a" not in Suspects(bytearray(after(left)))


def test_a_damaged_file_of_the_right_size_does_not_stop_the_worker():
    damaged = b"TNDMSUS1" + b"\xff" * (suspects.FILE_BYTES - 8)
    Suspects(bytearray(after(damaged)))


def test_the_file_outlives_its_process_and_only_its_owner_reads_it(tmp_path):
    path = str(tmp_path / "suspects")
    for _ in range(2):
        open_suspects(path).note(["poison"])  # and the process is gone: nothing is closed
    assert "poison" in open_suspects(path)
    assert "poison" in open_suspects(path), "a start without a death forgets nothing"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["suspects"]

"""The random lives bite: with any one safeguard taken out, some of the first 200 find it.

Anchor: reliability A11. Each mutation is what the code would do had it been forgotten.
"""

import pytest

from tests.unit.worker.chaos import Chaos
from worker.core.flights import Flights
from worker.core.intake import Intake
from worker.core.memory import Memory
from worker.core.request import Request
from worker.kv.pool import PagePool

SEEDS = 200


def no_fence(patch):
    """Pages return at once."""
    patch.setattr(Flights, "is_clear", lambda self, stay: True)


def lanes_race(patch):
    """A request goes to the other lane before it has landed in the first."""
    patch.setattr(Flights, "in_other_lane", lambda self, stay, lane: False)


def no_dedup(patch):
    """A repeated submit is a new request."""
    patch.setattr(Intake, "_known", lambda self, peer, submit: False)


def named_too_early(patch):
    """Pages can be found before they are written."""
    original = Memory.start

    def start(self, request):
        stay = original(self, request)
        request.extend_hashes(request.known, self.page_size)
        stay.table.name(request.hashes, request.known)
        return stay

    patch.setattr(Memory, "start", start)


def stale_results_count(patch):
    """A stay that has ended still takes tokens."""
    original = Memory.close

    def close(self, stay):
        original(self, stay)
        if stay.request.ref.request:
            stay.open = True

    patch.setattr(Memory, "close", close)


def shared_pages_not_counted(patch):
    """Cache hits are used without being held."""

    def share(self, pages):
        for page in pages:
            self._idle.pop(page, None)
            self._references[page] = 1

    patch.setattr(PagePool, "share", share)


def all_tokens_from_the_cache(patch):
    """A full hit leaves nothing to compute."""
    patch.setattr(Request, "known", property(lambda self: len(self.prompt) + len(self.output) + 1))


MUTATIONS = [
    no_fence,
    lanes_race,
    no_dedup,
    named_too_early,
    stale_results_count,
    shared_pages_not_counted,
    all_tokens_from_the_cache,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_random_lives_find_a_missing_safeguard(mutation, monkeypatch):
    mutation(monkeypatch)
    for seed in range(SEEDS):
        try:
            Chaos(seed).live()
        except Exception:
            return
    pytest.fail(f"{SEEDS} random lives did not notice")

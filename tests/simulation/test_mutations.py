"""A11, the mutation gate: with any one safeguard taken out, the lives find it within 500 seeds.

Each mutation is what the code would do had the safeguard been forgotten. Nothing in the product
knows of them: one method is replaced in this process, for one test.
"""

import pytest
from msgspec.structs import replace

from protocol.ids import Epoch, unpack_tokens
from protocol.link import Link
from tests.simulation.run import live
from tests.simulation.setting import draw
from tokenizer_service.events import NewTokens, Tell
from tokenizer_service.registry import Registry
from worker.core.control import Control
from worker.core.flights import Flights
from worker.core.intake import Intake
from worker.suspects import Suspects

SEEDS = 500


def no_fence(patch):
    """Nobody is told that another one acts."""
    patch.setattr(Control, "_fence", lambda self, peer: None)


def no_epoch_test(patch):
    """A plan of this boot counts, whoever sent it."""
    take = Control._take_plan

    def any_epoch(self, peer, plan):
        if plan.epoch.boot == self._epoch.boot:
            plan = replace(plan, epoch=self._epoch)
        take(self, peer, plan)

    patch.setattr(Control, "_take_plan", any_epoch)


def no_boot_test(patch):
    """A plan of another boot counts, if its number fits."""
    take = Control._take_plan

    def any_boot(self, peer, plan):
        epoch = Epoch(self._epoch.boot, plan.epoch.n)
        take(self, peer, replace(plan, epoch=epoch))

    patch.setattr(Control, "_take_plan", any_boot)


def no_index_check(patch):
    """The gateway delivers tokens as they come."""

    def tokens(self, run, now):
        live_one = self._current(run.ref)
        if live_one is not None:
            new = unpack_tokens(run.ids)
            live_one.output += new
            yield Tell(run.ref.request, NewTokens(tuple(new)))

    patch.setattr(Registry, "_tokens", tokens)


def no_gap_detection(patch):
    """The link takes what comes and counts nothing."""

    def take(self, frame):
        expected = self._received + (frame.payload is not None)
        if frame.number < expected:
            return None, False
        self._received = frame.number
        return frame.payload, False

    patch.setattr(Link, "_take", take)


def no_two_phase_free(patch):
    """Pages return at once, whatever still writes them."""
    patch.setattr(Flights, "is_clear", lambda self, stay: True)


def nothing_is_sent_again(patch):
    """A restarted worker hears nothing of the requests of the one before."""
    patch.setattr(Registry, "_try_again", lambda self, live, why, now: iter(()))


def no_resync(patch):
    """The worker does not say again what a gateway has missed."""
    patch.setattr(Intake, "_tokens_again", lambda self, peer, delivered, output, of: None)


def nobody_is_suspected(patch):
    """Nothing is noted before a launch."""
    patch.setattr(Suspects, "note", lambda self, requests: None)


MUTATIONS = [
    nobody_is_suspected,
    no_fence,
    no_epoch_test,
    no_boot_test,
    no_index_check,
    no_gap_detection,
    no_two_phase_free,
    nothing_is_sent_again,
    no_resync,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a11_the_lives_find_a_missing_safeguard_within_500_seeds(mutation, monkeypatch):
    mutation(monkeypatch)
    found = next((seed for seed in range(SEEDS) if live(draw(seed)).error), None)
    assert found is not None, f"{SEEDS} lives did not notice"

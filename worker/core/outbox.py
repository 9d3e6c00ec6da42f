"""Effects of the event that is being handled, in order; and the numbering of events to schedulers.

Answers to one scheduler alone (`PlanRejected`, `Fenced`) carry the newest number and use none up,
so that the numbers of all who observe stay without a gap.
"""

from collections.abc import Callable

from protocol.control_link import Event, Snapshot
from protocol.data_link import ToGateway
from worker.core.events import DiscardBatch, Effect, Fatal, LaunchWork, SendControl, SendData
from worker.executors.base import Launch


class Outbox:
    """What the shell must do."""

    def __init__(self) -> None:
        self.observers: dict[bytes, None] = {}
        """Schedulers that get events."""
        self.event = 0
        """Number of the newest event."""
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Return the effects and start anew."""
        effects, self._effects = self._effects, []
        return effects

    def data(self, peer: bytes, message: ToGateway) -> None:
        """Send to a gateway."""
        self._effects.append(SendData(peer, message))

    def control(self, peer: bytes, message: Snapshot | Event) -> None:
        """Answer one scheduler."""
        self._effects.append(SendControl(peer, message))

    def effect(self, effect: SendControl | LaunchWork | DiscardBatch | Fatal) -> None:
        """Add any other effect."""
        self._effects.append(effect)

    def launch(self, work: Launch) -> None:
        """Give work to the device."""
        self._effects.append(LaunchWork(work))

    def publish(self, build: Callable[[int], Event]) -> None:
        """Send the event that `build` makes of its number to all who observe.

        It has a number also when nobody does, so that whoever missed it sees a gap.
        """
        self.event += 1
        if not self.observers:
            return
        message = build(self.event)
        for peer in self.observers:
            self._effects.append(SendControl(peer, message))

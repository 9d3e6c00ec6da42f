"""Prefill batches under way, as schedulers see them (`StartedBatch`): who is batched with whom.

The lane itself only knows chunks. This record follows the rules by which a scheduler's mirror folds
`PrefillStarted`, `QuantumDone` and the events that take a request out, so both always agree.
"""

from protocol.control_link import RequestState, StartedBatch
from worker.core.request import Stay


class Group:
    """Requests that go through the layers together, chunk after chunk."""

    __slots__ = ("layers_done", "layers_total", "running", "stays")

    def __init__(self, stays: tuple[Stay, ...], layers_done: int) -> None:
        self.stays = stays
        self.layers_done = layers_done
        self.layers_total = stays[0].request.model.num_layers
        self.running = True

    def members(self) -> tuple[Stay, ...]:
        """Return those still to be prefilled."""
        return tuple(s for s in self.stays if s.open and s.state is not RequestState.DECODING)


class Groups:
    """All groups, the one that started or resumed last first."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def run(self, stays: tuple[Stay, ...]) -> bool:
        """A chunk of `stays` is launched. Return whether that is news: a start or a resumption."""
        self._prune()
        head = self._groups[0] if self._groups else None
        if head is not None and head.running and head.members() == stays:
            return False
        mine = set(stays)
        same = next((g for g in self._groups if mine & set(g.stays)), None)
        for group in self._groups:
            group.stays = tuple(stay for stay in group.stays if stay not in mine)
        self._groups.insert(0, Group(stays, same.layers_done if same else 0))
        for stay in stays:
            stay.state = RequestState.PREFILLING
        self._prune()
        return True

    def leave(self, stay: Stay) -> None:
        """`stay` goes on as fused chunks."""
        for group in self._groups:
            group.stays = tuple(each for each in group.stays if each is not stay)

    def quantum(self, stays: tuple[Stay, ...], layers_done: int, *, suspended: bool) -> None:
        """A quantum of `stays` has completed, with so many layers of their chunk."""
        mine = set(stays)
        for group in self._groups:
            if mine & set(group.stays):
                group.layers_done = layers_done % group.layers_total
                group.running = not suspended
        for stay in stays:
            if stay.open and stay.state is not RequestState.DECODING:
                stay.state = RequestState.SUSPENDED if suspended else RequestState.PREFILLING

    def views(self) -> tuple[StartedBatch, ...]:
        """Return all groups for a snapshot."""
        self._prune()
        return tuple(
            StartedBatch(tuple(s.request.ref for s in g.members()), g.layers_done, g.layers_total)
            for g in self._groups
        )

    def _prune(self) -> None:
        self._groups = [group for group in self._groups if group.members()]

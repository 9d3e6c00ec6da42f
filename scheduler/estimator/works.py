"""Reads a view's device works once each, in order: what every estimator learns from."""

from protocol.control_link import DeviceWork
from scheduler.view import WorkerView


class Works:
    """A cursor over `WorkerView.recent`."""

    def __init__(self) -> None:
        self._boot = ""
        self._seen = 0

    def fresh(self, view: WorkerView) -> tuple[bool, list[DeviceWork]]:
        """Return whether this is another worker's life than at the last call, possibly on another
        machine, and the works noted since, oldest first.
        """
        rebooted = view.boot != self._boot
        if rebooted:
            self._boot, self._seen = view.boot, 0
        works: list[DeviceWork] = []
        for number, work in reversed(view.recent):
            if number <= self._seen:
                break
            works.append(work)
        if works:
            self._seen = view.recent[-1][0]
            works.reverse()
        return rebooted, works

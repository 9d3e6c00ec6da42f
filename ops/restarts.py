"""When a process that died is started again: at once, then later and later, and at last not at all.

Separate from the supervisor because it is arithmetic on times, the same for every process.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Bounds of restarting. Times in seconds."""

    window_s: float = 300.0
    """Crashes older than this are forgotten."""
    limit: int = 5
    """So many crashes within the window are a crash loop."""
    longest_delay_s: float = 60.0


class Crashes:
    """The recent crashes of one process."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._times)

    def record(self, now: float) -> float | None:
        """Note a crash and return the delay before the restart: 0, 1, 2, 4, … seconds; None in a
        crash loop.
        """
        self._times.append(now)
        while self._times[0] <= now - self._policy.window_s:
            self._times.popleft()
        count = len(self._times)
        if count >= self._policy.limit:
            return None
        if count == 1:
            return 0.0
        return min(2.0 ** (count - 2), self._policy.longest_delay_s)

    def forget(self) -> None:
        """Start anew, for another program in the same place."""
        self._times.clear()

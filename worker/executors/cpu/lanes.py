"""A lane on the CPU: a queue that threads pinned to different cores take turns at.

One thread for each row of the partition table, made once at start (as green contexts are on a GPU):
an OpenMP team and its affinity belong to the thread that started it, so a change of the split is
only a matter of which thread takes the next launch. The queue's head names the row; a lane runs one
launch at a time, in order, across all rows.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do on the thread of one row of the partition table."""

    row: int
    run: Callable[[], None]
    """Must not raise: a lane has nobody to tell."""


class Lane:
    """Threads that run one queue of jobs in order."""

    def __init__(self, name: str, cores: tuple[tuple[int, ...], ...]) -> None:
        """`cores[row]` are those of the thread for that row."""
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closing = False
        self._threads = [
            threading.Thread(target=self._serve, args=(row, own), name=f"{name}-{row}", daemon=True)
            for row, own in enumerate(cores)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: Job) -> None:
        """Queue a job behind the others. Raises ValueError for a row that is not there."""
        if not 0 <= job.row < len(self._threads):
            raise ValueError(f"partition {job.row} is not among {len(self._threads)}")
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, row: int, cores: tuple[int, ...]) -> None:
        """Thread body: jobs for `row`, until the lane closes."""
        pin(cores)
        with torch.inference_mode():
            while (job := self._take(row)) is not None:
                job.run()
                with self._changed:
                    self._running = False
                    self._changed.notify_all()

    def _take(self, row: int) -> Job | None:
        """Wait for a job of this row at the head of an idle lane; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._mine(row) or (self._closing and not self._jobs))
            if not self._mine(row):
                return None
            self._running = True
            return self._jobs.popleft()

    def _mine(self, row: int) -> bool:
        return bool(self._jobs) and not self._running and self._jobs[0].row == row


def pin(cores: tuple[int, ...]) -> None:
    """Bind the calling thread, and the OpenMP team that it will start, to `cores`."""
    os.sched_setaffinity(0, cores)
    torch.get_num_threads()  # torch sets its default at a thread's first use, over what was set
    torch.set_num_threads(len(cores))

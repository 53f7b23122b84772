"""Thread pool whose threads each run torch operations single-threaded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context in which this thread runs torch operations single-threaded. Torch's threads synchronise in every
    operation and wait for a busy core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _join(meeting: threading.Barrier) -> None:
    """Set this pool thread to single-threaded torch operations permanently, and wait until all threads have done so."""
    torch.get_num_threads()  # without this call the thread adopts the process-wide number at its first operation
    torch.set_num_threads(1)
    meeting.wait()  # one task per pool thread


class ThreadPool:
    """Pool of `threads` threads, including the caller's, each single-threaded in torch: one synchronisation per
    minibatch instead of one per operation.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self._pool = threads, None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads - 1, "manual_backward")
            meeting = threading.Barrier(threads - 1)
            everyone = torch.get_num_threads()
            for future in [self._pool.submit(_join, meeting) for _ in range(threads - 1)]:
                future.result()
            # set_num_threads in a pool thread also changed the process-wide number
            torch.set_num_threads(everyone)

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Run callables concurrently, at most one per thread, the first in the calling thread. Raises the first failure
        after all have ended.
        """
        with alone():
            others = [self._pool.submit(piece) for piece in work[1:]] if self._pool is not None else []
            try:
                work[0]()
            finally:
                wait(others)
        for future in others:
            future.result()

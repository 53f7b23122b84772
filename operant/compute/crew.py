"""Threads that share the indices of a kernel on the CPU, all in compiled code. Knows no world.

Python's lock lets one thread at a time into Python, so threads that each step some lanes wait for each other there.
Here one thread alone is in Python. It gives orders, each a range of indices, and goes on with something else; the
others stay in compiled code until the last order of a session is done, take pieces of what is ordered, and wait for the
next order without Python. Who wants the result of an order takes pieces of it, too. What comes out does not depend on
who takes which piece.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numba import njit

from operant.compute.atomics import add
from operant.compute.jit_cache import keep
from operant.compute.kernel import GIVEN, LINE, STOPPED, Kernel

PIECES = 4
"""Of an order for each thread: a thread that is held up costs the others a part of a piece."""

SMALLEST = 64
"""Indices of a piece, at least."""


def _write_order(board: Any, number: int, first: int, last: int, offset: int, pieces: int) -> None:
    """Write down an order, then show it."""
    row = (3 + 3 * number) * LINE
    board[row], board[row + 1], board[row + 2], board[row + 3] = first, last, offset, pieces
    add(board, GIVEN, 1)


def _write_stop(board: Any) -> None:
    add(board, STOPPED, 1)


_give = keep(njit(nogil=True)(_write_order), "an order")
_stop = keep(njit(nogil=True)(_write_stop), "the last of orders")


class Crew:
    """So many threads, the caller's among them, for the launches of a kernel on two bound groups."""

    def __init__(self, kernel: Kernel, threads: int, lanes: Any, slot: Any) -> None:
        self.threads, self._kernel, self._groups = threads, kernel, (lanes, slot)
        self._pool = ThreadPoolExecutor(threads - 1, "crew") if threads > 1 else None
        self._board = np.zeros(0, np.int64)
        self._given = self._finished = 0

    @contextlib.contextmanager
    def session(self, orders: int) -> Iterator[None]:
        """With the threads at hand for so many orders."""
        self._board, self._given = np.zeros((3 + 3 * orders) * LINE, np.int64), 0
        self._finished = 0
        work = self._kernel.share
        work(0, 0, self._board, *self._groups)  # compiled by one thread
        others = (
            [self._pool.submit(work, 0, orders, self._board, *self._groups) for _ in range(self.threads - 1)]
            if self._pool is not None
            else []
        )
        try:
            yield
        finally:
            _stop(self._board)
            wait(others)
        for future in others:
            future.result()

    def order(self, first: int, last: int, offset: int) -> int:
        """Have the kernel run for each index in [first, last); the number of the order."""
        pieces = max(1, min(self.threads * PIECES, (last - first) // SMALLEST)) if self.threads > 1 else 1
        _give(self._board, self._given, first, last, offset, pieces)
        self._given += 1
        return self._given - 1

    def help(self) -> bool:
        """Take a piece of what is ordered; whether there was one."""
        return any(
            self._kernel.take(number, self._board, *self._groups) for number in range(self._finished, self._given)
        )

    def finish(self, number: int) -> None:
        """Wait until an order is done, and help. Orders are waited for as they were given."""
        self._kernel.share(number, number + 1, self._board, *self._groups)
        self._finished = number + 1

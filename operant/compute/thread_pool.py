"""Thread pool that runs CPU kernels over ranges of indices entirely in compiled code.

Python's GIL would serialise threads that return to Python after every range. Here only the calling thread runs Python:
it submits orders, each a range of indices, and continues. The other threads stay in compiled code for a whole session:
they take pieces of submitted orders and wait for the next order without the GIL. A caller that waits for an order also
takes pieces. Results do not depend on which thread takes which piece.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import numpy as np
from numba import njit

from operant.compute.atomics import add
from operant.compute.jit_cache import cache_cpu
from operant.compute.kernel import LINE, STOPPED, SUBMITTED, Kernel

PIECES = 4
"""Pieces of an order per thread: a delayed thread costs the others only part of a piece."""

SMALLEST = 64
"""Least number of indices in a piece."""


def _write_order(board: Any, number: int, first: int, last: int, offset: int, pieces: int) -> None:
    """Post order `number` on the board that all threads of the pool read: indices [first, last) in `pieces` pieces,
    with the body's argument `offset`.
    """
    row = (3 + 3 * number) * LINE
    board[row], board[row + 1], board[row + 2], board[row + 3] = first, last, offset, pieces
    add(board, SUBMITTED, 1)


def _write_stop(board: Any) -> None:
    """Post on the board that the pool's threads should return."""
    add(board, STOPPED, 1)


_submit = cache_cpu(njit(nogil=True)(_write_order), "an order")
_stop = cache_cpu(njit(nogil=True)(_write_stop), "the last of orders")


class KernelThreadPool:
    """Pool of `threads` threads, including the caller's, that runs one CPU kernel with the arguments `lanes` and
    `slot`. Ranges of indices (orders) are submitted during a `session`.
    """

    def __init__(self, kernel: Kernel, threads: int, lanes: Any, slot: Any) -> None:
        self.threads, self._kernel, self._groups = threads, kernel, (lanes, slot)
        self._arguments: tuple[Any, ...] = ()  # address of the machine code, lanes, slot
        self._pool = ThreadPoolExecutor(threads - 1, "crew") if threads > 1 else None
        self._board = np.zeros(0, np.int64)
        self._submitted = self._finished = 0

    @contextlib.contextmanager
    def session(self, orders: int) -> Iterator[None]:
        """Context in which the pool's threads run and accept up to `orders` orders (ranges of indices)."""
        self._board, self._submitted = np.zeros((3 + 3 * orders) * LINE, np.int64), 0
        self._finished = 0
        self._arguments = (self._kernel.code(*self._groups), *self._groups)
        work = self._kernel.run_orders
        work(0, 0, self._board, *self._arguments)  # compile once, before the threads start
        others = (
            [self._pool.submit(work, 0, orders, self._board, *self._arguments) for _ in range(self.threads - 1)]
            if self._pool is not None
            else []
        )
        try:
            yield
        finally:
            _stop(self._board)
            wait_for(others)
        for future in others:
            future.result()

    def submit(self, first: int, last: int, offset: int) -> int:
        """Submit an order: run the kernel for indices [first, last) with the body's argument `offset`. Returns the
        order's number, for `wait`.
        """
        pieces = max(1, min(self.threads * PIECES, (last - first) // SMALLEST)) if self.threads > 1 else 1
        _submit(self._board, self._submitted, first, last, offset, pieces)
        self._submitted += 1
        return self._submitted - 1

    def help(self) -> bool:
        """Run one piece of a submitted order (range of indices) in the calling thread. Returns False if none
        was left.
        """
        return any(
            self._kernel.run_piece(number, self._board, *self._arguments)
            for number in range(self._finished, self._submitted)
        )

    def wait(self, number: int) -> None:
        """Run pieces in the calling thread until order `number` (a range of indices) is complete. Orders must be
        awaited in the order of submission.
        """
        self._kernel.run_orders(number, number + 1, self._board, *self._arguments)
        self._finished = number + 1

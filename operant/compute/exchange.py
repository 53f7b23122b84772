"""Interface for exchanging partial results between the ranks of a run, gathered in rank order.

Sums over all lanes follow a fixed binary tree of shards. A rank owns whole shards: it reduces its part of the tree,
gathers the other ranks' sums and adds them in order, the same additions as in a single process.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from torch import Tensor


class Link(NamedTuple):
    """Buffers through which the programs of a kernel exchange sums with other ranks, in memory that all ranks can
    write. Tensors outside a kernel, pointers inside.
    """

    inbox: Any  # (2, W, width) int64, this rank's: sum and sequence number in one word; double buffered
    outboxes: Any  # (W) int64, addresses of this rank's row in the first half of each rank's inbox
    turns: Any  # (programs) int32, sequence numbers; advanced inside captured graphs
    spent: Any  # (1) int64, nanoseconds that the first program has waited for other ranks


class Exchange(Protocol):
    """Endpoint of one rank (process) of a run for exchanging tensors with the other ranks. All operations are
    collective: every rank calls them in the same order with the same shapes.
    """

    counts: bool  # whether the current exchange belongs to an iteration and is timed

    @property
    def rank(self) -> int:
        """Index of this rank (process of a run), from 0."""

    @property
    def ranks(self) -> int:
        """Number of ranks (processes) of the run, W, a power of two."""

    @property
    def untimed(self) -> str:
        """Reason why the time spent in the exchange is unknown, such as "not measured with NCCL"; "" if it is known."""

    def gather(self, rows: Tensor) -> Tensor:
        """Gather rows (k, ...) from all W ranks (processes) in rank order, and return them on every rank: (W k,
        ...).
        """

    def agree(self, text: str) -> str:
        """Broadcast rank 0's `text`, up to 255 bytes of UTF-8, and return it on every rank."""

    def link(self, width: int, programs: int) -> Link | None:
        """Create the buffers through which a kernel of `programs` programs exchanges `width` sums with other ranks;
        None if kernels cannot, and must use `gather` between launches.
        """

    def spent_s(self) -> float | None:
        """Seconds that this rank has spent exchanging tensors with other ranks so far, waiting included; None if
        unknown.
        """


class Solo:
    """Exchange of a run with a single rank (process): every operation returns its input."""

    rank, ranks, counts, untimed = 0, 1, True, ""

    def gather(self, rows: Tensor) -> Tensor:
        """Return `rows` unchanged: there are no other ranks."""
        return rows

    def agree(self, text: str) -> str:
        """Return `text` unchanged: there are no other ranks."""
        return text

    def link(self, width: int, programs: int) -> Link | None:
        """Return None: no kernel has other ranks to exchange with."""
        return None

    def spent_s(self) -> float | None:
        """Return None, for no time spent: there are no other ranks."""
        return None


SOLO: Final[Exchange] = Solo()

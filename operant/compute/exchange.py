"""What the processes that share one run's lanes hand each other: rows of partial results, gathered in the order of the ranks.

Whatever is summed over all lanes is summed in a fixed binary tree, shard by shard. A rank owns whole shards, so it adds up its own part of the tree, gathers
the other ranks' sums, and adds those in their order: the same additions as one process makes. Knows no network, no launcher and no way to send anything.
"""

from __future__ import annotations

from typing import Final, Protocol

from torch import Tensor


class Exchange(Protocol):
    """One rank's end of the exchange. All ranks call it equally often, in the same order, with tensors of the same shape."""

    @property
    def rank(self) -> int:
        """Which of them this one is, from 0."""

    @property
    def ranks(self) -> int:
        """W, a power of two."""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (k, ...) of all ranks in their order, (W k, ...)."""


class Solo:
    """One process that owns all lanes."""

    rank, ranks = 0, 1

    def gather(self, rows: Tensor) -> Tensor:
        """The rows as they are."""
        return rows


SOLO: Final[Exchange] = Solo()

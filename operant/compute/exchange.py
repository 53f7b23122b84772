"""What the processes that share one run's lanes hand each other: rows of partial results, gathered in the order of the ranks.

Whatever is summed over all lanes is summed in a fixed binary tree, shard by shard. A rank owns whole shards, so it adds up its own part of the tree, gathers
the other ranks' sums, and adds those in their order: the same additions as one process makes. Knows no network, no launcher and no way to send anything.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from torch import Tensor


class Link(NamedTuple):
    """What a kernel exchanges sums through, over memory that all ranks can read: tensors here, pointers inside a kernel."""

    sums: Any  # (2, shards, width) float32, this rank's: the halves take turns
    flags: Any  # (blocks) int32, this rank's: the turn that is written
    turns: Any  # (blocks) int32, how many there have been; a captured graph sees it grow
    sum_addresses: Any  # (W) int64, where each rank's sums lie
    flag_addresses: Any  # (W) int64


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

    def agree(self, text: str) -> str:
        """What rank 0 says; up to 255 bytes."""

    def link(self, shards: int, width: int, blocks: int) -> Link | None:
        """What a kernel of so many programs exchanges its sums (shards, width) through; None where `gather` has to do."""


class Solo:
    """One process that owns all lanes."""

    rank, ranks = 0, 1

    def gather(self, rows: Tensor) -> Tensor:
        """The rows as they are."""
        return rows

    def agree(self, text: str) -> str:
        """The text as it is."""
        return text

    def link(self, shards: int, width: int, blocks: int) -> Link | None:
        """None: there is no other rank."""
        return None


SOLO: Final[Exchange] = Solo()

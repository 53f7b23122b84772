"""What the processes that share one run's lanes hand each other: rows of partial results, gathered in the order of the
ranks.

Whatever is summed over all lanes is summed in a fixed binary tree, shard by shard. A rank owns whole shards, so it adds
up its own part of the tree, gathers the other ranks' sums, and adds those in their order: the same additions as one
process makes. Knows no network, no launcher and no way to send anything.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from torch import Tensor


class Link(NamedTuple):
    """What the programs of a kernel exchange their sums through, over memory that all ranks can write: tensors here,
    pointers inside a kernel.
    """

    inbox: Any  # (2, W, width) int64, this rank's: a sum and the number of its turn in one word; the halves take turns
    outboxes: Any  # (W) int64, the addresses of this rank's row in the first half of each rank's inbox
    turns: Any  # (programs) int32, how many there have been; a captured graph sees it grow
    spent: Any  # (1) int64, nanoseconds that the first program has waited for the others' words


class Exchange(Protocol):
    """One rank's end of the exchange. All ranks call it equally often, in the same order, with tensors of the same
    shape.
    """

    counts: bool  # whether what is exchanged now belongs to an iteration, whose time is counted

    @property
    def rank(self) -> int:
        """Which of them this one is, from 0."""

    @property
    def ranks(self) -> int:
        """W, a power of two."""

    @property
    def untimed(self) -> str:
        """Why there is no time that was spent in it, where there is none: "not measured with NCCL"; "" where there
        always is one.
        """

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (k, ...) of all ranks in their order, (W k, ...)."""

    def agree(self, text: str) -> str:
        """What rank 0 says; up to 255 bytes."""

    def link(self, width: int, programs: int) -> Link | None:
        """What a kernel of so many programs exchanges its sums (width) through; None where `gather` has to do."""

    def spent_s(self) -> float | None:
        """Seconds of iterations that this rank has spent in it so far, waiting for others included; None where that
        cannot be known.
        """


class Solo:
    """One process that owns all lanes."""

    rank, ranks, counts, untimed = 0, 1, True, ""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows as they are."""
        return rows

    def agree(self, text: str) -> str:
        """The text as it is."""
        return text

    def link(self, width: int, programs: int) -> Link | None:
        """None: there is no other rank."""
        return None

    def spent_s(self) -> float | None:
        """None: the same."""
        return None


SOLO: Final[Exchange] = Solo()

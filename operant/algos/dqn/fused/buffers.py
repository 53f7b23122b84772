"""The groups of buffers and numbers that DQN's kernels take: named tuples of tensors here, of pointers and scalars
inside a kernel. Knows no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Learning:
    """What kernels are compiled for, beside the network's spec."""

    actions: int
    duelling: bool
    double: bool
    n_step: int
    ends: bool  # whether an episode may be truncated
    gathered: bool  # whether a batch's observations are gathered before it is learned from


class Ring(NamedTuple):
    """The replay: see `operant.data.replay.Ring`."""

    observation: Any  # (C, N, P)
    final: Any  # (F, N, P); anything where no episode is truncated
    action: Any  # (C, N, 1)
    reward: Any  # (C, N)
    terminated: Any  # (C, N)
    truncated: Any  # (C, N)
    legal: Any  # (C, N, A); anything where the environment judges none
    ticks: Any  # (1) int64
    updates: Any  # (1) int64
    seed: Any  # (2) int32
    lanes: Any  # N
    width: Any  # P
    capacity: Any  # C
    finals: Any  # F
    window: Any


class Source(NamedTuple):
    """T ticks as a world writes them."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N); anything where no episode is truncated
    action: Any  # (T, 1, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N)
    truncated: Any  # (T, N)
    legal: Any  # (T + 1, A, N); anything where the environment judges none


class Samples(NamedTuple):
    """Batches of an iteration, and what is learned from them."""

    index: Any  # (U, B) int32: row of the ring x N + lane
    gamma: Any
    count: Any  # B
    seen: Any  # (B, P), gathered
    after: Any  # (B, P), likewise, of next observations


class Stepping(NamedTuple):
    """What a step reads and counts."""

    squares: Any  # (programs), sums of squares of the gradient
    totals: Any  # in the order of `Terms`
    steps: Any  # of Adam
    corrections: Any  # (2) of Adam's next step
    arrived: Any  # (1) int64, arrivals at the grid barrier, over all launches
    skip: Any  # 1: no step
    learning_rate: Any
    max_norm: Any  # infinite: not clipped
    epsilon: Any  # Adam's
    tau: Any
    target_every: Any

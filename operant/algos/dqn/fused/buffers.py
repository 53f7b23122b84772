"""Groups of buffers and scalars that DQN's kernels take: named tuples of tensors on the host, of pointers and scalars
inside a kernel. Knows no Triton.

Shape letters: C ticks of the ring, F rows of the side buffer, N lanes, P stored values of an observation, O its values,
A actions, T ticks of an iteration, U updates of an iteration, B samples of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class DQNSpec:
    """Compile-time constants of DQN's kernels, in addition to the network's spec."""

    actions: int
    duelling: bool
    double: bool
    n_step: int
    truncates: bool  # a time limit may end an episode
    gathered: bool  # a batch's observations are gathered from host memory before the update
    stat: Any  # index of each statistic by name


class RingBuffers(NamedTuple):
    """Ring buffer of the replay, as `operant.data.replay.Ring`: C ticks (vectorised steps) of N lanes, final
    observations, counters and sizes.
    """

    observation: Any  # (C, N, P)
    final: Any  # (F, N, P); unused where no episode is truncated
    action: Any  # (C, N, 1)
    reward: Any  # (C, N)
    terminated: Any  # (C, N)
    truncated: Any  # (C, N)
    legal: Any  # (C, N, A); unused where all actions are legal
    ticks: Any  # (1) int64, stored ticks
    updates: Any  # (1) int64
    seed: Any  # (2) int32
    lanes: Any  # N
    width: Any  # P
    capacity: Any  # C
    finals: Any  # F
    window: Any  # ticks that share a row of the side buffer


class TickBuffers(NamedTuple):
    """Rollout of T ticks (vectorised steps) as a world writes them."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N); unused where no episode is truncated
    action: Any  # (T, 1, N)
    reward: Any  # (T, N)
    terminated: Any  # (T, N)
    truncated: Any  # (T, N)
    legal: Any  # (T + 1, A, N); unused where all actions are legal


class SampleBuffers(NamedTuple):
    """Indices of all batches of an iteration, and gathered observations of one."""

    index: Any  # (U, B) int32: row of the ring x N + lane
    gamma: Any
    count: Any  # B
    observation: Any  # (B, P), gathered
    next_observation: Any  # (B, P), gathered


class OptimizerBuffers(NamedTuple):
    """State and constants of the optimizer step, and the sums of the statistics."""

    squares: Any  # (programs), sums of squares of the gradient
    totals: Any  # sums of the statistics over updates, indexed by DQNSpec.stat
    steps: Any  # of Adam
    corrections: Any  # (2), bias corrections of Adam's next step
    arrivals: Any  # (1) int64, arrivals at the grid barrier, over all launches
    skip: Any  # 1: no step
    learning_rate: Any
    max_norm: Any  # infinite: not clipped
    epsilon: Any  # of Adam
    tau: Any
    target_every: Any

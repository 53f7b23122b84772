"""What PQN's fused kernels work on: the algorithm's buffers and its coefficients. Knows no Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Buffers(NamedTuple):
    """What a rollout and an update read and write, as the algorithm has it."""

    rollout: Any  # a `Slot` of T steps
    noise: Tensor  # (T, 2, N), uniform in [0, 1)
    epsilon: Tensor  # one float
    samples: Tensor  # flat: advantages and returns (T, N) each, then values (T + 1, N)
    final_value: Tensor  # (T, N)
    order: Tensor  # (E, M) int32
    iteration: Tensor  # (1) int64
    skip: Tensor  # one float, 0: no step is left out
    learning_rate: Tensor  # one float
    stats: Tensor  # in the order of `Stats`


class Coefficients(NamedTuple):
    """The numbers of the step."""

    max_gradient_norm: float
    adam_epsilon: float
    start_rate: float
    anneal_iterations: int | None  # None: the rate stays


class Samples(NamedTuple):
    """What the loss reads of a rollout."""

    returns: Any  # (T, N)
    action: Any  # (T, 1, N)


class Update(NamedTuple):
    """What an update counts."""

    totals: Any  # sums over minibatches, in the order of `Stats`
    skip: Any
    steps: Any  # of Adam
    corrections: Any  # (2) of Adam's next step

"""What PPO's fused kernels work on: the algorithm's buffers and its coefficients. Knows no Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Buffers(NamedTuple):
    """What a rollout and an update read and write, as the algorithm has it."""

    rollout: Any  # a `Slot` of T steps
    raw: Tensor  # (T, A, N)
    noise: Tensor  # (T, U, N), uniform in [0, 1)
    samples: Tensor  # flat: advantages, log-probabilities and returns (T, N) each, then values (T + 1, N)
    final_value: Tensor  # (T, N)
    order: Tensor  # (E, M) int32
    iteration: Tensor  # (1) int64
    skip: Tensor  # one float: whether this iteration's later steps are left out
    learning_rate: Tensor  # one float
    stats: Tensor  # (9), in the order of `Stats`


class Coefficients(NamedTuple):
    """The numbers of the loss and of the step; those that are scheduled are scalars on the device."""

    clip: float | Tensor
    value_clip: float | Tensor | None
    entropy_coefficient: float | Tensor
    value_coefficient: float | Tensor
    max_gradient_norm: float
    normalize_advantages: bool
    target_kl: float | Tensor | None
    adam_epsilon: float
    start_rate: float
    anneal_iterations: int | None  # None: the rate stays


class Scalars(NamedTuple):
    """The floats of the device's buffer that the kernels read: what may change needs no new capture."""

    clip: Any
    value_clip: Any
    entropy_coefficient: Any
    value_coefficient: Any
    target_kl: Any  # infinite: none
    start_rate: Any
    advantage_mean: Any
    advantage_inv_std: Any
    explained_variance: Any


class Samples(NamedTuple):
    """What the loss reads of a rollout."""

    numbers: Any  # (4, stride): advantage, log-probability, return and value of each sample t N + n
    raw: Any  # (T, A, N)
    scalars: Any  # in the order of `Scalars`
    stride: Any  # T N


class Update(NamedTuple):
    """What an update counts."""

    totals: Any  # sums over minibatches, in the order of `Stats`
    scalars: Any
    skip: Any
    steps: Any  # of Adam
    corrections: Any  # (2) of Adam's next step


class Terms(NamedTuple):
    """The loss's terms, of each sample; the values here are the tower that computes them."""

    surrogate: int = 0
    squared_error: int = 1
    entropy: int = 0
    kl: int = 0
    clipped: int = 0

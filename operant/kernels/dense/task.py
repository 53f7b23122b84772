"""What an algorithm hands over to run fused: its buffers, and its part of the work. Knows no Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from operant.kernels.loss import Loss
from operant.nn import SOLO, Adam, Exchange, Policy


class Work(Protocol):
    """What an algorithm adds to a policy's kernels: its Triton functions, and launches of its own before and behind an
    update.
    """

    loss: Loss
    sample: Any  # as `operant.kernels.act.sample_and_store`
    value_of: Any  # as `operant.kernels.act.state_value`
    record: Any  # see `operant.kernels.ops.reduce.reduce_partials`

    def acting(self) -> tuple[Any, ...]:
        """What `sample` draws with, and what it writes."""

    def values(self) -> Tensor:
        """(T + 1, N), or an address: where the values of observations lie."""

    def samples(self) -> tuple[Any, ...]:
        """What `loss` reads."""

    def update(self) -> tuple[Any, ...]:
        """What `record` reads and writes."""

    def norm_sum(self) -> Tensor:
        """(1), to which the gradient's norm is added."""

    def begin(self) -> None:
        """What an update needs to know of the whole rollout, and its learning rate."""

    def finish(self, minibatches: int) -> None:
        """The numbers of an update of so many steps, and one more iteration."""


class Task(NamedTuple):
    """What is to run fused: a policy and its optimizer, over an algorithm's buffers.

    `buffers` has at least `rollout` (a slot of T steps), `final_value` (T, N), `order` (E, M), `skip` and
    `learning_rate` (one float each); of it, `written` names what kernels write beside the rollout's actions.
    `coefficients` has at least `max_gradient_norm` and `adam_epsilon`.
    """

    name: str  # of the algorithm
    policy: Policy
    optimizer: Adam
    buffers: Any
    coefficients: Any
    layout: Any  # of the minibatches: `operant.data.minibatches.Layout`
    work: Callable[[Any], Work]  # of a learner
    written: tuple[str, ...]
    chunks: int | None = None  # of a minibatch, where they are given: of this rank's part of it
    exchange: Exchange = SOLO  # with other ranks
    boards: bool = False  # whether a small convolutional network may run fused, too: by `board.BoardLearner`

    def alone(self) -> Task:
        """The same without the other ranks."""
        return self._replace(exchange=SOLO)

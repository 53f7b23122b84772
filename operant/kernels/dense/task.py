"""Interface between an algorithm and the dense engines: buffers, loss and Triton functions. Imports no Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from torch import Tensor

from operant.nn import SOLO, Adam, Exchange, Policy

if TYPE_CHECKING:
    from operant.kernels.dense.learner import Learner


# LOSS


@dataclass(frozen=True)
class Loss:
    """Loss of an algorithm as three Triton device functions, compiled into the backward kernels.

    - `load_scalars(samples)`: tuple of scalars, loaded once per program.
    - `load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)`: tuple of the loss's targets, (rows) or (rows,
      out_pad) each, for samples t N + n; loaded one tile ahead.
    - `gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC)`: gradients in the outputs and in
      log_std, (rows, out_pad) each, and a tuple of loss terms (rows). All are zero out of bounds. The kernels divide
      them by the number of samples. `out` (rows, out_pad) is masked by `mask_illegal`.

    `samples` is a struct of the algorithm's buffers.

    With two towers, tower 0 computes the actor's part and tower 1 the critic's.
    """

    load_scalars: Any
    load_targets: Any
    gradient: Any
    towers: tuple[int, ...]  # for each loss term, the tower that computes it

    @property
    def cache_key(self) -> str:
        """Key of the loss in Triton's cache on disk: hashes of its functions' sources."""
        return (
            "-".join(function.cache_key for function in (self.load_scalars, self.load_targets, self.gradient))
            + f"-{self.towers}"
        )


# BUFFERS


class Rollout(Protocol):
    """Buffers of T steps of N lanes, field-major, as `operant.worlds.Slot` has them."""

    @property
    def observation(self) -> Tensor:
        """Observations (T + 1, O, N)."""

    @property
    def final_observation(self) -> Tensor:
        """True final observations (T, O, N) of truncated lanes."""

    @property
    def action(self) -> Tensor:
        """Actions (T, A, N) that the environment takes."""

    @property
    def reward(self) -> Tensor:
        """Rewards (T, N) of the steps."""

    @property
    def truncated(self) -> Tensor:
        """Truncation flags (T, N) uint8."""

    @property
    def legal(self) -> Any:
        """Legal-action masks (T + 1, H, N) uint8, or None."""

    @property
    def _replace(self) -> Callable[..., Any]:
        """Copy with some fields replaced, as a NamedTuple has it."""


class Buffers(Protocol):
    """Buffers of an algorithm that the engines read and write in an iteration."""

    @property
    def rollout(self) -> Rollout:
        """Rollout of the iteration."""

    @property
    def final_value(self) -> Tensor:
        """Values (T, N) of true final observations."""

    @property
    def order(self) -> Tensor:
        """Block indices (E, M) of each of E epochs, minibatch after minibatch."""

    @property
    def skip(self) -> Tensor:
        """Flag (1): above 0 the optimizer does not step."""

    @property
    def learning_rate(self) -> Tensor:
        """Learning rate (1), on the device."""

    @property
    def _replace(self) -> Callable[..., Any]:
        """Copy with some fields replaced, as a NamedTuple has it."""


class Coefficients(Protocol):
    """Coefficients of an algorithm that the engines read."""

    @property
    def max_gradient_norm(self) -> float:
        """Norm to which gradients are clipped."""

    @property
    def adam_epsilon(self) -> float:
        """Epsilon of Adam's denominator."""


class Layout(Protocol):
    """Partition of a rollout into minibatches and their parts, see `operant.data.minibatches.Layout`."""

    @property
    def steps(self) -> int:
        """Number of steps in a rollout, or of segments of a lane."""

    @property
    def length(self) -> int:
        """Number of steps in a segment; 1 for single steps."""

    @property
    def minibatches(self) -> int:
        """Number of minibatches in an epoch."""

    @property
    def block(self) -> int:
        """Number of neighbouring lanes of one step that are shuffled together, a block."""

    @property
    def shards(self) -> int:
        """Number of shards (equal ranges of neighbouring lanes), of each of which every minibatch takes equally many
        samples.
        """

    @property
    def chunks(self) -> int:
        """Number of chunks in a minibatch, a power of two and a multiple of the shards. Each gives one row of partial
        sums, added in a fixed order on any number of devices.
        """

    @property
    def samples(self) -> int:
        """Number of samples in a minibatch on this rank."""

    @property
    def all_samples(self) -> int:
        """Number of samples in a minibatch on all ranks."""

    @property
    def shard_blocks(self) -> int:
        """Number of blocks that one shard contributes to a minibatch."""

    @property
    def chunk_blocks(self) -> int:
        """Number of blocks in a chunk; the last chunks of a shard may have fewer."""

    @property
    def _replace(self) -> Callable[..., Any]:
        """Copy with some fields replaced, as a NamedTuple has it."""


class Hooks(Protocol):
    """Hooks that an algorithm gives a learner: its Triton functions, the buffers that they read and write, and its
    launches before and after an update.
    """

    loss: Loss
    sample: Any  # device function with the signature of `operant.kernels.act.sample_and_store`
    value_of: Any  # device function with the signature of `operant.kernels.act.state_value`
    record: Any  # device function, see `operant.kernels.ops.reduce`

    def acting(self) -> tuple[Any, ...]:
        """Return the struct that the Triton function `sample` reads and writes."""

    def values(self) -> Tensor:
        """Return the buffer of the values (T + 1, N) of the rollout's observations, as a view at its address."""

    def samples(self) -> tuple[Any, ...]:
        """Return the struct that the Triton functions of `loss` read."""

    def update(self) -> tuple[Any, ...]:
        """Return the struct that the Triton function `record` reads and writes."""

    def norm_sum(self) -> Tensor:
        """Return the buffer to whose first element each optimizer step adds the gradient norm before clipping."""

    def begin(self) -> None:
        """Launch the kernels before an update: statistics of the rollout, learning rate."""

    def finish(self, minibatches: int) -> None:
        """Launch the kernel after an update of `minibatches` optimizer steps: write its statistics, count the
        iteration.
        """


B = TypeVar("B", bound=Buffers)
C = TypeVar("C", bound=Coefficients)


@dataclass(frozen=True)
class Task(Generic[B, C]):
    """Policy, optimizer and buffers of an algorithm, to be run by a dense engine."""

    name: str  # of the algorithm
    policy: Policy
    optimizer: Adam
    buffers: B
    coefficients: C
    layout: Layout
    hooks: Callable[[Learner[B, C]], Hooks]
    written: tuple[str, ...]  # buffers that kernels write, apart from the rollout's actions
    chunks: int | None = None  # fixed number of chunks of a minibatch on this rank
    exchange: Exchange = SOLO  # with other ranks
    boards: bool = False  # whether `convolution.ConvolutionLearner` may run the policy's network

    def replace(self, **fields: Any) -> Task[B, C]:
        """Return a copy of this task with some fields replaced."""
        return replace(self, **fields)

    def alone(self) -> Task[B, C]:
        """Return a copy without the exchange with other ranks."""
        return self.replace(exchange=SOLO)

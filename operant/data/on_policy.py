"""On-policy learning, shared by PPO and PQN: what a rollout stores, one iteration's arithmetic around the gradient, and
the base class of backends.

`Experience` holds the numbers of each sample that acting and the advantage estimate add to a rollout. `OnPolicyCycle`
estimates advantages, anneals the learning rate, owns the minibatches and counts iterations. `OnPolicyBackend` acts and
learns.

Shape letters: T steps, N lanes, A rows of an action, E epochs, M blocks of a rollout, B samples of a minibatch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from numpy import float32
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange
from operant.compute.kernel import bind, kernel
from operant.data.minibatches import Layout, Minibatches
from operant.data.returns import Discount, Trace, advantage_body
from operant.data.rollout import Collector
from operant.nn import Adam, scalar, statistics
from operant.worlds import Slot

if TYPE_CHECKING:
    from typing import Self


class Experience:
    """Per-sample rows (log-probabilities, advantages, ...) of a rollout in one flat buffer, `samples`: rows of T N
    numbers, then the values V, (T + 1) N.

    A kernel that gathers a sample reads its numbers at one stride.
    """

    advantage: Tensor  # (T, N)
    returns: Tensor  # (T, N), the targets of the values
    log_probability: Tensor  # (T, N), of the actions by the policy that acted; PPO only

    def __init__(self, collector: Collector, rows: Sequence[str], raw: Tensor | None = None) -> None:
        """Allocate the rows with these names, in this order. `raw` (T, A, N) holds actions as they were sampled; by
        default they are the environment's actions.
        """
        T, N, device = collector.steps, collector.world.count, collector.world.device
        self.samples = torch.zeros((len(rows) * T + T + 1) * N, device=device)
        *parts, value = self.samples.split([T * N] * len(rows) + [(T + 1) * N])
        for name, part in zip(rows, parts, strict=True):
            setattr(self, name, part.view(T, N))
        self.value = value.view(T + 1, N)  # V of the observation before each step, and of the last one
        # V of the true final observation, where an episode was truncated
        self.final_value = torch.zeros(T, N, device=device)
        self.reward = torch.zeros(T, N, device=device)  # scaled
        self.raw = collector.rollout.action if raw is None else raw


class Buffers(NamedTuple):
    """Tensors of an iteration that fused kernels read and write."""

    rollout: Slot  # of T steps
    noise: Tensor  # (T, U, N), uniform in [0, 1)
    raw: Tensor  # (T, A, N)
    samples: Tensor  # flat, see `Experience`
    final_value: Tensor  # (T, N)
    order: Tensor  # (E, M) int32
    iteration: Tensor  # (1) int64
    skip: Tensor  # (), 1: optimizer steps change nothing
    learning_rate: Tensor  # ()
    stats: Tensor  # in the order of the algorithm's `Stats`


class OnPolicyCycle:
    """Arithmetic of an iteration around the gradient: advantages, order of minibatches, learning rate, counter."""

    def __init__(
        self,
        collector: Collector,
        experience: Experience,
        layout: Layout,
        config: Any,
        *,
        decay: float,
        epochs: int,
        seed: int,
        steps: int,
        exchange: Exchange = SOLO,
    ) -> None:
        """Bind the advantage kernel to the rollout of `collector`, and allocate the order of minibatches.

        `layout` partitions the lanes of all ranks; `decay` is gamma lambda; `epochs` is rounded up; `steps` is
        `run.steps`. `config` has `gamma`, `learning_rate`, `anneal` and `anneal_steps`.
        """
        device, self.config, self.exchange = collector.world.device, config, exchange
        self.collector, self.rollout, self.experience = collector, collector.rollout, experience
        self.iteration = torch.zeros(1, dtype=torch.int64, device=device)  # finished iterations
        self.minibatches = Minibatches(layout.share(exchange.ranks), epochs, seed, self.iteration, exchange.rank)

        # The estimate's kernel computes in float64 unless its numbers are float32.
        rollout = self.rollout
        self._estimate = kernel(advantage_body, device)
        self._discount = Discount(float32(config.gamma), float32(decay))  # type: ignore[arg-type]
        self._trace = bind(
            Trace(
                experience.reward,
                experience.value,
                experience.final_value,
                rollout.terminated,
                rollout.truncated,
                experience.advantage,
                experience.returns,
            )
        )

        # Scalars on the device: a captured graph sees them change.
        self.learning_rate = scalar(config.learning_rate, device)
        self.skip = torch.zeros((), device=device)  # 1: the remaining optimizer steps of the iteration change nothing
        steps_per_iteration = collector.steps * collector.world.count * exchange.ranks
        self.anneal_iterations: int | None = None  # of the linear decay to zero; None: constant
        if config.anneal:
            self.anneal_iterations = max(1, -(-(config.anneal_steps or steps) // steps_per_iteration))

    @property
    def shards(self) -> int:
        """Number of shards (aligned ranges) of this rank's lanes."""
        return self.minibatches.layout.shards

    def estimate_advantages(self) -> None:
        """Write advantages and returns of all samples by GAE, from `experience.reward`, values and ends of episodes."""
        self._estimate(self.collector.world.count, self._discount, self._trace)

    def explained_variance(self, residual: Tensor, *, cut: bool = False) -> Tensor:
        """Return 1 - Var(residual) / Var(returns), for the residual (T, N) of the returns; `cut`: see `statistics`."""
        targets = torch.stack([self.experience.returns, residual])
        variance, unexplained = statistics(targets, self.shards, self.exchange, cut=cut).variance[:, 0].float()
        explained: Tensor = 1.0 - unexplained / variance.clamp_min(1e-12)
        return explained

    def anneal(self) -> None:
        """Set the learning rate on the device to that of this iteration."""
        if self.anneal_iterations is not None:
            remaining = 1.0 - self.iteration.float() / self.anneal_iterations
            self.learning_rate.copy_((self.config.learning_rate * remaining.clamp_min(0.0))[0])


class OnPolicyAlgorithm(Protocol):
    """Attributes of an on-policy algorithm that its backends use."""

    config: Any
    policy: Any
    collector: Collector
    cycle: OnPolicyCycle
    optimizer: Adam
    stats: Tensor


class OnPolicyBackend:
    """Base class of backends (torch, manual backward on a CPU, fused kernels): how to act on a rollout and to learn
    from it.

    A subclass writes `act`, `bootstrap` and `update`, and overrides the hooks that it needs. All backends of an
    algorithm work on the same buffers, with the same noise and the same order of minibatches.
    """

    name: ClassVar[str]
    """Name of the kernels in use: "torch", "manual_backward" or "fused"."""
    acts_on_slices = False
    """Whether `act` takes a slice of the lanes, also while it acts on another in another stream; `after` must then be
    without effect.
    """
    bits_by_ranks: str | None = None
    """Reason why the last bits depend on the number of ranks, as a clause; None: they do not."""

    def __init__(self, algo: OnPolicyAlgorithm) -> None:
        """Take policy, rollout and optimizer from `algo`, which creates its backend last."""
        self.config, self.policy, self.collector, self.cycle = algo.config, algo.policy, algo.collector, algo.cycle
        self.experience, self.optimizer, self.stats = algo.cycle.experience, algo.optimizer, algo.stats
        self.exchange, self.device = algo.cycle.exchange, algo.collector.world.device
        self.chosen: dict[str, str] = {}  # values for keys of the configuration that were left open

    # TO BE WRITTEN

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write the actions of step t, and what the algorithm stores with them, for all lanes or a slice of `lanes`."""
        raise NotImplementedError

    def bootstrap(self) -> None:
        """Write V of the observation after the last step, and V of the true final observation of every truncated
        episode.
        """
        raise NotImplementedError

    def update(self) -> None:
        """Learn from the rollout, count the iteration, and write the metrics to `stats`."""
        raise NotImplementedError

    # HOOKS

    def start(self) -> None:
        """Hook: prepare the backend for new episodes in all lanes."""

    def prepare(self) -> None:
        """Hook: load the policy's parameters and normalizer, before a rollout and before its update."""

    def after(self, t: int) -> None:
        """Hook: process the outcome of step t, for instance the ends of episodes."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the backend's own tensors for a resumed run, by their names in a checkpoint."""
        return {}

    def single_threaded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return `work`, run with as many of torch's threads as the backend uses; by default all."""
        return work

    def with_rollout(self, policy: Any, collector: Collector, experience: Experience) -> Self:
        """Return a copy of this backend for another policy, rollout and experience, which acts while this one
        updates.
        """
        other = copy.copy(self)
        other.policy, other.collector, other.experience = policy, collector, experience
        return other

    def buffers(self) -> Buffers:
        """Return the tensors that fused kernels read and write in an iteration."""
        collector, experience, cycle = self.collector, self.experience, self.cycle
        return Buffers(
            collector.rollout,
            collector.noise,
            experience.raw,
            experience.samples,
            experience.final_value,
            cycle.minibatches.order,
            cycle.iteration,
            cycle.skip,
            cycle.learning_rate,
            self.stats,
        )

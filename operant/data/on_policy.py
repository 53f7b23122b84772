"""On-policy learning, shared by PPO and PQN: what a rollout stores, one iteration's arithmetic around the gradient, and
the base class of backends.

`Experience` holds the numbers of each sample that acting and the advantage estimate add to a rollout. `OnPolicyCycle`
estimates advantages, anneals the learning rate, owns the minibatches and counts iterations. `OnPolicyBackend` acts and
learns: an algorithm's torch backend is a subclass, and its faster backends are subclasses of that.

Shape letters: T steps, N lanes, O rows of an observation, A rows of an action, H rows of a network's output, E terms of
a loss, M blocks of a rollout, m selected blocks, B samples of a minibatch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange
from operant.data.minibatches import Layout, Minibatches
from operant.data.returns import Advantages
from operant.data.rollout import Collector
from operant.nn import Adam, chunked, scalar, statistics
from operant.worlds import Slot

if TYPE_CHECKING:
    from typing import Self


class Experience:
    """Numbers of each sample that an algorithm adds to a rollout (log-probabilities, advantages, ...), in one flat
    buffer, `samples`: rows of T N numbers, then the values V, (T + 1) N.

    A kernel that gathers a sample reads its numbers at one stride.
    """

    advantage: Tensor  # (T, N)
    returns: Tensor  # (T, N), the targets of the values
    log_probability: Tensor  # (T, N), of the actions by the policy that acted; PPO only
    value: Tensor  # (T + 1, N), V of the observation before each step, and of the last one

    def __init__(self, collector: Collector, rows: type[Any], raw: Tensor | None = None) -> None:
        """Allocate the rows that the NamedTuple `rows` declares, in its order, as attributes: (T, N) each, the last,
        `value`, (T + 1, N). `raw` (T, A, N) holds actions as they were sampled; by default they are the environment's
        actions.
        """
        T, N, device = collector.steps, collector.world.count, collector.world.device
        names: tuple[str, ...] = rows._fields
        assert names[-1] == "value", names
        steps = [T] * (len(names) - 1) + [T + 1]
        self.samples = torch.zeros(sum(steps) * N, device=device)
        for name, count, row in zip(names, steps, self.samples.split([count * N for count in steps]), strict=True):
            setattr(self, name, row.view(count, N))
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
    order: Tensor  # (E, M) int32, a permutation of the blocks for each of E epochs
    iteration: Tensor  # (1) int64
    skip: Tensor  # (), 1: optimizer steps change nothing
    learning_rate: Tensor  # ()
    stats: Tensor  # in the order of the algorithm's `Stats`


class OnPolicyCycle:
    """State and arithmetic of an iteration outside the gradient: advantages, order of minibatches, learning rate,
    counter.
    """

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
        """Allocate the order of the minibatches, and prepare the advantage estimate of the rollout of `collector`.

        `layout` partitions the lanes of all ranks; `decay` is gamma lambda; `epochs` is rounded up; `steps` is
        `run.steps`. `config` has `gamma`, `learning_rate`, `anneal` and `anneal_steps`.
        """
        device, self.config, self.exchange = collector.world.device, config, exchange
        self.collector, self.rollout, self.experience = collector, collector.rollout, experience
        self.iteration = torch.zeros(1, dtype=torch.int64, device=device)  # finished iterations
        self.minibatches = Minibatches(layout.share(exchange.ranks), epochs, seed, self.iteration, exchange.rank)
        self.advantages = Advantages(self.rollout, experience, config.gamma, decay)

        # Scalars on the device: a captured graph sees them change.
        self.learning_rate = scalar(config.learning_rate, device)
        self.skip = torch.zeros((), device=device)  # 1: the remaining optimizer steps of the iteration change nothing
        steps_per_iteration = collector.steps * collector.world.count * exchange.ranks
        self.anneal_iterations: int | None = None  # of the linear decay to zero; None: constant
        if config.anneal:
            self.anneal_iterations = max(1, -(-(config.anneal_steps or steps) // steps_per_iteration))

    @property
    def shards(self) -> int:
        """Number of shards (equal ranges) of this rank's lanes."""
        return self.minibatches.layout.shards

    def estimate_advantages(self) -> None:
        """Write advantages A and returns R, (T, N) each, to the experience, from its rewards r and values V: delta_t =
        r_t + gamma V(s_{t+1}) - V(s_t), A_t = delta_t + gamma lambda A_{t+1}, R_t = A_t + V(s_t).

        V(s_{t+1}) is 0 after termination, and V of the true final observation after truncation (a time limit); A_{t+1}
        is 0 after either.
        """
        self.advantages()

    def explained_variance(self, residual: Tensor, *, cut: bool = False) -> Tensor:
        """Return 1 - Var(residual) / Var(returns) over all samples, for the residual (T, N): returns minus values.
        `cut`: by shards, see `statistics`.
        """
        targets = torch.stack([self.experience.returns, residual])
        variance, unexplained = statistics(targets, self.shards, self.exchange, cut=cut).variance[:, 0].float()
        explained: Tensor = 1.0 - unexplained / variance.clamp_min(1e-12)
        return explained

    def anneal(self) -> None:
        """Set the learning rate on the device to that of this iteration: with `anneal` a linear decay to 0, else no
        change.
        """
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
    """Base class of the ways to act on a rollout and to learn from it: torch, manual backward pass on a CPU, fused
    kernels.

    A torch backend writes `act`, `bootstrap`, `estimate_advantages`, `gather`, `loss` and `update`, and overrides the
    hooks that it needs. All backends of an algorithm work on the same buffers, with the same noise and the same order
    of minibatches.
    """

    name: ClassVar[str]
    """Name of the kernels in use: "torch", "manual_backward" or "fused"."""
    terms: ClassVar[tuple[str, ...]]
    """Names of the E terms of the loss, in the order in which every backend adds them up."""
    acts_on_slices = False
    """Whether `act` takes a slice of the lanes, also while it acts on another in another stream; `after` must then be
    without effect.
    """
    cut = False
    """Whether products are computed by shard of the lanes and by chunk of a minibatch. The shape of a product decides
    its last bits: cut, they are the same on any number of ranks; whole, products are faster.
    """
    microbatch: int | None = None
    """Maximum samples of one backward pass; None: the whole minibatch."""
    bits_by_ranks: str | None = None
    """Reason why the last bits depend on the number of ranks, as a clause; None: they do not."""

    def __init__(self, algo: OnPolicyAlgorithm) -> None:
        """Take policy, rollout, cycle and optimizer from `algo`, which creates its backend last."""
        self.config, self.policy, self.collector, self.cycle = algo.config, algo.policy, algo.collector, algo.cycle
        self.experience, self.optimizer, self.stats = algo.cycle.experience, algo.optimizer, algo.stats
        self.exchange, self.device = algo.cycle.exchange, algo.collector.world.device
        self.chosen: dict[str, str] = {}  # values for keys of the configuration that were left open

    # AN ITERATION

    @torch.no_grad()
    def collect(self) -> None:
        """Roll out T steps of every lane by the current policy, then bootstrap values."""
        self.prepare()
        self.collector.collect(self.act, self.after, sliced=self.acts_on_slices)
        self.bootstrap()

    def learn(self) -> None:
        """Learn from the rollout: advantages, all epochs of minibatches, then the running statistics of the
        normalizers, which are constant until then.
        """
        self.estimate_advantages()
        self.cycle.minibatches.shuffle()
        self.update()
        self.update_normalizers()

    # TO BE WRITTEN

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write the actions of step t, and what the algorithm stores with them, for all lanes or a slice of `lanes`."""
        raise NotImplementedError

    def bootstrap(self) -> None:
        """Write V of the observation after the last step, and V of the true final observation of every truncated
        episode, to the experience.
        """
        raise NotImplementedError

    def estimate_advantages(self) -> None:
        """Write scaled rewards, advantages and returns of all samples to the experience."""
        raise NotImplementedError

    def gather(self, blocks: Tensor) -> Any:
        """Gather the samples of blocks (up to 32 neighbouring lanes of one step) with the numbers `blocks` (m), as a
        batch with a method `split(sizes)`.
        """
        raise NotImplementedError

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of a minibatch, or of a part of it, and its terms by the names in `terms`."""
        raise NotImplementedError

    def update(self) -> None:
        """Take all optimizer steps of an iteration, count the iteration, and write the metrics to `stats`."""
        raise NotImplementedError

    # HOOKS

    def start(self) -> None:
        """Hook when all lanes begin new episodes: prepare the backend."""

    def prepare(self) -> None:
        """Hook before a rollout, and before its update: load the policy's parameters and normalizer."""

    def after(self, t: int) -> None:
        """Hook after the world took step t: process its outcome, for instance the ends of episodes."""

    def update_normalizers(self) -> None:
        """Update the running mean and variance of observations by those of the rollout. Does nothing without a
        normalizer.
        """
        if self.policy.normalizer is not None:
            observation = self.cycle.rollout.observation[:-1].transpose(0, 1)  # (O, T, N)
            with torch.no_grad():
                self.policy.normalizer.update(observation, self.cycle.shards, self.exchange)

    def tensors(self) -> dict[str, Tensor]:
        """Return the backend's own tensors to save in a checkpoint, by name. By default none."""
        return {}

    def single_threaded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return `work`, restricted to as many of torch's threads as the backend uses. By default `work` itself."""
        return work

    def with_rollout(self, policy: Any, collector: Collector, experience: Experience) -> Self:
        """Return a copy of this backend for another policy, rollout and experience, which acts while this one
        updates.
        """
        other = copy.copy(self)
        other.policy, other.collector, other.experience = policy, collector, experience
        return other

    # MINIBATCHES

    def batches(self, order: Tensor) -> Iterator[Any]:
        """Yield the minibatches of an epoch, given its random `order` of the rollout's blocks, (M) block numbers."""
        for blocks in order.chunk(self.config.minibatches):
            yield self.gather(blocks)

    def gather_rows(self, buffer: Tensor, blocks: Tensor) -> Tensor:
        """Gather the samples of blocks with the numbers `blocks` (m) from a buffer of the rollout: (T, N) to (B), (T,
        R, N) to (R, B).
        """
        return self.cycle.minibatches.gather(buffer, blocks)

    def gather_observations(self, blocks: Tensor) -> Tensor:
        """Gather the observations of blocks with the numbers `blocks` (m) from the rollout, (O, B)."""
        observation, minibatches = self.collector.rollout.observation[:-1], self.cycle.minibatches
        if self.policy.env.pixels:
            return minibatches.gather_pictures(observation, blocks)
        return self.gather_rows(observation, blocks)

    # GRADIENT

    def gradient(self, batch: Any) -> Tensor:
        """Write the gradient of a minibatch's loss, by autograd, into the policy's flat gradient vector; return the
        loss's E terms, a tensor (E).
        """
        flat = self.policy.flat
        if self.cut:
            return self._gradient_in_chunks(batch)
        if self.microbatch is not None and batch.samples > self.microbatch:
            return self._gradient_in_parts(batch, min(batch.size, -(-batch.samples // self.microbatch)))
        loss, terms = self.loss(batch)
        flat.backward(loss)
        return self.stacked(terms)

    def _gradient_in_parts(self, batch: Any, count: int) -> Tensor:
        """Accumulate the gradient over `count` parts of a minibatch: the mean over the minibatch is the sum of the
        parts' means, weighted by their samples. Returns the loss's terms (E).
        """
        total, size = torch.zeros(len(self.terms), device=self.device), batch.size
        sizes = [size // count + (k < size % count) for k in range(count)]
        for k, part in enumerate(batch.split(sizes)):
            share = part.size / size
            loss, terms = self.loss(part)
            self.policy.flat.backward(share * loss, add=k > 0)
            total += share * self.stacked(terms)
        return total

    def _gradient_in_chunks(self, batch: Any) -> Tensor:
        """Write the gradient of a minibatch as the sum over its chunks, of all ranks, in a fixed binary tree; return
        the loss's terms (E).
        """
        layout, flat = self.cycle.minibatches.layout, self.policy.flat
        sizes, length = layout.chunk_sizes(), len(flat.gradient)

        def rows() -> Iterator[Tensor]:
            for size, part in zip(sizes, batch.split(sizes), strict=True):
                row = torch.zeros(length + len(self.terms), device=self.device)  # the gradient, then the terms
                if size > 0:
                    share = part.samples / layout.all_samples
                    loss, terms = self.loss(part)
                    flat.backward(share * loss)
                    torch.cat([flat.gradient, share * self.stacked(terms)], out=row)
                yield row

        total = chunked.tree_sum(self.exchange.gather(chunked.tree_sum_of(rows())[None]))
        flat.gradient.copy_(total[:length])
        return total[length:]

    def stacked(self, terms: dict[str, Tensor]) -> Tensor:
        """Stack the loss's terms into a vector (E), in the order of `terms`."""
        return torch.stack([terms[name] for name in self.terms])

    def by_shards(
        self, forward: Callable[..., tuple[Tensor, Tensor]], observation: Tensor, legal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Apply `forward` to each shard of the lanes separately, for observations (O, N) and legal actions (H, N; None:
        all). Returns its outputs for all lanes, (H, N) and (N).
        """
        shards = self.cycle.shards
        legal_parts = [None] * shards if legal is None else legal.chunk(shards, dim=-1)
        outputs = [
            forward(part.contiguous(), legal_part)
            for part, legal_part in zip(observation.chunk(shards, dim=-1), legal_parts, strict=True)
        ]
        return torch.cat([parameters for parameters, _ in outputs], dim=1), torch.cat([value for _, value in outputs])

    def write_final_values(self, value: Callable[[Tensor], Tensor], *, by_shards: bool = False) -> None:
        """Write V of the true final observation of every truncated episode to the experience. `value` maps observations
        (O, B) to values (B); with `by_shards` each shard of the lanes is evaluated separately also in a CUDA graph.
        """
        captured = self.device.type == "cuda" and self.collector.world.capturable
        shards = self.cycle.shards if self.cut or by_shards or not captured else 1
        self.collector.final_values(value, self.experience.final_value, shards=shards, captured=captured)

    def count_not_finite(self, means: Tensor) -> Tensor:
        """Count NaN and infinite values among the policy's parameters and the statistics `means`, () float32."""
        parameters = self.policy.flat.values.data
        return ((~torch.isfinite(parameters)).sum() + (~torch.isfinite(means)).sum()).float()

    # FUSED KERNELS

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

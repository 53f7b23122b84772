"""Launches of a dense policy's kernels: `Learner`, the base of the dense engines, and the resident engine, of which one
program holds a whole network.

| launch                 | grid                       | reads, and writes (->)                                     |
|------------------------|----------------------------|------------------------------------------------------------|
| `act`                  | (cdiv(N, BLOCK_M), towers) | observations (O, N) of step t -> its actions, log p and V  |
| `bootstrap_values`     | (cdiv(N, BLOCK_M), T + 1)  | observations -> V of the last one and of truncated lanes   |
| the algorithm's begin  |                            | rollout -> its statistics, learning rate                   |
| per minibatch:         |                            |                                                            |
| `backward`             | (chunks, towers)           | samples, parameters (P) -> partial sums (chunks, P + 32)   |
| `reduce_partials`      | ((P + 32) / 32,)           | partial sums -> gradient (P), squares (P / 32), loss terms |
| `adam_step`            | (cdiv(P, 256),)            | gradient, squares -> clipped step of the parameters        |
| the algorithm's finish |                            | sums over minibatches -> statistics of the iteration       |

T steps, N lanes, O features of an observation, P parameters. A *tower* is a network from observation to outputs: one
each for actor and critic, or one with a shared trunk. A *shard* is an aligned range of lanes, of which every minibatch
takes equally many *blocks* (neighbouring lanes of one step, which are shuffled together). A *chunk* is the part of a
minibatch whose samples one program adds up, to one row of partial sums.

Once constructed, a learner neither synchronizes nor allocates except through torch, so that CUDA graphs can capture it.
Kernels compile at their first launch, which must precede a capture.
"""

from __future__ import annotations

from typing import Any, Generic

import torch

from operant.compute.exchange import Link
from operant.kernels import Spec, TileConfig, padded
from operant.kernels.act import Bootstrap, act, bootstrap_values
from operant.kernels.backward import TERM_COLUMNS, Minibatch, backward
from operant.kernels.dense.task import B, C, Task
from operant.kernels.muon import Matrices
from operant.kernels.observations import FeatureTable, Inputs
from operant.kernels.ops.adam import Moments, adam_step
from operant.kernels.ops.reduce import REDUCE_COLUMNS, exchange_partials, reduce_partials, sum_shards
from operant.kernels.statistics import PARTS, TILE, finish, part_moments
from operant.kernels.tile_config import Resident
from operant.kernels.warmup import Launcher
from operant.nn import Muon

__all__ = ["Learner", "Spec", "Task"]

LARGE = 2**18
"""Number of parameters above which elementwise kernels use larger tiles."""


class Learner(Launcher, Generic[B, C]):
    """Base of the dense engines: launches of the fused kernels of one policy in one tile config, over an algorithm's
    buffers. Subclasses implement `act`, `bootstrap` and `backward`.
    """

    config: TileConfig
    acts_on_slices = False
    """Whether `act` accepts a slice of the lanes, also concurrently with another slice in another stream."""

    def __init__(self, spec: Spec, task: Task[B, C], config: TileConfig) -> None:
        policy, buffers = task.policy, task.buffers
        self.spec, self.task, self.config = spec, task, config
        self.policy, self.buffers, self.coefficients = policy, buffers, task.coefficients
        self.layout = task.layout._replace(chunks=config.chunks)
        self._steps, self._lanes = buffers.rollout.reward.shape
        self._stride = self._steps * self._lanes
        self.adam = task.optimizer.tensors()
        self._values, self._gradient = policy.flat.values.data, policy.flat.gradient
        device, size = policy.device, self._values.numel()
        # Partial sums (chunks, P + 32): a row per chunk, of the gradient, then of the loss terms.
        self._width = size + TERM_COLUMNS.value
        self._partial = torch.zeros(config.chunks, self._width, device=device)
        self._squares = torch.zeros(size // REDUCE_COLUMNS.value, device=device)
        self.totals, self.corrections = torch.zeros(8, device=device), torch.zeros(2, device=device)
        self._moment_parts = torch.zeros(PARTS, 5, device=device)
        self._features = FeatureTable(policy, self.totals)
        # Without legal actions any bytes serve as the mask, which kernels then do not read.
        self._legal_mask = buffers.rollout.legal if self.spec.legal else buffers.rollout.truncated
        # With several ranks: this rank's sums, and the peer memory through which kernels exchange them.
        self._link: Link | None = None
        self._sums = torch.zeros(1, self._width, device=device)
        half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        self._matrices = (
            Matrices(task.optimizer.matrices, device, half=half) if isinstance(task.optimizer, Muon) else None
        )
        self.hooks = task.hooks(self)

    def spare(self) -> Learner[B, C]:
        """Switch this learner to copies of the optimizer's state and of the gradient, so that a measurement changes
        nothing; return it.
        """
        self.adam = {name: value.clone() for name, value in self.adam.items()}
        self._gradient = self._gradient.clone()
        return self

    def connect(self) -> None:
        """Let the reduction kernel exchange sums with the other ranks through peer memory, if their GPUs allow it. All
        ranks must call it.
        """
        self._link = self.task.exchange.link(self._width, self._width // REDUCE_COLUMNS.value)

    def fits(self) -> bool:
        """Whether the GPU has enough shared memory for the network's kernels. Compiles them without a launch."""
        return self._fits_shared(self.policy.device, lambda: self.act(0), lambda: self.backward(0))

    # KERNEL ARGUMENTS

    def _inputs(self) -> Inputs:
        """Return observations, normalizer table and legal-action mask of the rollout."""
        return Inputs(self.buffers.rollout.observation, self._normalizer, self._legal_mask)

    def _bootstrap(self) -> Bootstrap:
        """Return the observations to be valued after a rollout, and the buffers of their values."""
        rollout = self.buffers.rollout
        return Bootstrap(
            rollout.observation,
            rollout.final_observation,
            rollout.truncated,
            self._legal_mask,
            self.hooks.values(),
            self.buffers.final_value,
        )

    def _minibatch(self, k: int) -> Minibatch:
        """Return the blocks of minibatch k, counted over all epochs, and their division into chunks."""
        layout = self.layout
        return Minibatch(
            order=self.buffers.order,
            first_block=k * layout.shards * layout.shard_blocks,
            shard_blocks=layout.shard_blocks,
            shard_chunks=layout.chunks // layout.shards,
            chunk_blocks=layout.chunk_blocks,
            samples=layout.all_samples,
        )

    @property
    def _normalizer(self) -> torch.Tensor:
        """Table of the observation normalizer and of one-hot columns, see `operant.kernels.observations`."""
        return self._features.table

    # COLLECT

    def prepare(self) -> None:
        """Copy the normalizer's statistics into the kernels' table, for a rollout and its update."""
        self._features.refresh()

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Act at step t on all lanes, or on a slice of `lanes` if `acts_on_slices`: write what the algorithm's `sample`
        writes, such as actions and log-probabilities.
        """
        raise NotImplementedError

    def bootstrap(self, finals: bool) -> None:
        """Write values of the observations after the last step, and with `finals` of the true final observations of
        truncated lanes.
        """
        raise NotImplementedError

    # UPDATE

    def backward(self, k: int) -> None:
        """Write the partial sums (chunks, P + 32) of minibatch k, counted over all epochs: gradient, then loss terms.
        Each is the sum over its chunk's samples, divided by the minibatch's samples.
        """
        raise NotImplementedError

    def update(self, minibatches: int) -> None:
        """Take one optimizer step for each of `minibatches` minibatches of the rollout, in the buffers' order over all
        epochs.
        """
        self.begin()
        for k in range(minibatches):
            self.backward(k)  # forward pass, loss, backward pass: partial sums (chunks, P + 32)
            self.reduce()  # their sum: gradient (P), its squares; the loss terms are added up
            self.step()  # clipping, Adam
        self.hooks.finish(minibatches)

    def begin(self) -> None:
        """Launch the algorithm's kernels before an update: statistics of the rollout, learning rate."""
        self.hooks.begin()

    def part_moments(self, advantages: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        """Return moments of advantages and returns (T, N) by parts of the samples of all ranks, (parts, 5): count, then
        mean and sum of squared deviations of each. `operant.kernels.statistics.rollout_moments` merges them.
        """
        shards, exchange = self.layout.shards, self.task.exchange
        parts = min(PARTS // (shards * exchange.ranks), -(-self._stride // (shards * TILE)))  # of a shard
        out, grid = self._moment_parts, (parts, shards)
        self.launch(part_moments, grid, advantages, returns, out, self._steps, self._lanes, TILE=TILE, num_warps=8)
        return exchange.gather(out[: parts * shards])

    def reduce(self) -> None:
        """Sum the rows of partial sums (chunks, P + 32) to the gradient (P), write sums of its squares (P / 32), and
        pass the means of the loss terms to the algorithm's `record`.

        Several ranks exchange their sums inside the kernel, or between two launches.
        """
        shards, exchange, grid = self.layout.shards, self.task.exchange, (self._width // REDUCE_COLUMNS.value,)
        partial, rows, ranks = self._partial, self.layout.chunks // shards, exchange.ranks
        if ranks > 1 and self._link is None:
            self.launch(sum_shards, grid, partial, self._width, self._sums, SHARDS=shards, SHARD_ROWS=rows, num_warps=4)
            partial, shards, rows = exchange.gather(self._sums), ranks, 1
        # gradient[j] = sum over chunks of partial[chunk, j]: rows of a shard first, then shards, in a binary tree.
        arguments = (partial, self._width, self._gradient, self._squares, self._values, self.hooks.update())
        options = {"SPEC": self.spec, "RECORD": self.hooks.record, "SHARDS": shards, "SHARD_ROWS": rows, "num_warps": 4}
        if self._link is None:
            self.launch(reduce_partials, grid, *arguments, **options)
        else:
            self.launch(exchange_partials, grid, *arguments, self._link, RANKS=ranks, **options)

    def step(self) -> None:
        """Clip the gradient to its maximum norm and take one step of Adam; if configured, of Muon for matrices."""
        buffers, coefficients, values, size = self.buffers, self.coefficients, self._values, self._values.numel()
        if self._matrices is not None:  # leaves a zero gradient of the matrices to Adam
            self._matrices.step(
                self.launch,
                values,
                self._gradient,
                self.adam["momentum"],
                self._squares,
                buffers.skip,
                buffers.learning_rate,
                coefficients.max_gradient_norm,
            )
        # g <- g min(1, max_norm / |g|); x <- x - lr (m / c1) / (sqrt(v) / c2 + epsilon); nothing while `skip` is 1.
        # Every program sums all squares: large networks have fewer programs with more threads.
        tile, warps = (256, 4) if size <= LARGE else (1024, 16)
        self.launch(
            adam_step,
            (-(-size // tile),),
            values,
            self._gradient,
            Moments(self.adam["exp_avg"], self.adam["exp_avg_sq"], self.corrections),
            self._squares,
            len(self._squares),
            size,
            buffers.skip,
            buffers.learning_rate,
            self.hooks.norm_sum(),
            coefficients.max_gradient_norm,
            coefficients.adam_epsilon,
            BLOCKS=padded(len(self._squares)),
            BLOCK_SIZE=tile,
            num_warps=warps,
        )

    def finish(
        self, stats: type[Any], minibatches: int, iteration: torch.Tensor, out: torch.Tensor, **scalars: torch.Tensor
    ) -> None:
        """Write the statistics of an update of `minibatches` steps into `out`, and increment `iteration` (1).

        `stats` is the algorithm's NamedTuple of statistics: first the loss terms and `gradient_norm`, whose means over
        the minibatches are taken from `totals`; then those in `scalars`, by name; last `not_finite`.
        """
        means = stats._fields.index("gradient_norm") + 1
        assert stats._fields[means:] == (*scalars, "not_finite"), (stats._fields, tuple(scalars))
        values = self._values
        options = {"TILE": 1024} if values.numel() <= LARGE else {"TILE": 8192, "num_warps": 16}
        self.launch(
            finish,
            (1,),
            self.totals,
            tuple(scalars.values()),
            values,
            values.numel(),
            iteration,
            out,
            float(minibatches),
            MEANS=means,
            **options,
        )


class ResidentLearner(Learner[B, C]):
    """Engine whose programs hold a whole tower: one program per tower and tile of lanes acts, one per tower and chunk
    computes a gradient.
    """

    config: Resident

    acts_on_slices = True

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Act at step t on all lanes or a slice of `lanes`: write actions, log-probabilities and values."""
        config, (first, last) = self.config, (0, self._lanes) if lanes is None else (lanes.start, lanes.stop)
        self.launch(
            act,
            (-(-(last - first) // config.act_block_m), self.spec.towers),
            self._inputs(),
            self.hooks.acting(),
            self._values,
            t,
            first,
            last,
            self._lanes,
            SPEC=self.spec,
            SAMPLE=self.hooks.sample,
            BLOCK_M=config.act_block_m,
            num_warps=config.act_warps,
            num_stages=0,
        )

    def bootstrap(self, finals: bool) -> None:
        """Write values of the observations after the last step, and with `finals` of the true final observations of
        truncated lanes.
        """
        config = self.config
        first = 0 if finals else self._steps
        self.launch(
            bootstrap_values,
            (-(-self._lanes // config.act_block_m), self._steps + 1 - first),
            self._bootstrap(),
            self._values,
            self._normalizer,
            first,
            self._steps,
            self._lanes,
            SPEC=self.spec,
            VALUE=self.hooks.value_of,
            BLOCK_M=config.act_block_m,
            num_warps=config.act_warps,
            num_stages=0,
        )

    def backward(self, k: int) -> None:
        """Write the partial sums (chunks, P + 32) of minibatch k, counted over all epochs: gradient, then loss
        terms.
        """
        config = self.config
        self.launch(
            backward,
            (config.chunks, self.spec.towers),
            self._minibatch(k),
            self._inputs(),
            self.hooks.samples(),
            self._values,
            self._partial,
            self._lanes,
            self._width,
            SPEC=self.spec,
            LOSS=self.hooks.loss,
            BLOCK_M=config.block_m,
            BLOCK=self.layout.block,
            num_warps=config.warps,
            # No software pipelining: the kernel prefetches explicitly, and Triton 3.6 fails to pipeline this loop.
            num_stages=0,
            maxnreg=config.max_registers or None,
        )

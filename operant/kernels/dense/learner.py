"""Base of the dense engines: acting and learning as kernel launches over an algorithm's buffers.

Once constructed, a learner neither synchronizes nor allocates except through torch, so that CUDA graphs can capture it.
Kernels compile at their first launch, which must precede a capture.
"""

from __future__ import annotations

from typing import Generic

import torch

from operant.compute.exchange import Link
from operant.kernels import Spec, TileConfig, padded
from operant.kernels.arguments import Bootstrap, Inputs, Minibatch, Moments
from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.dense.task import B, C, Task
from operant.kernels.feature_table import FeatureTable
from operant.kernels.muon import Matrices
from operant.kernels.ops.adam import adam_step
from operant.kernels.ops.reduce import REDUCE_COLUMNS, exchange_partials, reduce_partials, sum_shards
from operant.kernels.warmup import Launcher
from operant.nn import Muon

__all__ = ["Learner", "Spec", "Task"]

LARGE = 2**18
"""Number of parameters above which elementwise kernels use larger tiles."""


class Learner(Launcher, Generic[B, C]):
    """Base of the dense engines: fused kernels of one policy in one tile config, over an algorithm's buffers.
    Subclasses implement `act`, `bootstrap` and `backward`.
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
        # Rows of partial sums, one per chunk: gradient and loss terms.
        self._width = size + TERM_COLUMNS.value
        self._partial = torch.zeros(config.chunks, self._width, device=device)
        self._squares = torch.zeros(size // REDUCE_COLUMNS.value, device=device)
        self.totals, self.corrections = torch.zeros(8, device=device), torch.zeros(2, device=device)
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
        self.work = task.work(self)

    def spare(self) -> Learner[B, C]:
        """Switch this learner to copies of the optimizer's state and the gradient, for measurements; returns self."""
        self.adam = {name: value.clone() for name, value in self.adam.items()}
        self._gradient = self._gradient.clone()
        return self

    def connect(self) -> None:
        """Exchange sums inside the reduction kernel, if the ranks' memory allows it. A collective call of all ranks."""
        self._link = self.task.exchange.link(self._width, self._width // REDUCE_COLUMNS.value)

    def fits(self) -> bool:
        """Whether the GPU has enough shared memory for the network's kernels. Compiles them without a launch."""
        return self._fits_shared(self.policy.device, lambda: self.act(0), lambda: self.backward(0))

    # KERNEL ARGUMENTS

    def _inputs(self) -> Inputs:
        return Inputs(self.buffers.rollout.observation, self._normalizer, self._legal_mask)

    def _bootstrap(self) -> Bootstrap:
        rollout = self.buffers.rollout
        return Bootstrap(
            rollout.observation,
            rollout.final_observation,
            rollout.truncated,
            self._legal_mask,
            self.work.values(),
            self.buffers.final_value,
        )

    def _minibatch(self, k: int) -> Minibatch:
        """Kernel argument of minibatch k, counted over all epochs."""
        layout = self.layout
        first = k * layout.shards * layout.shard_blocks
        return Minibatch(
            self.buffers.order,
            first,
            layout.shard_blocks,
            layout.chunks // layout.shards,
            layout.chunk_blocks,
            layout.all_samples,
        )

    # COLLECT

    def prepare(self) -> None:
        """Copy the normalizer's statistics into the kernels' table, for a rollout and its update."""
        self._features.refresh()

    @property
    def _normalizer(self) -> torch.Tensor:
        return self._features.table

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Act at step t by the algorithm's `sample`: on all lanes, or on a slice of `lanes` if `acts_on_slices`."""
        raise NotImplementedError

    def bootstrap(self, finals: bool) -> None:
        """Write values of the observations after the last step, and with `finals` of the true final observations of
        truncated lanes.
        """
        raise NotImplementedError

    # UPDATE

    def backward(self, k: int) -> None:
        """Compute the partial sums (chunks, width) of minibatch k, counted over all epochs: gradient, then
        loss terms.
        """
        raise NotImplementedError

    def update(self, minibatches: int) -> None:
        """Take one optimizer step per minibatch of the rollout, in the buffers' order over all epochs; `minibatches` is
        their number.
        """
        self.begin()
        for k in range(minibatches):
            self.backward(k)
            self.reduce()
            self.step()
        self.work.finish(minibatches)

    def begin(self) -> None:
        """Compute the rollout's statistics and the learning rate, before an update."""
        self.work.begin()

    def reduce(self) -> None:
        """Reduce partial sums to the gradient and record the loss terms; several ranks exchange their sums here."""
        shards, exchange, grid = self.layout.shards, self.task.exchange, (self._width // REDUCE_COLUMNS.value,)
        partial, rows, ranks = self._partial, self.layout.chunks // shards, exchange.ranks
        if ranks > 1 and self._link is None:
            self.launch(sum_shards, grid, partial, self._width, self._sums, SHARDS=shards, SHARD_ROWS=rows, num_warps=4)
            partial, shards, rows = exchange.gather(self._sums), ranks, 1
        arguments = (partial, self._width, self._gradient, self._squares, self._values, self.work.update())
        options = {"SPEC": self.spec, "RECORD": self.work.record, "SHARDS": shards, "SHARD_ROWS": rows, "num_warps": 4}
        if self._link is None:
            self.launch(reduce_partials, grid, *arguments, **options)
        else:
            self.launch(exchange_partials, grid, *arguments, self._link, RANKS=ranks, **options)

    def step(self) -> None:
        """Take one step of Adam, and of Muon for matrices if configured, with the gradient clipped to its
        maximum norm.
        """
        buffers, coefficients, values, size = self.buffers, self.coefficients, self._values, self._values.numel()
        if self._matrices is not None:  # leaves a zero gradient of the matrices to Adam
            momentum, max_norm = self.adam["momentum"], coefficients.max_gradient_norm
            self._matrices.step(
                self.launch,
                values,
                self._gradient,
                momentum,
                self._squares,
                buffers.skip,
                buffers.learning_rate,
                max_norm,
            )
        moments = Moments(self.adam["exp_avg"], self.adam["exp_avg_sq"], self.corrections)
        # Every program sums all squares: large networks have fewer programs with more threads.
        tile, warps = (256, 4) if size <= LARGE else (1024, 16)
        self.launch(
            adam_step,
            (-(-size // tile),),
            values,
            self._gradient,
            moments,
            self._squares,
            len(self._squares),
            size,
            buffers.skip,
            buffers.learning_rate,
            self.work.norm_sum(),
            coefficients.max_gradient_norm,
            coefficients.adam_epsilon,
            BLOCKS=padded(len(self._squares)),
            BLOCK_SIZE=tile,
            num_warps=warps,
        )

    def over_parameters(self) -> dict[str, int]:
        """Launch options of a one-program kernel over all parameters."""
        return {"TILE": 1024} if self._values.numel() <= LARGE else {"TILE": 8192, "num_warps": 16}

"""Acting on a rollout and learning from it as launches of fused kernels, over the buffers that an algorithm owns. Knows
what is launched when, not how a network runs, and of the algorithm only what `task.Work` says.

Nothing here reads back, or allocates but by torch, once it is made, so that a CUDA graph can hold it. Kernels compile
at their first launch, which must be before a capture.
"""

from __future__ import annotations

import torch

from operant.compute.exchange import Link
from operant.kernels import Spec, TileConfig, padded
from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.dense.task import Task
from operant.kernels.features import Features
from operant.kernels.muon import Matrices
from operant.kernels.ops.adam import adam_step
from operant.kernels.ops.reduce import REDUCE_COLUMNS, exchange_partials, reduce_partials, sum_shards
from operant.kernels.rehearsal import Rehearsed
from operant.kernels.structs import Bootstrap, Inputs, Minibatch, Moments
from operant.nn import Muon

__all__ = ["Learner", "Spec", "Task"]

LARGE = 2**18
"""Parameters above which what goes over all of them takes larger tiles."""


class Learner(Rehearsed):
    """One policy's fused kernels in a tile config. Acting and the gradient are left to `resident.ResidentLearner` and
    `per_layer.PerLayerLearner`.
    """

    config: TileConfig
    acts_on_some = False
    """Whether `act` takes some of the lanes, also while it acts on others in another stream."""

    def __init__(self, spec: Spec, task: Task, config: TileConfig) -> None:
        policy, buffers = task.policy, task.buffers
        self.spec, self.task, self.config, self.policy, self.buffers, self.coefficients = (
            spec,
            task,
            config,
            policy,
            buffers,
            task.coefficients,
        )
        self.layout = task.layout._replace(chunks=config.chunks)
        self._steps, self._lanes = buffers.rollout.reward.shape
        self._stride = self._steps * self._lanes
        self.adam = task.optimizer.tensors()
        self._values, self._gradient = policy.flat.values.data, policy.flat.gradient
        device, size = policy.device, self._values.numel()
        # Rows of partial sums, one a chunk.
        self._width = size + TERM_COLUMNS.value
        self._partial = torch.zeros(config.chunks, self._width, device=device)
        self._squares = torch.zeros(size // REDUCE_COLUMNS.value, device=device)
        self.totals, self.corrections = torch.zeros(8, device=device), torch.zeros(2, device=device)
        # What the kernels read of the policy beside its parameters.
        self._features = Features(policy, self.totals)
        # or bytes that nothing reads
        self._legal_mask = buffers.rollout.legal if self.spec.legal else buffers.rollout.truncated
        # Where several ranks share the samples: this one's sums, and what the kernels of all exchange them through.
        self._link: Link | None = None
        self._sums = torch.zeros(1, self._width, device=device)
        half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        self._matrices = (
            Matrices(task.optimizer.matrices, device, half=half) if isinstance(task.optimizer, Muon) else None
        )
        self.work = task.work(self)

    def spare(self) -> Learner:
        """The same learner, which from now on works on copies of the optimizer's state and the policy's gradient: to
        measure with.
        """
        self.adam = {name: value.clone() for name, value in self.adam.items()}
        self._gradient = self._gradient.clone()
        return self

    def connect(self) -> None:
        """Exchange sums inside the reduction, where the ranks' memory allows it. All ranks call it together, each for
        its learner.
        """
        self._link = self.task.exchange.link(self._width, self._width // REDUCE_COLUMNS.value)

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that programs of the network's kernels ask for. Compiles them, and
        launches nothing.
        """
        return self._has_room(self.policy.device, lambda: self.act(0), lambda: self.backward(0))

    # WHAT KERNELS TAKE

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
        """Minibatch k of all epochs', in its chunks."""
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
        """Take the normalizer as it is for a rollout and its update."""
        self._features.refresh()

    @property
    def _normalizer(self) -> torch.Tensor:
        return self._features.table

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, and what else the algorithm's `sample` writes, of step t: of all lanes, or where it `acts_on_some`
        of these.
        """
        raise NotImplementedError

    def bootstrap(self, finals: bool) -> None:
        """V of the observation after the last step, and with `finals` of the true final observations of truncated
        episodes.
        """
        raise NotImplementedError

    # UPDATE

    def backward(self, k: int) -> None:
        """The gradient of minibatch k's loss as rows of partial sums (chunks, width), each with the loss's terms behind
        it.
        """
        raise NotImplementedError

    def update(self, minibatches: int) -> None:
        """So many minibatches of the rollout in the buffers' order, epoch after epoch, and the update's numbers."""
        self.begin()
        for k in range(minibatches):
            self.backward(k)
            self.reduce()
            self.step()
        self.work.finish(minibatches)

    def begin(self) -> None:
        """What an update needs to know of the whole rollout, and its learning rate."""
        self.work.begin()

    def reduce(self) -> None:
        """The gradient from its rows of partial sums, and the update's numbers; of several ranks the place where they
        exchange their sums.
        """
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
        """One step of Adam down the gradient, shortened where it is too long; of matrices, where Muon is asked for, one
        of Muon.
        """
        buffers, coefficients, values, size = self.buffers, self.coefficients, self._values, self._values.numel()
        if self._matrices is not None:  # Adam then finds no gradient of theirs
            momentum, most_norm = self.adam["momentum"], coefficients.max_gradient_norm
            self._matrices.step(
                self.launch,
                values,
                self._gradient,
                momentum,
                self._squares,
                buffers.skip,
                buffers.learning_rate,
                most_norm,
            )
        moments = Moments(self.adam["exp_avg"], self.adam["exp_avg_sq"], self.corrections)
        # Every program adds the squares up for itself: of a large network few programs do, by many threads.
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
        """Options of a kernel of one program that goes over all parameters."""
        return {"TILE": 1024} if self._values.numel() <= LARGE else {"TILE": 8192, "num_warps": 16}

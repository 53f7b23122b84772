"""Common part of both engines: buffers of acting, batch and replay, and their launches.

Nothing allocates or reads back after construction, so a CUDA graph can hold an iteration. Kernels compile at their
first launch, which must come before a capture.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from operant.kernels.actor_critic.buffers import ActBuffers, OptimizerState, Scratch, Temperature
from operant.kernels.actor_critic.spec import TILE, ActorCriticSpec
from operant.kernels.actor_critic.task import ActorCriticTask, StochasticActor
from operant.kernels.ops.replay import BatchArguments, BatchBuffers, ReplayBuffers, ReplaySpec, RolloutBuffers
from operant.kernels.ops.replay import sample as sample_kernel
from operant.kernels.ops.replay import store as store_kernel
from operant.kernels.warmup import Launcher

SAMPLE_WARPS, WARP_COLUMNS = 2, 64
"""Warps of a program that samples or stores, measured on an H200 with up to 128 columns; columns of a warp beyond."""


class ActorCriticEngine(Launcher):
    """Base of both engines of SAC and TD3: the buffers of one algorithm and the launches of its fused kernels.
    Implements `operant.algos.base.Engine`.
    """

    shape: ActorCriticSpec
    _batch: BatchBuffers

    def __init__(self, shape: ActorCriticSpec, task: ActorCriticTask) -> None:
        self.shape, self.task, self.cycle = shape, task, task.cycle
        self._device, self._lanes = task.actor.device, task.cycle.world.count
        self._normalizer = self._zeros(2, shape.observation)
        self._replay, self._replay_spec = self._replay_buffers()
        self._sampled: tuple[int, int] | None = None  # ticks and number of the update whose batch is sampled

    # BUFFERS

    def _zeros(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Allocate a tensor of zeros of this size on the engine's device."""
        return torch.zeros(size, dtype=dtype, device=self._device)

    def _scratch(self) -> Scratch:
        """Allocate the intermediate results of an update."""
        B, C, G = self.shape.batch, self.shape.columns, self.shape.critic.towers
        sizes = ((G, B), (B,), (G, B), (G, B), (G, B, C), (B, C), (B, C), (B, C), (B,))
        return Scratch(*(self._zeros(*size) for size in sizes))

    def _optimizers(self) -> tuple[OptimizerState, OptimizerState]:
        """Return the states of the actor's and of the critics' optimizer."""
        config, kind, skip = self.task.config, self.task.kind, self.task.cycle.skip
        constants = (
            (kind.target_entropy, 0.0, 0.0) if isinstance(kind, StochasticActor) else (0.0, kind.noise, kind.noise_clip)
        )
        scalars = torch.tensor([config.adam_epsilon, config.tau, *constants], device=self._device)
        actor, critic = (
            OptimizerState(adam.tensors()["step"], self._zeros(2), skip, adam.learning_rate, scalars)
            for adam in (self.task.actor_adam, self.task.critic_adam)
        )
        return actor, critic

    def _temperature_buffers(self, squares: int) -> Temperature:
        """Return the temperature with its optimizer's state; zeros if the actor is deterministic or the temperature
        fixed. `squares` is the number of partial sums of the gradient's squares.
        """
        kind = self.task.kind
        log_alpha, adam = self._zeros(1), {name: self._zeros(1) for name in ("step", "exp_avg", "exp_avg_sq")}
        if isinstance(kind, StochasticActor):
            log_alpha = kind.log_temperature
            if kind.adam is not None:
                adam = kind.adam.tensors()
        return Temperature(
            log_alpha,
            adam["exp_avg"],
            adam["exp_avg_sq"],
            adam["step"],
            self._zeros(2),
            self.task.cycle.skip,
            self._zeros(squares),
            self.task.totals,
        )

    def _batch_buffers(self, inputs: Tensor, next_inputs: Tensor) -> BatchBuffers:
        """Return the buffers of a batch around `inputs` and `next_inputs`, inputs of the critics' first layer at the
        sampled and at the next observation, (B, columns) each.
        """
        B = self.shape.batch
        noise = self._zeros(len(self.cycle.replay.batch.noise), B)
        return BatchBuffers(inputs, next_inputs, self._zeros(B), self._zeros(B), noise)

    def _act_buffers(self) -> ActBuffers:
        """Return the inputs and outputs of acting over an iteration."""
        actor, cycle, kind = self.task.squashed, self.cycle, self.task.kind
        return ActBuffers(
            cycle.rollout.observation,
            self._normalizer,
            cycle.collector.noise,
            self._zeros(1) if isinstance(kind, StochasticActor) else kind.exploration,
            cycle.warming,
            actor.action_center,
            actor.action_scale,
            cycle.action,
            cycle.rollout.action,
        )

    def _replay_buffers(self) -> tuple[ReplayBuffers, ReplaySpec]:
        """Return the replay's ring with the rollout that is stored in it, and the compile-time constants of its
        kernels.
        """
        shape, cycle, replay, rollout = self.shape, self.cycle, self.cycle.replay, self.cycle.rollout
        ring, truncates = replay.ring, cycle.world.can_truncate
        final = rollout.final_observation if truncates else rollout.observation
        ticks = RolloutBuffers(
            rollout.observation, final, cycle.action, rollout.reward, rollout.terminated, rollout.truncated
        )
        buffers = ReplayBuffers(
            ring.observation,
            ring.final,
            ring.action,
            ring.reward,
            ring.terminated,
            ring.truncated,
            ring.ticks,
            ring.updates,
            ring.seed,
            self._normalizer,
            ticks,
        )
        return buffers, ReplaySpec(
            shape.batch,
            replay.shards,
            replay.n_step,
            len(replay.batch.noise),
            truncates,
            shape.observation,
            ring.observation.shape[2],
            shape.action,
            shape.columns,
            shape.normalized,
        )

    def _arguments(self, ticks: int, number: int) -> BatchArguments:
        """Return the scalars of update `number` of the iteration, which samples after `ticks` of its ticks (vectorised
        steps) are stored.
        """
        replay = self.cycle.replay
        return BatchArguments(
            ticks,
            number,
            self._lanes,
            replay.ticks_stored,
            len(replay.ring.final),
            replay.ring.window,
            float(replay.gamma),
        )

    # LAUNCHES

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that the kernels' programs need. Compiles them, and launches
        nothing.
        """
        updates = [partial(self.update, 1, number) for number in (0, self.task.config.actor_delay - 1)]
        return self._fits_shared(self._device, self.prepare, lambda: self.act(0), lambda: self.store(0), *updates)

    def sample(self, ticks: int, number: int) -> None:
        """Sample the batch of update `number` of the iteration, after `ticks` of its ticks are stored."""
        self.launch(
            sample_kernel,
            (self.shape.batch // TILE,),
            self._replay,
            self._batch,
            self._arguments(ticks, number),
            REPLAY=self._replay_spec,
            BLOCK_M=TILE,
            num_warps=max(SAMPLE_WARPS, self.shape.columns // WARP_COLUMNS),
        )

    def store(self, t: int) -> None:
        """Store tick t (vectorised step) of the iteration in the replay."""
        self.launch(
            store_kernel,
            (-(-self._lanes // TILE),),
            self._replay,
            self._arguments(t + 1, 0),
            REPLAY=self._replay_spec,
            BLOCK_M=TILE,
            num_warps=max(SAMPLE_WARPS, self.shape.columns // WARP_COLUMNS),
        )

    def prepare(self) -> None:
        """Prepare an iteration: read the observation normalizer as it is."""
        self._sampled = None
        normalizer = self.task.actor.features.normalizer
        if normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self._normalizer)

    def act(self, t: int) -> None:
        """Choose the actions of tick t (vectorised step) of the iteration."""
        raise NotImplementedError

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch: update `number` of the iteration, after `ticks` of its ticks are stored."""
        raise NotImplementedError

    def complete_update(self, ticks: int) -> int:
        """Return 0: no update is in progress after acting."""
        return 0

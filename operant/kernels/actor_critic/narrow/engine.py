"""Engine for narrow networks: launches of acting and of an update."""

from __future__ import annotations

import torch

from operant.kernels.actor_critic.buffers import PackedWeights, SavedLayers, parameters_of
from operant.kernels.actor_critic.engine import ActorCriticEngine
from operant.kernels.actor_critic.narrow.act import act
from operant.kernels.actor_critic.narrow.gradients import action_gradient, actor_gradient, evaluate
from operant.kernels.actor_critic.narrow.optimizer import finish, pack_network, step
from operant.kernels.actor_critic.narrow.spec import NarrowSpec, Net
from operant.kernels.actor_critic.spec import TILE
from operant.kernels.actor_critic.task import ActorCriticTask, StochasticActor

WARPS, STEP_WARPS = 8, 4
"""Warps of a program that runs networks, and of one that steps a weight block; measured on an H200."""

FEW_LANES, MANY_LANES_TILE = 4096, 64
"""Lanes up to which acting uses tiles of TILE lanes, and the tile beyond."""


class NarrowEngine(ActorCriticEngine):
    """Engine of SAC and TD3 for networks of up to 256 units: a program runs a whole network over a tile of samples."""

    shape: NarrowSpec

    def __init__(self, shape: NarrowSpec, task: ActorCriticTask) -> None:
        super().__init__(shape, task)
        B, C, G = shape.batch, shape.columns, shape.critic.towers

        # Parameters, their packed copies, and what the weights' gradients read.
        self._actor = parameters_of(task.actor_adam.tensors(), task.actor.flat.values.data)
        self._critic = parameters_of(task.critic_adam.tensors(), task.critic.values.data)
        self._target = self._critic._replace(vector=task.target.values.data)
        self._actor_pack, self._critic_pack, self._target_pack = (
            self._allocate_pack(net) for net in (shape.actor, shape.critic, shape.critic)
        )
        # The actor at the next observations: SAC's own, TD3's target.
        self._next_actor, self._next_pack = self._actor, self._actor_pack
        if not isinstance(task.kind, StochasticActor):
            self._next_actor = self._actor._replace(vector=task.kind.target.values.data)
            self._next_pack = self._allocate_pack(shape.actor)
        self._actor_layers, self._critic_layers = (
            self._allocate_layers(shape.actor),
            self._allocate_layers(shape.critic),
        )
        # dQ / dQ = 1 in the critics' outputs.
        head = shape.critic.layers[-1]
        self._critic_layers.grad_z[head.grad_z :].view(G, B, head.rows_pad)[:, :, 0] = 1.0
        self._scratch_buffers = self._scratch()
        self._actor_optimizer, self._critic_optimizer = self._optimizers()
        self._temperature = self._temperature_buffers(shape.squares)
        self._batch = self._batch_buffers(self._zeros(B, C), self._zeros(B, C))
        self._acting = self._act_buffers()
        self._deferred_tick: int | None = None  # stored by the next update

    def _allocate_pack(self, net: Net) -> PackedWeights:
        """Allocate the packed weights of a network."""
        dtype = torch.bfloat16 if self.shape.precision == "bf16" else torch.float32
        single = self._zeros(net.towers * net.single)
        return PackedWeights(single, self._zeros(max(1, net.towers * net.packed), dtype=dtype))

    def _allocate_layers(self, net: Net) -> SavedLayers:
        """Allocate the saved operands of a network's backward pass."""
        dtype, rows = torch.bfloat16 if self.shape.precision == "bf16" else torch.float32, net.towers * self.shape.batch
        hidden = sum(layer.columns_pad for layer in net.layers[1:])
        grad_z = sum(layer.rows_pad for layer in net.layers)
        return SavedLayers(self._zeros(rows * hidden, dtype=dtype), self._zeros(rows * grad_z, dtype=dtype))

    # ACT

    def prepare(self) -> None:
        """Prepare an iteration: read the normalizer and pack all parameters."""
        super().prepare()
        shape = self.shape
        packs = [
            (self._actor, self._actor_pack, shape.actor),
            (self._critic, self._critic_pack, shape.critic),
            (self._target, self._target_pack, shape.critic),
        ]
        if not shape.stochastic:
            packs.append((self._next_actor, self._next_pack, shape.actor))
        for parameters, pack, net in packs:
            self.launch(
                pack_network,
                (net.programs, net.towers),
                parameters,
                pack,
                SPEC=shape,
                NET=net,
                IS_ACTOR=net is shape.actor,
                num_warps=STEP_WARPS,
            )

    def act(self, t: int) -> None:
        """Choose the actions of tick t (vectorised step) and, in the same launch, sample the batch of the first update
        after it.
        """
        block_m = TILE if self._lanes <= FEW_LANES else MANY_LANES_TILE
        tiles, due = -(-self._lanes // block_m), self.cycle.config.due(t)
        self._sampled = (t + 1, due[0]) if due else None
        self.launch(
            act,
            (tiles + (self.shape.batch // TILE if due else 0),),
            self._acting,
            self._actor_pack,
            t,
            self._lanes,
            tiles,
            self._replay,
            self._batch,
            self._arguments(t + 1, due[0] if due else 0),
            SPEC=self.shape,
            REPLAY=self._replay_spec,
            BLOCK_M=block_m,
            SAMPLE_BLOCK_M=TILE,
            num_warps=WARPS,
        )

    def store(self, t: int) -> None:
        """Store tick t of the iteration in the replay: at once, or in the first launch of the update that follows."""
        if self.cycle.config.due(t):
            self._deferred_tick = t
        else:
            super().store(t)

    # LEARN

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch: update `number` of the iteration, after `ticks` of its ticks (vectorised steps) are
        stored.
        """
        if self._sampled != (ticks, number):
            self.sample(ticks, number)
        self._sampled = None
        update_actor, stochastic = self.task.config.actor_learns(number), self.shape.stochastic
        self.evaluate(update_actor=update_actor)
        self.step_critics(move_targets=update_actor or stochastic)
        if update_actor:
            self.action_gradient()
            self.actor_gradient()
            self.step_actor()
        if not (update_actor and stochastic):
            self.launch(
                finish,
                (1,),
                self._batch,
                self._scratch_buffers,
                self._temperature,
                self._actor_optimizer,
                SPEC=self.shape,
                UPDATE_ACTOR=update_actor,
                num_warps=STEP_WARPS,
            )

    def evaluate(self, *, update_actor: bool = True) -> None:
        """Run all networks on the batch, count the optimizers' steps, and store the tick that `store` deferred.
        `update_actor`: the actor learns in this update.
        """
        shape, tick = self.shape, self._deferred_tick
        self._deferred_tick = None
        self.launch(
            evaluate,
            (shape.batch // TILE, 2 * shape.critic.towers + (1 if tick is None else 2)),
            self._batch,
            self._actor_pack,
            self._next_pack,
            self._critic_pack,
            self._target_pack,
            self._scratch_buffers,
            self._actor_layers,
            self._critic_layers,
            self._critic_optimizer,
            self._actor_optimizer,
            self._temperature,
            self._replay,
            self._arguments((tick or 0) + 1, 0),
            SPEC=shape,
            REPLAY=self._replay_spec,
            UPDATE_ACTOR=update_actor,
            STORE=tick is not None,
            BLOCK_M=TILE,
            num_warps=WARPS,
        )

    def step_critics(self, *, move_targets: bool = True) -> None:
        """Compute the critics' gradient and step them; with `move_targets` also their targets, by Polyak averaging."""
        shape, net = self.shape, self.shape.critic
        self.launch(
            step,
            (net.programs, net.towers),
            self._batch,
            self._scratch_buffers,
            self._critic_layers,
            self._critic,
            self._target,
            self._critic_pack,
            self._target_pack,
            self._temperature,
            self._critic_optimizer,
            SPEC=shape,
            NET=net,
            IS_ACTOR=False,
            TARGET=move_targets,
            num_warps=STEP_WARPS,
        )

    def action_gradient(self) -> None:
        """Compute Q and dQ / da at the actor's actions: of all critics for SAC, of the first for TD3."""
        grid = (self.shape.batch // TILE, self.shape.critic.towers if self.shape.stochastic else 1)
        self.launch(
            action_gradient,
            grid,
            self._batch,
            self._critic_pack,
            self._scratch_buffers,
            SPEC=self.shape,
            BLOCK_M=TILE,
            num_warps=WARPS,
        )

    def actor_gradient(self) -> None:
        """Compute the gradients of the actor's loss in its pre-activations."""
        self.launch(
            actor_gradient,
            (self.shape.batch // TILE,),
            self._actor_pack,
            self._scratch_buffers,
            self._actor_layers,
            self._temperature,
            SPEC=self.shape,
            BLOCK_M=TILE,
            num_warps=WARPS,
        )

    def step_actor(self) -> None:
        """Compute the actor's gradient and step it; for SAC also the statistics and the temperature, for TD3 the target
        actor.
        """
        shape, net = self.shape, self.shape.actor
        self.launch(
            step,
            (net.programs + (1 if shape.stochastic else 0), 1),
            self._batch,
            self._scratch_buffers,
            self._actor_layers,
            self._actor,
            self._next_actor,
            self._actor_pack,
            self._next_pack,
            self._temperature,
            self._actor_optimizer,
            SPEC=shape,
            NET=net,
            IS_ACTOR=True,
            TARGET=not shape.stochastic,
            num_warps=STEP_WARPS,
        )

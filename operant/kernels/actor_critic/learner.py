"""An actor-critic's acting and learning as launches of fused kernels, over the buffers that an algorithm owns. Knows
what is launched when, not how it runs.

Nothing here allocates or reads back once it is made, so that a CUDA graph can hold it. Kernels compile at their first
launch, which must be before a capture.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from operant.kernels.actor_critic.acting import Acting, act
from operant.kernels.actor_critic.buffers import Layers, Pack, Temperature, Update, Work, flat_of
from operant.kernels.actor_critic.gradients import evaluate, improve, judge
from operant.kernels.actor_critic.shape import TILE, Net, Shape
from operant.kernels.actor_critic.steps import account, pack_network, step
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.kernels.rehearsal import Rehearsed
from operant.kernels.replay import Draw, Numbers, Sampled, Stored, Ticked, sample, store

WARPS, STEP_WARPS, SAMPLE_WARPS = 8, 4, 2
"""Of a program that runs networks, of one that steps a block of weights, and of one that samples, as measured on an
H200.
"""

FEW_LANES, MANY_LANES_TILE = 4096, 64
"""Lanes up to which acting takes small tiles, and the tile of more."""


class Learner(Rehearsed):
    """One algorithm's fused kernels."""

    def __init__(self, shape: Shape, task: Task) -> None:
        self.shape, self.task, self.cycle = shape, task, task.cycle
        self._device = task.actor.device
        self._lanes = task.cycle.world.count
        B, C, G = shape.batch, shape.columns, shape.critic.towers

        # Parameters, their packed copies, and what they learn from.
        stochastic = task.kind if isinstance(task.kind, Stochastic) else None
        deterministic = None if isinstance(task.kind, Stochastic) else task.kind
        self._actor = flat_of(task.actor_adam.tensors(), task.actor.flat.values.data)
        self._critic = flat_of(task.critic_adam.tensors(), task.critic.values.data)
        self._target = self._critic._replace(parameters=task.target.values.data)
        self._actor_pack, self._critic_pack, self._target_pack = (
            self._pack(net) for net in (shape.actor, shape.critic, shape.critic)
        )
        # Who acts at the next observations: the actor, or where it takes its means a target of it.
        self._next_actor = (
            self._actor if deterministic is None else self._actor._replace(parameters=deterministic.target.values.data)
        )
        self._next_pack = self._actor_pack if deterministic is None else self._pack(shape.actor)
        self._actor_layers, self._critic_layers = self._layers(shape.actor), self._layers(shape.critic)
        # A critic's output is its value, so the gradient in it is one.
        head = shape.critic.layers[-1]
        self._critic_layers.gradient[head.gradient :].view(G, B, head.rows_pad)[:, :, 0] = 1.0
        self._work = Work(
            *(self._zeros(*size) for size in ((G, B), (B,), (G, B), (G, B), (G, B, C), (B, C), (B, C), (B, C), (B,)))
        )

        # What the steps ask for.
        config, skip, unused = task.config, task.cycle.skip, self._zeros(1)
        entropy = 0.0 if stochastic is None else stochastic.target_entropy
        numbers = (
            (entropy, 0.0, 0.0) if deterministic is None else (entropy, deterministic.noise, deterministic.noise_clip)
        )
        scalars = torch.tensor([config.adam_epsilon, config.tau, *numbers], device=self._device)
        self._updates = tuple(
            Update(adam.tensors()["step"], self._zeros(2), skip, adam.learning_rate, scalars)
            for adam in (task.actor_adam, task.critic_adam)
        )
        own = dict.fromkeys(("step", "exp_avg", "exp_avg_sq"), unused)
        if stochastic is not None and stochastic.adam is not None:
            own = stochastic.adam.tensors()
        log_temperature = unused if stochastic is None else stochastic.log_temperature
        self._temperature = Temperature(
            log_temperature,
            own["exp_avg"],
            own["exp_avg_sq"],
            own["step"],
            self._zeros(2),
            skip,
            self._zeros(shape.squares),
            task.totals,
        )
        self._exploration = unused if deterministic is None else deterministic.exploration

        # Acting and the replay.
        self._normalizer = self._zeros(2, shape.observation)
        self._batch = self._sampled(self._zeros(B, C), self._zeros(B, C))
        self._stored, self._draw = self._replay()
        self._acting = self._acts(self._exploration)
        self._made: tuple[int, int] | None = None  # ticks and number of the update whose batch has been made
        self._put_off: int | None = None  # the tick that the next update stores

    def _sampled(self, seen: Tensor, following: Tensor) -> Sampled:
        """Buffers of a batch, around those of its observations (B, columns)."""
        B = self.shape.batch
        return Sampled(
            seen, following, self._zeros(B), self._zeros(B), self._zeros(len(self.cycle.replay.batch.noise), B)
        )

    def _acts(self, exploration: Tensor) -> Acting:
        """What acting reads and writes."""
        actor, cycle = self.task.squashed, self.cycle
        return Acting(
            cycle.rollout.observation,
            self._normalizer,
            cycle.collector.noise,
            exploration,
            cycle.warming,
            actor.action_center,
            actor.action_scale,
            cycle.action,
            cycle.rollout.action,
        )

    def _replay(self) -> tuple[Stored, Draw]:
        """What the replay's kernels read and write, and what they are compiled for."""
        shape, cycle, replay, rollout = self.shape, self.cycle, self.cycle.replay, self.cycle.rollout
        ring, ends = replay.ring, cycle.world.can_truncate
        final = rollout.final_observation if ends else rollout.observation
        ticked = Ticked(rollout.observation, final, cycle.action, rollout.reward, rollout.terminated, rollout.truncated)
        stored = Stored(
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
            ticked,
        )
        return stored, Draw(
            shape.batch,
            replay.shards,
            replay.n_step,
            len(replay.batch.noise),
            ends,
            shape.observation,
            ring.observation.shape[2],
            shape.action,
            shape.columns,
            shape.normalized,
        )

    def _zeros(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self._device)

    def _pack(self, net: Net) -> Pack:
        kind = torch.bfloat16 if self.shape.precision == "bf16" else torch.float32
        return Pack(self._zeros(net.towers * net.single), self._zeros(max(1, net.towers * net.packed), dtype=kind))

    def _layers(self, net: Net) -> Layers:
        kind, rows = torch.bfloat16 if self.shape.precision == "bf16" else torch.float32, net.towers * self.shape.batch
        hidden, gradient = (
            sum(layer.columns_pad for layer in net.layers[1:]),
            sum(layer.rows_pad for layer in net.layers),
        )
        return Layers(self._zeros(rows * hidden, dtype=kind), self._zeros(rows * gradient, dtype=kind))

    def fits(self) -> bool:
        """Whether a GPU has the shared memory that programs ask for. Compiles them, and launches nothing."""
        updates = [
            partial(self.update, 1, number) for number in (0, self.task.config.actor_delay - 1)
        ]  # without the actor and with it
        return self._has_room(self._device, self.prepare, lambda: self.act(0), lambda: self.store(0), *updates)

    # ACT

    def prepare(self) -> None:
        """Take parameters and normalizer as they are, for an iteration."""
        shape, normalizer = self.shape, self.task.actor.features.normalizer
        if normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self._normalizer)
        packs = [
            (self._actor, self._actor_pack, shape.actor),
            (self._critic, self._critic_pack, shape.critic),
            (self._target, self._target_pack, shape.critic),
        ]
        if not shape.stochastic:
            packs.append((self._next_actor, self._next_pack, shape.actor))
        for flat, pack, net in packs:
            self.launch(
                pack_network,
                (net.programs, net.towers),
                flat,
                pack,
                SPEC=shape,
                NET=net,
                POLICY=net is shape.actor,
                num_warps=STEP_WARPS,
            )

    def act(self, t: int) -> None:
        """Actions of tick t, and beside them the batch of the first update that is due after it."""
        rows = TILE if self._lanes <= FEW_LANES else MANY_LANES_TILE
        tiles, due = -(-self._lanes // rows), self.cycle.config.due(t)
        self._made = (t + 1, due[0]) if due else None
        self.launch(
            act,
            (tiles + (self.shape.batch // TILE if due else 0),),
            self._acting,
            self._actor_pack,
            t,
            self._lanes,
            tiles,
            self._stored,
            self._batch,
            self._numbers(t + 1, due[0] if due else 0),
            SPEC=self.shape,
            DRAW=self._draw,
            ROWS=rows,
            BATCH_ROWS=TILE,
            num_warps=WARPS,
        )

    # LEARN

    def store(self, t: int) -> None:
        """Store tick t in the replay: at once, or beside the first part of the update that follows."""
        if self.cycle.config.due(t):
            self._put_off = t
        else:
            self._store(t)

    def _store(self, t: int) -> None:
        """Store tick t at once."""
        programs = -(-self._lanes // TILE)
        self.launch(
            store,
            (programs,),
            self._stored,
            self._numbers(t + 1, 0),
            DRAW=self._draw,
            ROWS=TILE,
            num_warps=SAMPLE_WARPS,
        )

    def update(self, ticks: int, number: int) -> None:
        """Take a batch, of a replay with so many of the iteration's ticks, and learn from it."""
        if self._made != (ticks, number):
            self.sample(ticks, number)
        self._made = None
        due, stochastic = self.task.config.actor_learns(number), self.shape.stochastic
        self.evaluate(due=due)
        self.step_critics(follow=due or stochastic)
        if due:
            self.judge()
            self.improve()
            self.step_actor()
        if not (due and stochastic):
            self.launch(
                account,
                (1,),
                self._batch,
                self._work,
                self._temperature,
                self._updates[0],
                SPEC=self.shape,
                DUE=due,
                num_warps=STEP_WARPS,
            )

    def sample(self, ticks: int, number: int) -> None:
        """The batch of update `number` of the iteration."""
        numbers = self._numbers(ticks, number)
        self.launch(
            sample,
            (self.shape.batch // TILE,),
            self._stored,
            self._batch,
            numbers,
            DRAW=self._draw,
            ROWS=TILE,
            num_warps=SAMPLE_WARPS,
        )

    def _numbers(self, ticks: int, number: int) -> Numbers:
        replay = self.cycle.replay
        return Numbers(
            ticks,
            number,
            self._lanes,
            replay.ticks_stored,
            len(replay.ring.final),
            replay.ring.window,
            float(replay.gamma),
        )

    def evaluate(self, *, due: bool = True) -> None:
        """All that the update needs of the networks as they are; counts steps, and stores the tick that was put off.
        `due`: the actor learns, too.
        """
        shape, (actor, critic), late = self.shape, self._updates, self._put_off
        self._put_off = None
        self.launch(
            evaluate,
            (shape.batch // TILE, 2 * shape.critic.towers + (1 if late is None else 2)),
            self._batch,
            self._actor_pack,
            self._next_pack,
            self._critic_pack,
            self._target_pack,
            self._work,
            self._actor_layers,
            self._critic_layers,
            critic,
            actor,
            self._temperature,
            self._stored,
            self._numbers((late or 0) + 1, 0),
            SPEC=shape,
            DRAW=self._draw,
            DUE=due,
            STORE=late is not None,
            ROWS=TILE,
            num_warps=WARPS,
        )

    def step_critics(self, *, follow: bool = True) -> None:
        """The critics' gradient and step; with `follow` their targets' after it."""
        shape, net = self.shape, self.shape.critic
        self.launch(
            step,
            (net.programs, net.towers),
            self._batch,
            self._work,
            self._critic_layers,
            self._critic,
            self._target,
            self._critic_pack,
            self._target_pack,
            self._temperature,
            self._updates[1],
            SPEC=shape,
            NET=net,
            POLICY=False,
            TARGET=follow,
            num_warps=STEP_WARPS,
        )

    def judge(self) -> None:
        """What the critics say of the actor's actions; only the first of them, where the actor takes its means."""
        grid = (self.shape.batch // TILE, self.shape.critic.towers if self.shape.stochastic else 1)
        self.launch(
            judge, grid, self._batch, self._critic_pack, self._work, SPEC=self.shape, ROWS=TILE, num_warps=WARPS
        )

    def improve(self) -> None:
        """The gradients of the actor's layers."""
        arguments = self._actor_pack, self._work, self._actor_layers, self._temperature
        self.launch(improve, (self.shape.batch // TILE,), *arguments, SPEC=self.shape, ROWS=TILE, num_warps=WARPS)

    def step_actor(self) -> None:
        """The actor's gradient and step; then the temperature's and the update's numbers, or the target actor's."""
        shape, net = self.shape, self.shape.actor
        self.launch(
            step,
            (net.programs + (1 if shape.stochastic else 0), 1),
            self._batch,
            self._work,
            self._actor_layers,
            self._actor,
            self._next_actor,
            self._actor_pack,
            self._next_pack,
            self._temperature,
            self._updates[0],
            SPEC=shape,
            NET=net,
            POLICY=True,
            TARGET=not shape.stochastic,
            num_warps=STEP_WARPS,
        )

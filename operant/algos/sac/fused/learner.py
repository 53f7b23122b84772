"""SAC's acting and learning as launches of fused kernels, over the buffers that the algorithm owns. Knows what is launched when, not how a network runs.

Nothing here allocates or reads back once it is made, so that a CUDA graph can hold it. Kernels compile at their first launch, which must be before a capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from triton.runtime import driver

from operant.algos.sac.fused.acting import Acting, act
from operant.algos.sac.fused.buffers import Flat, Layers, Pack, Temperature, Update, Work
from operant.algos.sac.fused.gradients import evaluate, improve, judge
from operant.algos.sac.fused.shape import TILE, Net, Shape
from operant.algos.sac.fused.steps import pack_network, step
from operant.kernels.replay import Draw, Numbers, Sampled, Stored, Ticked, sample, store
from operant.nn import Adam

if TYPE_CHECKING:
    from operant.algos.sac.parts import Parts

WARPS, STEP_WARPS, SAMPLE_WARPS = 8, 4, 2
"""Of a program that runs networks, of one that steps a block of weights, and of one that samples, as measured on an H200."""

FEW_LANES, MANY_LANES_TILE = 4096, 64
"""Lanes up to which acting takes small tiles, and the tile of more."""


class Learner:
    """One algorithm's fused kernels."""

    def __init__(self, shape: Shape, parts: Parts, totals: Tensor) -> None:
        """`totals`: sums over an iteration's updates, in the order of `Terms`, to which the kernels add."""
        self.shape, self.parts, self.cycle = shape, parts, parts.cycle
        self._asked: int | None = None  # in a rehearsal the most shared memory that a kernel has asked for
        self._device = parts.actor.device
        self._lanes = parts.cycle.world.count
        B, C, G = shape.batch, shape.columns, shape.critic.towers

        # Parameters, their packed copies, and what they learn from.
        self._actor = _flat(parts.actor_adam, parts.actor.flat.values.data, parts.actor.flat.gradient)
        self._critic = _flat(parts.critic_adam, parts.critic_flat.values.data, parts.critic_flat.gradient)
        self._target = self._critic._replace(parameters=parts.target_flat.values.data)
        self._actor_pack, self._critic_pack, self._target_pack = (self._pack(net) for net in (shape.actor, shape.critic, shape.critic))
        self._actor_layers, self._critic_layers = self._layers(shape.actor), self._layers(shape.critic)
        # A critic's output is its value, so the gradient in it is one.
        head = shape.critic.layers[-1]
        self._critic_layers.gradient[head.gradient :].view(G, B, head.rows_pad)[:, :, 0] = 1.0
        self._work = Work(*(self._zeros(*size) for size in ((G, B), (B,), (G, B), (G, B), (G, B, C), (B, C), (B, C), (B, C), (B,))))

        # What the steps ask for.
        config, skip = parts.config, parts.cycle.skip
        scalars = torch.tensor([config.adam_epsilon, config.tau, parts.target_entropy], device=self._device)
        self._updates = tuple(
            Update(adam.tensors()["step"], self._zeros(2), skip, adam.learning_rate, scalars) for adam in (parts.actor_adam, parts.critic_adam)
        )
        unused = self._zeros(1)
        own = parts.temperature_adam.tensors() if parts.temperature_adam is not None else {name: unused for name in ("step", "exp_avg", "exp_avg_sq")}
        self._temperature = Temperature(
            parts.log_temperature, own["exp_avg"], own["exp_avg_sq"], own["step"], self._zeros(2), skip, self._zeros(shape.squares), totals,
        )  # fmt: skip

        # Acting and the replay.
        actor, cycle = parts.squashed, parts.cycle
        self._normalizer = self._zeros(2, shape.observation)
        self._batch = Sampled(self._zeros(B, C), self._zeros(B, C), self._zeros(B), self._zeros(B), self._zeros(4 * shape.action, B))
        self._stored, self._draw = self._replay()
        self._acting = Acting(
            cycle.rollout.observation, self._normalizer, cycle.collector.noise, cycle.warming, actor.centre, actor.reach, cycle.action, cycle.rollout.action,
        )  # fmt: skip
        self._made: tuple[int, int] | None = None  # ticks and number of the update whose batch has been made
        self._put_off: int | None = None  # the tick that the next update stores

    def _replay(self) -> tuple[Stored, Draw]:
        """What the replay's kernels read and write, and what they are compiled for."""
        shape, cycle, replay, rollout = self.shape, self.cycle, self.cycle.replay, self.cycle.rollout
        ring, ends = replay.ring, cycle.world.can_truncate
        final = rollout.final_observation if ends else rollout.observation
        ticked = Ticked(rollout.observation, final, cycle.action, rollout.reward, rollout.terminated, rollout.truncated)
        stored = Stored(
            ring.observation, ring.final, ring.action, ring.reward, ring.terminated, ring.truncated, ring.ticks, ring.updates, ring.seed,
            self._normalizer, ticked,
        )  # fmt: skip
        return stored, Draw(
            shape.batch, replay.shards, replay.n_step, 4 * shape.action, ends, shape.observation, ring.observation.shape[2], shape.action, shape.columns,
            shape.normalized,
        )  # fmt: skip

    def _zeros(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self._device)

    def _pack(self, net: Net) -> Pack:
        kind = torch.bfloat16 if self.shape.precision == "bf16" else torch.float32
        return Pack(self._zeros(net.towers * net.single), self._zeros(max(1, net.towers * net.packed), dtype=kind))

    def _layers(self, net: Net) -> Layers:
        kind, rows = torch.bfloat16 if self.shape.precision == "bf16" else torch.float32, net.towers * self.shape.batch
        hidden, gradient = sum(layer.columns_pad for layer in net.layers[1:]), sum(layer.rows_pad for layer in net.layers)
        return Layers(self._zeros(rows * hidden, dtype=kind), self._zeros(rows * gradient, dtype=kind))

    def unsupported_reason(self) -> str | None:
        """What keeps this GPU from running the kernels, in a sentence; None where nothing does. Compiles them, and launches nothing."""
        with torch.cuda.device(self._device):
            self._asked = 0
            try:
                self.prepare()
                self.act(0)
                self.store(0)
                self.update(1, 0)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # no C compiler, or a GPU that Triton does not know
                return f"Triton cannot compile them here: {str(error).splitlines()[0]}"
            finally:
                asked, self._asked = self._asked, None
            room = driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"]
        return None if asked <= room else f"a network this wide takes more shared memory in {self.shape.precision} than this GPU has"

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel, or in a rehearsal only compile it."""
        if self._asked is None:
            kernel[grid](*arguments, **options)
        else:
            self._asked = max(self._asked, kernel.warmup(*arguments, grid=grid, **options).metadata.shared)

    # ACT

    def prepare(self) -> None:
        """Take parameters and normalizer as they are, for an iteration."""
        shape, normalizer = self.shape, self.parts.actor.features.normalizer
        if normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self._normalizer)
        for flat, pack, net in (
            (self._actor, self._actor_pack, shape.actor), (self._critic, self._critic_pack, shape.critic), (self._target, self._target_pack, shape.critic),
        ):  # fmt: skip
            self._launch(pack_network, (net.programs, net.towers), flat, pack, SPEC=shape, NET=net, POLICY=net is shape.actor, num_warps=STEP_WARPS)

    def act(self, t: int) -> None:
        """Actions of tick t, and beside them the batch of the first update that is due after it."""
        rows = TILE if self._lanes <= FEW_LANES else MANY_LANES_TILE
        tiles, due = -(-self._lanes // rows), self.cycle.config.due(t)
        self._made = (t + 1, due[0]) if due else None
        self._launch(
            act, (tiles + (self.shape.batch // TILE if due else 0),),
            self._acting, self._actor_pack, t, self._lanes, tiles, self._stored, self._batch, self._numbers(t + 1, due[0] if due else 0),
            SPEC=self.shape, DRAW=self._draw, ROWS=rows, BATCH_ROWS=TILE, num_warps=WARPS,
        )  # fmt: skip

    # LEARN

    def store(self, t: int) -> None:
        """Store tick t in the replay: at once, or beside the first part of the update that follows."""
        if self.cycle.config.due(t):
            self._put_off = t
        else:
            programs = -(-self._lanes // TILE)
            self._launch(store, (programs,), self._stored, self._numbers(t + 1, 0), DRAW=self._draw, ROWS=TILE, num_warps=SAMPLE_WARPS)

    def update(self, ticks: int, number: int) -> None:
        """Take a batch, of a replay with so many of the iteration's ticks, and learn from it."""
        if self._made != (ticks, number):
            self.sample(ticks, number)
        self._made = None
        self.evaluate()
        self.step_critics()
        self.judge()
        self.improve()
        self.step_actor()

    def sample(self, ticks: int, number: int) -> None:
        """The batch of update `number` of the iteration."""
        numbers = self._numbers(ticks, number)
        self._launch(sample, (self.shape.batch // TILE,), self._stored, self._batch, numbers, DRAW=self._draw, ROWS=TILE, num_warps=SAMPLE_WARPS)

    def _numbers(self, ticks: int, number: int) -> Numbers:
        replay = self.cycle.replay
        return Numbers(ticks, number, self._lanes, replay.ticks_stored, len(replay.ring.final), replay.ring.window, float(replay.gamma))

    def evaluate(self) -> None:
        """All that the update needs of the networks as they are; counts the steps of all optimizers, and stores the tick that was put off."""
        shape, (actor, critic), late = self.shape, self._updates, self._put_off
        self._put_off = None
        self._launch(
            evaluate, (shape.batch // TILE, 2 * shape.critic.towers + (1 if late is None else 2)),
            self._batch, self._actor_pack, self._critic_pack, self._target_pack, self._work, self._actor_layers, self._critic_layers, critic, actor,
            self._temperature, self._stored, self._numbers((late or 0) + 1, 0), SPEC=shape, DRAW=self._draw, STORE=late is not None, ROWS=TILE,
            num_warps=WARPS,
        )  # fmt: skip

    def step_critics(self, *, step_too: bool = True) -> None:
        """The critics' gradient, their step, and their targets' after it; or the gradient alone."""
        shape, net = self.shape, self.shape.critic
        self._launch(
            step, (net.programs, net.towers),
            self._batch, self._work, self._critic_layers, self._critic, self._target, self._critic_pack, self._target_pack, self._temperature,
            self._updates[1], SPEC=shape, NET=net, POLICY=False, STEP=step_too, num_warps=STEP_WARPS,
        )  # fmt: skip

    def judge(self) -> None:
        """What each critic says of the actor's actions."""
        grid = (self.shape.batch // TILE, self.shape.critic.towers)
        self._launch(judge, grid, self._batch, self._critic_pack, self._work, SPEC=self.shape, ROWS=TILE, num_warps=WARPS)

    def improve(self) -> None:
        """The gradients of the actor's layers."""
        arguments = self._actor_pack, self._work, self._actor_layers, self._temperature
        self._launch(improve, (self.shape.batch // TILE,), *arguments, SPEC=self.shape, ROWS=TILE, num_warps=WARPS)

    def step_actor(self, *, step_too: bool = True) -> None:
        """The actor's gradient, its step, the temperature's, and the update's numbers; or the gradient alone."""
        shape, net = self.shape, self.shape.actor
        self._launch(
            step, (net.programs + 1, 1),
            self._batch, self._work, self._actor_layers, self._actor, self._actor, self._actor_pack, self._actor_pack, self._temperature, self._updates[0],
            SPEC=shape, NET=net, POLICY=True, STEP=step_too, num_warps=STEP_WARPS,
        )  # fmt: skip


def _flat(adam: Adam, parameters: Tensor, gradient: Tensor) -> Flat:
    state = adam.tensors()
    return Flat(parameters, state["exp_avg"], state["exp_avg_sq"], gradient)

"""SAC with wide networks and large batches, as products with what lies around them, and passes of a kernel between
others. Knows what is launched when.

Where a batch has thousands of samples and layers have hundreds of units, products of the whole batch fill a GPU, and
what costs is what lies between them: so a program of a product has whole rows of a layer, where they fit. Others are
the library's, and every kernel between them reads and writes a layer once. A network's parameters are kept as products
take them, too, beside the flat vector that the algorithm owns. Nothing here allocates or reads back once it is made, so
that a CUDA graph can hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from operant.kernels.actor_critic import wide_heads, wide_shape, wide_steps
from operant.kernels.actor_critic.buffers import Flat, Passes, Temperature, Trained, Update, Work, flat_of
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.kernels.actor_critic.wide_passes import BESIDE, WidePasses
from operant.kernels.actor_critic.wide_shape import FEW_ACTIONS, HEADS, ROWS, Wide, WideNet, first_tile, layer_tile


class WideLearner(WidePasses):
    """SAC's fused kernels for such networks."""

    def __init__(self, shape: Wide, task: Task) -> None:
        self.shape, self.task, self.cycle = shape, task, task.cycle  # type: ignore[assignment]
        on_gpu = task.actor.device.type == "cuda"
        self._side, self._learning, self._far = (
            torch.cuda.Stream(task.actor.device) if on_gpu else None for _ in range(3)
        )
        self._heads: tuple[Tensor, Tensor] = (
            task.totals,
            task.totals,
        )  # of critics and their targets as two operands, where they learn distributions
        self._begun = -1  # the update that is learned from beside acting
        self._made: tuple[int, int] | None = None  # ticks and number of the update whose batch has been made
        self._device, self._lanes = task.actor.device, task.cycle.world.count
        self._kind = torch.bfloat16 if shape.precision == "bf16" else torch.float32
        self._room = self._max_shared(task.actor.device) if on_gpu else 1 << 20
        tile = layer_tile(shape, shape.actor, len(shape.actor.layers) - 1, ROWS, self._room)
        self._ready = tile is not None and shape.action <= FEW_ACTIONS  # outputs come with the last layer
        stochastic, config, skip = task.kind, task.config, task.cycle.skip
        assert isinstance(stochastic, Stochastic)
        B, C, G = shape.batch, shape.columns, shape.critic.towers

        # Networks, and what steps them.
        scalars = torch.tensor([config.adam_epsilon, config.tau, stochastic.target_entropy], device=self._device)
        updates = tuple(
            Update(adam.tensors()["step"], self._zeros(2), skip, adam.learning_rate, scalars)
            for adam in (task.actor_adam, task.critic_adam)
        )
        self._policy = self._trained(
            shape.actor,
            flat_of(task.actor_adam.tensors(), task.actor.flat.values.data),
            task.actor.flat.gradient,
            updates[0],
            2,
        )
        self._critics = self._trained(
            shape.critic,
            flat_of(task.critic_adam.tensors(), task.critic.values.data),
            task.critic.gradient,
            updates[1],
            3 * G,
        )
        self._followed, self._target_packed = (
            task.target.values.data,
            torch.zeros_like(task.target.values.data, dtype=self._kind),
        )
        self._target_weights = self._weights(shape.critic, self._target_packed)
        own = (
            {name: self._zeros(1) for name in ("step", "exp_avg", "exp_avg_sq")}
            if stochastic.adam is None
            else stochastic.adam.tensors()
        )
        self._temperature = Temperature(
            stochastic.log_temperature,
            own["exp_avg"],
            own["exp_avg_sq"],
            own["step"],
            self._zeros(2),
            skip,
            self._zeros(1),
            task.totals,
        )

        # What passes leave. Rows that first layers read: next observations, the batch's own, and those with the actor's
        # actions.
        self._rows = torch.zeros(3, B, C, dtype=self._kind, device=self._device)
        self._work = Work(
            *(self._zeros(*size) for size in ((G, B), (B,), (G, B), (G, B), (G, B, C), (B, C), (B, C), (B, C), (B,)))
        )
        self._actor_passes, self._critic_passes = self._passes(shape.actor, 2 * B, B), self._passes(shape.critic, B, B)
        self._target_passes = self._passes(shape.critic, B, 0)
        # Of the actor where only its actions at the next observations are asked for.
        sums, hidden, moments = ([x[:, :B] for x in part] for part in self._actor_passes[:3])
        self._next_passes = Passes(sums, hidden, moments, [], self._actor_passes.end[:B] if self._ready else hidden[-1])
        slopes = first_tile(shape, shape.critic)
        self._shares = self._zeros(
            1 if slopes is None else G * B * wide_shape.slope_tiles(shape.critic, slopes[1])[0] * shape.action
        )
        tiled = -(-self._lanes // ROWS) * ROWS
        self._lane_rows, self._lane_passes = (
            torch.zeros(tiled, C, dtype=self._kind, device=self._device),
            self._passes(shape.actor, tiled, 0),
        )

        # Acting and the replay.
        self._normalizer = self._zeros(2, shape.observation)
        self._batch = self._sampled(self._rows[1], self._rows[0])
        self._stored, self._draw = self._replay()
        self._acting = self._acts(self._zeros(1))

    def _trained(self, net: WideNet, flat: Flat, gradient: Tensor, update: Update, terms: int) -> Trained:
        G = net.towers
        packed = torch.zeros_like(flat.parameters, dtype=self._kind)
        blocks = -(-flat.parameters.numel() // wide_shape.BLOCK)
        return Trained(
            net,
            flat,
            gradient,
            packed,
            self._weights(net, packed),
            self._weights(net, gradient),
            self._zeros(
                G, self.shape.parts, net.layers[0].width, (2 if first_tile(self.shape, net) else 1) * self.shape.columns
            ),  # with a one, or without
            self._zeros(net.programs, G, net.vectors, net.pad),
            self._zeros(net.programs, terms),
            self._zeros(blocks),
            update,
        )

    def _weights(self, net: WideNet, vector: Tensor) -> list[Tensor]:
        """Weights in a vector of parameters, (towers, width, inputs) each; the first with columns to spare is a copy,
        which `_widen` makes.
        """
        first, G = net.layers[0], net.towers
        later = [vector[k.weight :][: G * k.width * k.inputs].view(G, k.width, k.inputs) for k in net.layers[1:]]
        return [torch.zeros(G, first.width, self.shape.columns, dtype=vector.dtype, device=self._device), *later]

    def _passes(self, net: WideNet, rows: int, backward: int) -> Passes:
        def zeros(rows: int) -> list[Tensor]:
            return [
                torch.zeros(net.towers, rows, layer.width, dtype=self._kind, device=self._device)
                for layer in net.layers
            ]

        sums, hidden = zeros(rows), zeros(rows)
        moments = [self._zeros(net.towers, rows if self.shape.layer_norm else 1, 2) for _ in net.layers]
        return Passes(
            sums, hidden, moments, zeros(backward), self._zeros(rows, net.outputs) if self._ready else hidden[-1]
        )

    # ACT

    def prepare(self) -> None:
        """Take parameters and normalizer as they are, for an iteration."""
        self._made = None
        normalizer = self.task.actor.features.normalizer
        if normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self._normalizer)
        for trained in (self._policy, self._critics):
            trained.packed.copy_(trained.flat.parameters)
            self._widen(trained.net, trained.packed, trained.weights)
        self._target_packed.copy_(self._followed)
        self._widen(self.shape.critic, self._target_packed, self._target_weights)

    def act(self, t: int) -> None:
        """Actions of tick t; beside them and the world's step all of the first update that is due after it but the
        actor's step.
        """
        net, passes, actor, due = self.shape.actor, self._lane_passes, self._policy, self.cycle.config.due(t)
        if due and self._learning is not None and BESIDE and self._asked is None:
            self._learning.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._learning):
                self._learn(t + 1, due[0])
            self._begun = due[0]
        tiles, top = len(self._lane_rows) // ROWS, len(net.layers) - 1
        self.launch(
            wide_heads.read_lanes,
            (tiles,),
            self._acting,
            self._lane_rows,
            t,
            self._lanes,
            SPEC=self.shape,
            ROWS=ROWS,
            num_warps=4,
        )
        self._forward(net, self._lane_rows, actor.flat.parameters, actor.weights, passes)
        self._rowwise(
            wide_heads.act,
            net,
            top,
            len(self._lane_rows),
            1,
            passes.end,
            actor.flat.parameters,
            self._acting,
            t,
            self._lanes,
            product=True,
            READY=self._ready,
        )

    def store(self, t: int) -> None:
        """Store tick t in the replay."""
        self._store(t)

    # LEARN

    def update(self, ticks: int, number: int) -> None:
        """Take a batch, of a replay with so many of the iteration's ticks, and learn from it."""
        due = self.task.config.actor_learns(number)
        if self._begun == number and self._learning is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._learning)
        else:
            self._learn(ticks, number)
        self._begun = -1
        if due:
            self._step(self._policy, target=False)
        self._join()
        self._join(far=True)

    def _learn(self, ticks: int, number: int) -> None:
        """Take a batch, step the critics, and where it is due find the actor's gradient; else step the temperature.

        Of the newest tick a batch reads what was seen before it, from the rollout.
        """
        due = self.task.config.actor_learns(number)
        with self._aside():
            self.launch(
                wide_steps.count,
                (1,),
                self._policy.update,
                self._critics.update,
                self._temperature,
                SPEC=self.shape,
                DUE=due,
                num_warps=1,
            )
        if self._made != (ticks, number):
            self.sample(ticks, number)
        self._made = None
        self._learn_critics(due=due)
        if not due:
            self._sample_ahead(ticks, number + 1)
        self._step(self._critics, target=True)
        blocks = len(self._critics.squares)
        with self._aside():
            sizes = {"SPEC": self.shape, "BLOCKS": 1 << (blocks - 1).bit_length()}
            self.launch(wide_steps.norm, (1,), self._critics.squares, self._temperature, blocks, **sizes, num_warps=4)
        if due:
            self._learn_actor()
            self._sample_ahead(ticks, number + 1)

    def _sample_ahead(self, ticks: int, number: int) -> None:
        """Beside what follows the batch of the next update, where the same tick has one."""
        if number in self.cycle.config.due(ticks - 1):
            with self._aside(far=True):
                self.sample(ticks, number)
            self._made = ticks, number

    def _finish(self, *, due: bool) -> None:
        """The temperature's step, and what an update says of itself."""
        terms = self._critics.terms, self._policy.terms
        self.launch(
            wide_steps.finish,
            (1,),
            *terms,
            self._temperature,
            self._policy.update,
            self._work,
            SPEC=self.shape,
            DUE=due,
            num_warps=4,
        )

    def _learn_critics(self, *, due: bool) -> None:
        """The gradient of the critics, at targets by the actor as it is; and where it is due the actor's own
        actions.
        """
        net, B, actor, critic, work = self.shape.critic, self.shape.batch, self._policy, self._critics, self._work
        own, passes = self._actor_passes if due else self._next_passes, self._critic_passes
        actor_flat, flat = actor.flat.parameters, critic.flat.parameters
        with self._aside():
            self._forward(net, self._rows[1], flat, critic.weights, passes, keep=True)
        self._forward(actor.net, self._rows[: 2 if due else 1].flatten(0, 1), actor_flat, actor.weights, own, keep=due)
        last, drawn = len(actor.net.layers) - 1, (own.end, actor_flat, self._batch.noise, self._rows, work)
        self._rowwise(wide_heads.draw, actor.net, last, B, 2 if due else 1, *drawn, product=True, READY=self._ready)
        self._forward(
            net,
            self._rows[0],
            self._followed,
            self._target_weights,
            self._target_passes,
            values=None if self.shape.atoms else work.next_value,
        )
        self._join()
        self._criticise()
        if not due:
            with self._aside(far=True):
                self._finish(due=due)
        self._backward(critic, self._rows[1], self._critic_passes, train=True)

    def _criticise(self) -> None:
        """The critics' loss, and its gradient in what their last hidden layers sum up."""
        net, B, critic, passes, top = (
            self.shape.critic,
            self.shape.batch,
            self._critics,
            self._critic_passes,
            len(self.shape.critic.layers) - 1,
        )
        self._rowwise(
            wide_heads.criticise,
            net,
            top,
            B,
            net.towers,
            self._batch,
            passes.sums[top],
            passes.moments[top],
            passes.gradient[top],
            critic.flat.parameters,
            self._work,
            self._temperature,
            critic.partial,
            critic.terms,
            programs=net.programs,
            **HEADS,
            STAGES=wide_shape.HEAD_STAGES,
        )

    def _learn_actor(self) -> None:
        """The gradient of the actor, through the critics as they have become."""
        shape, net, actor, critic, work = self.shape, self.shape.critic, self._policy, self._critics, self._work
        B, own, passes, last = shape.batch, self._actor_passes, self._critic_passes, len(actor.net.layers) - 1
        flat = critic.flat.parameters
        self._forward(
            net,
            self._rows[2],
            flat,
            critic.weights,
            passes,
            keep=True,
            values=None if shape.atoms else work.policy_value,
        )
        self._judge()
        self._backward(critic, self._rows[2], passes, train=False)
        left = own.sums[last][:, B:], own.moments[last][:, B:], own.gradient[last]
        arguments = *left, actor.flat.parameters, work, self._temperature, actor.partial, actor.terms
        if self._ready:
            self._rowwise(
                wide_heads.improve_few,
                actor.net,
                last,
                B,
                1,
                *arguments,
                programs=actor.net.programs,
                **HEADS,
                STAGES=wide_shape.HEAD_STAGES,
            )
        else:
            self._rowwise(
                wide_heads.improve,
                actor.net,
                last,
                B,
                1,
                *arguments,
                product=True,
                programs=actor.net.programs,
                warps=8,
                num_stages=1,
            )
        with self._aside(far=True):
            self._finish(due=True)
        self._backward(actor, self._rows[1], own, train=True, begin=B)

    def _judge(self) -> None:
        """The gradient of -min Q / B in what the critics' last hidden layers sum up."""
        net, passes, top = self.shape.critic, self._critic_passes, len(self.shape.critic.layers) - 1
        of_top = passes.sums[top], passes.moments[top], passes.gradient[top]
        self._rowwise(
            wide_heads.judge, net, top, self.shape.batch, net.towers, *of_top, self._critics.flat.parameters, self._work
        )

    def _step(self, trained: Trained, *, target: bool) -> None:
        """Adam's step of a network; with `target` its target's after it."""
        size, flat = trained.flat.parameters.numel(), trained.flat
        following, packed, first = (
            (self._followed, self._target_packed, self._target_weights[0])
            if target
            else (flat.parameters, *[trained.packed] * 2)
        )
        self.launch(
            wide_steps.step,
            (-(-size // wide_shape.BLOCK),),
            flat,
            trained.gradient,
            following,
            trained.packed,
            packed,
            trained.weights[0],
            first,
            *self._heads,
            trained.update,
            trained.squares,
            size,
            SPEC=self.shape,
            NET=trained.net,
            TARGET=target,
            BLOCK=wide_shape.BLOCK,
            num_warps=4,
        )

    def _widen(self, net: WideNet, vector: Tensor, weights: list[Tensor]) -> None:
        """Copy the first layer's weight to where it has columns to spare."""
        weights[0][:, :, : net.layers[0].inputs].copy_(self._first_of(net, vector))

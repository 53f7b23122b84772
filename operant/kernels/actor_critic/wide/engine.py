"""Engine for wide networks and large batches: launches of acting and of an update.

With thousands of samples and hundreds of units one layer of the whole batch fills a GPU, and the time between products
matters: a program holds whole rows of a layer where they fit, and fuses the product with bias, normalization and
activation. Other products are the library's, with one kernel between two of them. The parameters are also held in the
products' type, in addition to the algorithm's flat vector.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from operant.kernels.actor_critic.buffers import LayerBuffers, OptimizerState, Parameters, TrainedNetwork, parameters_of
from operant.kernels.actor_critic.engine import WARP_COLUMNS
from operant.kernels.actor_critic.task import ActorCriticTask, StochasticActor
from operant.kernels.actor_critic.wide import heads, optimizer, spec
from operant.kernels.actor_critic.wide.passes import OVERLAP, WidePasses
from operant.kernels.actor_critic.wide.spec import (
    BLOCK_M,
    FEW_ACTIONS,
    HEADS,
    WideNet,
    WideSpec,
    backward_tile,
    layer_tile,
)


class TargetNetwork(NamedTuple):
    """Parameters of a target network and their copies in the products' type, as in `TrainedNetwork`."""

    values: Tensor
    packed: Tensor
    weights: list[Tensor]


class WideEngine(WidePasses):
    """Engine of SAC and TD3 for wide networks (up to 1,024 units) with scalar critics: one launch a layer over the
    whole batch.
    """

    def __init__(self, shape: WideSpec, task: ActorCriticTask) -> None:
        super().__init__(shape, task)
        on_gpu = self._device.type == "cuda"
        self._stream_a, self._update_stream, self._stream_b = (
            torch.cuda.Stream(self._device) if on_gpu else None for _ in range(3)
        )
        self._split_heads: tuple[Tensor, Tensor] = (task.totals, task.totals)  # of distributional critics
        self._overlapped_update = -1  # number of the update that was launched concurrently with acting
        self._dtype = torch.bfloat16 if shape.precision == "bf16" else torch.float32
        self._max_shared_bytes = self._max_shared(self._device) if on_gpu else 1 << 20
        tile = layer_tile(shape, shape.actor, len(shape.actor.layers) - 1, BLOCK_M, self._max_shared_bytes)
        self._top_has_outputs = tile is not None and shape.action <= FEW_ACTIONS
        B, C, G = shape.batch, shape.columns, shape.critic.towers

        # Networks, their targets and their optimizers.
        actor_optimizer, critic_optimizer = self._optimizers()
        actor, kind = task.actor.flat, task.kind
        adam = task.actor_adam.tensors()
        parameters = parameters_of(adam, actor.values.data)
        self._actor = self._trained(shape.actor, parameters, actor.gradient, actor_optimizer, 2)
        parameters = parameters_of(task.critic_adam.tensors(), task.critic.values.data)
        self._critics = self._trained(shape.critic, parameters, task.critic.gradient, critic_optimizer, 3 * G)
        self._target_critics = self._target(shape.critic, task.target.values.data)
        self._target_actor = (
            None if isinstance(kind, StochasticActor) else self._target(shape.actor, kind.target.values.data)
        )
        self._temperature = self._temperature_buffers(1)

        # Inputs of first layers: at the next observations, at the batch's own, with the actor's actions.
        self._inputs = torch.zeros(3, B, C, dtype=self._dtype, device=self._device)
        self._scratch_buffers = self._scratch()
        self._actor_buffers = self._layer_buffers(shape.actor, 2 * B, B)  # at next observations, at the batch's own
        self._critic_buffers = self._layer_buffers(shape.critic, B, B)
        self._target_buffers = self._layer_buffers(shape.critic, B, 0)
        self._next_actor_buffers = self._rows_of(self._actor_buffers, 0, B)
        self._own_actor_buffers = self._rows_of(self._actor_buffers, B, 2 * B)
        backward = backward_tile(shape, shape.critic)
        self._action_shares = self._zeros(
            1 if backward is None else G * B * spec.backward_grid(shape.critic, backward[1])[0] * shape.action
        )
        lanes = -(-self._lanes // BLOCK_M) * BLOCK_M
        self._lane_inputs = torch.zeros(lanes, C, dtype=self._dtype, device=self._device)
        self._lane_buffers = self._layer_buffers(shape.actor, lanes, 0)
        self._batch = self._batch_buffers(self._inputs[1], self._inputs[0])
        self._acting = self._act_buffers()

    # BUFFERS

    def _trained(
        self, net: WideNet, parameters: Parameters, gradient: Tensor, optimizer_state: OptimizerState, terms: int
    ) -> TrainedNetwork:
        """Return a network with its gradient, packed weights and workspace. `terms`: statistics per program."""
        G, size = net.towers, parameters.vector.numel()
        packed = torch.zeros_like(parameters.vector, dtype=self._dtype)
        # with a column of ones for the bias where the own kernel computes the gradient
        columns = (2 if backward_tile(self.shape, net) else 1) * self.shape.columns
        return TrainedNetwork(
            net,
            parameters,
            gradient,
            packed,
            self._weights(net, packed),
            self._weights(net, gradient),
            self._zeros(G, self.shape.parts, net.layers[0].width, columns),
            self._zeros(net.programs, G, net.vectors, net.pad),
            self._zeros(net.programs, terms),
            self._zeros(-(-size // spec.BLOCK_SIZE)),
            optimizer_state,
        )

    def _target(self, net: WideNet, values: Tensor) -> TargetNetwork:
        """Return a target network with its packed weights."""
        packed = torch.zeros_like(values, dtype=self._dtype)
        return TargetNetwork(values, packed, self._weights(net, packed))

    def _weights(self, net: WideNet, vector: Tensor) -> list[Tensor]:
        """Return the weights (towers, width, inputs) of each layer in a vector of parameters: views, but for the first,
        whose copy has padded columns.
        """
        first, G = net.layers[0], net.towers
        later = [vector[k.weight :][: G * k.width * k.inputs].view(G, k.width, k.inputs) for k in net.layers[1:]]
        return [torch.zeros(G, first.width, self.shape.columns, dtype=vector.dtype, device=self._device), *later]

    def _layer_buffers(self, net: WideNet, rows: int, backward_rows: int) -> LayerBuffers:
        """Allocate the results of a network's forward pass over `rows` rows and of its backward pass over
        `backward_rows`.
        """

        def zeros(rows: int) -> list[Tensor]:
            return [
                torch.zeros(net.towers, rows, layer.width, dtype=self._dtype, device=self._device)
                for layer in net.layers
            ]

        pre_activations, hidden = zeros(rows), zeros(rows)
        moments = [self._zeros(net.towers, rows if self.shape.layer_norm else 1, 2) for _ in net.layers]
        outputs = self._zeros(rows, net.outputs) if self._top_has_outputs else hidden[-1]
        return LayerBuffers(pre_activations, hidden, moments, zeros(backward_rows), outputs)

    def _rows_of(self, buffers: LayerBuffers, first: int, last: int) -> LayerBuffers:
        """Return views of an actor's buffers for rows `first` to `last` of the forward pass."""
        pre_activations, hidden = ([x[:, first:last] for x in part] for part in buffers[:2])
        moments = [x[:, first:last] if self.shape.layer_norm else x for x in buffers.moments]
        outputs = buffers.outputs[first:last] if self._top_has_outputs else hidden[-1]
        return LayerBuffers(pre_activations, hidden, moments, buffers.grad_z, outputs)

    # ACT

    def prepare(self) -> None:
        """Prepare an iteration: read the normalizer, and copy all parameters to the products' type."""
        super().prepare()
        for network in (self._actor, self._critics):
            network.packed.copy_(network.parameters.vector)
            self._copy_first_weight(network.net, network.packed, network.weights)
        for net, target in ((self.shape.critic, self._target_critics), (self.shape.actor, self._target_actor)):
            if target is not None:
                target.packed.copy_(target.values)
                self._copy_first_weight(net, target.packed, target.weights)

    def _copy_first_weight(self, net: WideNet, vector: Tensor, weights: list[Tensor]) -> None:
        """Copy the first weight from `vector` to its tensor with padded columns."""
        weights[0][:, :, : net.layers[0].inputs].copy_(self._first_weight(net, vector))

    def act(self, t: int) -> None:
        """Choose the actions of tick t (vectorised step). Concurrently with this and the world's step runs the first
        update that is due after it, up to the actor's step.
        """
        net, buffers, actor, due = self.shape.actor, self._lane_buffers, self._actor, self.cycle.config.due(t)
        if due and self._update_stream is not None and OVERLAP and self._asked is None:
            self._update_stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._update_stream):
                self._update_critics(t + 1, due[0])
            self._overlapped_update = due[0]
        rows, top = len(self._lane_inputs), len(net.layers) - 1
        self.launch(
            heads.load_lanes,
            (rows // BLOCK_M,),
            self._acting,
            self._lane_inputs,
            t,
            self._lanes,
            SPEC=self.shape,
            BLOCK_M=BLOCK_M,
            num_warps=max(4, self.shape.columns // WARP_COLUMNS),
        )
        self._forward(net, self._lane_inputs, actor.parameters.vector, actor.weights, buffers)
        self._launch_rows(
            heads.act,
            net,
            top,
            rows,
            1,
            buffers.outputs,
            actor.parameters.vector,
            self._acting,
            t,
            self._lanes,
            product=True,
            HAS_OUTPUTS=self._top_has_outputs,
        )

    # LEARN

    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch: update `number` of the iteration, after `ticks` of its ticks (vectorised steps) are
        stored.
        """
        if self._overlapped_update == number:
            self._join(self._update_stream)
        else:
            self._update_critics(ticks, number)
        self._overlapped_update = -1
        if self.task.config.actor_learns(number):
            self._step(self._actor, self._target_actor)
        self._join(self._stream_a)
        self._join(self._stream_b)

    def complete_update(self, ticks: int) -> int:
        """Complete the update that `act` began, if any, which needs no outcome of the failed step. Returns the number
        of completed updates, 0 or 1.
        """
        if self._overlapped_update < 0:
            return 0
        self.update(ticks, self._overlapped_update)
        return 1

    def _update_critics(self, ticks: int, number: int) -> None:
        """Run an update up to the actor's step: sample, step critics and their targets, compute the actor's gradient if
        it is due, step the temperature.

        Of the newest tick a batch reads only the observation, from the rollout.
        """
        update_actor, stochastic = self.task.config.actor_learns(number), self.shape.stochastic
        with self._overlapped(self._stream_a):
            self.launch(
                optimizer.count,
                (1,),
                self._actor.optimizer,
                self._critics.optimizer,
                self._temperature,
                SPEC=self.shape,
                UPDATE_ACTOR=update_actor,
                num_warps=1,
            )
        if self._sampled != (ticks, number):
            self.sample(ticks, number)
        self._sampled = None
        self._critic_backward(update_actor=update_actor)
        if not update_actor:
            self._sample_next(ticks, number + 1)
        self._step(self._critics, self._target_critics if update_actor or stochastic else None)
        blocks = len(self._critics.squares)
        with self._overlapped(self._stream_a):
            self.launch(
                optimizer.record_gradient_norm,
                (1,),
                self._critics.squares,
                self._temperature,
                blocks,
                SPEC=self.shape,
                BLOCKS=1 << (blocks - 1).bit_length(),
                num_warps=4,
            )
        if update_actor:
            self._actor_backward()
            self._sample_next(ticks, number + 1)

    def _sample_next(self, ticks: int, number: int) -> None:
        """Sample the batch of the next update concurrently, if the same tick has one."""
        if number in self.cycle.config.due(ticks - 1):
            with self._overlapped(self._stream_b):
                self.sample(ticks, number)
            self._sampled = ticks, number

    def _finish(self, *, update_actor: bool) -> None:
        """Add the update's statistics to the totals, and step the temperature. `update_actor`: the actor learned in
        it.
        """
        self.launch(
            optimizer.finish,
            (1,),
            self._critics.terms,
            self._actor.terms,
            self._temperature,
            self._actor.optimizer,
            self._scratch_buffers,
            SPEC=self.shape,
            UPDATE_ACTOR=update_actor,
            num_warps=4,
        )

    def _actor_forward(self, *, update_actor: bool) -> None:
        """Compute the actor's actions at the batch's next observations and, with `update_actor`, at its sampled
        observations.
        """
        net, B, actor, target = self.shape.actor, self.shape.batch, self._actor, self._target_actor
        values, parts = actor.parameters.vector, 2 if update_actor else 1
        if target is None:
            buffers = self._actor_buffers if update_actor else self._next_actor_buffers
            inputs = self._inputs[:parts].flatten(0, 1)
            self._forward(net, inputs, values, actor.weights, buffers, save=update_actor)
        else:
            self._forward(net, self._inputs[0], target.values, target.weights, self._next_actor_buffers)
            if update_actor:
                self._forward(net, self._inputs[1], values, actor.weights, self._own_actor_buffers, save=True)
        self._launch_rows(
            heads.sample_actions,
            net,
            len(net.layers) - 1,
            B,
            parts,
            self._actor_buffers.outputs,
            values,
            values if target is None else target.values,
            self._batch.noise,
            self._critics.optimizer.scalars,
            self._inputs,
            self._scratch_buffers,
            product=True,
            HAS_OUTPUTS=self._top_has_outputs,
        )

    def _critic_backward(self, *, update_actor: bool) -> None:
        """Compute the gradient of the critics' loss; with `update_actor` also the actor's own actions."""
        net, critics, scratch = self.shape.critic, self._critics, self._scratch_buffers
        with self._overlapped(self._stream_a):
            self._forward(
                net, self._inputs[1], critics.parameters.vector, critics.weights, self._critic_buffers, save=True
            )
        self._actor_forward(update_actor=update_actor)
        self._forward(
            net,
            self._inputs[0],
            self._target_critics.values,
            self._target_critics.weights,
            self._target_buffers,
            q=None if self.shape.atoms else scratch.next_q,
        )
        self._join(self._stream_a)
        self._critic_gradient()
        if not update_actor:
            with self._overlapped(self._stream_b):
                self._finish(update_actor=False)
        self._backward(critics, self._inputs[1], self._critic_buffers, train=True)

    def _critic_gradient(self) -> None:
        """Compute the gradient of the critics' loss in their last hidden layers' pre-activations."""
        net, critics, buffers, top = (
            self.shape.critic,
            self._critics,
            self._critic_buffers,
            len(self.shape.critic.layers) - 1,
        )
        self._launch_rows(
            heads.critic_gradient,
            net,
            top,
            self.shape.batch,
            net.towers,
            self._batch,
            buffers.pre_activations[top],
            buffers.moments[top],
            buffers.grad_z[top],
            critics.parameters.vector,
            self._scratch_buffers,
            self._temperature,
            critics.partials,
            critics.terms,
            programs=net.programs,
            **HEADS,
            STAGES=spec.HEAD_STAGES,
        )

    def _actor_backward(self) -> None:
        """Compute the gradient of the actor's loss, through the stepped critics: all of them for SAC, the first for
        TD3.
        """
        shape, net, actor, critics = self.shape, self.shape.critic, self._actor, self._critics
        B, buffers, last = shape.batch, self._actor_buffers, len(actor.net.layers) - 1
        towers = net.towers if shape.stochastic else 1
        self._forward(
            net,
            self._inputs[2],
            critics.parameters.vector,
            critics.weights,
            self._critic_buffers,
            save=True,
            q=None if shape.atoms else self._scratch_buffers.actor_q,
            towers=towers,
        )
        self._min_q_gradient(towers)
        self._backward(critics, self._inputs[2], self._critic_buffers, train=False, towers=towers)
        arguments = (
            buffers.pre_activations[last][:, B:],
            buffers.moments[last][:, B:],
            buffers.grad_z[last],
            actor.parameters.vector,
            self._scratch_buffers,
            self._temperature,
            actor.partials,
            actor.terms,
        )
        if self._top_has_outputs:
            self._launch_rows(
                heads.actor_gradient_unrolled,
                actor.net,
                last,
                B,
                1,
                *arguments,
                programs=actor.net.programs,
                **HEADS,
                STAGES=spec.HEAD_STAGES,
            )
        else:
            self._launch_rows(
                heads.actor_gradient,
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
        with self._overlapped(self._stream_b):
            self._finish(update_actor=True)
        self._backward(actor, self._inputs[1], buffers, train=True, first_row=B)

    def _min_q_gradient(self, towers: int) -> None:
        """Compute the gradient of -min_c Q_c / B (TD3: -Q_1 / B) in the last hidden layers' pre-activations of the
        first `towers` critics.
        """
        net, buffers, top = self.shape.critic, self._critic_buffers, len(self.shape.critic.layers) - 1
        self._launch_rows(
            heads.min_q_gradient,
            net,
            top,
            self.shape.batch,
            towers,
            buffers.pre_activations[top],
            buffers.moments[top],
            buffers.grad_z[top],
            self._critics.parameters.vector,
            self._scratch_buffers,
        )

    def _step(self, network: TrainedNetwork, target: TargetNetwork | None) -> None:
        """Take Adam's step of a network and move its target, if any, by Polyak averaging."""
        size, parameters = network.parameters.vector.numel(), network.parameters
        moved = target or TargetNetwork(parameters.vector, network.packed, network.weights)
        self.launch(
            optimizer.step,
            (-(-size // spec.BLOCK_SIZE),),
            parameters,
            network.gradient,
            moved.values,
            network.packed,
            moved.packed,
            network.weights[0],
            moved.weights[0] if target else network.packed,
            *self._split_heads,
            network.optimizer,
            network.squares,
            size,
            SPEC=self.shape,
            NET=network.net,
            TARGET=target is not None,
            SPLIT_HEAD=network is self._critics and self.shape.atoms > 0,
            BLOCK_SIZE=spec.BLOCK_SIZE,
            num_warps=4,
        )

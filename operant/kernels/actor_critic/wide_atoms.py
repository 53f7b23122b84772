"""SAC's kernels for wide networks whose critics put out distributions of returns on a support (C51): their last layers with softmax, projection and loss.

A critic's head has as many outputs as the support has atoms, at most ATOMS: a product of tiles inside each of these kernels. All else is `wide`'s.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from operant.kernels.actor_critic import wide_parts as wide
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.kernels.actor_critic.wide import WideLearner
from operant.kernels.actor_critic.wide_shape import ROWS, Wide

# KERNELS


@triton.jit
def _head(flat, tower, p, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Part `p` of the head's weight, (part, atoms)."""
    unit, inside = wide.units(p, NET, AT)
    atom = tl.arange(0, SPEC.atoms)
    place = flat + NET.head_weight + (tower * NET.outputs + atom)[None, :] * NET.layers[AT].width + unit[:, None]
    return tl.load(place, mask=inside[:, None] & (atom < NET.outputs)[None, :], other=0.0)


@triton.jit
def _outputs(h, flat, tower, ROWS: tl.constexpr, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """Probabilities and their logarithms, (rows, atoms), of a critic's last activations; of atoms beyond the support 0 and next to minus infinity."""
    ATOMS: tl.constexpr = SPEC.atoms
    atom = tl.arange(0, ATOMS)
    real = atom < NET.outputs
    z = tl.zeros((ROWS, ATOMS), tl.float32) + tl.load(flat + NET.head_bias + tower * NET.outputs + atom, mask=real, other=0.0)[None, :]
    for p in tl.static_range(len(NET.layers[AT].parts)):
        z += wide.dot(h[p], _head(flat, tower, p, SPEC, NET, AT), SPEC)
    z = tl.where(real[None, :], z, -1e30)
    z -= tl.max(z, axis=1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, axis=1)[:, None]
    return e / total, z - tl.log(total)


@triton.jit
def _through_head(d, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr, AT: tl.constexpr):
    """From the gradient in outputs (rows, atoms) that in the last activations."""
    g = ()
    for p in tl.static_range(len(NET.layers[AT].parts)):
        g = g + (wide.dot(d, tl.trans(_head(flat, tower, p, SPEC, NET, AT)), SPEC),)
    return g


@triton.jit
def _support(support, NET: tl.constexpr, SPEC: tl.constexpr):
    """The support's values, (1, atoms)."""
    atom = tl.arange(0, SPEC.atoms)
    return tl.load(support + atom, mask=atom < NET.outputs, other=0.0)[None, :]


@triton.jit
def project(hidden, flat, batch, work, temperature, support, factor, least, target, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The critics' targets (B, atoms): r + discount (Z' - alpha log pi) on the support, Z' of the critic whose mean is the least; a tile of rows a program.

    Atom j gets max(0, 1 - |Tz_i - z_j| / dz) of the mass of atom i, by a sum over i of a fixed order. `hidden` (towers, B, width) of the target critics;
    `least` (B, atoms) holds what a row's other threads ask for.
    """
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers
    OUTPUTS: tl.constexpr = NET.outputs
    ATOMS: tl.constexpr = SPEC.atoms
    row, atom = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.atoms)
    place = row[:, None] * SPEC.atoms + atom[None, :]
    z = _support(support, NET, SPEC)
    probability, _log = _outputs(wide.load_rows(hidden, row, NET, AT), flat, 0, ROWS, SPEC, NET, AT)
    value = tl.sum(probability * z, axis=1)
    for k in tl.static_range(1, TOWERS):
        other, _log = _outputs(wide.load_rows(hidden, k * SPEC.batch + row, NET, AT), flat, k, ROWS, SPEC, NET, AT)
        other_value = tl.sum(other * z, axis=1)
        probability = tl.where((other_value < value)[:, None], other, probability)
        value = tl.minimum(value, other_value)
    tl.store(least + place, probability)
    tl.debug_barrier()

    discount = tl.load(batch.discount + row)
    reward = tl.load(batch.reward + row) * tl.load(factor) - discount * tl.exp(tl.load(temperature.log)) * tl.load(work.next_log_p + row)
    low, high = tl.load(support), tl.load(support + OUTPUTS - 1)
    step = (high - low) / (OUTPUTS - 1)
    found = tl.zeros((ROWS, ATOMS), tl.float32)
    for i in range(OUTPUTS):
        moved = tl.minimum(tl.maximum(reward + discount * tl.load(support + i), low), high)
        near = tl.maximum(1.0 - tl.abs(((moved - low) / step)[:, None] - atom[None, :]), 0.0)
        found += tl.load(least + row * SPEC.atoms + i)[:, None] * near
    tl.store(target + place, tl.where((atom < OUTPUTS)[None, :], found, 0.0))


@triton.jit
def criticise(
    z, saved, gradient, slopes, flat, target, support, factor, partial, by_bias, terms, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The gradients of the critics' outputs, `slopes` (towers, B, atoms), and of what their last hidden layers sum up. The loss: the sum of cross-entropies.

    `terms` (programs, towers, 3): the sums of cross-entropies, |Q - y| and Q, the latter two in units of reward. `by_bias` (programs, towers, atoms).
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    ATOMS: tl.constexpr = SPEC.atoms
    atom = tl.arange(0, ATOMS)
    values, unit = _support(support, NET, SPEC), 1.0 / tl.load(factor)
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    bias = wide.no_sums(ROWS, NET, AT)
    gain, shift = bias, bias
    total_d = tl.zeros((ROWS, ATOMS), tl.float32)
    entropy, absolute, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = row[:, None] * SPEC.atoms + atom[None, :]
        kept = wide.load_activated(z, saved, tower * SPEC.batch + row, layer, SPEC, NET, AT)
        probability, log_probability = _outputs(kept[0], flat, tower, ROWS, SPEC, NET, AT)
        wanted = tl.load(target + place)
        d = (probability * tl.sum(wanted, axis=1)[:, None] - wanted) / SPEC.batch
        tl.store(slopes + tower * SPEC.batch * SPEC.atoms + place, d)
        g_z, g_y = wide.gradient_of_sums(_through_head(d, flat, tower, SPEC, NET, AT), kept, layer, SPEC, NET, AT)
        wide.store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)
        bias = wide.add(bias, g_z, NET, AT)
        if SPEC.layer_norm:
            gain, shift = wide.add_products(gain, g_y, kept[2], NET, AT), wide.add(shift, g_y, NET, AT)
        total_d += d
        q = tl.sum(probability * values, axis=1)
        entropy -= tl.sum(wanted * log_probability, axis=1)
        absolute += tl.abs(q - tl.sum(wanted * values, axis=1)) * unit
        total += q * unit
    wide.store_layer(partial, program, tower, bias, gain, shift, SPEC, NET, AT)
    tl.store(by_bias + (program * NET.towers + tower) * SPEC.atoms + atom, tl.sum(total_d, axis=0))
    place = terms + (program * NET.towers + tower) * 3
    tl.store(place, tl.sum(entropy, axis=0))
    tl.store(place + 1, tl.sum(absolute, axis=0))
    tl.store(place + 2, tl.sum(total, axis=0))


@triton.jit
def values(z, saved, flat, support, work, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """Critics' values of the actor's actions, (towers, B)."""
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    NET: tl.constexpr = SPEC.critic
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    kept = wide.load_activated(z, saved, tower * SPEC.batch + row, layer, SPEC, NET, AT)
    probability, _log = _outputs(kept[0], flat, tower, ROWS, SPEC, NET, AT)
    tl.store(work.policy_value + tower * SPEC.batch + row, tl.sum(probability * _support(support, NET, SPEC), axis=1))


@triton.jit
def judge(z, saved, gradient, flat, support, work, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The gradient of -min Q / B in what the critics' last hidden layers sum up: zero but for the critic whose value of the actor's action is the least."""
    tower, row = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers
    layer = wide.load_layer(flat, tower, SPEC, NET, AT)
    kept = wide.load_activated(z, saved, tower * SPEC.batch + row, layer, SPEC, NET, AT)
    least, chosen = tl.load(work.policy_value + row), tl.zeros((ROWS,), tl.int32)
    for k in tl.static_range(TOWERS - 1):
        other = tl.load(work.policy_value + (k + 1) * SPEC.batch + row)
        chosen = tl.where(other < least, k + 1, chosen)
        least = tl.minimum(least, other)
    probability, _log = _outputs(kept[0], flat, tower, ROWS, SPEC, NET, AT)
    # dQ / d output_k = p_k (z_k - Q)
    own = tl.load(work.policy_value + tower * SPEC.batch + row)
    d = tl.where(chosen == tower, -1.0 / SPEC.batch, 0.0)[:, None] * probability * (_support(support, NET, SPEC) - own[:, None])
    g_z, _g_y = wide.gradient_of_sums(_through_head(d, flat, tower, SPEC, NET, AT), kept, layer, SPEC, NET, AT)
    wide.store_rows(gradient, tower * SPEC.batch + row, g_z, SPEC, NET, AT)


# LAUNCHES


class AtomsLearner(WideLearner):
    """SAC's fused kernels for wide networks, with such critics."""

    def __init__(self, shape: Wide, task: Task) -> None:
        super().__init__(shape, task)
        assert isinstance(task.kind, Stochastic)
        self._scale, net, top, B = task.kind, shape.critic, shape.critic.layers[-1], shape.batch
        self._least, self._target = self._zeros(B, shape.atoms), self._zeros(B, shape.atoms)
        self._slopes = torch.zeros(net.towers, B, shape.atoms, dtype=self._kind, device=self._device)
        self._by_bias = self._zeros(net.programs, net.towers, shape.atoms)
        gradient, G, K = self._critics.gradient, net.towers, net.outputs
        self._by_head = gradient[net.head_weight :][: G * K * top.width].view(G, K, top.width)
        self._by_head_bias = gradient[net.head_bias :][: G * K].view(G, K)

    def _criticise(self) -> None:
        net, B, K, passes, critic = self.shape.critic, self.shape.batch, self.shape.critic.outputs, self._critic_passes, self._critics
        top, flat, of_support = len(net.layers) - 1, critic.flat.parameters, (self._scale.support, self._scale.reward_factor)
        own = self._target_passes.hidden[top], self._followed, self._batch, self._work, self._temperature, *of_support, self._least, self._target
        self._launch(project, (B // ROWS,), *own, SPEC=self.shape, AT=top, ROWS=ROWS, num_warps=4)
        self._rowwise(
            criticise, net, top, B, net.towers, passes.sums[top], passes.moments[top], passes.gradient[top], self._slopes, flat, self._target, *of_support,
            critic.partial, self._by_bias, critic.terms, product=True, programs=net.programs, warps=8, num_stages=1,
        )  # fmt: skip
        if self._asked is None:
            with self._aside():
                self._product(self._slopes[:, :, :K].transpose(1, 2), passes.hidden[top], self._by_head)
                torch.sum(self._by_bias[:, :, :K], 0, out=self._by_head_bias)

    def _judge(self) -> None:
        net, top, B, passes, flat = self.shape.critic, len(self.shape.critic.layers) - 1, self.shape.batch, self._critic_passes, self._critics.flat.parameters
        own = passes.sums[top], passes.moments[top]
        self._rowwise(values, net, top, B, net.towers, *own, flat, self._scale.support, self._work, product=True, num_stages=1)
        self._rowwise(judge, net, top, B, net.towers, *own, passes.gradient[top], flat, self._scale.support, self._work, product=True, num_stages=1)

"""SAC's kernels for wide networks whose critics put out distributions of returns on a support (C51): their last layers with softmax, projection and loss.

A critic's head has as many outputs as the support has atoms, rounded up to a power of two: forward a product of tiles inside each of these kernels, on the
way back the library's. All else is `wide`'s.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.actor_critic import wide_parts as wide
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.kernels.actor_critic.wide import WideLearner
from operant.kernels.actor_critic.wide_shape import ROWS, Wide
from operant.kernels.blocks import operand

PROJECT, CRITICISE, JUDGE = (32, 4), (64, 8), (32, 4)
"""Rows of a program's tile, where a batch allows, and its warps, as measured on an H200."""

DENSE, NEAR = tl.constexpr(0.5), tl.constexpr(6)
"""The least discount with which an atom moves by so much of a step that four at most come near another; so many are looked at, for the sake of rounding."""

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
def _support(support, NET: tl.constexpr, SPEC: tl.constexpr):
    """The support's values, (1, atoms)."""
    atom = tl.arange(0, SPEC.atoms)
    return tl.load(support + atom, mask=atom < NET.outputs, other=0.0)[None, :]


@triton.jit
def _shares(probability, rows, begin, discount, SPEC: tl.constexpr, NET: tl.constexpr):
    """What each atom gets, of the few that come near it and of those beyond an end; `rows`: where each row's probabilities begin."""
    OUTPUTS: tl.constexpr = NET.outputs
    LAST: tl.constexpr = OUTPUTS - 1.0
    atom, slope = tl.arange(0, SPEC.atoms)[None, :], tl.where(discount > 0.0, discount, 1.0)[:, None]
    moved = begin[:, None] + slope * atom
    below, above = tl.sum(tl.where(moved < 0.0, probability, 0.0), axis=1), tl.sum(tl.where(moved > LAST, probability, 0.0), axis=1)
    found = tl.where(atom == 0, below[:, None], 0.0) + tl.where(atom == OUTPUTS - 1, above[:, None], 0.0)
    first = tl.floor((atom - 1.0 - begin[:, None]) / slope)
    for k in tl.static_range(NEAR):
        i = first + k
        moved = begin[:, None] + slope * i
        inside = (i >= 0.0) & (i <= LAST) & (moved >= 0.0) & (moved <= LAST)
        share = tl.maximum(1.0 - tl.abs(moved - atom), 0.0)
        found += tl.load(rows[:, None] + tl.where(inside, i, 0.0).to(tl.int32), mask=inside, other=0.0) * share
    # Nothing is left of what would come: all of it goes to one place.
    ended = tl.minimum(tl.maximum(begin, 0.0), LAST)[:, None]
    return tl.where((discount > 0.0)[:, None], found, tl.maximum(1.0 - tl.abs(ended - atom), 0.0))


@triton.jit
def project(hidden, flat, batch, work, temperature, support, factor, least, target, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The critics' targets (B, atoms): r + discount (Z' - alpha log pi) on the support, Z' of the critic whose mean is the least; a tile of rows a program.

    Atom j gets max(0, 1 - |Tz_i - z_j| / dz) of the mass of atom i, by a sum over i of a fixed order: over a few, where discounts are 0 or DENSE at least.
    `hidden` (towers, B, width) of the target critics; `least` (B, atoms) holds what a row's other threads ask for.
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
    begin = (reward + discount * low - low) / step  # where atom 0 goes, in atoms; atom i by i discounts more
    found = tl.zeros((ROWS, ATOMS), tl.float32)
    if tl.min(tl.where(discount > 0.0, discount, 1.0), axis=0) >= DENSE:
        found += _shares(probability, least + row * SPEC.atoms, begin, discount, SPEC, NET)
    else:
        for i in range(OUTPUTS):
            moved = tl.minimum(tl.maximum(begin + discount * i, 0.0), OUTPUTS - 1.0)
            found += tl.load(least + row * SPEC.atoms + i)[:, None] * tl.maximum(1.0 - tl.abs(moved[:, None] - atom[None, :]), 0.0)
    tl.store(target + place, tl.where((atom < OUTPUTS)[None, :], found, 0.0))


@triton.jit
def criticise(hidden, flat, target, support, factor, slopes, by_bias, terms, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """The gradient in the critics' outputs, `slopes` (towers, B, atoms), of the sum over critics of the mean cross-entropy.

    `terms` (programs, towers, 3): the sums of cross-entropies, |Q - y| and Q, the latter two in units of reward; `by_bias` (programs, towers, atoms) of slopes.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    ATOMS: tl.constexpr = SPEC.atoms
    atom = tl.arange(0, ATOMS)
    values, unit = _support(support, NET, SPEC), 1.0 / tl.load(factor)
    total_d = tl.zeros((ROWS, ATOMS), tl.float32)
    entropy, absolute, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = row[:, None] * SPEC.atoms + atom[None, :]
        probability, log_probability = _outputs(wide.load_rows(hidden, tower * SPEC.batch + row, NET, AT), flat, tower, ROWS, SPEC, NET, AT)
        wanted = tl.load(target + place)
        d = (probability * tl.sum(wanted, axis=1)[:, None] - wanted) / SPEC.batch
        tl.store(slopes + tower * SPEC.batch * SPEC.atoms + place, operand(d, SPEC))
        total_d += d
        q = tl.sum(probability * values, axis=1)
        entropy -= tl.sum(wanted * log_probability, axis=1)
        absolute += tl.abs(q - tl.sum(wanted * values, axis=1)) * unit
        total += q * unit
    tl.store(by_bias + (program * NET.towers + tower) * SPEC.atoms + atom, tl.sum(total_d, axis=0))
    place = terms + (program * NET.towers + tower) * 3
    tl.store(place, tl.sum(entropy, axis=0))
    tl.store(place + 1, tl.sum(absolute, axis=0))
    tl.store(place + 2, tl.sum(total, axis=0))


@triton.jit
def judge(hidden, flat, support, slopes, work, SPEC: tl.constexpr, AT: tl.constexpr, ROWS: tl.constexpr):
    """Critics' values of the actor's actions, and the gradient of -min Q / B in their outputs: zero but for the critic whose value is the least."""
    row, atom = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.atoms)
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers
    z = _support(support, NET, SPEC)
    least, chosen = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.int32)
    found = ()
    for k in tl.static_range(TOWERS):
        probability, _log = _outputs(wide.load_rows(hidden, k * SPEC.batch + row, NET, AT), flat, k, ROWS, SPEC, NET, AT)
        value = tl.sum(probability * z, axis=1)
        tl.store(work.policy_value + k * SPEC.batch + row, value)
        # dQ / d output_k = p_k (z_k - Q)
        found = found + (probability * (z - value[:, None]) * (-1.0 / SPEC.batch),)
        if k == 0:
            least = value
        else:
            chosen = tl.where(value < least, k, chosen)
            least = tl.minimum(value, least)
    for k in tl.static_range(TOWERS):
        place = (k * SPEC.batch + row)[:, None] * SPEC.atoms + atom[None, :]
        tl.store(slopes + place, operand(tl.where((chosen == k)[:, None], found[k], 0.0), SPEC))


# LAUNCHES


class AtomsLearner(WideLearner):
    """SAC's fused kernels for wide networks, with such critics."""

    def __init__(self, shape: Wide, task: Task) -> None:
        super().__init__(shape, task)
        assert isinstance(task.kind, Stochastic)
        self._scale, net, B, atoms, width = task.kind, shape.critic, shape.batch, shape.atoms, shape.critic.layers[-1].width
        self._least, self._target = self._zeros(B, atoms), self._zeros(B, atoms)
        # The head with rows to spare, which products take well, and its gradient likewise.
        self._slopes, self._head = (
            torch.zeros(net.towers, *size, dtype=self._kind, device=self._device) for size in ((B, atoms), (atoms, width))
        )  # fmt: skip
        self._by_head, self._by_bias = self._zeros(net.towers, atoms, width), self._zeros(net.programs, net.towers, atoms)

    def _of_head(self, vector: Tensor) -> Tensor:
        """The head's weight in a vector of parameters, (towers, atoms, width)."""
        net, width = self.shape.critic, self.shape.critic.layers[-1].width
        return vector[net.head_weight :][: net.towers * net.outputs * width].view(net.towers, net.outputs, width)

    def _criticise(self) -> None:
        net, B, K, passes, critic = self.shape.critic, self.shape.batch, self.shape.critic.outputs, self._critic_passes, self._critics
        top, flat, scale = len(net.layers) - 1, critic.flat.parameters, (self._scale.support, self._scale.reward_factor)
        own = self._target_passes.hidden[top], self._followed, self._batch, self._work, self._temperature, *scale, self._least, self._target
        self._tiled(project, PROJECT, B, 1, *own)
        left = self._slopes, self._by_bias, critic.terms
        self._tiled(criticise, CRITICISE, net.programs, net.towers, passes.hidden[top], flat, self._target, *scale, *left)
        if self._asked is None:
            with self._aside():
                self._product(self._slopes.transpose(1, 2), passes.hidden[top], self._by_head)
                self._of_head(critic.gradient).copy_(self._by_head[:, :K])
                torch.sum(self._by_bias[..., :K], 0, out=critic.gradient[net.head_bias :][: net.towers * K].view(net.towers, K))
        self._through_head(train=True)

    def _judge(self) -> None:
        own = self._critic_passes.hidden[-1], self._critics.flat.parameters, self._scale.support, self._slopes, self._work
        self._tiled(judge, JUDGE, self.shape.batch, 1, *own)
        self._through_head(train=False)

    def _tiled(self, kernel: object, tile: tuple[int, int], programs: int, second: int, *arguments: object) -> None:
        """A kernel over rows of the last hidden layer, in so many programs at most; `second` is the grid's other size."""
        B, (most, warps), at = self.shape.batch, tile, len(self.shape.critic.layers) - 1
        rows = next(size for size in (most, 2 * ROWS, ROWS) if B % size == 0)
        self._launch(kernel, (min(programs, B // rows), second), *arguments, SPEC=self.shape, AT=at, ROWS=rows, num_warps=warps, num_stages=1)

    def _through_head(self, *, train: bool) -> None:
        """From the gradient in outputs to that in what the last hidden layers sum up."""
        top, passes, critic = len(self.shape.critic.layers) - 1, self._critic_passes, self._critics
        if self._asked is None:
            self._head[:, : self.shape.critic.outputs].copy_(self._of_head(critic.packed))
            torch.bmm(self._slopes, self._head, out=passes.gradient[top])
        self._layer_backward(critic, passes, top, train=train)

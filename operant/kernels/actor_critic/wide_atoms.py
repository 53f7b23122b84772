"""SAC's kernels for wide networks whose critics put out distributions of returns on a support (C51): their last layers
with softmax, projection and loss.

A critic's head has as many outputs as the support has atoms, rounded up to a power of two. Its products are the
library's; in bf16 its weight is forward the sum of two operands, so that it has 16 bits. All else is `wide`'s.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.actor_critic.buffers import Passes
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.kernels.actor_critic.wide import WideLearner
from operant.kernels.actor_critic.wide_shape import ROWS, Wide
from operant.kernels.blocks import operand

PROJECT, CRITICISE, JUDGE = (ROWS, 4), (ROWS, 4), (ROWS, 4)
"""Rows of a program's tile, where a batch allows, and its warps: on an H200 8 rows or 8 warps do as well."""

FEW, SEVERAL = tl.constexpr(2 / 3), tl.constexpr(0.5)
"""The least discounts with which three atoms at most, or four, come near another."""

# KERNELS


@triton.jit
def _outputs(products, row, flat, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """Probabilities and their logarithms, (rows, atoms), of products with both parts of a head; of atoms beyond the
    support 0 and next to minus infinity.
    """
    atom = tl.arange(0, SPEC.atoms)
    real = atom < NET.outputs
    place = products + (tower * SPEC.batch + row)[:, None] * (2 * SPEC.atoms) + atom[None, :]
    z = (
        tl.load(place)
        + tl.load(place + SPEC.atoms)
        + tl.load(flat + NET.head_bias + tower * NET.outputs + atom, mask=real, other=0.0)[None, :]
    )
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
def _shares(rows, begin, discount, NEAR: tl.constexpr, SPEC: tl.constexpr, NET: tl.constexpr):
    """What each atom gets, of the NEAR that come near it and of those beyond an end; `rows`: where each row's
    probabilities begin.
    """
    OUTPUTS: tl.constexpr = NET.outputs
    LAST: tl.constexpr = OUTPUTS - 1.0
    atom, slope = tl.arange(0, SPEC.atoms)[None, :], tl.where(discount > 0.0, discount, 1.0)[:, None]
    # What comes beyond an end is shared as anywhere, and what would be lost there is the end's.
    moved, probability = begin[:, None] + slope * atom, tl.load(rows[:, None] + atom)
    below = tl.sum(probability * tl.minimum(tl.maximum(-moved, 0.0), 1.0), axis=1)
    above = tl.sum(probability * tl.minimum(tl.maximum(moved - LAST, 0.0), 1.0), axis=1)
    found = tl.where(atom == 0, below[:, None], 0.0) + tl.where(atom == OUTPUTS - 1, above[:, None], 0.0)
    # The first atom that comes nearer than one, and those after it.
    first = tl.floor((atom - 1.0 - begin[:, None]) / slope) + 1.0
    first = tl.minimum(tl.maximum(first, -NEAR), OUTPUTS)
    i, off = first.to(tl.int32), begin[:, None] + slope * first - atom
    for k in tl.static_range(NEAR):
        share = tl.maximum(1.0 - tl.abs(off), 0.0)
        found += tl.load(rows[:, None] + i + k, mask=(i + k >= 0) & (i + k < OUTPUTS), other=0.0) * share
        off += slope
    # Nothing is left of what would come: all of it goes to one place.
    ended = tl.minimum(tl.maximum(begin, 0.0), LAST)[:, None]
    return tl.where((discount > 0.0)[:, None], found, tl.maximum(1.0 - tl.abs(ended - atom), 0.0))


@triton.jit
def project(
    products, flat, batch, work, temperature, support, factor, least, target, SPEC: tl.constexpr, ROWS: tl.constexpr
):
    """The critics' targets (B, atoms): r + discount (Z' - alpha log pi) on the support, Z' of the critic whose mean is
    the least; a tile of rows a program.

    Atom j gets max(0, 1 - |Tz_i - z_j| / dz) of the mass of atom i, by a sum over i of a fixed order: over a few, where
    discounts are 0 or SEVERAL at least. `products` (towers, B, 2 atoms) of the target critics; `least` (B, atoms) holds
    what a row's other threads ask for.
    """
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers
    OUTPUTS: tl.constexpr = NET.outputs
    ATOMS: tl.constexpr = SPEC.atoms
    row, atom = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.atoms)
    place = row[:, None] * SPEC.atoms + atom[None, :]
    z = _support(support, NET, SPEC)
    probability, _log = _outputs(products, row, flat, 0, SPEC, NET)
    value = tl.sum(probability * z, axis=1)
    for k in tl.static_range(1, TOWERS):
        other, _log = _outputs(products, row, flat, k, SPEC, NET)
        other_value = tl.sum(other * z, axis=1)
        probability = tl.where((other_value < value)[:, None], other, probability)
        value = tl.minimum(value, other_value)
    tl.store(least + place, probability)
    tl.debug_barrier()

    discount = tl.load(batch.discount + row)
    reward = tl.load(batch.reward + row) * tl.load(factor) - discount * tl.exp(tl.load(temperature.log)) * tl.load(
        work.next_log_p + row
    )
    low, high = tl.load(support), tl.load(support + OUTPUTS - 1)
    step = (high - low) / (OUTPUTS - 1)
    begin = (reward + discount * low - low) / step  # where atom 0 goes, in atoms; atom i by i discounts more
    rows, found, smallest = (
        least + row * SPEC.atoms,
        tl.zeros((ROWS, ATOMS), tl.float32),
        tl.min(tl.where(discount > 0.0, discount, 1.0), axis=0),
    )
    if smallest >= FEW:
        found += _shares(rows, begin, discount, 3, SPEC, NET)
    elif smallest >= SEVERAL:
        found += _shares(rows, begin, discount, 4, SPEC, NET)
    else:
        for i in range(OUTPUTS):
            moved = tl.minimum(tl.maximum(begin + discount * i, 0.0), OUTPUTS - 1.0)
            found += tl.load(rows + i)[:, None] * tl.maximum(1.0 - tl.abs(moved[:, None] - atom[None, :]), 0.0)
    tl.store(target + place, tl.where((atom < OUTPUTS)[None, :], found, 0.0))


@triton.jit
def criticise(products, flat, target, support, factor, slopes, by_bias, terms, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """The gradient in the critics' outputs, `slopes` (towers, B, atoms), of the sum over critics of the mean
    cross-entropy.

    `terms` (programs, towers, 3): the sums of cross-entropies, |Q - y| and Q, the latter two in units of reward;
    `by_bias` (programs, towers, atoms) of slopes.
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    ATOMS: tl.constexpr = SPEC.atoms
    atom = tl.arange(0, ATOMS)
    values, unit = _support(support, NET, SPEC), 1.0 / tl.load(factor)
    total_d = tl.zeros((ROWS, ATOMS), tl.float32)
    entropy, absolute, total = (
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS,), tl.float32),
    )
    for first in range(program * ROWS, SPEC.batch, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = row[:, None] * SPEC.atoms + atom[None, :]
        probability, log_probability = _outputs(products, row, flat, tower, SPEC, NET)
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
def judge(products, flat, support, slopes, work, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """Critics' values of the actor's actions, and the gradient of -min Q / B in their outputs: zero but for the critic
    whose value is the least.
    """
    row, atom = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SPEC.atoms)
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers
    z = _support(support, NET, SPEC)
    least, chosen = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.int32)
    found = ()
    for k in tl.static_range(TOWERS):
        probability, _log = _outputs(products, row, flat, k, SPEC, NET)
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
        self._scale, net, B, atoms, width = (
            task.kind,
            shape.critic,
            shape.batch,
            shape.atoms,
            shape.critic.layers[-1].width,
        )
        self._least, self._target = self._zeros(B, atoms), self._zeros(B, atoms)
        # Heads as two operands with rows to spare, which products take well, what is multiplied with them, and their
        # gradient, likewise.
        self._slopes = torch.zeros(net.towers, B, atoms, dtype=self._kind, device=self._device)
        self._heads = tuple(
            torch.zeros(net.towers, 2 * atoms, width, dtype=self._kind, device=self._device) for _ in range(2)
        )
        self._products, self._target_products = (self._zeros(net.towers, B, 2 * atoms) for _ in range(2))
        self._by_head, self._by_bias = (
            self._zeros(net.towers, atoms, width),
            self._zeros(net.programs, net.towers, atoms),
        )

    def prepare(self) -> None:
        """Take parameters and normalizer as they are, for an iteration."""
        super().prepare()
        net = self.shape.critic
        for flat, out in ((self._critics.flat.parameters, self._heads[0]), (self._followed, self._heads[1])):
            head = flat[net.head_weight :][: net.towers * net.outputs * out.shape[-1]].view(net.towers, net.outputs, -1)
            out[:, : net.outputs].copy_(head)
            out[:, self.shape.atoms :][:, : net.outputs].copy_(head - out[:, : net.outputs])

    def _multiply(self, passes: Passes, head: Tensor, out: Tensor) -> None:
        """The last activations times both parts of a head."""
        if self._asked is None:
            self._product(passes.hidden[-1], head.transpose(1, 2), out)

    def _criticise(self) -> None:
        net, K, passes, critic = self.shape.critic, self.shape.critic.outputs, self._critic_passes, self._critics
        flat, scale, width = (
            critic.flat.parameters,
            (self._scale.support, self._scale.reward_factor),
            net.layers[-1].width,
        )
        with self._aside():
            self._multiply(passes, self._heads[0], self._products)
        self._multiply(self._target_passes, self._heads[1], self._target_products)
        own = (
            self._target_products,
            self._followed,
            self._batch,
            self._work,
            self._temperature,
            *scale,
            self._least,
            self._target,
        )
        self._tiled(project, PROJECT, self.shape.batch, 1, *own)
        self._join()
        self._tiled(
            criticise,
            CRITICISE,
            net.programs,
            net.towers,
            self._products,
            flat,
            self._target,
            *scale,
            self._slopes,
            self._by_bias,
            critic.terms,
        )
        if self._asked is None:
            with self._aside():
                self._product(self._slopes.transpose(1, 2), passes.hidden[-1], self._by_head)
                of_head = critic.gradient[net.head_weight :][: net.towers * K * width].view(net.towers, K, width)
                of_head.copy_(self._by_head[:, :K])
                torch.sum(
                    self._by_bias[..., :K],
                    0,
                    out=critic.gradient[net.head_bias :][: net.towers * K].view(net.towers, K),
                )
        self._through_head(train=True)

    def _judge(self) -> None:
        self._multiply(self._critic_passes, self._heads[0], self._products)
        own = self._products, self._critics.flat.parameters, self._scale.support, self._slopes, self._work
        self._tiled(judge, JUDGE, self.shape.batch, 1, *own)
        self._through_head(train=False)

    def _tiled(self, kernel: object, tile: tuple[int, int], programs: int, second: int, *arguments: object) -> None:
        """A kernel over rows of critics' outputs, in so many programs at most; `second` is the grid's other size."""
        B, (most, warps) = self.shape.batch, tile
        rows = next(size for size in (most, ROWS) if B % size == 0)
        self.launch(
            kernel,
            (min(programs, B // rows), second),
            *arguments,
            SPEC=self.shape,
            ROWS=rows,
            num_warps=warps,
            num_stages=1,
        )

    def _through_head(self, *, train: bool) -> None:
        """From the gradient in outputs to that in what the last hidden layers sum up."""
        passes = self._critic_passes
        if self._asked is None:
            torch.bmm(self._slopes, self._heads[0][:, : self.shape.atoms], out=passes.gradient[-1])
        self._layer_backward(self._critics, passes, len(passes.gradient) - 1, train=train)

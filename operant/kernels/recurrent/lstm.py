"""An LSTM's steps over segments in two launches, forward and back, for networks whose other layers are torch's: what
`operant.nn.cells.lstm` computes.

A program owns some lanes of a tower for all steps, and holds the recurrent weights. What does not depend on the step
before, such as what the input adds to the gates and the gradients of weights, is left to torch's products. Knows no
network and no loss.

Shape letters: G towers, M units, P padded units, T steps, B lanes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.ops.activation import sigmoid, tanh
from operant.kernels.ops.linear import round_to_tf32
from operant.kernels.warmup import Launcher

BLOCK, WARPS = 16, 4
"""Lanes and warps of a program."""


@triton.jit
def _operand(x, PRECISION: tl.constexpr):
    return round_to_tf32(x) if PRECISION == "tf32" else x


@triton.jit
def _four(gates, place, apart, mask):
    """The four gates of a step, (lanes, units) each."""
    first, second = tl.load(gates + place, mask=mask, other=0.0), tl.load(gates + place + apart, mask=mask, other=0.0)
    return (
        first,
        second,
        tl.load(gates + place + 2 * apart, mask=mask, other=0.0),
        tl.load(gates + place + 3 * apart, mask=mask, other=0.0),
    )


@triton.jit
def _weights(
    weight,
    tower,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    UNITS: tl.constexpr,
    PAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Each gate's weight as a right operand (P, P), whose depths and columns are DOWN and ACROSS numbers apart."""
    held = ()
    unit = tl.arange(0, PAD)
    mask = (unit < UNITS)[:, None] & (unit < UNITS)[None, :]
    for k in tl.static_range(4):
        place = (tower * 4 + k) * UNITS * UNITS + unit[:, None] * DOWN + unit[None, :] * ACROSS
        held = held + (_operand(tl.load(weight + place, mask=mask, other=0.0), PRECISION),)
    return held


@triton.jit(do_not_specialize=["steps"])
def lstm_forward(
    inputs,
    weight,
    first,
    first_cell,
    keep,
    states,
    cells_after,
    gates,
    steps,
    lanes,
    apart,
    UNITS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gates, c and h of all steps, (G, 4 M, T, B) and (G, M, T, B), from what the input adds to the gates and the h and
    c before. `apart`: M T B.
    """
    tower, apart = tl.program_id(1), tl.cast(apart, tl.int64)
    lane, unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD)
    present = lane < lanes
    mask = present[:, None] & (unit < UNITS)[None, :]
    held = _weights(weight, tower, 1, UNITS, UNITS, PAD, PRECISION)
    own = (tower * UNITS + unit[None, :]) * lanes + lane[:, None]
    h, c = tl.load(first + own, mask=mask, other=0.0), tl.load(first_cell + own, mask=mask, other=0.0)
    place = (tower * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    gate_place = (tower * 4 * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    # What a step needs of memory is asked for a step ahead.
    added, kept = _four(inputs, gate_place, apart, mask), tl.load(keep + lane, mask=present, other=0.0)
    for step in tl.range(0, steps, num_stages=1):
        more = step + 1 < steps
        next_added = _four(inputs, gate_place + lanes, apart, mask & more)
        next_kept = tl.load(keep + (step + 1) * lanes + lane, mask=present & more, other=0.0)
        c *= kept[:, None]
        operand = _operand(h * kept[:, None], PRECISION)
        i = sigmoid(tl.dot(operand, held[0], added[0], input_precision=PRECISION))
        f = sigmoid(tl.dot(operand, held[1], added[1], input_precision=PRECISION))
        o = sigmoid(tl.dot(operand, held[2], added[2], input_precision=PRECISION))
        g = tanh(tl.dot(operand, held[3], added[3], input_precision=PRECISION), False)
        c = tl.fma(f, c, i * g)
        h = o * tanh(c, False)
        tl.store(gates + gate_place, i, mask=mask)
        tl.store(gates + gate_place + apart, f, mask=mask)
        tl.store(gates + gate_place + 2 * apart, o, mask=mask)
        tl.store(gates + gate_place + 3 * apart, g, mask=mask)
        tl.store(cells_after + place, c, mask=mask)
        tl.store(states + place, h, mask=mask)
        added = next_added
        kept = next_kept
        place += lanes
        gate_place += lanes


@triton.jit(do_not_specialize=["steps"])
def lstm_backward(
    gradient,
    weight,
    first_cell,
    keep,
    cells_after,
    gates,
    by_gates,
    steps,
    lanes,
    apart,
    UNITS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """From the gradient in all h (G, M, T, B): those in what the input adds to the gates, (G, 4 M, T, B)."""
    tower, apart = tl.program_id(1), tl.cast(apart, tl.int64)
    lane, unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD)
    present = lane < lanes
    mask = present[:, None] & (unit < UNITS)[None, :]
    held = _weights(weight, tower, UNITS, 1, UNITS, PAD, PRECISION)
    own = (tower * UNITS + unit[None, :]) * lanes + lane[:, None]
    begun = tl.load(first_cell + own, mask=mask, other=0.0)
    last = (steps - 1) * lanes
    place = (tower * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    gate_place = (tower * 4 * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    place += last
    gate_place += last
    carried = tl.zeros((BLOCK, PAD), tl.float32)  # dL / dh and dL / dc, of the steps behind
    by_cell = carried
    opened, outer = _four(gates, gate_place, apart, mask), tl.load(gradient + place, mask=mask, other=0.0)
    after, kept = (
        tl.load(cells_after + place, mask=mask, other=0.0),
        tl.load(keep + last + lane, mask=present, other=0.0),
    )
    before = tl.load(cells_after + place - lanes, mask=mask & (steps > 1), other=0.0)
    for step in tl.range(0, steps, num_stages=1):
        more = step + 1 < steps
        next_opened, next_outer = (
            _four(gates, gate_place - lanes, apart, mask & more),
            tl.load(gradient + place - lanes, mask=mask & more, other=0.0),
        )
        next_kept = tl.load(keep + last - (step + 1) * lanes + lane, mask=present & more, other=0.0)
        next_before = tl.load(cells_after + place - 2 * lanes, mask=mask & (step + 2 < steps), other=0.0)
        before = tl.where(more, before, begun)  # of the first step: as it began
        i, f, o, g = opened
        # h' = o tanh(c'), c' = f c + i g
        total, squashed = outer + carried, tanh(after, False)
        by_cell += total * o * (1.0 - squashed * squashed)
        by_i, by_f = by_cell * g * i * (1.0 - i), by_cell * (before * kept[:, None]) * f * (1.0 - f)
        by_o, by_g = total * squashed * o * (1.0 - o), by_cell * i * (1.0 - g * g)
        tl.store(by_gates + gate_place, by_i, mask=mask)
        tl.store(by_gates + gate_place + apart, by_f, mask=mask)
        tl.store(by_gates + gate_place + 2 * apart, by_o, mask=mask)
        tl.store(by_gates + gate_place + 3 * apart, by_g, mask=mask)
        by_cell *= f * kept[:, None]
        carried = tl.dot(_operand(by_i, PRECISION), held[0], input_precision=PRECISION)
        carried = tl.dot(_operand(by_f, PRECISION), held[1], carried, input_precision=PRECISION)
        carried = tl.dot(_operand(by_o, PRECISION), held[2], carried, input_precision=PRECISION)
        carried = tl.dot(_operand(by_g, PRECISION), held[3], carried, input_precision=PRECISION) * kept[:, None]
        after = before
        before = next_before
        opened = next_opened
        outer = next_outer
        kept = next_kept
        place -= lanes
        gate_place -= lanes


class Rehearsal(Launcher):
    """Of both kernels, for so many units."""

    def __init__(self, units: int, device: torch.device) -> None:
        self._rows, self._device, self._units = torch.zeros(8 * units * BLOCK, device=device), device, units

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that programs ask for."""
        return self._fits_shared(self._device, lambda: self._of(lstm_forward, 8), lambda: self._of(lstm_backward, 7))

    def _of(self, kernel: Any, tensors: int) -> None:
        self.launch(kernel, (1, 1), *[self._rows] * tensors, 2, BLOCK, 2 * BLOCK * self._units, **options(self._units))


class Steps(torch.autograd.Function):
    """What goes through the steps in place of the loop of `operant.nn.cells.lstm`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, first: Tensor, first_cell: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `operant.nn.cells.lstm`."""
        (G, M, B), T = first.shape, inputs.shape[2]
        given = tuple(part.contiguous() for part in (inputs, weight, first, first_cell, keep))
        states, after, gates = inputs.new_empty(G, M, T, B), inputs.new_empty(G, M, T, B), torch.empty_like(given[0])
        lstm_forward[triton.cdiv(B, BLOCK), G](*given, states, after, gates, T, B, M * T * B, **options(M))
        ctx.save_for_backward(*given[1:], states, after, gates)
        last = after[:, :, -1].clone()
        ctx.mark_non_differentiable(last)
        return states, last

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The gradients in what the input adds to the gates, and in the weight."""
        weight, first, first_cell, keep, states, after, gates = ctx.saved_tensors
        (G, M, B), T = first.shape, keep.shape[0]
        by_gates = torch.empty_like(gates)
        lstm_backward[triton.cdiv(B, BLOCK), G](
            gradient.contiguous(), weight, first_cell, keep, after, gates, by_gates, T, B, M * T * B, **options(M)
        )
        before = torch.empty_like(states)  # h_{t-1}, 0 where an episode begins
        torch.mul(first, keep[0], out=before[:, :, 0])
        torch.mul(states[:, :, :-1], keep[1:], out=before[:, :, 1:])
        # a product a step, and their sum
        by_weight = (by_gates.transpose(1, 2) @ before.permute(0, 2, 3, 1)).sum(dim=1)
        return by_gates, by_weight, None, None, None


def options(units: int) -> dict[str, Any]:
    """What the kernels are compiled for."""
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return {
        "UNITS": units,
        "PAD": max(16, triton.next_power_of_2(units)),
        "BLOCK": BLOCK,
        "PRECISION": precision,
        "num_warps": WARPS,
    }

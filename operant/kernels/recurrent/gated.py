"""GRU and LSTM in Triton: one launch for all steps of a sequence, each program the owner of its lanes. Know no network and no loss.

A program takes BLOCK_B lanes of a tower and goes through their steps one after the other, `block_n` units at a time: products of the states before with the
recurrent weights, gates, the states after. States pass from step to step through memory, which only their program reads: the loop over steps must not be
pipelined (`num_stages=1`), or loads of a step would come before the stores of the one before. On the way back the gates' products are given, as they are one
product over all steps; what is left is a product with the transposed weights a step.

`keep` (T, B) is 0 where an episode begins: the state before such a step is multiplied by it, and so is its gradient.
Shape letters: G towers, M units, K gates, T steps, B lanes. What a step adds comes feature-major, (G, K M, T, B); states are sample-major, (G, T + 1, B, M),
the first ones in front.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from operant.kernels.blocks import round_to_tf32, sigmoid, tanh, zeros


@dataclass(frozen=True)
class Shape:
    """What kernels are compiled for."""

    units: int  # M
    precision: str  # of products: "ieee", "tf32" or "bf16"; everything else is float32
    block_b: int  # lanes of a program
    block_n: int  # units of a tile
    block_k: int  # of a product's sum

    def __hash__(self) -> int:  # Triton asks for it at every launch
        return hash((self.units, self.precision, self.block_b, self.block_n, self.block_k))


@triton.jit
def _operand(x, SHAPE: tl.constexpr):
    """Numbers as products take them."""
    if SHAPE.precision == "bf16":
        return x.to(tl.bfloat16)
    elif SHAPE.precision == "tf32":
        return round_to_tf32(x)
    else:
        return x


@triton.jit
def _add_dot(a, b, total, SHAPE: tl.constexpr):
    return tl.dot(a, b, total, input_precision="tf32" if SHAPE.precision == "tf32" else "ieee")


@triton.jit
def _lanes_of(lanes, SHAPE: tl.constexpr):
    """A program's tower and lanes, and which of these there are."""
    lane = tl.program_id(0) * SHAPE.block_b + tl.arange(0, SHAPE.block_b)
    return tl.program_id(1).to(tl.int64), lane, lane < lanes


@triton.jit
def _rows(source, row, unit, mask):
    """A tile (lanes, units) of a feature-major buffer, in float32: `source` at its lanes, `row` from unit to unit."""
    return tl.load(source + unit[None, :].to(tl.int64) * row, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _weights(weight, unit, column, SHAPE: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile (columns, units) of weights (units, COLUMNS), packed as products take them."""
    inside = (unit < SHAPE.units)[None, :] & (column < COLUMNS)[:, None]
    return tl.load(weight + unit[None, :] * COLUMNS + column[:, None], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["steps"])
def gru_forward(inputs, weight, bias, keep, states, steps, lanes, SHAPE: tl.constexpr):
    """States after each step. `inputs` (G, 3 M, T, B), `weight` (G, 3 M, M) and `bias` (G, M), gates r, z, n in this order."""
    UNITS: tl.constexpr = SHAPE.units
    tower, lane, present = _lanes_of(lanes, SHAPE)
    row = steps.to(tl.int64) * lanes
    inputs += tower * 3 * UNITS * row + lane[:, None]
    states += tower * (steps + 1) * lanes * UNITS + lane[:, None].to(tl.int64) * UNITS
    weight += tower * 3 * UNITS * UNITS
    for t in tl.range(0, steps, num_stages=1):
        kept = tl.load(keep + t * lanes + lane, mask=present, other=0.0)[:, None]
        for start in range(0, UNITS, SHAPE.block_n):
            unit = start + tl.arange(0, SHAPE.block_n)
            mask = present[:, None] & (unit < UNITS)[None, :]
            # W h of each gate.
            by_r = zeros(SHAPE.block_b, SHAPE.block_n)
            by_z, by_n = by_r, by_r
            for begin in range(0, UNITS, SHAPE.block_k):
                column = begin + tl.arange(0, SHAPE.block_k)
                h = _operand(tl.load(states + column[None, :], mask=present[:, None] & (column < UNITS)[None, :], other=0.0) * kept, SHAPE)
                by_r = _add_dot(h, _weights(weight, unit, column, SHAPE, UNITS), by_r, SHAPE)
                by_z = _add_dot(h, _weights(weight + UNITS * UNITS, unit, column, SHAPE, UNITS), by_z, SHAPE)
                by_n = _add_dot(h, _weights(weight + 2 * UNITS * UNITS, unit, column, SHAPE, UNITS), by_n, SHAPE)
            r = sigmoid(_rows(inputs, row, unit, mask) + by_r)
            z = sigmoid(_rows(inputs + UNITS * row, row, unit, mask) + by_z)
            own = tl.load(bias + tower * UNITS + unit, mask=unit < UNITS, other=0.0)[None, :]
            n = tanh(_rows(inputs + 2 * UNITS * row, row, unit, mask) + r * (by_n + own), False)
            h = tl.load(states + unit[None, :], mask=mask, other=0.0) * kept
            tl.store(states + lanes * UNITS + unit[None, :], n + z * (h - n), mask=mask)
        tl.debug_barrier()  # the next step reads what other threads have stored
        states += lanes * UNITS
        inputs += lanes


@triton.jit(do_not_specialize=["steps"])
def lstm_forward(inputs, weight, keep, states, cells, steps, lanes, SHAPE: tl.constexpr):
    """States and cells after each step. `inputs` (G, 4 M, T, B), `weight` (G, 4 M, M), gates i, f, o and the candidate g in this order."""
    UNITS: tl.constexpr = SHAPE.units
    tower, lane, present = _lanes_of(lanes, SHAPE)
    row = steps.to(tl.int64) * lanes
    inputs += tower * 4 * UNITS * row + lane[:, None]
    place = tower * (steps + 1) * lanes * UNITS + lane[:, None].to(tl.int64) * UNITS
    weight += tower * 4 * UNITS * UNITS
    for t in tl.range(0, steps, num_stages=1):
        kept = tl.load(keep + t * lanes + lane, mask=present, other=0.0)[:, None]
        for start in range(0, UNITS, SHAPE.block_n):
            unit = start + tl.arange(0, SHAPE.block_n)
            mask = present[:, None] & (unit < UNITS)[None, :]
            # W h of each gate.
            by_i = zeros(SHAPE.block_b, SHAPE.block_n)
            by_f, by_o, by_g = by_i, by_i, by_i
            for begin in range(0, UNITS, SHAPE.block_k):
                column = begin + tl.arange(0, SHAPE.block_k)
                h = _operand(tl.load(states + place + column[None, :], mask=present[:, None] & (column < UNITS)[None, :], other=0.0) * kept, SHAPE)
                by_i = _add_dot(h, _weights(weight, unit, column, SHAPE, UNITS), by_i, SHAPE)
                by_f = _add_dot(h, _weights(weight + UNITS * UNITS, unit, column, SHAPE, UNITS), by_f, SHAPE)
                by_o = _add_dot(h, _weights(weight + 2 * UNITS * UNITS, unit, column, SHAPE, UNITS), by_o, SHAPE)
                by_g = _add_dot(h, _weights(weight + 3 * UNITS * UNITS, unit, column, SHAPE, UNITS), by_g, SHAPE)
            i = sigmoid(_rows(inputs, row, unit, mask) + by_i)
            f = sigmoid(_rows(inputs + UNITS * row, row, unit, mask) + by_f)
            o = sigmoid(_rows(inputs + 2 * UNITS * row, row, unit, mask) + by_o)
            g = tanh(_rows(inputs + 3 * UNITS * row, row, unit, mask) + by_g, False)
            c = f * (tl.load(cells + place + unit[None, :], mask=mask, other=0.0) * kept) + i * g
            tl.store(cells + place + lanes * UNITS + unit[None, :], c, mask=mask)
            tl.store(states + place + lanes * UNITS + unit[None, :], o * tanh(c, False), mask=mask)
        tl.debug_barrier()  # the next step reads what other threads have stored
        place += lanes * UNITS
        inputs += lanes


@triton.jit
def _from_behind(by_gates, weight, present, unit, SHAPE: tl.constexpr, GATES: tl.constexpr):
    """W^T times the gates' gradients of the step behind, GATES M of 4 M columns, a tile (lanes, units); `weight` (M, GATES M)."""
    total = zeros(SHAPE.block_b, SHAPE.block_n)
    for begin in range(0, GATES * SHAPE.units, SHAPE.block_k):
        column = begin + tl.arange(0, SHAPE.block_k)
        mask = present[:, None] & (column < GATES * SHAPE.units)[None, :]
        gradient = _operand(tl.load(by_gates + column[None, :], mask=mask, other=0.0), SHAPE)
        total = _add_dot(gradient, _weights(weight, unit, column, SHAPE, GATES * SHAPE.units), total, SHAPE)
    return total


@triton.jit(do_not_specialize=["steps"])
def gru_backward(inputs, products, weight, keep, states, gradient, by_gates, carry, steps, lanes, SHAPE: tl.constexpr):
    """`by_gates` (G, T + 1, B, 4 M), zeros behind the last step: the gradients in W_n h + b, and in what the input adds to r, z, n.

    `products` (G, 3 M, T, B): W h, of n with its bias; `weight` (G, M, 3 M), transposed, gates n, r, z; `gradient` (G, M, T, B) in the states after each step;
    `carry` (G, B, M), zeros: what a state's gradient has from the step behind, but for its product.
    """
    UNITS: tl.constexpr = SHAPE.units
    tower, lane, present = _lanes_of(lanes, SHAPE)
    row, lane64 = steps.to(tl.int64) * lanes, lane[:, None].to(tl.int64)
    place = tower * 3 * UNITS * row + row - lanes + lane[:, None]
    gradient += tower * UNITS * row + row - lanes + lane[:, None]
    states += (tower * (steps + 1) * lanes + row - lanes + lane64) * UNITS
    by_gates += (tower * (steps + 1) * lanes + row - lanes + lane64) * 4 * UNITS
    carry += (tower * lanes + lane64) * UNITS
    weight += tower * 3 * UNITS * UNITS
    for k in tl.range(0, steps, num_stages=1):
        t = steps - 1 - k
        kept = tl.load(keep + t * lanes + lane, mask=present, other=0.0)[:, None]
        kept_behind = tl.load(keep + (t + 1) * lanes + lane, mask=present & (k > 0), other=0.0)[:, None]
        for start in range(0, UNITS, SHAPE.block_n):
            unit = start + tl.arange(0, SHAPE.block_n)
            mask = present[:, None] & (unit < UNITS)[None, :]
            back = _from_behind(by_gates + lanes * 4 * UNITS, weight, present, unit, SHAPE, 3)
            total = _rows(gradient, row, unit, mask) + kept_behind * (tl.load(carry + unit[None, :], mask=mask, other=0.0) + back)
            # The gates again.
            r = sigmoid(_rows(inputs + place, row, unit, mask) + _rows(products + place, row, unit, mask))
            z = sigmoid(_rows(inputs + place + UNITS * row, row, unit, mask) + _rows(products + place + UNITS * row, row, unit, mask))
            recurrent = _rows(products + place + 2 * UNITS * row, row, unit, mask)
            n = tanh(_rows(inputs + place + 2 * UNITS * row, row, unit, mask) + r * recurrent, False)
            h = tl.load(states + unit[None, :], mask=mask, other=0.0) * kept
            # h' = n + z (h - n)
            by_n = total * (1.0 - z) * (1.0 - n * n)
            target = by_gates + unit[None, :]
            tl.store(target, by_n * r, mask=mask)
            tl.store(target + UNITS, by_n * recurrent * r * (1.0 - r), mask=mask)
            tl.store(target + 2 * UNITS, total * (h - n) * z * (1.0 - z), mask=mask)
            tl.store(target + 3 * UNITS, by_n, mask=mask)
            tl.store(carry + unit[None, :], total * z, mask=mask)
        tl.debug_barrier()  # the step before reads what other threads have stored
        place -= lanes
        gradient -= lanes
        states -= lanes * UNITS
        by_gates -= lanes * 4 * UNITS


@triton.jit(do_not_specialize=["steps"])
def lstm_backward(inputs, products, weight, keep, cells, gradient, by_gates, carry, steps, lanes, SHAPE: tl.constexpr):
    """`by_gates` (G, T + 1, B, 4 M), zeros behind the last step: the gradients in what the input adds to i, f, o and g.

    `products` (G, 4 M, T, B): W h; `weight` (G, M, 4 M), transposed; `gradient` (G, M, T, B) in the states after each step; `carry` (G, B, M), zeros: the
    gradient that a cell has from the step behind.
    """
    UNITS: tl.constexpr = SHAPE.units
    tower, lane, present = _lanes_of(lanes, SHAPE)
    row, lane64 = steps.to(tl.int64) * lanes, lane[:, None].to(tl.int64)
    place = tower * 4 * UNITS * row + row - lanes + lane[:, None]
    gradient += tower * UNITS * row + row - lanes + lane[:, None]
    cells += (tower * (steps + 1) * lanes + row - lanes + lane64) * UNITS
    by_gates += (tower * (steps + 1) * lanes + row - lanes + lane64) * 4 * UNITS
    carry += (tower * lanes + lane64) * UNITS
    weight += tower * 4 * UNITS * UNITS
    for k in tl.range(0, steps, num_stages=1):
        t = steps - 1 - k
        kept = tl.load(keep + t * lanes + lane, mask=present, other=0.0)[:, None]
        kept_behind = tl.load(keep + (t + 1) * lanes + lane, mask=present & (k > 0), other=0.0)[:, None]
        for start in range(0, UNITS, SHAPE.block_n):
            unit = start + tl.arange(0, SHAPE.block_n)
            mask = present[:, None] & (unit < UNITS)[None, :]
            back = _from_behind(by_gates + lanes * 4 * UNITS, weight, present, unit, SHAPE, 4)
            total = _rows(gradient, row, unit, mask) + kept_behind * back
            # The gates again.
            i = sigmoid(_rows(inputs + place, row, unit, mask) + _rows(products + place, row, unit, mask))
            f = sigmoid(_rows(inputs + place + UNITS * row, row, unit, mask) + _rows(products + place + UNITS * row, row, unit, mask))
            o = sigmoid(_rows(inputs + place + 2 * UNITS * row, row, unit, mask) + _rows(products + place + 2 * UNITS * row, row, unit, mask))
            g = tanh(_rows(inputs + place + 3 * UNITS * row, row, unit, mask) + _rows(products + place + 3 * UNITS * row, row, unit, mask), False)
            before = tl.load(cells + unit[None, :], mask=mask, other=0.0) * kept
            squashed = tanh(f * before + i * g, False)
            # h = o tanh(c), c = f before + i g
            by_cell = kept_behind * tl.load(carry + unit[None, :], mask=mask, other=0.0) + total * o * (1.0 - squashed * squashed)
            target = by_gates + unit[None, :]
            tl.store(target, by_cell * g * i * (1.0 - i), mask=mask)
            tl.store(target + UNITS, by_cell * before * f * (1.0 - f), mask=mask)
            tl.store(target + 2 * UNITS, total * squashed * o * (1.0 - o), mask=mask)
            tl.store(target + 3 * UNITS, by_cell * i * (1.0 - g * g), mask=mask)
            tl.store(carry + unit[None, :], by_cell * f, mask=mask)
        tl.debug_barrier()  # the step before reads what other threads have stored
        place -= lanes
        gradient -= lanes
        cells -= lanes * UNITS
        by_gates -= lanes * 4 * UNITS

"""MinGRU's scan in Triton: what is left of a layer after its one product. A thread keeps a unit of a lane for all steps. Knows no network and no loss.

z = sigmoid(gate), c = hidden + 1/2 where hidden >= 0 else sigmoid(hidden), h <- h + z (c - h), output p h + (1 - p) x with p = sigmoid(highway). Where an
episode begins (`keep` is 0) the state before the step is zero. The way back works the gates out again from what they were made of.

Shape letters: G towers, M units, T steps, B lanes. Buffers are feature-major, so neighbouring threads read neighbouring lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import sigmoid


@triton.jit
def _places(steps, lanes, UNITS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a program's units and lanes: the lane, the place in (G, M, B), the place of step 0 in (G, M, T, B) and in (G, 3 M, T, B), and which there are."""
    tower, index = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lane, unit = index % lanes, index // lanes
    span = steps.to(tl.int64) * lanes
    return lane, tower * UNITS * lanes + index, (tower * UNITS + unit) * span + lane, (tower * 3 * UNITS + unit) * span + lane, index < UNITS * lanes


@triton.jit
def _gates(gates, place, span, mask, UNITS: tl.constexpr):
    """Hidden, z, p and sigmoid(hidden) of one step."""
    hidden = tl.load(gates + place, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gates + place + UNITS * span, mask=mask, other=0.0).to(tl.float32)
    highway = tl.load(gates + place + 2 * UNITS * span, mask=mask, other=0.0).to(tl.float32)
    return hidden, sigmoid(gate), sigmoid(highway), sigmoid(hidden)


@triton.jit(do_not_specialize=["steps"])
def scan_forward(gates, features, first, keep, states, output, steps, lanes, UNITS: tl.constexpr, BLOCK: tl.constexpr):
    """All states and outputs (G, M, T, B) from `gates` (G, 3 M, T, B), a layer's input `features` (G, M, T, B), the `first` state (G, M, B), `keep` (T, B)."""
    lane, begin, place, gate_place, mask = _places(steps, lanes, UNITS, BLOCK)
    span = steps.to(tl.int64) * lanes
    h = tl.load(first + begin, mask=mask, other=0.0).to(tl.float32)
    for t in range(steps):
        h *= tl.load(keep + t * lanes + lane, mask=mask, other=0.0)
        hidden, z, p, squashed = _gates(gates, gate_place, span, mask, UNITS)
        h += z * (tl.where(hidden >= 0.0, hidden + 0.5, squashed) - h)
        x = tl.load(features + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(states + place, h, mask=mask)
        tl.store(output + place, x + p * (h - x), mask=mask)
        place += lanes
        gate_place += lanes


@triton.jit(do_not_specialize=["steps"])
def scan_backward(
    gates, features, first, keep, states, gradient, by_gates, by_features, steps, lanes, UNITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The gradients in gates and features, of the shapes of these, from the one in the output, `gradient` (G, M, T, B)."""
    lane, begin, place, gate_place, mask = _places(steps, lanes, UNITS, BLOCK)
    span = steps.to(tl.int64) * lanes
    place += span - lanes
    gate_place += span - lanes
    initial = tl.load(first + begin, mask=mask, other=0.0).to(tl.float32)
    carried = tl.zeros((BLOCK,), tl.float32)  # dL / dh_t, of the steps behind
    for k in range(steps):
        t = steps - 1 - k
        hidden, z, p, squashed = _gates(gates, gate_place, span, mask, UNITS)
        h, x = tl.load(states + place, mask=mask, other=0.0), tl.load(features + place, mask=mask, other=0.0).to(tl.float32)
        before = tl.where(t > 0, tl.load(states + place - lanes, mask=mask & (t > 0), other=0.0), initial)
        kept = tl.load(keep + t * lanes + lane, mask=mask, other=0.0)
        outer = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
        # The output is x + p (h - x).
        carried += outer * p
        tl.store(by_features + place, outer * (1.0 - p), mask=mask)
        tl.store(by_gates + gate_place + 2 * UNITS * span, outer * (h - x) * p * (1.0 - p), mask=mask)
        # h is before + z (c - before).
        candidate, slope = tl.where(hidden >= 0.0, hidden + 0.5, squashed), tl.where(hidden >= 0.0, 1.0, squashed * (1.0 - squashed))
        tl.store(by_gates + gate_place + UNITS * span, carried * (candidate - kept * before) * z * (1.0 - z), mask=mask)
        tl.store(by_gates + gate_place, carried * z * slope, mask=mask)
        carried *= (1.0 - z) * kept
        place -= lanes
        gate_place -= lanes

"""LSTM over segments in two Triton kernels, forward and backward, as a fast path of `operant.nn.cells.lstm` for
networks whose other layers run in torch.

A program owns BLOCK lanes of a tower for all steps and holds the recurrent weights. Input projections and weight
gradients, which do not depend on the previous step, are products of torch.

| parameter        | shape          | meaning                                |
|------------------|----------------|----------------------------------------|
| inputs_ptr       | (G, 4 M, T, B) | input projections of i, f, o, g        |
| weight_ptr       | (G, 4 M, M)    | recurrent weights                      |
| initial_ptr      | (G, M, B)      | initial h                              |
| initial_cell_ptr | (G, M, B)      | initial c                              |
| keep_ptr         | (T, B)         | 0 where an episode begins, else 1      |
| states_ptr       | (G, M, T, B)   | h of all steps                         |
| cells_ptr        | (G, M, T, B)   | c of all steps, saved                  |
| gates_ptr        | (G, 4 M, T, B) | i, f, o, g of all steps, saved         |
| grad_states_ptr  | (G, M, T, B)   | gradient of h                          |
| grad_gates_ptr   | (G, 4 M, T, B) | gradient of the gates' pre-activations |
| gate_stride      |                | M T B                                  |

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
from operant.kernels.recurrent.cells import lstm_step
from operant.kernels.warmup import Launcher

BLOCK, WARPS = 16, 4
"""Lanes and warps of a program."""


@triton.jit
def _operand(x, PRECISION: tl.constexpr):
    """Round x to tf32 as the operand of a product, if PRECISION is "tf32"."""
    return round_to_tf32(x) if PRECISION == "tf32" else x


@triton.jit
def _load_gates(gates_ptr, offset, gate_stride, mask):
    """Load gates i, f, o, g of a step, (BLOCK, P) each, `gate_stride` apart."""
    first = tl.load(gates_ptr + offset, mask=mask, other=0.0)
    second = tl.load(gates_ptr + offset + gate_stride, mask=mask, other=0.0)
    return (
        first,
        second,
        tl.load(gates_ptr + offset + 2 * gate_stride, mask=mask, other=0.0),
        tl.load(gates_ptr + offset + 3 * gate_stride, mask=mask, other=0.0),
    )


@triton.jit
def _store_gates(gates_ptr, offset, gate_stride, gates, mask):
    """Store gates i, f, o, g of a step, (BLOCK, P) each, `gate_stride` apart."""
    for k in tl.static_range(4):
        tl.store(gates_ptr + offset + k * gate_stride, gates[k], mask=mask)


@triton.jit
def _load_weights(
    weight_ptr,
    tower,
    STRIDE_K: tl.constexpr,
    STRIDE_N: tl.constexpr,
    UNITS: tl.constexpr,
    PAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Load the recurrent weights of all gates of a tower as right operands (P, P), with strides STRIDE_K and
    STRIDE_N.
    """
    weights = ()
    unit = tl.arange(0, PAD)
    mask = (unit < UNITS)[:, None] & (unit < UNITS)[None, :]
    for k in tl.static_range(4):
        offset = (tower * 4 + k) * UNITS * UNITS + unit[:, None] * STRIDE_K + unit[None, :] * STRIDE_N
        weights = weights + (_operand(tl.load(weight_ptr + offset, mask=mask, other=0.0), PRECISION),)
    return weights


@triton.jit(do_not_specialize=["steps"])
def lstm_forward(
    inputs_ptr,
    weight_ptr,
    initial_ptr,
    initial_cell_ptr,
    keep_ptr,
    states_ptr,
    cells_ptr,
    gates_ptr,
    steps,
    lanes,
    gate_stride,
    UNITS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """LSTM forward pass: c' = f c + i g, h' = o tanh(c'), for all T steps."""
    tower, gate_stride = tl.program_id(1), tl.cast(gate_stride, tl.int64)
    lane, unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD)
    valid = lane < lanes
    mask = valid[:, None] & (unit < UNITS)[None, :]
    weights = _load_weights(weight_ptr, tower, 1, UNITS, UNITS, PAD, PRECISION)
    state = (tower * UNITS + unit[None, :]) * lanes + lane[:, None]
    h, c = tl.load(initial_ptr + state, mask=mask, other=0.0), tl.load(initial_cell_ptr + state, mask=mask, other=0.0)
    offset = (tower * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    gate_offset = (tower * 4 * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    # Every step loads the operands of the next one.
    projected, keep = (
        _load_gates(inputs_ptr, gate_offset, gate_stride, mask),
        tl.load(keep_ptr + lane, mask=valid, other=0.0),
    )
    for step in tl.range(0, steps, num_stages=1):
        has_next = step + 1 < steps
        next_projected = _load_gates(inputs_ptr, gate_offset + lanes, gate_stride, mask & has_next)
        next_keep = tl.load(keep_ptr + (step + 1) * lanes + lane, mask=valid & has_next, other=0.0)
        # i, f, o = sigmoid(x + W h), g = tanh(x_g + W_g h)
        c *= keep[:, None]
        operand = _operand(h * keep[:, None], PRECISION)
        i = sigmoid(tl.dot(operand, weights[0], projected[0], input_precision=PRECISION))
        f = sigmoid(tl.dot(operand, weights[1], projected[1], input_precision=PRECISION))
        o = sigmoid(tl.dot(operand, weights[2], projected[2], input_precision=PRECISION))
        g = tanh(tl.dot(operand, weights[3], projected[3], input_precision=PRECISION), False)
        # c' = f c + i g, h' = o tanh(c')
        c, h = lstm_step(i, f, o, g, c, False)
        _store_gates(gates_ptr, gate_offset, gate_stride, (i, f, o, g), mask)
        tl.store(cells_ptr + offset, c, mask=mask)
        tl.store(states_ptr + offset, h, mask=mask)
        projected = next_projected
        keep = next_keep
        offset += lanes
        gate_offset += lanes


@triton.jit(do_not_specialize=["steps"])
def lstm_backward(
    grad_states_ptr,
    weight_ptr,
    initial_cell_ptr,
    keep_ptr,
    cells_ptr,
    gates_ptr,
    grad_gates_ptr,
    steps,
    lanes,
    gate_stride,
    UNITS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """LSTM backward pass: gradient of all h to the gradients of the gates' pre-activations."""
    tower, gate_stride = tl.program_id(1), tl.cast(gate_stride, tl.int64)
    lane, unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD)
    valid = lane < lanes
    mask = valid[:, None] & (unit < UNITS)[None, :]
    weights = _load_weights(weight_ptr, tower, UNITS, 1, UNITS, PAD, PRECISION)
    state = (tower * UNITS + unit[None, :]) * lanes + lane[:, None]
    initial_cell = tl.load(initial_cell_ptr + state, mask=mask, other=0.0)
    last = (steps - 1) * lanes
    offset = (tower * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    gate_offset = (tower * 4 * UNITS + unit[None, :]).to(tl.int64) * steps * lanes + lane[:, None]
    offset += last
    gate_offset += last
    grad_h = tl.zeros((BLOCK, PAD), tl.float32)  # of later steps
    grad_c = grad_h
    gates, grad_state = (
        _load_gates(gates_ptr, gate_offset, gate_stride, mask),
        tl.load(grad_states_ptr + offset, mask=mask, other=0.0),
    )
    cell, keep = (
        tl.load(cells_ptr + offset, mask=mask, other=0.0),
        tl.load(keep_ptr + last + lane, mask=valid, other=0.0),
    )
    previous_cell = tl.load(cells_ptr + offset - lanes, mask=mask & (steps > 1), other=0.0)
    for step in tl.range(0, steps, num_stages=1):
        has_next = step + 1 < steps
        next_gates, next_grad_state = (
            _load_gates(gates_ptr, gate_offset - lanes, gate_stride, mask & has_next),
            tl.load(grad_states_ptr + offset - lanes, mask=mask & has_next, other=0.0),
        )
        next_keep = tl.load(keep_ptr + last - (step + 1) * lanes + lane, mask=valid & has_next, other=0.0)
        next_previous_cell = tl.load(cells_ptr + offset - 2 * lanes, mask=mask & (step + 2 < steps), other=0.0)
        previous_cell = tl.where(has_next, previous_cell, initial_cell)
        i, f, o, g = gates
        # dh' includes later steps, dc' += o (1 - tanh(c')^2) dh'
        grad, tanh_c = grad_state + grad_h, tanh(cell, False)
        grad_c += grad * o * (1.0 - tanh_c * tanh_c)
        # di = g dc', df = c dc', do = tanh(c') dh', dg = i dc', through sigmoid and tanh
        grad_i, grad_f = grad_c * g * i * (1.0 - i), grad_c * (previous_cell * keep[:, None]) * f * (1.0 - f)
        grads = (grad_i, grad_f, grad * tanh_c * o * (1.0 - o), grad_c * i * (1.0 - g * g))
        _store_gates(grad_gates_ptr, gate_offset, gate_stride, grads, mask)
        # dc = keep f dc', dh = keep W^T (di, df, do, dg)
        grad_c *= f * keep[:, None]
        grad_h = tl.dot(_operand(grads[0], PRECISION), weights[0], input_precision=PRECISION)
        for k in tl.static_range(1, 4):
            grad_h = tl.dot(_operand(grads[k], PRECISION), weights[k], grad_h, input_precision=PRECISION)
        grad_h *= keep[:, None]
        cell = previous_cell
        previous_cell = next_previous_cell
        gates = next_gates
        grad_state = next_grad_state
        keep = next_keep
        offset -= lanes
        gate_offset -= lanes


class Warmup(Launcher):
    """Trial of both kernels of an LSTM for a number of units: compiles them, to check that the GPU can run them."""

    def __init__(self, units: int, device: torch.device) -> None:
        self._rows, self._device, self._units = torch.zeros(8 * units * BLOCK, device=device), device, units

    def fits(self) -> bool:
        """Whether the GPU has enough shared memory for both kernels."""
        return self._fits_shared(
            self._device, lambda: self._try_launch(lstm_forward, 8), lambda: self._try_launch(lstm_backward, 7)
        )

    def _try_launch(self, kernel: Any, tensors: int) -> None:
        """Compile a kernel for its tensors and the number of units."""
        self.launch(kernel, (1, 1), *[self._rows] * tensors, 2, BLOCK, 2 * BLOCK * self._units, **options(self._units))


class Steps(torch.autograd.Function):
    """Autograd function that replaces the loop over steps of `operant.nn.cells.lstm`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, initial: Tensor, initial_cell: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return states (G, M, T, B) and the last c (G, M, B)."""
        (G, M, B), T = initial.shape, inputs.shape[2]
        arguments = tuple(part.contiguous() for part in (inputs, weight, initial, initial_cell, keep))
        states, cells, gates = (
            inputs.new_empty(G, M, T, B),
            inputs.new_empty(G, M, T, B),
            torch.empty_like(arguments[0]),
        )
        lstm_forward[triton.cdiv(B, BLOCK), G](*arguments, states, cells, gates, T, B, M * T * B, **options(M))
        ctx.save_for_backward(*arguments[1:], states, cells, gates)
        last = cells[:, :, -1].clone()
        ctx.mark_non_differentiable(last)
        return states, last

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of the input projections and of the recurrent weight; None for the other inputs."""
        weight, initial, initial_cell, keep, states, cells, gates = ctx.saved_tensors
        (G, M, B), T = initial.shape, keep.shape[0]
        grad_gates = torch.empty_like(gates)
        lstm_backward[triton.cdiv(B, BLOCK), G](
            grad_states.contiguous(),
            weight,
            initial_cell,
            keep,
            cells,
            gates,
            grad_gates,
            T,
            B,
            M * T * B,
            **options(M),
        )
        previous = torch.empty_like(states)  # keep_t h_{t-1}
        torch.mul(initial, keep[0], out=previous[:, :, 0])
        torch.mul(states[:, :, :-1], keep[1:], out=previous[:, :, 1:])
        # One product for each step, summed over the steps.
        grad_weight = (grad_gates.transpose(1, 2) @ previous.permute(0, 2, 3, 1)).sum(dim=1)
        return grad_gates, grad_weight, None, None, None


def options(units: int) -> dict[str, Any]:
    """Return the compile-time constants of both kernels for an LSTM of this number of units."""
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return {
        "UNITS": units,
        "PAD": max(16, triton.next_power_of_2(units)),
        "BLOCK": BLOCK,
        "PRECISION": precision,
        "num_warps": WARPS,
    }

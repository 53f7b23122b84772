"""Recurrent cells over T steps with hand-written backward passes: linear scan (MinGRU), GRU and LSTM.

Callers compute the input projections W_x x + b_x of all steps in one product. The loops here hold only the terms that
depend on the previous step. Gradients equal those of autograd over the unrolled loop and save fewer tensors. The
gradient of a recurrent weight is one product over T x B after the loop.

`keep` (T, B) is 0 where an episode begins and 1 elsewhere: the state before such a step is multiplied by it, and so is
its gradient. Initial states receive no gradient.

Shape letters: G towers, M units, K rows of gates, T steps, B lanes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from operant.nn import linear

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def _tanh_(features: Tensor) -> Tensor:
    """Apply tanh in place. On a CPU as 2 sigmoid(2x) - 1, several times faster than torch's tanh."""
    return features.tanh_() if features.is_cuda else features.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def _steps_last(x: Tensor) -> Tensor:
    """Transpose (T, G, K, B) to (G, K, T, B)."""
    return x.permute(1, 2, 0, 3)


def scan(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    """Return all states (G, M, T, B) of the linear recurrence h_t = a_t h_{t-1} + b_t, for a, b (G, M, T, B) and the
    initial state (G, M, B).
    """
    return a * initial[:, :, None] + b if _is_single_step(b) else _Scan.apply(a, b, initial)


def gru(inputs: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, keep: Tensor) -> Tensor:
    """Unroll a GRU (Cho et al. 2014), in the form of cuDNN and torch, with gates in the order r, z, n. Returns all
    states (G, M, T, B).

    r = sigmoid(x_r + W_r h), z = sigmoid(x_z + W_z h), n = tanh(x_n + r (W_n h + b_n)), h' = (1 - z) n + z h.

    `inputs` x (G, 3 M, T, B), `weight` W (G, 3 M, M), `bias` b_n (G, M, 1), `initial` h (G, M, B), `keep` (T, B): see
    the module.
    """
    if not _is_single_step(inputs):
        return _GRU.apply(inputs, weight, bias, initial, keep)
    h, x, M = initial * keep[0], inputs[:, :, 0], initial.shape[1]
    r, z, recurrent = torch.bmm(weight, h).split(M, dim=1)
    r, z = (x[:, :M] + r).sigmoid(), (x[:, M : 2 * M] + z).sigmoid()
    n = (x[:, 2 * M :] + r * (recurrent + bias)).tanh()
    return (n + z * (h - n))[:, :, None]


def lstm(
    inputs: Tensor, weight: Tensor, initial: Tensor, initial_cell: Tensor, keep: Tensor, function: Any = None
) -> tuple[Tensor, Tensor]:
    """Unroll an LSTM (Hochreiter & Schmidhuber 1997) with a forget gate (Gers et al. 2000), with gates in the order i,
    f, o, g. Returns all h (G, M, T, B) and the last c (G, M, B).

    i = sigmoid(x_i + W_i h), f = sigmoid(x_f + W_f h), o = sigmoid(x_o + W_o h), g = tanh(x_g + W_g h), c' = f c + i g,
    h' = o tanh(c').

    `inputs` x (G, 4 M, T, B), `weight` W (G, 4 M, M), `initial` h and `initial_cell` c (G, M, B), `keep` (T, B): see
    the module. `function`: an autograd.Function that replaces the loop over steps.
    """
    if function is not None or not _is_single_step(inputs):
        return (function or _LSTM).apply(inputs, weight, initial, initial_cell, keep)
    i, f, o, g = (inputs[:, :, 0] + torch.bmm(weight, initial * keep[0])).split(initial.shape[1], dim=1)
    c = f.sigmoid() * (initial_cell * keep[0]) + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh())[:, :, None], c


def _is_single_step(inputs: Tensor) -> bool:
    """Whether `inputs` is one step without gradients, as in acting: computed by plain operations, which torch.export
    can trace.
    """
    return inputs.shape[2] == 1 and not torch.is_grad_enabled()


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        states, h = torch.empty_like(b), initial
        for t in range(b.shape[2]):
            h = torch.addcmul(b[:, :, t], a[:, :, t], h, out=states[:, :, t])
        ctx.save_for_backward(a, initial, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        a, initial, states = ctx.saved_tensors
        # g_t = dL/dh_t + a_{t+1} g_{t+1}
        grad_b = grad_states.clone()
        for t in reversed(range(grad_states.shape[2] - 1)):
            grad_b[:, :, t].addcmul_(a[:, :, t + 1], grad_b[:, :, t + 1])
        # db_t = g_t, da_t = g_t h_{t-1}
        grad_a = torch.empty_like(grad_b)
        torch.mul(grad_b[:, :, 0], initial, out=grad_a[:, :, 0])
        torch.mul(grad_b[:, :, 1:], states[:, :, :-1], out=grad_a[:, :, 1:])
        return grad_a, grad_b, None


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, keep: Tensor) -> Tensor:
        (G, M, B), T = initial.shape, inputs.shape[2]
        new = inputs.new_empty
        states = new(T, G, M, B)
        previous = new(T, G, M, B)  # keep_t h_{t-1}
        gates = new(T, G, 2 * M, B)  # r, z
        recurrent, candidate = new(T, G, M, B), new(T, G, M, B)  # W_n h + b_n, and n
        gate_weight, candidate_weight = weight.split([2 * M, M], dim=1)
        h = initial
        for t in range(T):
            torch.mul(h, keep[t], out=previous[t])
            # r, z = sigmoid(x + W h)
            torch.baddbmm(inputs[:, : 2 * M, t], gate_weight, previous[t], out=gates[t]).sigmoid_()
            # n = tanh(x_n + r (W_n h + b_n))
            torch.baddbmm(bias, candidate_weight, previous[t], out=recurrent[t])
            torch.addcmul(inputs[:, 2 * M :, t], gates[t, :, :M], recurrent[t], out=candidate[t])
            # h' = n + z (h - n)
            h = torch.lerp(_tanh_(candidate[t]), previous[t], gates[t, :, M:], out=states[t])
        ctx.save_for_backward(weight, keep, previous, gates, recurrent, candidate)
        return _steps_last(states)

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        weight, keep, previous, gates, recurrent, candidate = ctx.saved_tensors
        T, G, M, B = previous.shape
        new = grad_states.new_empty
        # Gradients of pre-activations: of r, z and W_n h + b_n in `grad_gates`, of n in `grad_candidate`.
        grad_gates, grad_candidate = new(T, G, 3 * M, B), new(T, G, M, B)
        weight_t, grad_state = weight.transpose(1, 2), torch.zeros_like(previous[0])
        for t in reversed(range(T)):
            grad_h = grad_states[:, :, t] + grad_state
            r, z = gates[t].split(M, dim=1)
            grad_r, grad_z, grad_recurrent = grad_gates[t].split(M, dim=1)
            # dn = (1 - z) dh, through tanh
            torch.mul(grad_h, z, out=grad_state)
            _tanh_backward(grad_h - grad_state, candidate[t], grad_input=grad_candidate[t])
            # d(W_n h + b_n) = r dn, dr = (W_n h + b_n) dn, dz = (h_{t-1} - n) dh
            torch.mul(grad_candidate[t], r, out=grad_recurrent)
            _sigmoid_backward(grad_candidate[t] * recurrent[t], r, grad_input=grad_r)
            _sigmoid_backward((previous[t] - candidate[t]).mul_(grad_h), z, grad_input=grad_z)
            # dh_{t-1} = keep_t (z dh + W^T (dr, dz, d(W_n h + b_n)))
            grad_state.baddbmm_(weight_t, grad_gates[t]).mul_(keep[t])
        grad_weight = linear.weight_gradient(_steps_last(grad_gates).flatten(2), _steps_last(previous).flatten(2))
        grad_inputs = torch.cat([grad_gates[:, :, : 2 * M], grad_candidate], dim=2)
        grad_bias = grad_gates[:, :, 2 * M :].sum(dim=(0, 3)).unsqueeze(2)
        return _steps_last(grad_inputs), grad_weight, grad_bias, None, None


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, initial: Tensor, initial_cell: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        (G, M, B), T = initial.shape, inputs.shape[2]
        new = inputs.new_empty
        states, cells = new(T, G, M, B), new(T, G, M, B)  # h, c
        previous, previous_cell = new(T, G, M, B), new(T, G, M, B)  # keep_t h_{t-1}, keep_t c_{t-1}
        gates, tanh_cell = new(T, G, 4 * M, B), new(T, G, M, B)  # gates i, f, o, g, and tanh c
        h, c = initial, initial_cell
        for t in range(T):
            torch.mul(h, keep[t], out=previous[t])
            torch.mul(c, keep[t], out=previous_cell[t])
            # i, f, o = sigmoid(x + W h), g = tanh(x_g + W_g h)
            torch.baddbmm(inputs[:, :, t], weight, previous[t], out=gates[t])
            gates[t, :, : 3 * M].sigmoid_()
            _tanh_(gates[t, :, 3 * M :])
            i, f, o, g = gates[t].split(M, dim=1)
            # c' = f c + i g, h' = o tanh(c')
            c = torch.mul(f, previous_cell[t], out=cells[t]).addcmul_(i, g)
            h = torch.mul(o, _tanh_(tanh_cell[t].copy_(c)), out=states[t])
        ctx.save_for_backward(weight, keep, previous, gates, previous_cell, tanh_cell)
        last = c.clone()
        ctx.mark_non_differentiable(last)
        return _steps_last(states), last

    @staticmethod
    def backward(ctx: Any, grad_states: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, keep, previous, gates, previous_cell, tanh_cell = ctx.saved_tensors
        T, G, M, B = previous.shape
        grad_gates, weight_t = grad_states.new_empty(T, G, 4 * M, B), weight.transpose(1, 2)
        grad_state, grad_cell = torch.zeros_like(previous[0]), torch.zeros_like(previous[0])
        for t in reversed(range(T)):
            grad_h = grad_states[:, :, t] + grad_state
            i, f, o, g = gates[t].split(M, dim=1)
            grad_i, grad_f, grad_o, grad_g = grad_gates[t].split(M, dim=1)
            # do = tanh(c) dh, dc += o (1 - tanh(c)^2) dh
            _sigmoid_backward(grad_h * tanh_cell[t], o, grad_input=grad_o)
            grad_c = grad_cell.add_(torch.ops.aten.tanh_backward(grad_h.mul_(o), tanh_cell[t]))
            # di = g dc, df = c_{t-1} dc, dg = i dc
            _sigmoid_backward(grad_c * g, i, grad_input=grad_i)
            _sigmoid_backward(grad_c * previous_cell[t], f, grad_input=grad_f)
            _tanh_backward(grad_c * i, g, grad_input=grad_g)
            # dc_{t-1} = keep_t f dc, dh_{t-1} = keep_t W^T (di, df, do, dg)
            grad_cell = grad_c.mul_(f).mul_(keep[t])
            grad_state = torch.bmm(weight_t, grad_gates[t]).mul_(keep[t])
        grad_weight = linear.weight_gradient(_steps_last(grad_gates).flatten(2), _steps_last(previous).flatten(2))
        return _steps_last(grad_gates), grad_weight, None, None, None

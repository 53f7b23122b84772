"""Recurrent cells over T steps, with gradients written by hand: a linear scan (MinGRU), GRU and LSTM. Know no network,
no policy and no loss.

Everything that does not depend on the step before is computed for all steps at once, outside; here is what is left to
the loop over steps. Gradients equal those of autograd over the unrolled loop, of which they keep less; the gradient of
a recurrent weight is one product over T x B after the loop.

`keep` (T, B) is 0 where an episode begins, 1 elsewhere: the state before such a step is multiplied by it, and so is its
gradient. An initial state is given, and gets no gradient.

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
    """In place. tanh x = 2 sigmoid(2x) - 1: on a CPU torch's sigmoid is several times faster than its tanh."""
    return features.tanh_() if features.is_cuda else features.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def _steps_last(rows: Tensor) -> Tensor:
    """(T, G, K, B) -> (G, K, T, B)."""
    return rows.permute(1, 2, 0, 3)


def scan(a: Tensor, b: Tensor, first: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t: coefficients a, b (G, M, T, B) and the first state (G, M, B) -> all states (G,
    M, T, B).
    """
    return a * first[:, :, None] + b if _is_a_step(b) else _Scan.apply(a, b, first)


def gru(inputs: Tensor, weight: Tensor, bias: Tensor, first: Tensor, keep: Tensor) -> Tensor:
    """Cho et al. 2014, in the form of cuDNN and torch, with gates r, z, n in this order.

    r, z = sigmoid(x + W h), n = tanh(x + r (W h + b)), h <- (1 - z) n + z h. What the input adds to the gates (G, 3 M,
    T, B), W (G, 3 M, M), b (G, M, 1), the first state (G, M, B), `keep` -> all states (G, M, T, B).
    """
    if not _is_a_step(inputs):
        return _GRU.apply(inputs, weight, bias, first, keep)
    before, x, M = first * keep[0], inputs[:, :, 0], first.shape[1]
    reset, update, recurrent = torch.bmm(weight, before).split(M, dim=1)
    reset, update = (x[:, :M] + reset).sigmoid(), (x[:, M : 2 * M] + update).sigmoid()
    candidate = (x[:, 2 * M :] + reset * (recurrent + bias)).tanh()
    return (candidate + update * (before - candidate))[:, :, None]


def lstm(
    inputs: Tensor, weight: Tensor, first: Tensor, first_cell: Tensor, keep: Tensor, steps: Any = None
) -> tuple[Tensor, Tensor]:
    """Hochreiter & Schmidhuber 1997 with a forget gate (Gers et al. 2000); gates i, f, o, and the candidate g, in this
    order.

    i, f, o = sigmoid(x + W h), g = tanh(x + W h), c <- f c + i g, h <- o tanh(c). What the input adds to the gates (G,
    4 M, T, B), W (G, 4 M, M), the first h and c (G, M, B), `keep` -> all h and the last c, (G, M, T, B) and (G, M, B).
    `steps`: a function of autograd's that goes through all steps in place of the loop.
    """
    if steps is not None or not _is_a_step(inputs):
        return (steps or _LSTM).apply(inputs, weight, first, first_cell, keep)
    enter, forget, leave, candidate = (inputs[:, :, 0] + torch.bmm(weight, first * keep[0])).split(
        first.shape[1], dim=1
    )
    cell = forget.sigmoid() * (first_cell * keep[0]) + enter.sigmoid() * candidate.tanh()
    return (leave.sigmoid() * cell.tanh())[:, :, None], cell


def _is_a_step(inputs: Tensor) -> bool:
    """Whether an actor takes one step: without gradients, in plain operations, which can be exported."""
    return inputs.shape[2] == 1 and not torch.is_grad_enabled()


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor) -> Tensor:
        states, before = torch.empty_like(b), first
        for t in range(b.shape[2]):
            before = torch.addcmul(b[:, :, t], a[:, :, t], before, out=states[:, :, t])
        ctx.save_for_backward(a, first, states)
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        a, first, states = ctx.saved_tensors
        # g_t = dL/dh_t + a_{t+1} g_{t+1}; dL/db_t = g_t, dL/da_t = g_t h_{t-1}.
        total = gradient.clone()
        for t in reversed(range(gradient.shape[2] - 1)):
            total[:, :, t].addcmul_(a[:, :, t + 1], total[:, :, t + 1])
        by_a = torch.empty_like(total)
        torch.mul(total[:, :, 0], first, out=by_a[:, :, 0])
        torch.mul(total[:, :, 1:], states[:, :, :-1], out=by_a[:, :, 1:])
        return by_a, total, None


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, first: Tensor, keep: Tensor) -> Tensor:
        (G, M, B), T = first.shape, inputs.shape[2]
        new = inputs.new_empty
        # before: h_{t-1}, 0 where an episode begins; gates: r, z
        states, before, gates = new(T, G, M, B), new(T, G, M, B), new(T, G, 2 * M, B)
        recurrent, candidate = new(T, G, M, B), new(T, G, M, B)  # W h + b of n, and n
        gate_weight, own_weight = weight.split([2 * M, M], dim=1)
        state = first
        for t in range(T):
            torch.mul(state, keep[t], out=before[t])
            torch.baddbmm(inputs[:, : 2 * M, t], gate_weight, before[t], out=gates[t]).sigmoid_()
            torch.baddbmm(bias, own_weight, before[t], out=recurrent[t])
            torch.addcmul(inputs[:, 2 * M :, t], gates[t, :, :M], recurrent[t], out=candidate[t])
            state = torch.lerp(_tanh_(candidate[t]), before[t], gates[t, :, M:], out=states[t])
        ctx.save_for_backward(weight, keep, before, gates, recurrent, candidate)
        return _steps_last(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, keep, before, gates, recurrent, candidate = ctx.saved_tensors
        T, G, M, B = before.shape
        new = gradient.new_empty
        # of r, z and W h + b of n; and of n: each before its activation
        by_gates, by_candidate = new(T, G, 3 * M, B), new(T, G, M, B)
        back, carried = weight.transpose(1, 2), torch.zeros_like(before[0])
        for t in reversed(range(T)):
            total = gradient[:, :, t] + carried
            reset, update = gates[t].split(M, dim=1)
            by_reset, by_update, by_recurrent = by_gates[t].split(M, dim=1)
            # dn = (1 - z) dh and through tanh; d(W h + b) = r dn; dr = (W h + b) dn; dz = (h_{t-1} - n) dh.
            torch.mul(total, update, out=carried)
            _tanh_backward(total - carried, candidate[t], grad_input=by_candidate[t])
            torch.mul(by_candidate[t], reset, out=by_recurrent)
            _sigmoid_backward(by_candidate[t] * recurrent[t], reset, grad_input=by_reset)
            _sigmoid_backward((before[t] - candidate[t]).mul_(total), update, grad_input=by_update)
            # dh_{t-1} = z dh + W^T (dr, dz, d(W h + b)), nothing across an episode's beginning.
            carried.baddbmm_(back, by_gates[t]).mul_(keep[t])
        by_weight = linear.weight_gradient(_steps_last(by_gates).flatten(2), _steps_last(before).flatten(2))
        by_inputs = torch.cat([by_gates[:, :, : 2 * M], by_candidate], dim=2)
        by_bias = by_gates[:, :, 2 * M :].sum(dim=(0, 3)).unsqueeze(2)
        return _steps_last(by_inputs), by_weight, by_bias, None, None


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, first: Tensor, first_cell: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        (G, M, B), T = first.shape, inputs.shape[2]
        new = inputs.new_empty
        # before: h_{t-1}, 0 where an episode begins
        states, before, gates = new(T, G, M, B), new(T, G, M, B), new(T, G, 4 * M, B)
        cells, cell_before, squashed = new(T, G, M, B), new(T, G, M, B), new(T, G, M, B)  # c, c_{t-1} likewise, tanh(c)
        state, cell = first, first_cell
        for t in range(T):
            torch.mul(state, keep[t], out=before[t])
            torch.mul(cell, keep[t], out=cell_before[t])
            torch.baddbmm(inputs[:, :, t], weight, before[t], out=gates[t])
            gates[t, :, : 3 * M].sigmoid_()
            _tanh_(gates[t, :, 3 * M :])
            enter, forget, leave, candidate = gates[t].split(M, dim=1)
            cell = torch.mul(forget, cell_before[t], out=cells[t]).addcmul_(enter, candidate)
            state = torch.mul(leave, _tanh_(squashed[t].copy_(cell)), out=states[t])
        ctx.save_for_backward(weight, keep, before, gates, cell_before, squashed)
        last = cell.clone()
        ctx.mark_non_differentiable(last)
        return _steps_last(states), last

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, keep, before, gates, cell_before, squashed = ctx.saved_tensors
        T, G, M, B = before.shape
        by_gates, back = gradient.new_empty(T, G, 4 * M, B), weight.transpose(1, 2)
        carried, cell_carried = torch.zeros_like(before[0]), torch.zeros_like(before[0])
        for t in reversed(range(T)):
            total = gradient[:, :, t] + carried
            enter, forget, leave, candidate = gates[t].split(M, dim=1)
            by_enter, by_forget, by_leave, by_candidate = by_gates[t].split(M, dim=1)
            # do = tanh(c) dh; dc = o (1 - tanh(c)^2) dh + what the next step hands back; di = g dc; df = c_{t-1} dc; dg
            # = i dc.
            _sigmoid_backward(total * squashed[t], leave, grad_input=by_leave)
            cell_total = cell_carried.add_(torch.ops.aten.tanh_backward(total.mul_(leave), squashed[t]))
            _sigmoid_backward(cell_total * candidate, enter, grad_input=by_enter)
            _sigmoid_backward(cell_total * cell_before[t], forget, grad_input=by_forget)
            _tanh_backward(cell_total * enter, candidate, grad_input=by_candidate)
            # dc_{t-1} = f dc and dh_{t-1} = W^T (di, df, do, dg), nothing across an episode's beginning.
            cell_carried = cell_total.mul_(forget).mul_(keep[t])
            carried = torch.bmm(back, by_gates[t]).mul_(keep[t])
        by_weight = linear.weight_gradient(_steps_last(by_gates).flatten(2), _steps_last(before).flatten(2))
        return _steps_last(by_gates), by_weight, None, None, None

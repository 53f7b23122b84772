"""Recurrent cells over T steps by the kernels beside: the functions of `operant.nn.cells`, with its layouts and gradients. Know no network and no loss.

Every number is added up in an order that the shapes and the tiles decide: the same inputs give the same bits.

Shape letters: G towers, M units, K gates, T steps, B lanes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from operant.kernels.recurrent import gated, scan
from operant.nn import linear

SCAN_BLOCK, SCAN_WARPS = 128, 4
"""Of the scan: a unit of a lane a thread."""

WARPS, STAGES = 4, 2
"""Of GRU and LSTM."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """The one place where a kernel is launched."""
    kernel[grid](*arguments, **options)


def mingru(gates: Tensor, features: Tensor, first: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Gates (G, 3 M, T, B), a layer's input (G, M, T, B), the first state (G, M, B), `keep` (T, B) -> output (G, M, T, B), the last state (G, M, B)."""
    return _MinGRU.apply(gates, features, first, keep)


def gru(inputs: Tensor, weight: Tensor, bias: Tensor, first: Tensor, keep: Tensor, precision: str = "ieee") -> Tensor:
    """As `operant.nn.cells.gru`, with products in a precision."""
    return _GRU.apply(inputs, weight, bias, first, keep, precision)


def lstm(inputs: Tensor, weight: Tensor, first: Tensor, first_cell: Tensor, keep: Tensor, precision: str = "ieee") -> tuple[Tensor, Tensor]:
    """As `operant.nn.cells.lstm`, with products in a precision."""
    return _LSTM.apply(inputs, weight, first, first_cell, keep, precision)


class _MinGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, features: Tensor, first: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        gates, features, first = gates.contiguous(), features.contiguous(), first.contiguous()
        states, output = torch.empty_like(features, dtype=torch.float32), torch.empty_like(features)
        _scan(scan.scan_forward, gates, features, first, keep, states, output)
        ctx.save_for_backward(gates, features, first, keep, states)
        last = states[:, :, -1].clone()
        ctx.mark_non_differentiable(last)
        return output, last

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gates, features, first, keep, states = ctx.saved_tensors
        by_gates, by_features = torch.empty_like(gates), torch.empty_like(features)
        _scan(scan.scan_backward, gates, features, first, keep, states, gradient.contiguous(), by_gates, by_features)
        return by_gates, by_features, None, None


def _scan(kernel: Any, gates: Tensor, features: Tensor, *rest: Tensor) -> None:
    G, M, T, B = features.shape
    launch(kernel, (-(-M * B // SCAN_BLOCK), G), gates, features, *rest, T, B, UNITS=M, BLOCK=SCAN_BLOCK, num_warps=SCAN_WARPS)


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, first: Tensor, keep: Tensor, precision: str) -> Tensor:
        inputs, shape, states = inputs.contiguous(), tiles(first, precision), _with_first(first, keep)
        _gated(gated.gru_forward, shape, inputs, _operand(weight, precision).contiguous(), bias.contiguous(), keep, states)
        ctx.save_for_backward(inputs, weight, bias, keep, states)
        ctx.shape = shape
        return _feature_major(states[:, 1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, weight, bias, keep, states = ctx.saved_tensors
        shape, M = ctx.shape, bias.shape[1]
        before = _before(states, keep)
        products = _products(weight, before, shape.precision)
        products[:, 2 * M :] += bias
        turned = torch.cat([weight[:, 2 * M :], weight[:, : 2 * M]], dim=1)  # gates n, r, z
        by_gates = _gradients(gated.gru_backward, shape, inputs, products, turned, keep, states, gradient)
        by_weight = linear.weight_gradient(_feature_major(by_gates[..., : 3 * M]).flatten(2), before)
        by_weight = torch.cat([by_weight[:, M:], by_weight[:, :M]], dim=1)
        return _feature_major(by_gates[..., M:]), by_weight, by_gates[..., :M].sum(dim=(1, 2)).unsqueeze(2), None, None, None


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, first: Tensor, first_cell: Tensor, keep: Tensor, precision: str
    ) -> tuple[Tensor, Tensor]:
        inputs, shape = inputs.contiguous(), tiles(first, precision)
        states, cells = _with_first(first, keep), _with_first(first_cell, keep)
        _gated(gated.lstm_forward, shape, inputs, _operand(weight, precision).contiguous(), keep, states, cells)
        ctx.save_for_backward(inputs, weight, keep, states, cells)
        ctx.shape = shape
        last = cells[:, -1].transpose(1, 2).contiguous()
        ctx.mark_non_differentiable(last)
        return _feature_major(states[:, 1:]), last

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, weight, keep, states, cells = ctx.saved_tensors
        before = _before(states, keep)
        products = _products(weight, before, ctx.shape.precision)
        by_gates = _gradients(gated.lstm_backward, ctx.shape, inputs, products, weight, keep, cells, gradient)
        by_inputs = _feature_major(by_gates)
        return by_inputs, linear.weight_gradient(by_inputs.flatten(2), before), None, None, None, None


def _gradients(kernel: Any, shape: gated.Shape, inputs: Tensor, products: Tensor, weight: Tensor, keep: Tensor, kept: Tensor, gradient: Tensor) -> Tensor:
    """What a backward kernel finds: gradients in the gates (G, T, B, 4 M). `kept` (G, T + 1, B, M): the states or cells that it reads."""
    G, T, B, M = kept.shape[0], kept.shape[1] - 1, kept.shape[2], kept.shape[3]
    by_gates, carry = kept.new_empty(G, T + 1, B, 4 * M), kept.new_zeros(G, B, M)
    by_gates[:, T] = 0.0
    transposed = _operand(weight, shape.precision).transpose(1, 2).contiguous()
    _gated(kernel, shape, inputs, products.contiguous(), transposed, keep, kept, gradient.contiguous(), by_gates, carry)
    return by_gates[:, :T]


def _gated(kernel: Any, shape: gated.Shape, inputs: Tensor, *rest: Tensor) -> None:
    G, _, T, B = inputs.shape
    launch(kernel, (-(-B // shape.block_b), G), inputs, *rest, T, B, SHAPE=shape, num_warps=WARPS, num_stages=STAGES)


def tiles(first: Tensor, precision: str) -> gated.Shape:
    """For a first state (G, M, B): as many lanes a program as leave every multiprocessor one, units as registers allow.

    Bits depend on them: 64 lanes may be multiplied by another instruction than 32.
    """
    G, M, B = first.shape
    processors = torch.cuda.get_device_properties(first.device).multi_processor_count if first.is_cuda else 1
    lanes = next((size for size in (64, 32) if -(-B // size) * G >= processors), 16)
    width = min(max(16, 1 << (M - 1).bit_length()), 32 if precision == "ieee" else 64)
    return gated.Shape(M, precision, lanes, width, width)


def _operand(x: Tensor, precision: str) -> Tensor:
    """Numbers as products take them: rounded to nearest."""
    if precision == "bf16":
        return x.bfloat16()
    if precision == "tf32":
        return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return x


def _products(weight: Tensor, before: Tensor, precision: str) -> Tensor:
    """W h of all steps, (G, K M, T B): rounded as in the loop, whatever product torch takes."""
    return torch.bmm(_operand(weight, precision).float(), _operand(before, precision).float())


def _with_first(first: Tensor, keep: Tensor) -> Tensor:
    """A buffer of states (G, T + 1, B, M) that begins with the first ones (G, M, B)."""
    G, M, B = first.shape
    states = first.new_empty(G, len(keep) + 1, B, M, dtype=torch.float32)
    states[:, 0] = first.transpose(1, 2)
    return states


def _before(states: Tensor, keep: Tensor) -> Tensor:
    """The states that steps begin from, (G, M, T B): 0 where an episode begins."""
    return _feature_major(states[:, :-1] * keep[:, :, None]).flatten(2)


def _feature_major(rows: Tensor) -> Tensor:
    """(G, T, B, K) -> (G, K, T, B), without a copy."""
    return rows.permute(0, 3, 1, 2)

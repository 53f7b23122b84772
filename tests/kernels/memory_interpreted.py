"""Run in a process of its own, with TRITON_INTERPRET=1: fused recurrent cells on the CPU beside autograd in float64, one JSON object to standard output.
See test_fused_memory.py."""

from __future__ import annotations

import json
import sys

import torch
from fused_probe import relative_error
from interpreter import teach

from operant.kernels import recurrent


def unrolled(kind, inputs, features, weight, bias, first, cell, keep):
    """A step after the other: (G, K M, T, B) and so on -> output (G, M, T, B) and the last h, or c of an LSTM."""
    _, M, T, _ = features.shape
    outputs, h, c = [], first, cell
    for t in range(T):
        h, c, x = h * keep[t], c * keep[t], inputs[:, :, t].split(M, dim=1)
        if kind == "mingru":
            hidden, z, p = x[0], x[1].sigmoid(), x[2].sigmoid()
            h = h + z * (torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid()) - h)
            outputs.append(p * h + (1 - p) * features[:, :, t])
            continue
        by = torch.bmm(weight, h).split(M, dim=1)
        if kind == "gru":
            r, z = (x[0] + by[0]).sigmoid(), (x[1] + by[1]).sigmoid()
            n = torch.tanh(x[2] + r * (by[2] + bias))
            h = (1 - z) * n + z * h
        else:
            i, f, o = ((x[k] + by[k]).sigmoid() for k in range(3))
            c = f * c + i * torch.tanh(x[3] + by[3])
            h = o * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=2), c if kind == "lstm" else h


def fused(kind, inputs, features, weight, bias, first, cell, keep, precision):
    if kind == "mingru":
        return recurrent.mingru(inputs, features, first, keep)
    if kind == "gru":
        states = recurrent.gru(inputs, weight, bias, first, keep, precision)
        return states, states[:, :, -1]
    return recurrent.lstm(inputs, weight, first, cell, keep, precision)


def gradient_case(kind, units, lanes, steps, resets, precision="ieee", towers=2):
    """Errors of the output, the last state, and each gradient; and whether a second time, and the halves of the sequence, give the same bits."""
    generator = torch.Generator().manual_seed(units + lanes)

    def numbers(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    gates = {"mingru": 3, "gru": 3, "lstm": 4}[kind]
    keep = torch.ones(steps, lanes)
    for step, lane in resets:
        keep[step, lane] = 0.0
    given = [numbers(towers, gates * units, steps, lanes), numbers(towers, units, steps, lanes), numbers(towers, gates * units, units, scale=units**-0.5),
             numbers(towers, units, 1, scale=0.3), numbers(towers, units, lanes), numbers(towers, units, lanes)]  # fmt: skip
    slope, learned = numbers(towers, units, steps, lanes), {"mingru": 2, "gru": 3, "lstm": 2}[kind]

    def differentiated(compute, tensors, *more):
        leaves = [tensor.clone().requires_grad_(k < 4) for k, tensor in enumerate(tensors)]
        output, last = compute(kind, *leaves, keep.to(tensors[0].dtype), *more)
        found = torch.autograd.grad((output * slope.to(output.dtype)).sum(), leaves[:4], allow_unused=True)
        assert sum(one is not None for one in found) == learned
        return [output.detach(), last.detach(), *(one for one in found if one is not None)]

    ours, exact = differentiated(fused, given, precision), differentiated(unrolled, [tensor.double() for tensor in given])
    again = differentiated(fused, given, precision)
    # The first steps, and from where they end the others.
    cut, parts, state, cell = steps // 2, [], given[4], given[5]
    for span in (slice(0, cut), slice(cut, None)):
        part = [given[0][:, :, span], given[1][:, :, span], *given[2:4], state, cell]
        output, last = fused(kind, *part, keep[span], precision)
        state, cell = (output[:, :, -1], last) if kind == "lstm" else (last, cell)
        parts.append(output)
    return {
        "errors": [relative_error(a.double(), b) for a, b in zip(ours, exact, strict=True)],
        "again": all(torch.equal(a, b) for a, b in zip(ours, again, strict=True)),
        "cut": torch.equal(torch.cat(parts, dim=2), ours[0]),
    }


def main() -> None:
    """Run the cases of standard input."""
    teach()
    torch.set_num_threads(1)
    print(json.dumps([gradient_case(**case) for _, case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()

"""Recurrent cells in fused kernels, beside torch's: what they compute, then what a rollout's step and a minibatch forward and back take. Prints JSON lines.

python benches/fused_memory.py [--tiny] [--kinds mingru,gru,lstm] [--precisions bf16,tf32] [--tiles]

A part that fails says so in its line, and the others go on. `--tiles` tries more tile configs. `--tiny` checks on a CPU, through Triton's interpreter:
TRITON_INTERPRET=1 PYTHONPATH=tests python benches/fused_memory.py --tiny
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator

import torch
from fused_sac import microseconds
from torch import Tensor

from operant.kernels.recurrent import cells as fused
from operant.kernels.recurrent.gated import Shape
from operant.nn import cells as plain

GATES = {"mingru": 3, "gru": 3, "lstm": 4}
SIZES = [(2048, 64, 64), (8192, 64, 64), (2048, 64, 128), (8192, 64, 128), (2048, 64, 256)]
"""Segments of a minibatch, steps, units."""


def say(**row: object) -> None:
    """One JSON line."""
    print(json.dumps(row), flush=True)


def numbers(kind: str, lanes: int, steps: int, units: int, where: str) -> list[Tensor]:
    """What a cell is given of one tower: inputs, features, weight, bias, first states, keep."""
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).to(where)

    keep = (torch.rand(steps, lanes, generator=generator) >= 0.02).float().to(where)
    rows, scale = GATES[kind] * units, units**-0.5
    return [some(1, rows, steps, lanes), some(1, units, steps, lanes), some(1, rows, units, scale=scale), some(1, units, 1), *some(2, 1, units, lanes), keep]


def by_torch(kind: str, inputs: Tensor, features: Tensor, weight: Tensor, bias: Tensor, first: Tensor, cell: Tensor, keep: Tensor) -> Tensor:
    """A cell's output by `operant.nn.cells`."""
    if kind == "gru":
        return plain.gru(inputs, weight, bias, first, keep)
    if kind == "lstm":
        return plain.lstm(inputs, weight, first, cell, keep)[0]
    hidden, gate, highway = inputs.split(features.shape[1], dim=1)
    write = gate.sigmoid()
    states = plain.scan((1.0 - write) * keep, write * torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid()), first)
    return torch.lerp(features, states, highway.sigmoid())


def by_kernels(kind: str, precision: str, inputs: Tensor, features: Tensor, weight: Tensor, bias: Tensor, first: Tensor, cell: Tensor, keep: Tensor) -> Tensor:
    """A cell's output by the fused kernels."""
    if kind == "gru":
        return fused.gru(inputs, weight, bias, first, keep, precision)
    return fused.lstm(inputs, weight, first, cell, keep, precision)[0] if kind == "lstm" else fused.mingru(inputs, features, first, keep)[0]


def gradients(compute: Callable[..., Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
    """The output, and the gradients of a weighted sum of it."""
    leaves = [tensor.clone().requires_grad_(k < 4) for k, tensor in enumerate(given)]
    output = compute(*leaves)
    slope = torch.linspace(-1.0, 1.0, output.numel(), device=output.device, dtype=output.dtype).view_as(output)
    found = torch.autograd.grad((output * slope).sum(), leaves[:4], allow_unused=True)
    return (output.detach(), *(one for one in found if one is not None))


def check(kind: str, precision: str, lanes: int, steps: int, units: int, where: str) -> dict[str, object]:
    """Relative errors of output and gradients beside float64, and whether a second time gives the same bits."""
    given = numbers(kind, lanes, steps, units, where)
    ours, again = (gradients(lambda *words: by_kernels(kind, precision, *words), given) for _ in range(2))
    exact = gradients(lambda *words: by_torch(kind, *words), [tensor.double() for tensor in given])
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True)]
    return {"errors": errors, "same_bits": all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))}


def choose(shape: Shape, warps: int, stages: int) -> None:
    """Launch GRU and LSTM so from now on."""
    fused.tiles, fused.WARPS, fused.STAGES = (lambda first, precision: shape), warps, stages


def configs(kind: str, precision: str, units: int, everything: bool) -> Iterator[str]:
    """Names of tile configs, each of which is set when it is named."""
    own = fused.tiles, fused.WARPS, fused.STAGES
    yield "own"
    if everything and kind != "mingru":
        for lanes, width, warps, stages in itertools.product((16, 32, 64), (32, 64, 128), (4, 8), (1, 2, 3)):
            if width <= max(units, 32):
                choose(Shape(units, precision, lanes, width, min(width, 64)), warps, stages)
                yield f"lanes={lanes} units={width} warps={warps} stages={stages}"
    fused.tiles, fused.WARPS, fused.STAGES = own


def timed(kind: str, precision: str, lanes: int, steps: int, units: int, kernels: str) -> float:
    """Microseconds of a minibatch, forward and back."""
    given = [tensor.requires_grad_(k < 4) for k, tensor in enumerate(numbers(kind, lanes, steps, units, "cuda"))]
    torch.backends.cuda.matmul.allow_tf32 = precision != "ieee"

    def work() -> None:
        output = by_kernels(kind, precision, *given) if kernels == "fused" else by_torch(kind, *given)
        torch.autograd.grad(output.sum(), given[:4], allow_unused=True)

    return microseconds(work, times=2, replays=5)


def cudnn(lanes: int, steps: int, units: int) -> float:
    """Microseconds of cuDNN's LSTM in bf16, inputs' product included, without resets."""
    net = torch.nn.LSTM(units, units).cuda().bfloat16()
    x = torch.randn(steps, lanes, units, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return microseconds(lambda: torch.autograd.grad(net(x)[0].sum(), [x, *net.parameters()]), times=2, replays=5)


def attempt(row: dict[str, object], work: Callable[[], dict[str, object]]) -> None:
    """Say a line, with what went wrong where something did."""
    try:
        say(**row, **work())
    except Exception as error:  # the others go on
        say(**row, failed=f"{type(error).__name__}: {error}"[:300])


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--kinds", default="mingru,gru,lstm")
    parser.add_argument("--precisions", default="bf16,tf32,ieee")
    words = parser.parse_args()
    if words.tiny:
        from interpreter import teach

        teach()
    pairs = [(kind, precision) for kind in words.kinds.split(",") for precision in (words.precisions.split(",") if kind != "mingru" else ["ieee"])]
    where, sizes = ("cpu", [(5, 4, 20)]) if words.tiny else ("cuda", [(300, 20, 128), (33, 9, 200)])
    for (kind, precision), size in itertools.product(pairs, sizes):
        attempt({"check": kind, "precision": precision, "size": size}, lambda kind=kind, precision=precision, size=size: check(kind, precision, *size, where))
    if words.tiny:
        return
    torch.cuda.synchronize()
    for (lanes, steps, units), (kind, precision) in itertools.product([*SIZES, (8192, 1, 64), (8192, 1, 128)], pairs):
        size = {"kind": kind, "precision": precision, "lanes": lanes, "steps": steps, "units": units}

        def measured(kernels: str, kind: str = kind, precision: str = precision, size: tuple[int, ...] = (lanes, steps, units)) -> dict[str, object]:
            took = timed(kind, precision, *size, kernels)
            return {"us": round(took, 1), "M_samples_s": round(size[0] * size[1] / took, 1)}

        for name in configs(kind, precision, units, words.tiles):
            attempt({**size, "kernels": "fused", "tiles": name}, lambda measured=measured: measured("fused"))
        attempt({**size, "kernels": "torch"}, lambda measured=measured: measured("torch"))
    for lanes, steps, units in SIZES:
        attempt({"kind": "cuDNN LSTM", "lanes": lanes, "steps": steps, "units": units}, lambda size=(lanes, steps, units): {"us": cudnn(*size)})


if __name__ == "__main__":
    main()

"""Fused recurrent cells without a GPU: through Triton's interpreter beside autograd in float64 over unrolled sequences, and compiled to machine code. What they
compute and take on a GPU: benches/fused_memory.py."""

from __future__ import annotations

import pytest
import torch
from fused_probe import interpreted
from machine_code import LEAST_SHARED, compile_for, needs_compiler

pytest.importorskip("triton")

ANYWHERE = [[0, 1], [3, 1], [4, 1], [2, 2], [6, 3], *([t, 4] for t in range(7))]  # one after the other, at the ends, at every step
CASES = [
    {"kind": kind, "units": units, "lanes": lanes, "steps": 7, "resets": ANYWHERE, "towers": towers}
    for kind in ("mingru", "gru", "lstm")
    for units, lanes, towers in ((20, 5, 2), (40, 19, 1))  # within a tile; several of each, the last ones not whole
]
CASES += [{"kind": kind, "units": 1, "lanes": 5, "steps": 7, "resets": [], "towers": 1} for kind in ("mingru", "gru", "lstm")]
CASES += [
    {"kind": kind, "units": 70, "lanes": 17, "steps": 7, "resets": ANYWHERE, "precision": precision, "towers": 1}
    for kind in ("gru", "lstm")
    for precision in ("tf32", "bf16")
]
LIMITS = {"ieee": 1e-6, "tf32": 2e-3, "bf16": 1.5e-2}


def test_outputs_and_gradients_are_float64_autograds():
    """Also, the same inputs give the same bits, and so does a sequence in two parts."""
    for case, found in zip(CASES, interpreted([("gradient", case) for case in CASES], "kernels/memory_interpreted.py"), strict=True):
        precision = case.get("precision", "ieee")
        assert max(found["errors"]) <= LIMITS[precision] and found["again"] and found["cut"], (case, found)
        assert precision == "ieee" or min(found["errors"]) > 1e-6, (case, found)


def launches(kind, units, precision):
    """(kernel, arguments, options) of each launch, forward and back, with nothing to launch them on."""
    from operant.kernels.recurrent import cells

    gates, found = {"mingru": 3, "gru": 3, "lstm": 4}[kind], []
    inputs, features = torch.zeros(2, gates * units, 4, 16), torch.zeros(2, units, 4, 16)
    weight, bias, first = torch.zeros(2, gates * units, units), torch.zeros(2, units, 1), torch.zeros(2, units, 16)
    for tensor in (inputs, features, weight):
        tensor.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "launch", lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options)))
        if kind == "mingru":
            output, _ = cells.mingru(inputs, features, first, torch.ones(4, 16))
        elif kind == "gru":
            output = cells.gru(inputs, weight, bias, first, torch.ones(4, 16), precision)
        else:
            output, _ = cells.lstm(inputs, weight, first, first, torch.ones(4, 16), precision)
        output.sum().backward()
    assert len(found) == 2
    return found


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("architecture", "kind", "units", "precision"),
    [
        (90, "mingru", 64, "ieee"), (75, "mingru", 20, "ieee"),
        (90, "gru", 128, "bf16"), (90, "gru", 200, "tf32"), (75, "gru", 40, "ieee"),
        (90, "lstm", 128, "bf16"), (86, "lstm", 128, "tf32"), (100, "lstm", 256, "bf16"),
    ],
)  # fmt: skip
def test_kernels_compile(architecture, kind, units, precision):
    for kernel, arguments, options in launches(kind, units, precision):
        assert compile_for(architecture, kernel, arguments, options) <= LEAST_SHARED[architecture]

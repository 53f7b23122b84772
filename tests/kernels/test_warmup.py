"""Warmup of kernels: the reason why a GPU cannot run them is a sentence, also if Triton fails to compile one."""

from __future__ import annotations

import pytest
import torch
from machine_code import compile_for, needs_compiler

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from operant.kernels.warmup import Launcher  # noqa: E402


@triton.jit
def refused(x, SIDE: tl.constexpr):
    tl.static_assert(SIDE >= 16, "no product of fewer than 16 rows")
    tl.store(x, SIDE)


@triton.jit
def around(x, SIDE: tl.constexpr):
    refused(x, SIDE)


class Launching(Launcher):
    """Learner whose `fits` is given by a test."""

    def __init__(self, answer):
        self.answer = answer

    def fits(self):
        return self.answer()


def failing(error):
    def raising():
        raise error

    return raising


@needs_compiler
@pytest.mark.parametrize("kernel", [refused, around])
def test_compilation_error_is_an_unsupported_reason(kernel):
    reason = Launching(lambda: compile_for(75, kernel, (torch.zeros(16),), {"SIDE": 8})).unsupported_reason("tf32")
    assert reason == "Triton cannot compile the kernels: no product of fewer than 16 rows"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: True, None),
        (lambda: False, "a network this wide takes more shared memory in tf32 than this GPU has"),
        (
            failing(RuntimeError("Failed to find C compiler.\nPlease specify it")),
            "Triton cannot compile the kernels: Failed to find C compiler.",
        ),
        (
            failing(triton.runtime.errors.PTXASError("no such target\nlog")),
            "Triton cannot compile the kernels: PTXAS error: no such target",
        ),
    ],
)
def test_unsupported_reason_is_one_sentence(answer, reason):
    assert Launching(answer).unsupported_reason("tf32") == reason


def test_out_of_memory_is_raised():
    with pytest.raises(torch.OutOfMemoryError):
        Launching(failing(torch.OutOfMemoryError())).unsupported_reason("tf32")

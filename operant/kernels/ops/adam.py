"""Adam (Kingma & Ba 2015, algorithm 1) in Triton: the update in registers, the step counter, gradient clipping, and
the kernel that steps a flat vector of parameters.

m <- b1 m + (1 - b1) g
v <- b2 v + (1 - b2) g^2
x <- x - lr (m / c1) / (sqrt(v) / c2 + epsilon),  c1 = 1 - b1^t,  c2 = sqrt(1 - b2^t)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

BETA_1, BETA_2 = tl.constexpr(0.9), tl.constexpr(0.999)
LOG_BETA_1 = tl.constexpr(-0.10536051565782628)
LOG_BETA_2 = tl.constexpr(-0.0010005003335835335)


class Moments(NamedTuple):
    """Adam's state: running averages of the gradient and its square, and the bias corrections."""

    first: Any  # (P)
    second: Any  # (P)
    corrections: Any  # (2): 1 - b1^t and sqrt(1 - b2^t)


# UPDATE


@triton.jit
def adam(x, grad, m, v, step_size, root_correction, epsilon):
    """Return parameters and running averages (x, m, v) after one step of Adam.

    | parameter       | shape     | meaning                             |
    |-----------------|-----------|-------------------------------------|
    | x, grad         | any shape | parameters, their gradient          |
    | m, v            | as x      | running averages of grad and grad^2 |
    | step_size       | scalar    | learning rate / c1                  |
    | root_correction | scalar    | c2 = sqrt(1 - b2^t)                 |
    """
    m = BETA_1 * m + (1.0 - BETA_1) * grad
    v = BETA_2 * v + (1.0 - BETA_2) * grad * grad
    return x - step_size * m / (tl.sqrt(v) / root_correction + epsilon), m, v


# STEP COUNTER


@triton.jit
def one_minus_exp(x):
    """Return 1 - e^x for x <= 0 in float32: by its Taylor series near 0, where the difference would cancel."""
    series = -x * (
        1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * (1.0 + x / 7.0)))))
    )
    return tl.where(x > -0.5, series, 1.0 - tl.exp(x))


@triton.jit
def store_corrections(corrections_ptr, step, FLOAT64: tl.constexpr):
    """Store c1 = 1 - b1^t and c2 = sqrt(1 - b2^t) of step t into `corrections_ptr` (2).

    FLOAT64 computes b^t in float64: exact, but slow where all programs of a launch wait for it. Otherwise
    `one_minus_exp` computes 1 - b^t in float32.
    """
    if FLOAT64:
        exact = step.to(tl.float64)
        tl.store(corrections_ptr, (1.0 - tl.exp(exact * LOG_BETA_1)).to(tl.float32))
        tl.store(corrections_ptr + 1, tl.sqrt(1.0 - tl.exp(exact * LOG_BETA_2)).to(tl.float32))
    else:
        tl.store(corrections_ptr, one_minus_exp(step * LOG_BETA_1))
        tl.store(corrections_ptr + 1, tl.sqrt(one_minus_exp(step * LOG_BETA_2)))


@triton.jit
def count_step(steps_ptr, corrections_ptr, skipped, FLOAT64: tl.constexpr = True):
    """Increment the step counter t and store its bias corrections; no increment where `skipped` is 1.

    | parameter       | shape  | meaning                                            |
    |-----------------|--------|----------------------------------------------------|
    | steps_ptr       | scalar | t as float32, read and written                     |
    | corrections_ptr | (2)    | c1 and c2 of t, written                            |
    | skipped         | scalar | 1.0 where the step is skipped (target KL, warm-up) |
    """
    step = tl.load(steps_ptr) + (1.0 - skipped)
    tl.store(steps_ptr, step)
    store_corrections(corrections_ptr, step, FLOAT64)


# KERNEL


@triton.jit(do_not_specialize=["max_norm", "epsilon"])
def adam_step(
    x_ptr,
    grad_ptr,
    moments,
    squares_ptr,
    blocks,
    size,
    skip_ptr,
    learning_rate_ptr,
    norm_sum_ptr,
    max_norm,
    epsilon,
    BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Clip the gradient by its global norm and step the parameters. Grid: (cdiv(size, BLOCK_SIZE),).

    | parameter         | shape    | meaning                                                               |
    |-------------------|----------|-----------------------------------------------------------------------|
    | x_ptr             | (P)      | parameters, updated                                                   |
    | grad_ptr          | (P)      | gradient before clipping                                              |
    | moments           | struct   | `Moments`: first (P), second (P), both updated; corrections (2), read |
    | squares_ptr       | (blocks) | partial sums of the gradient's squares                                |
    | blocks, BLOCKS    | int      | their number, and the power of two from it on                         |
    | size              | scalar   | P                                                                     |
    | skip_ptr          | scalar   | above 0: store nothing but the norm                                   |
    | learning_rate_ptr | scalar   | learning rate                                                         |
    | norm_sum_ptr      | scalar   | incremented by the norm before clipping                               |
    | max_norm, epsilon | scalars  | clipping threshold, Adam's epsilon                                    |
    """
    program = tl.program_id(0)
    # g <- g min(1, max_norm / |g|)
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares_ptr + block, mask=block < blocks, other=0.0), axis=0))
    scale = max_norm / (norm + 1e-6)
    scale = tl.where(scale > 1.0, 1.0, scale)
    offset = program * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offset < tl.where(tl.load(skip_ptr) > 0.0, 0, size)
    grad = tl.load(grad_ptr + offset, mask=mask, other=0.0) * scale
    m = tl.load(moments.first + offset, mask=mask, other=0.0)
    v = tl.load(moments.second + offset, mask=mask, other=0.0)
    x = tl.load(x_ptr + offset, mask=mask, other=0.0)
    step_size = tl.load(learning_rate_ptr) / tl.load(moments.corrections)
    x, m, v = adam(x, grad, m, v, step_size, tl.load(moments.corrections + 1), epsilon)
    tl.store(moments.first + offset, m, mask=mask)
    tl.store(moments.second + offset, v, mask=mask)
    tl.store(x_ptr + offset, x, mask=mask)
    if program == 0:
        tl.store(norm_sum_ptr, tl.load(norm_sum_ptr) + norm)

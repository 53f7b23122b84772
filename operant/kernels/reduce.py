"""Triton kernels around PPO's gradient: moments of the advantages before it, then the sum of its parts, its norm and Adam, and the numbers of the update.

Sums go in a fixed order, and what one launch writes no other program of it reads. Know no network: a vector of parameters, and rows of partial gradients.

`totals` is six floats: policy loss, value loss, entropy, KL, clipped share and gradient norm, summed over minibatches. `scalars` is five floats: mean and
1 / deviation of the advantages, the explained variance, and Adam's two bias corrections.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import LOG_2_PI

MEAN, INVERSE, EXPLAINED, CORRECTION_1, CORRECTION_2 = (tl.constexpr(place) for place in range(5))
LOG_BETA_1 = tl.constexpr(-0.10536051565782628)  # log 0.9 and log 0.999
LOG_BETA_2 = tl.constexpr(-0.0010005003335835335)


@triton.jit
def _moments(x, here):
    """Number, mean and sum of squared deviations of a tile."""
    count = tl.sum(here.to(tl.float32), axis=0)
    mean = tl.sum(tl.where(here, x, 0.0), axis=0) / tl.maximum(count, 1.0)
    deviation = tl.where(here, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation, axis=0)


@triton.jit
def _merged(count, mean, squares, more, more_mean, more_squares):
    """Moments of two batches as one (Chan, Golub & LeVeque 1983, equation 1.5)."""
    total = tl.maximum(count + more, 1.0)
    delta = more_mean - mean
    return mean + delta * (more / total), squares + more_squares + delta * delta * (count * (more / total))


@triton.jit
def part_moments(samples, parts, count, stride, PARTS: tl.constexpr, TILE: tl.constexpr):
    """Moments of advantages and returns over every P-th tile: rows of `parts` (5, PARTS), namely number, then mean and squares of each."""
    program = tl.program_id(0)
    n, mean_a, squares_a, mean_r, squares_r = 0.0, 0.0, 0.0, 0.0, 0.0
    for tile in range(program, tl.cdiv(count, TILE), tl.num_programs(0)):
        place = tile * TILE + tl.arange(0, TILE)
        here = place < count
        advantage = tl.load(samples + place, mask=here, other=0.0)
        target = tl.load(samples + 2 * stride + place, mask=here, other=0.0)
        more = tl.sum(here.to(tl.float32), axis=0)
        more_mean, more_squares = _moments(advantage, here)
        mean_a, squares_a = _merged(n, mean_a, squares_a, more, more_mean, more_squares)
        more_mean, more_squares = _moments(target, here)
        mean_r, squares_r = _merged(n, mean_r, squares_r, more, more_mean, more_squares)
        n += more
    numbers = (n, mean_a, squares_a, mean_r, squares_r)
    for k in tl.static_range(5):
        tl.store(parts + k * PARTS + program, numbers[k])


@triton.jit
def _all_moments(n, mean, squares, total):
    overall = tl.sum(n * mean, axis=0) / total
    return overall, (tl.sum(squares, axis=0) + tl.sum(n * (mean - overall) * (mean - overall), axis=0)) / (total - 1.0)


@triton.jit(do_not_specialize=["start_rate", "iterations"])
def begin(
    parts, programs, scalars, totals, skip, learning_rate, iteration, start_rate, iterations,
    NORMALIZE: tl.constexpr, ANNEAL: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Before an update: the advantages' mean and 1 / deviation, the explained variance, the learning rate; totals and `skip` to zero. One program.

    Returns less values are advantages, so both variances are at hand.
    """
    part = tl.arange(0, PARTS)
    here = part < programs
    n = tl.load(parts + part, mask=here, other=0.0)
    total = tl.sum(n, axis=0)
    squares_a, squares_r = tl.load(parts + 2 * PARTS + part, mask=here, other=0.0), tl.load(parts + 4 * PARTS + part, mask=here, other=0.0)
    mean, variance = _all_moments(n, tl.load(parts + PARTS + part, mask=here, other=0.0), squares_a, total)
    _mean, spread = _all_moments(n, tl.load(parts + 3 * PARTS + part, mask=here, other=0.0), squares_r, total)
    tl.store(scalars + MEAN, mean if NORMALIZE else 0.0)
    tl.store(scalars + INVERSE, 1.0 / (tl.sqrt(variance) + 1e-8) if NORMALIZE else 1.0)
    tl.store(scalars + EXPLAINED, 1.0 - variance / tl.maximum(spread, 1e-12))
    tl.store(totals + tl.arange(0, 8), tl.zeros((8,), tl.float32))
    tl.store(skip, 0.0)
    if ANNEAL:
        tl.store(learning_rate, start_rate * tl.maximum(1.0 - tl.load(iteration).to(tl.float32) / iterations, 0.0))


@triton.jit
def _pick(values, column, WANTED: tl.constexpr):
    return tl.sum(tl.where(column == WANTED, values, 0.0), axis=0)


@triton.jit(do_not_specialize=["target_kl"])
def add_parts(
    partial, programs, width, gradient, squares, totals, scalars, skip, steps, parameters, target_kl,
    SPEC: tl.constexpr, TARGETED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The gradient, from the programs' rows, 32 columns a program, with each program's sum of squares. The last program sums the update's numbers.

    It also counts the optimiser's step, unless the KL divergence says that this and the later ones are skipped.
    """
    block = tl.program_id(0)
    column = tl.arange(0, 32)
    row = tl.arange(0, CHUNK)
    total = tl.zeros((CHUNK, 32), tl.float32)
    for first in range(0, programs, CHUNK):
        place = (first + row)[:, None] * width + (block * 32 + column)[None, :]
        total += tl.load(partial + place, mask=(first + row < programs)[:, None], other=0.0)
    summed = tl.sum(total, axis=0)
    if (block + 1) * 32 < width:
        tl.store(gradient + block * 32 + column, summed)
        tl.store(squares + block, tl.sum(summed * summed, axis=0))
    else:
        entropy = _pick(summed, column, 2)
        if SPEC.log_std >= 0:
            action = tl.arange(0, SPEC.out_pad)
            inside = action < SPEC.head_rows
            log_std = tl.load(parameters + SPEC.log_std + action, mask=inside, other=0.0)
            entropy += tl.sum(tl.where(inside, log_std + 0.5 * LOG_2_PI + 0.5, 0.0), axis=0)
        kl = _pick(summed, column, 3)
        numbers = (-_pick(summed, column, 0), 0.5 * _pick(summed, column, 1), entropy, kl, _pick(summed, column, 4))
        for k in tl.static_range(5):
            tl.store(totals + k, tl.load(totals + k) + numbers[k])
        skipped = tl.load(skip)
        if TARGETED:
            skipped = tl.where(kl > 1.5 * target_kl, 1.0, skipped)
            tl.store(skip, skipped)
        step = tl.load(steps) + (1.0 - skipped)
        tl.store(steps, step)
        # 1 - b^t, which float32 would make of two numbers that are nearly the same.
        exact = step.to(tl.float64)
        tl.store(scalars + CORRECTION_1, (1.0 - tl.exp(exact * LOG_BETA_1)).to(tl.float32))
        tl.store(scalars + CORRECTION_2, tl.sqrt(1.0 - tl.exp(exact * LOG_BETA_2)).to(tl.float32))


@triton.jit(do_not_specialize=["max_norm", "epsilon"])
def adam(
    parameters, gradient, first, second, squares, blocks, size, totals, scalars, skip, learning_rate, max_norm, epsilon,
    BLOCKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Clip by the gradient's norm and step: m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; x <- x - lr (m / c1) / (sqrt(v) / c2 + epsilon)."""
    program = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    norm = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    shrink = max_norm / (norm + 1e-6)
    shrink = tl.where(shrink > 1.0, 1.0, shrink)
    place = program * TILE + tl.arange(0, TILE)
    here = place < tl.where(tl.load(skip) > 0.0, 0, size)
    g = tl.load(gradient + place, mask=here, other=0.0) * shrink
    m = 0.9 * tl.load(first + place, mask=here, other=0.0) + (1.0 - 0.9) * g
    v = 0.999 * tl.load(second + place, mask=here, other=0.0) + (1.0 - 0.999) * g * g
    x = tl.load(parameters + place, mask=here, other=0.0)
    rate = tl.load(learning_rate) / tl.load(scalars + CORRECTION_1)
    x -= rate * m / (tl.sqrt(v) / tl.load(scalars + CORRECTION_2) + epsilon)
    tl.store(first + place, m, mask=here)
    tl.store(second + place, v, mask=here)
    tl.store(parameters + place, x, mask=here)
    if program == 0:
        tl.store(totals + 5, tl.load(totals + 5) + norm)


@triton.jit(do_not_specialize=["steps"])
def finish(totals, scalars, learning_rate, parameters, size, iteration, stats, steps, TILE: tl.constexpr):
    """After an update: its numbers, means over `steps` minibatches, in the order of PPO's `Stats`; and one more iteration. One program."""
    broken = tl.zeros((TILE,), tl.float32)
    for start in range(0, size, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(parameters + place, mask=place < size, other=0.0)
        broken += tl.where(tl.abs(x) < float("inf"), 0.0, 1.0)
    count = tl.sum(broken, axis=0)
    for k in tl.static_range(6):
        mean = tl.load(totals + k) / steps
        count += tl.where(tl.abs(mean) < float("inf"), 0.0, 1.0)
        tl.store(stats + k, mean)
    tl.store(stats + 6, tl.load(scalars + EXPLAINED))
    tl.store(stats + 7, tl.load(learning_rate))
    tl.store(stats + 8, count)
    tl.store(iteration, tl.load(iteration) + 1)

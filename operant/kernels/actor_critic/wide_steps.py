"""Triton kernels that step wide networks: vectors' gradients from rows of sums, Adam and the targets, and what an update says of itself."""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.steps import count_step


@triton.jit
def reduce(partial, gradient, SPEC: tl.constexpr, NET: tl.constexpr, FIRST: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr):
    """The gradients of all vectors, from the rows of sums: program 0 is the vector, 1 the tower, 2 a part of its numbers.

    The first layer's have FIRST rows, and with none are found elsewhere.
    """
    vector, tower = tl.program_id(0), tl.program_id(1)
    unit = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    # How many numbers the vector has.
    size = 0
    for k in tl.static_range(len(NET.layers)):
        number = vector - NET.layers[k].partial
        used = ((number >= 0) & (number < NET.layers[k].vectors)) if SPEC.layer_norm else ((number == 0) | ((number > 2) & (number < NET.layers[k].vectors)))
        size = tl.where(used, max(NET.layers[k].width, NET.outputs), size)
    rows = tl.where(vector < NET.layers[1].partial, FIRST, NET.programs)
    inside = (unit < size) & (rows > 0)
    total = tl.zeros((CHUNK, WIDE), tl.float32)
    for start in range(0, rows, CHUNK):
        row = start + tl.arange(0, CHUNK)
        place = (row * NET.towers + tower) * NET.vectors + vector
        total += tl.load(partial + place[:, None] * NET.pad + unit[None, :], mask=inside[None, :] & (row < rows)[:, None], other=0.0)
    g = tl.sum(total, axis=0)
    for k in tl.static_range(len(NET.layers)):
        number = vector - NET.layers[k].partial
        here = (unit < NET.layers[k].width) & (rows > 0)
        place = gradient + tower * NET.layers[k].width + unit
        if number == 0:
            tl.store(place + NET.layers[k].bias, g, mask=here)
        if SPEC.layer_norm:
            if number == 1:
                tl.store(place + NET.layers[k].gain, g, mask=here)
            if number == 2:
                tl.store(place + NET.layers[k].shift, g, mask=here)
        if k == len(NET.layers) - 1:
            output = number - 3
            if (output >= 0) & (output < NET.outputs):
                tl.store(gradient + NET.head_weight + (tower * NET.outputs + output) * NET.layers[k].width + unit, g, mask=here)
            if output == NET.outputs:
                tl.store(gradient + NET.head_bias + tower * NET.outputs + unit, g, mask=unit < NET.outputs)


@triton.jit
def count(actor_update, critic_update, temperature, SPEC: tl.constexpr, DUE: tl.constexpr):
    """Count the steps of all optimizers; with DUE the actor's, too."""
    if DUE:
        count_step(actor_update)
    count_step(critic_update)
    if SPEC.automatic:
        count_step(temperature)


@triton.jit
def _widen(first, place, x, mask, SPEC: tl.constexpr, NET: tl.constexpr):
    """Where numbers at `place` of a flat vector are the first layer's weights, store them where its rows have columns to spare."""
    INPUTS: tl.constexpr = NET.layers[0].inputs
    number = place - NET.layers[0].weight
    inside = mask & (number >= 0) & (number < NET.towers * NET.layers[0].width * INPUTS)
    tl.store(first + number // INPUTS * SPEC.columns + number % INPUTS, x, mask=inside)


@triton.jit
def step(
    flat, gradient, target, packed, target_packed, first, target_first, update, squares, size,
    SPEC: tl.constexpr, NET: tl.constexpr, TARGET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam; the target after it, x' <- x' + tau (x - x'); both as products take them; and the sum of the gradient's squares."""
    program = tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    skipped = tl.load(update.skip)
    kept = skipped < 0.5
    rate = tl.load(update.learning_rate) / tl.load(update.corrections)
    root, epsilon, tau = tl.load(update.corrections + 1), tl.load(update.scalars), tl.load(update.scalars + 1)
    g, x = tl.load(gradient + place, mask=mask, other=0.0), tl.load(flat.parameters + place, mask=mask, other=0.0)
    m = 0.9 * tl.load(flat.first + place, mask=mask, other=0.0) + (1.0 - 0.9) * g
    v = 0.999 * tl.load(flat.second + place, mask=mask, other=0.0) + (1.0 - 0.999) * g * g
    write = mask & (skipped + tl.zeros_like(x) < 0.5)
    x = tl.where(kept, x - rate * m / (tl.sqrt(v) / root + epsilon), x)
    tl.store(flat.first + place, m, mask=write)
    tl.store(flat.second + place, v, mask=write)
    tl.store(flat.parameters + place, x, mask=write)
    tl.store(packed + place, x, mask=mask)
    _widen(first, place, x, mask, SPEC, NET)
    tl.store(squares + program, tl.sum(g * g, axis=0))
    if TARGET:
        old = tl.load(target + place, mask=mask, other=0.0)
        moved = tl.where(kept, old + tau * (x - old), old)
        tl.store(target + place, moved, mask=mask)
        tl.store(target_packed + place, moved, mask=mask)
        _widen(target_first, place, moved, mask, SPEC, NET)


@triton.jit
def _add(place, number, kept):
    tl.store(place, tl.load(place) + tl.where(kept, number, 0.0))


@triton.jit
def _sums_of(numbers, COUNT: tl.constexpr):
    """Sums of so many numbers, each of every 1024th."""
    place = tl.arange(0, 1024)
    total = tl.zeros((1024,), tl.float32)
    for start in range(0, COUNT, 1024):
        total += tl.load(numbers + start + place, mask=start + place < COUNT, other=0.0)
    return total


@triton.jit
def finish(critic_terms, actor_terms, temperature, update, squares, work, blocks, SPEC: tl.constexpr, DUE: tl.constexpr, BLOCKS: tl.constexpr):
    """What an update says of itself, added to the iteration's totals; then the temperature's step, down -log alpha (mean log pi + target entropy).

    DUE: the actor learned, too; else log pi is that of the actions at the next observations.
    """
    program, block = tl.arange(0, SPEC.critic.programs), tl.arange(0, BLOCKS)
    alpha, kept = tl.exp(tl.load(temperature.log)), tl.load(temperature.skip) < 0.5
    if DUE:
        own = tl.arange(0, SPEC.actor.programs)
        mean_log_p = tl.sum(tl.load(actor_terms + 2 * own), axis=0) / SPEC.batch
        least = tl.sum(tl.load(actor_terms + 2 * own + 1), axis=0) / SPEC.batch
        _add(temperature.totals + 1, alpha * mean_log_p - least, kept)
    else:
        mean_log_p = tl.sum(_sums_of(work.next_log_p, SPEC.batch), axis=0) / SPEC.batch
    squared, absolute, total = 0.0, 0.0, 0.0
    TOWERS: tl.constexpr = SPEC.critic.towers
    for tower in tl.static_range(TOWERS):
        place = critic_terms + (program * SPEC.critic.towers + tower) * 3
        squared += tl.sum(tl.load(place), axis=0)
        absolute += tl.sum(tl.load(place + 1), axis=0)
        total += tl.sum(tl.load(place + 2), axis=0)
    both = SPEC.critic.towers * SPEC.batch
    norm = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    _add(temperature.totals, squared / SPEC.batch, kept)
    _add(temperature.totals + 2, total / both, kept)
    _add(temperature.totals + 3, absolute / both, kept)
    _add(temperature.totals + 4, -mean_log_p, kept)
    _add(temperature.totals + 5, norm, kept)
    if SPEC.automatic:
        gradient = -mean_log_p - tl.load(update.scalars + 2)
        m = 0.9 * tl.load(temperature.first) + (1.0 - 0.9) * gradient
        v = 0.999 * tl.load(temperature.second) + (1.0 - 0.999) * gradient * gradient
        x = tl.load(temperature.log) - tl.load(update.learning_rate) / tl.load(temperature.corrections) * m / (
            tl.sqrt(v) / tl.load(temperature.corrections + 1) + tl.load(update.scalars)
        )
        tl.store(temperature.first, m, mask=kept)
        tl.store(temperature.second, v, mask=kept)
        tl.store(temperature.log, x, mask=kept)

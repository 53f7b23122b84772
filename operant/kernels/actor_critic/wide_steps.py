"""Triton kernels that step wide networks: vectors' gradients from rows of sums, Adam and the targets, and what an
update says of itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.steps import count_step


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
    """Where numbers at `place` of a flat vector are the first layer's weights, store them where its rows have columns
    to spare.
    """
    INPUTS: tl.constexpr = NET.layers[0].inputs
    number = place - NET.layers[0].weight
    inside = mask & (number >= 0) & (number < NET.towers * NET.layers[0].width * INPUTS)
    tl.store(first + number // INPUTS * SPEC.columns + number % INPUTS, x, mask=inside)


@triton.jit
def _split(head, place, x, mask, SPEC: tl.constexpr, NET: tl.constexpr):
    """Where numbers at `place` are a head's weights, store them as two operands that add up to them, `head` (towers, 2
    atoms, width).
    """
    SIZE: tl.constexpr = NET.outputs * NET.layers[-1].width
    number = place - NET.head_weight
    inside = mask & (number >= 0) & (number < NET.towers * SIZE)
    first, at = (
        x.to(head.dtype.element_ty),
        head + number // SIZE * (2 * SPEC.atoms * NET.layers[-1].width) + number % SIZE,
    )
    tl.store(at, first, mask=inside)
    tl.store(at + SPEC.atoms * NET.layers[-1].width, x - first.to(tl.float32), mask=inside)


@triton.jit
def step(
    flat,
    gradient,
    target,
    packed,
    target_packed,
    first,
    target_first,
    head,
    target_head,
    update,
    squares,
    size,
    SPEC: tl.constexpr,
    NET: tl.constexpr,
    TARGET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of Adam; the target after it, x' <- x' + tau (x - x'); both as products take them; and the sum of the
    gradient's squares.

    TARGET: of critics, whose heads are two operands where they learn distributions.
    """
    program = tl.program_id(0)
    place = program * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    skipped = tl.load(update.skip)
    kept = skipped < 0.5
    rate = tl.load(update.learning_rate) / tl.load(update.corrections)
    root, epsilon, tau = tl.load(update.corrections + 1), tl.load(update.scalars), tl.load(update.scalars + 1)
    g, x = tl.load(gradient + place, mask=mask, other=0.0), tl.load(flat.parameters + place, mask=mask, other=0.0)
    old = x
    if TARGET:  # before anything is stored, for what comes after that waits
        old = tl.load(target + place, mask=mask, other=0.0)
    m = 0.9 * tl.load(flat.first + place, mask=mask, other=0.0) + (1.0 - 0.9) * g
    v = 0.999 * tl.load(flat.second + place, mask=mask, other=0.0) + (1.0 - 0.999) * g * g
    write = mask & (skipped + tl.zeros_like(x) < 0.5)
    x = tl.where(kept, x - rate * m / (tl.sqrt(v) / root + epsilon), x)
    tl.store(flat.first + place, m, mask=write)
    tl.store(flat.second + place, v, mask=write)
    tl.store(flat.parameters + place, x, mask=write)
    tl.store(packed + place, x, mask=mask)
    _widen(first, place, x, mask, SPEC, NET)
    if TARGET and SPEC.atoms > 0:
        _split(head, place, x, mask, SPEC, NET)
    tl.store(squares + program, tl.sum(g * g, axis=0))
    if TARGET:
        moved = tl.where(kept, old + tau * (x - old), old)
        tl.store(target + place, moved, mask=mask)
        tl.store(target_packed + place, moved, mask=mask)
        _widen(target_first, place, moved, mask, SPEC, NET)
        if SPEC.atoms > 0:
            _split(target_head, place, moved, mask, SPEC, NET)


@triton.jit
def _add(place, number, kept):
    tl.store(place, tl.load(place) + tl.where(kept, number, 0.0))


@triton.jit
def _sums_of(numbers, COUNT: tl.constexpr):
    """Sums of so many numbers, each of every 4096th."""
    place = tl.arange(0, 4096)
    total = tl.zeros((4096,), tl.float32)
    for start in range(0, COUNT, 4096):
        total += tl.load(numbers + start + place, mask=start + place < COUNT, other=0.0)
    return total


@triton.jit
def norm(squares, temperature, blocks, SPEC: tl.constexpr, BLOCKS: tl.constexpr):
    """The norm of the critics' gradient, added to the iteration's totals."""
    block = tl.arange(0, BLOCKS)
    found = tl.sqrt(tl.sum(tl.load(squares + block, mask=block < blocks, other=0.0), axis=0))
    _add(temperature.totals + 5, found, tl.load(temperature.skip) < 0.5)


@triton.jit
def finish(critic_terms, actor_terms, temperature, update, work, SPEC: tl.constexpr, DUE: tl.constexpr):
    """What else an update says of itself, added to the totals; then the temperature's step, down -log alpha (mean log
    pi + target entropy).

    DUE: the actor learned, too; else log pi is that of the actions at the next observations.
    """
    program = tl.arange(0, SPEC.critic.programs)
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
    _add(temperature.totals, squared / SPEC.batch, kept)
    _add(temperature.totals + 2, total / both, kept)
    _add(temperature.totals + 3, absolute / both, kept)
    _add(temperature.totals + 4, -mean_log_p, kept)
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

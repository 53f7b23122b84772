"""Triton kernels of a rollout: act on one step's observations, and value what is left over at its end. Know no loss.

A program takes one tile of lanes and one tower of the network. Buffers are as `operant.algos.ppo.algorithm` has them, field-major.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import (
    TWO_PI,
    allowed,
    categorical,
    chosen,
    column_of,
    features,
    field_of,
    first_operand,
    forward,
    gaussian_log_density,
    masked,
    network,
    tanh,
)


@triton.jit
def _sample_categorical(out, column, lane, here, uniform, raw, action, t, lanes, SPEC: tl.constexpr):
    """Draw and store each choice; returns the log-probability (rows)."""
    log_p, p, _entropy = categorical(out, column, SPEC)
    taken = tl.zeros_like(out)
    for k in tl.static_range(len(SPEC.sizes)):
        place = (t * len(SPEC.sizes) + k) * lanes + lane
        u = tl.load(uniform + place, mask=here, other=0.0)
        inside = (column >= SPEC.starts[k]) & (column < SPEC.starts[k + 1])
        own = tl.where(inside[None, :], p, 0.0)
        # The sum may round to just below 1: scaled to it, no uniform lands beyond it.
        threshold = (u * tl.sum(own, axis=1))[:, None]
        passed = (inside & (column < SPEC.starts[k + 1] - 1))[None, :] & (threshold >= tl.cumsum(own, axis=1))
        chosen = tl.sum(passed.to(tl.int32), axis=1)
        if SPEC.legal:
            # Sums of as many numbers may round differently from one column to the next, which must not choose what has no probability.
            value = (column - SPEC.starts[k])[None, :]
            before = tl.max(tl.where((own > 0.0) & (value <= chosen[:, None]), value, -1), axis=1)
            after = tl.min(tl.where((own > 0.0) & (value >= chosen[:, None]), value, SPEC.out_pad), axis=1)
            chosen = tl.where(after < SPEC.out_pad, after, tl.where(before >= 0, before, chosen))
        tl.store(raw + place, chosen, mask=here)
        tl.store(action + place, chosen, mask=here)
        taken = tl.where(inside[None, :] & (column[None, :] - SPEC.starts[k] == chosen[:, None]), 1.0, taken)
    return tl.sum(log_p * taken, axis=1)


@triton.jit
def _sample_gaussian(out, column, lane, here, uniform, raw, action, bounds, parameters, t, lanes, SPEC: tl.constexpr):
    """Draw and store the raw action, and what the environment gets; returns the log-probability (rows). `bounds`: centre, reach, limit, (A) each."""
    inside = column < SPEC.head_rows
    mask = inside[None, :] & here[:, None]
    log_std = tl.load(parameters + SPEC.log_std + column, mask=inside, other=0.0)
    place = t * SPEC.head_rows * lanes + column[None, :] * lanes + lane[:, None]
    draw = t * SPEC.head_rows * lanes + place
    radius = tl.load(uniform + draw, mask=mask, other=0.0)
    angle = tl.load(uniform + draw + SPEC.head_rows * lanes, mask=mask, other=0.0)
    # Box & Muller; 1 - u is exact.
    drawn = out + tl.exp(log_std)[None, :] * (tl.sqrt(-2.0 * tl.log(1.0 - radius)) * tl.cos(TWO_PI * angle))
    centre = tl.load(bounds + column, mask=inside, other=0.0)[None, :]
    reach = tl.load(bounds + SPEC.head_rows + column, mask=inside, other=0.0)[None, :]
    limit = tl.load(bounds + 2 * SPEC.head_rows + column, mask=inside, other=0.0)[None, :]
    if SPEC.squash:
        bounded = tanh(drawn, False)
    else:
        bounded = tl.where(drawn > limit, limit, tl.where(drawn < -limit, -limit, drawn))
    tl.store(raw + place, drawn, mask=mask)
    tl.store(action + place, centre + reach * bounded, mask=mask)
    return gaussian_log_density(out, drawn, log_std, inside[None, :], SPEC)[0]


@triton.jit
def answer(out, lane, here, legal, uniform, raw, action, log_probability, value, parameters, bounds, tower, t, lanes, SPEC: tl.constexpr):
    """Of a tower's outputs at step t: sample and log-probability, or the value, or all of them, each into its place in the rollout."""
    column = tl.arange(0, SPEC.out_pad)
    if SPEC.shared or tower == 0:
        if SPEC.legal:
            out = masked(out, allowed(legal, t * lanes + lane, t, here, lanes, SPEC), SPEC)
        if len(SPEC.sizes) > 0:
            log_p = _sample_categorical(out, column, lane, here, uniform, raw, action, t, lanes, SPEC)
        else:
            log_p = _sample_gaussian(out, column, lane, here, uniform, raw, action, bounds, parameters, t, lanes, SPEC)
        tl.store(log_probability + t * lanes + lane, log_p, mask=here)
    if SPEC.shared or tower == 1:
        tl.store(value + t * lanes + lane, column_of(out, column, SPEC.head_rows), mask=here)


@triton.jit
def _seen(observation, moments, lane, here, t, lanes, SPEC: tl.constexpr):
    """What the first layer reads at step t, (rows, columns_pad)."""
    column = tl.arange(0, SPEC.columns_pad)
    field = field_of(column, moments, SPEC)
    mask = here[:, None] & (field < SPEC.observation)[None, :]
    observed = tl.load(observation + (t * SPEC.observation + field[None, :]) * lanes + lane[:, None], mask=mask, other=0)
    return first_operand(features(chosen(observed, column, moments, SPEC), column, moments, SPEC), SPEC)


@triton.jit(do_not_specialize=["t"])
def act(
    observation, legal, uniform, raw, action, log_probability, value, parameters, moments, bounds, t, lanes, SPEC: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Step t of every lane: network, sample, log-probability, value, each into its place in the rollout."""
    tower = tl.program_id(1)
    lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = lane < lanes
    out, _hidden, _memory = forward(_seen(observation, moments, lane, here, t, lanes, SPEC), network(parameters, tower, SPEC), SPEC)
    answer(out, lane, here, legal, uniform, raw, action, log_probability, value, parameters, bounds, tower, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first"])
def leftover_values(
    observation, final_observation, truncated, value, final_value, parameters, moments, first, steps, lanes, SPEC: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """V of the observation after the last step, and from step `first` of the true final ones: those only in tiles where a lane was truncated."""
    t = first + tl.program_id(1)
    lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = lane < lanes
    wanted = here & (t == steps)
    if t < steps:
        wanted = tl.load(truncated + t * lanes + lane, mask=here, other=0) != 0
    if tl.sum(wanted.to(tl.int32), axis=0) > 0:
        source = final_observation
        target = final_value
        if t == steps:
            source = observation
            target = value
        tower = 0 if SPEC.shared else 1
        out, _hidden, _memory = forward(_seen(source, moments, lane, here, t, lanes, SPEC), network(parameters, tower, SPEC), SPEC)
        tl.store(target + t * lanes + lane, column_of(out, tl.arange(0, SPEC.out_pad), SPEC.head_rows), mask=wanted)

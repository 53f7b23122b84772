"""Triton kernels of a rollout: act on one step's observations, and the bootstrap values at its end. Know no loss.

A program takes one tile of lanes and one tower of the network; a lane's results depend on that lane alone, not on how
many are launched.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.blocks import (
    TWO_PI,
    categorical,
    feature_of,
    first_operand,
    forward,
    gaussian_log_density,
    load_legal_mask,
    load_log_std,
    load_network,
    mask_illegal,
    normalize,
    one_hot,
    select_column,
    tanh,
)


@triton.jit
def _sample_categorical(out, column, lane, in_bounds, acting, t, lanes, SPEC: tl.constexpr):
    """Sample and store each choice; returns the log-probability (rows)."""
    log_p, p, _entropy = categorical(out, column, SPEC)
    selected = tl.zeros_like(out)
    for k in tl.static_range(len(SPEC.sizes)):
        # The choice is the number of actions whose cumulative probability the uniform number has passed.
        place = (t * len(SPEC.sizes) + k) * lanes + lane
        u = tl.load(acting.noise + place, mask=in_bounds, other=0.0)
        inside = (column >= SPEC.starts[k]) & (column < SPEC.starts[k + 1])
        own = tl.where(inside[None, :], p, 0.0)
        # The sum may round to just below 1: scaled to it, no uniform lands beyond it.
        threshold = (u * tl.sum(own, axis=1))[:, None]
        passed = (inside & (column < SPEC.starts[k + 1] - 1))[None, :] & (threshold >= tl.cumsum(own, axis=1))
        choice = tl.sum(passed.to(tl.int32), axis=1)
        if SPEC.legal:
            # Sums of as many numbers may round differently from one column to the next, which must not choose what has
            # no probability.
            value = (column - SPEC.starts[k])[None, :]
            before = tl.max(tl.where((own > 0.0) & (value <= choice[:, None]), value, -1), axis=1)
            after = tl.min(tl.where((own > 0.0) & (value >= choice[:, None]), value, SPEC.out_pad), axis=1)
            choice = tl.where(after < SPEC.out_pad, after, tl.where(before >= 0, before, choice))
        tl.store(acting.raw + place, choice, mask=in_bounds)
        tl.store(acting.action + place, choice, mask=in_bounds)
        selected = tl.where(inside[None, :] & (column[None, :] - SPEC.starts[k] == choice[:, None]), 1.0, selected)
    return tl.sum(log_p * selected, axis=1)


@triton.jit
def _sample_gaussian(out, column, lane, in_bounds, acting, parameters, t, lanes, SPEC: tl.constexpr):
    """Sample and store the raw action, and what the environment gets; returns the log-probability (rows)."""
    inside = column < SPEC.head_rows
    mask = inside[None, :] & in_bounds[:, None]
    log_std = load_log_std(parameters, column, SPEC)
    place = t * SPEC.head_rows * lanes + column[None, :] * lanes + lane[:, None]
    # Two uniform numbers an action make one normal number (Box & Muller); 1 - u is exact.
    first = t * SPEC.head_rows * lanes + place
    radius = tl.load(acting.noise + first, mask=mask, other=0.0)
    angle = tl.load(acting.noise + first + SPEC.head_rows * lanes, mask=mask, other=0.0)
    raw = out + tl.exp(log_std)[None, :] * (tl.sqrt(-2.0 * tl.log(1.0 - radius)) * tl.cos(TWO_PI * angle))
    # Into the bounds of the Box, by tanh or by clipping.
    centre = tl.load(acting.bounds + column, mask=inside, other=0.0)[None, :]
    reach = tl.load(acting.bounds + SPEC.head_rows + column, mask=inside, other=0.0)[None, :]
    limit = tl.load(acting.bounds + 2 * SPEC.head_rows + column, mask=inside, other=0.0)[None, :]
    if SPEC.squash:
        bounded = tanh(raw, False)
    else:
        bounded = tl.where(raw > limit, limit, tl.where(raw < -limit, -limit, raw))
    tl.store(acting.raw + place, raw, mask=mask)
    tl.store(acting.action + place, centre + reach * bounded, mask=mask)
    return gaussian_log_density(out, raw, log_std, inside[None, :], SPEC)[0]


@triton.jit
def sample_and_store(out, lane, in_bounds, legal_mask, acting, parameters, tower, t, lanes, SPEC: tl.constexpr):
    """From a tower's outputs (rows, out_pad) at step t: the sample and its log-probability, or the value, or all of
    them, each into its place.
    """
    column = tl.arange(0, SPEC.out_pad)
    if SPEC.shared or tower == 0:
        if SPEC.legal:
            out = mask_illegal(out, load_legal_mask(legal_mask, t * lanes + lane, t, in_bounds, lanes, SPEC), SPEC)
        if len(SPEC.sizes) > 0:
            log_p = _sample_categorical(out, column, lane, in_bounds, acting, t, lanes, SPEC)
        else:
            log_p = _sample_gaussian(out, column, lane, in_bounds, acting, parameters, t, lanes, SPEC)
        tl.store(acting.log_probability + t * lanes + lane, log_p, mask=in_bounds)
    if SPEC.shared or tower == 1:
        tl.store(acting.value + t * lanes + lane, select_column(out, column, SPEC.head_rows), mask=in_bounds)


@triton.jit
def load_normalized(observation, normalizer, lane, in_bounds, t, lanes, SPEC: tl.constexpr):
    """What the first layer reads at step t, (rows, columns_pad), before it is rounded."""
    column = tl.arange(0, SPEC.columns_pad)
    feature = feature_of(column, normalizer, SPEC)
    mask = in_bounds[:, None] & (feature < SPEC.observation)[None, :]
    observed = tl.load(
        observation + (t * SPEC.observation + feature[None, :]) * lanes + lane[:, None], mask=mask, other=0
    )
    return normalize(one_hot(observed, column, normalizer, SPEC), column, normalizer, SPEC)


@triton.jit
def load_features(observation, normalizer, lane, in_bounds, t, lanes, SPEC: tl.constexpr):
    """What the first layer reads at step t, (rows, columns_pad)."""
    return first_operand(load_normalized(observation, normalizer, lane, in_bounds, t, lanes, SPEC), SPEC)


@triton.jit
def state_value(out, legal_mask, sample, t, judged, lanes, SPEC: tl.constexpr):
    """The critic's value of each row: (rows)."""
    return select_column(out, tl.arange(0, SPEC.out_pad), SPEC.head_rows)


@triton.jit(do_not_specialize=["t", "first", "last"])
def act(
    inputs, acting, parameters, t, first, last, lanes, SPEC: tl.constexpr, SAMPLE: tl.constexpr, BLOCK_M: tl.constexpr
):
    """Step t of lanes first ... last - 1: what `SAMPLE`, a function like `sample_and_store`, makes of the network's
    outputs, into its place in the rollout.
    """
    tower = tl.program_id(1)
    lane = first + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < last
    x = load_features(inputs.observation, inputs.normalizer, lane, in_bounds, t, lanes, SPEC)
    out, _hidden, _saved = forward(x, load_network(parameters, tower, SPEC), SPEC)
    SAMPLE(out, lane, in_bounds, inputs.legal_mask, acting, parameters, tower, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first"])
def bootstrap_values(
    buffers, parameters, normalizer, first, steps, lanes, SPEC: tl.constexpr, VALUE: tl.constexpr, BLOCK_M: tl.constexpr
):
    """V of the observation after the last step, and from step `first` on of true final ones: those only in tiles where
    a lane was truncated.

    `VALUE` is a function like `state_value`.
    """
    t = first + tl.program_id(1)
    lane = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < lanes
    needed = in_bounds & (t == steps)
    if t < steps:
        needed = tl.load(buffers.truncated + t * lanes + lane, mask=in_bounds, other=0) != 0
    if tl.sum(needed.to(tl.int32), axis=0) > 0:
        source = buffers.final_observation
        target = buffers.final_value
        if t == steps:
            source = buffers.observation
            target = buffers.value
        tower = 0 if SPEC.shared else 1
        x = load_features(source, normalizer, lane, in_bounds, t, lanes, SPEC)
        out, _hidden, _saved = forward(x, load_network(parameters, tower, SPEC), SPEC)
        value = VALUE(out, buffers.legal_mask, t * lanes + lane, t, needed & (t == steps), lanes, SPEC)
        tl.store(target + t * lanes + lane, value, mask=needed)

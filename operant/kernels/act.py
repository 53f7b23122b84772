"""Rollout kernels of the resident engine: act on one step's observations, and compute the bootstrap values.

A program takes one tile of lanes and one tower: the network of the actor (0), that of the critic (1), or both with a
shared trunk (0). A lane's results do not depend on the other lanes or on their number.

Shapes: T steps, N lanes, O features of an observation, H parameters of the distribution (logits or means), A components
of an action, U rows of noise, P parameters. `rows` is a program's tile of lanes, `out_pad` the columns of its outputs:
H parameters, then the value, then padding. `SPEC` is an `operant.kernels.spec.Spec`: sizes of the network, and offsets
in its flat parameter vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.network import forward, load_log_std, load_network
from operant.kernels.observations import load_features
from operant.kernels.ops.activation import tanh
from operant.kernels.ops.categorical import categorical, load_legal_mask, mask_illegal, sample_choice
from operant.kernels.ops.gaussian import box_muller, gaussian_log_density
from operant.kernels.ops.linear import select_column

# ARGUMENTS


class Acting(NamedTuple):
    """Noise and bounds for sampling actions, and the buffers of the results."""

    noise: Any  # (T, U, N) uniform in [0, 1)
    bounds: Any  # (3, A) centre, half range and clipping limit of a Box action
    raw: Any  # (T, A, N) sampled action, written
    action: Any  # (T, A, N) action for the environment, written
    log_probability: Any  # (T, N) written
    value: Any  # (T + 1, N) written


class Bootstrap(NamedTuple):
    """Observations after the last step and at truncations, and the buffers of their values."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N) true final observation of truncated lanes
    truncated: Any  # (T, N) uint8
    legal_mask: Any  # (T + 1, H, N), of which step T is read
    value: Any  # (T + 1, N), of which step T is written
    final_value: Any  # (T, N), written for truncated lanes


# SAMPLING


@triton.jit
def _sample_categorical(out, column, lane, in_bounds, acting, t, lanes, SPEC: tl.constexpr):
    """Sample an action for each choice (several for MultiDiscrete) at step t and store them; return their joint
    log-probability (rows).

    | parameter | shape           | meaning                                 |
    |-----------|-----------------|-----------------------------------------|
    | out       | (rows, out_pad) | logits in the first H columns           |
    | column    | (out_pad)       | tl.arange(0, out_pad)                   |
    | lane      | (rows)          | lane of each row                        |
    | in_bounds | (rows)          | rows to store                           |
    | acting    | struct          | `Acting`: noise, and the stored actions |
    """
    log_p, p, _entropy = categorical(out, column, SPEC)
    selected = tl.zeros_like(out)
    for k in tl.static_range(len(SPEC.sizes)):
        offset = (t * len(SPEC.sizes) + k) * lanes + lane
        uniform = tl.load(acting.noise + offset, mask=in_bounds, other=0.0)
        action = sample_choice(p, column, uniform, SPEC, k)
        tl.store(acting.raw + offset, action, mask=in_bounds)
        tl.store(acting.action + offset, action, mask=in_bounds)
        mask = (column >= SPEC.starts[k]) & (column < SPEC.starts[k + 1])
        selected = tl.where(mask[None, :] & (column[None, :] - SPEC.starts[k] == action[:, None]), 1.0, selected)
    return tl.sum(log_p * selected, axis=1)


@triton.jit
def _sample_gaussian(out, column, lane, in_bounds, acting, params_ptr, t, lanes, SPEC: tl.constexpr):
    """Sample raw actions mean + std noise at step t, store them and the bounded actions; return their log density
    (rows).

    The parameters are those of `_sample_categorical`; `out` holds means, `params_ptr` (P) log_std.
    """
    is_mean = column < SPEC.head_rows
    mask = is_mean[None, :] & in_bounds[:, None]
    log_std = load_log_std(params_ptr, column, SPEC)
    offset = t * SPEC.head_rows * lanes + column[None, :] * lanes + lane[:, None]
    # Noise is (T, 2 A, N): A rows of u1, then A rows of u2.
    noise_offset = t * SPEC.head_rows * lanes + offset
    u1 = tl.load(acting.noise + noise_offset, mask=mask, other=0.0)
    u2 = tl.load(acting.noise + noise_offset + SPEC.head_rows * lanes, mask=mask, other=0.0)
    raw = out + tl.exp(log_std)[None, :] * box_muller(u1, u2)
    # Bound the action to the Box, by tanh or by clipping.
    centre = tl.load(acting.bounds + column, mask=is_mean, other=0.0)[None, :]
    half_range = tl.load(acting.bounds + SPEC.head_rows + column, mask=is_mean, other=0.0)[None, :]
    limit = tl.load(acting.bounds + 2 * SPEC.head_rows + column, mask=is_mean, other=0.0)[None, :]
    if SPEC.squash:
        bounded = tanh(raw, False)
    else:
        bounded = tl.where(raw > limit, limit, tl.where(raw < -limit, -limit, raw))
    tl.store(acting.raw + offset, raw, mask=mask)
    tl.store(acting.action + offset, centre + half_range * bounded, mask=mask)
    return gaussian_log_density(out, raw, log_std, is_mean[None, :], SPEC)[0]


@triton.jit
def sample_and_store(out, lane, in_bounds, legal_mask_ptr, acting, params_ptr, tower, t, lanes, SPEC: tl.constexpr):
    """Sample actions from a tower's outputs at step t and store them with log-probabilities and values: SAMPLE of PPO.

    The actor's tower stores actions, raw samples and log-probabilities; the critic's tower stores values; a shared
    trunk stores all.

    | parameter      | shape           | meaning                                 |
    |----------------|-----------------|-----------------------------------------|
    | out            | (rows, out_pad) | logits or means, then the value         |
    | lane           | (rows)          | lane of each row                        |
    | in_bounds      | (rows)          | rows to store                           |
    | legal_mask_ptr | (T + 1, H, N)   | read if SPEC.legal                      |
    | acting         | struct          | `Acting`: noise and bounds, and results |
    | params_ptr     | (P)             | parameters, for log_std                 |
    """
    column = tl.arange(0, SPEC.out_pad)
    if SPEC.shared or tower == 0:
        if SPEC.legal:
            out = mask_illegal(out, load_legal_mask(legal_mask_ptr, t * lanes + lane, t, in_bounds, lanes, SPEC), SPEC)
        if len(SPEC.sizes) > 0:
            log_p = _sample_categorical(out, column, lane, in_bounds, acting, t, lanes, SPEC)
        else:
            log_p = _sample_gaussian(out, column, lane, in_bounds, acting, params_ptr, t, lanes, SPEC)
        tl.store(acting.log_probability + t * lanes + lane, log_p, mask=in_bounds)
    if SPEC.shared or tower == 1:
        tl.store(acting.value + t * lanes + lane, select_column(out, column, SPEC.head_rows), mask=in_bounds)


@triton.jit
def state_value(out, legal_mask_ptr, sample, t, has_mask, lanes, SPEC: tl.constexpr):
    """Return the value of each row, (rows), from the critic's outputs (rows, out_pad): VALUE of PPO."""
    return select_column(out, tl.arange(0, SPEC.out_pad), SPEC.head_rows)


# KERNELS
#
# | parameter    | shape  | meaning                                                  |
# |--------------|--------|----------------------------------------------------------|
# | inputs       | struct | `Inputs`: observations, normalizer, legal actions        |
# | acting       | struct | what SAMPLE reads and writes, e.g. `Acting`              |
# | buffers      | struct | `Bootstrap`: observations, and where values are written  |
# | params_ptr   | (P)    | flat vector of parameters                                |
# | first, last  | int    | lanes first ... last - 1 act                             |
# | steps, lanes | int    | T, N                                                     |
# | SAMPLE       |        | device function with the signature of `sample_and_store` |
# | VALUE        |        | device function with the signature of `state_value`      |


@triton.jit(do_not_specialize=["t", "first", "last"])
def act(
    inputs, acting, params_ptr, t, first, last, lanes, SPEC: tl.constexpr, SAMPLE: tl.constexpr, BLOCK_M: tl.constexpr
):
    """Act at step t on lanes `first` ... `last` - 1: forward pass, then SAMPLE. Grid: (cdiv(last - first, BLOCK_M),
    towers).
    """
    tower = tl.program_id(1)
    lane = first + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_bounds = lane < last
    # x (BLOCK_M, columns_pad): one-hot encoded, normalized features, and a column of ones for the bias. out (BLOCK_M,
    # out_pad): logits or means, and the value.
    x = load_features(inputs.observation, inputs.normalizer, lane, in_bounds, t, lanes, SPEC)
    out, _hidden, _saved = forward(x, load_network(params_ptr, tower, SPEC), SPEC)
    SAMPLE(out, lane, in_bounds, inputs.legal_mask, acting, params_ptr, tower, t, lanes, SPEC)


@triton.jit(do_not_specialize=["first"])
def bootstrap_values(
    buffers,
    params_ptr,
    normalizer_ptr,
    first,
    steps,
    lanes,
    SPEC: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write values of the observations after the last step, and of the true final observations of truncated lanes from
    step `first` on.

    Grid: (cdiv(N, BLOCK_M), T + 1 - first). Program 1 counts steps. At steps before T, tiles without a truncated lane
    compute nothing.
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
        x = load_features(source, normalizer_ptr, lane, in_bounds, t, lanes, SPEC)
        out, _hidden, _saved = forward(x, load_network(params_ptr, tower, SPEC), SPEC)
        value = VALUE(out, buffers.legal_mask, t * lanes + lane, t, needed & (t == steps), lanes, SPEC)
        tl.store(target + t * lanes + lane, value, mask=needed)

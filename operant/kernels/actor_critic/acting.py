"""The Triton kernel of acting: one tick of all lanes and, beside it, the batch of the update that follows. Knows no
loss.

A lane's action depends on that lane alone. A batch asks of the tick that is acted on for no more than what is seen: so
both are made at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.actor_critic.networks import (
    clipped,
    is_action,
    load_mean_head,
    load_policy_head,
    load_trunk,
    mean_of,
    normal,
    policy_of,
    run_trunk,
    squashed,
)
from operant.kernels.replay import features, make_batch


class Acting(NamedTuple):
    """What acting reads and writes of a rollout."""

    observation: Any  # (T + 1, O, N)
    normalizer: Any  # mean (O), inv_std (O)
    noise: Any  # (T, 2 A, N), uniform in [0, 1)
    exploration: Any  # (N), of an actor that has means alone: each lane's standard deviation
    warming: Any  # one float: 1 draws uniform actions
    centre: Any  # (A)
    reach: Any  # (A)
    raw: Any  # (T, A, N) written, in [-1, 1]
    action: Any  # (T, A, N) written, as the environment takes it


@triton.jit
def _act(tile, acting, actor, t, lanes, SPEC: tl.constexpr, ROWS: tl.constexpr):
    ACTOR: tl.constexpr = SPEC.actor
    lane = tile * ROWS + tl.arange(0, ROWS)
    here = lane < lanes
    column = tl.arange(0, SPEC.columns)
    mask = here[:, None] & (column < SPEC.observation)[None, :]
    place = (t * SPEC.observation + column)[None, :] * lanes + lane[:, None]
    observed = tl.load(acting.observation + place, mask=mask, other=0)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    at = (t * SPEC.action + column - SPEC.observation)[None, :] * lanes + lane[:, None]
    noise_at = acting.noise + t * 2 * SPEC.action * lanes
    acts = is_action(SPEC) & here[:, None]
    first = tl.load(noise_at + (column - SPEC.observation)[None, :] * lanes + lane[:, None], mask=acts, other=0.0)
    noise = normal(noise_at, lane, 0, lanes, acts, SPEC)
    x = features(observed, column, acting.normalizer, SPEC.observation, SPEC.normalized)
    if SPEC.stochastic:
        policy_head = load_policy_head(actor.single, actor.packed, SPEC, ACTOR)
        mean, raw = policy_of(run_trunk(x, trunk, SPEC, ACTOR)[-1], policy_head, SPEC)
        drawn, _log_p, _spread, _slope = squashed(mean, raw, noise, SPEC)
    else:
        mean_head = load_mean_head(actor.single, actor.packed, SPEC, ACTOR)
        deviation = tl.load(acting.exploration + lane, mask=here, other=0.0)[:, None]
        drawn = clipped(mean_of(run_trunk(x, trunk, SPEC, ACTOR)[-1], mean_head, SPEC) + deviation * noise, 1.0)
    drawn = tl.where(tl.load(acting.warming) > 0.0, 2.0 * first - 1.0, drawn)
    which = column - SPEC.observation
    one = (which >= 0) & (which < SPEC.action)
    centre = tl.load(acting.centre + which, mask=one, other=0.0)[None, :]
    reach = tl.load(acting.reach + which, mask=one, other=0.0)[None, :]
    tl.store(acting.raw + at, drawn, mask=acts)
    tl.store(acting.action + at, centre + reach * drawn, mask=acts)


@triton.jit(do_not_specialize=["t", "numbers"])
def act(
    acting,
    actor,
    t,
    lanes,
    tiles,
    stored,
    batch,
    numbers,
    SPEC: tl.constexpr,
    DRAW: tl.constexpr,
    ROWS: tl.constexpr,
    BATCH_ROWS: tl.constexpr,
):
    """Actions of tick t, in as many programs as there are tiles of lanes; those beyond them make the batch of the
    update that is due after the tick.
    """
    program = tl.program_id(0)
    if program < tiles:
        _act(program, acting, actor, t, lanes, SPEC, ROWS)
    else:
        make_batch(program - tiles, stored, batch, numbers, DRAW, BATCH_ROWS)

"""The Triton kernel of SAC's acting: one tick of all lanes. A lane's action depends on that lane alone. Knows no batch and no loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.algos.sac.fused.networks import is_action, load_policy_head, load_trunk, normal, policy_of, run_trunk, squashed
from operant.kernels.sample import features


class Acting(NamedTuple):
    """What acting reads and writes of a rollout."""

    observation: Any  # (T + 1, O, N)
    normalizer: Any  # mean (O), inv_std (O)
    noise: Any  # (T, 2 A, N), uniform in [0, 1)
    warming: Any  # one float: 1 draws uniform actions
    centre: Any  # (A)
    reach: Any  # (A)
    raw: Any  # (T, A, N) written, in [-1, 1]
    action: Any  # (T, A, N) written, as the environment takes it


@triton.jit(do_not_specialize=["t"])
def act(acting, actor, t, lanes, SPEC: tl.constexpr, ROWS: tl.constexpr):
    """Actions of tick t."""
    ACTOR: tl.constexpr = SPEC.actor
    lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = lane < lanes
    column = tl.arange(0, SPEC.columns)
    mask = here[:, None] & (column < SPEC.observation)[None, :]
    place = (t * SPEC.observation + column)[None, :] * lanes + lane[:, None]
    observed = tl.load(acting.observation + place, mask=mask, other=0)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    head = load_policy_head(actor.single, actor.packed, SPEC, ACTOR)
    at = (t * SPEC.action + column - SPEC.observation)[None, :] * lanes + lane[:, None]
    noise_at = acting.noise + t * 2 * SPEC.action * lanes
    acts = is_action(SPEC) & here[:, None]
    first = tl.load(noise_at + (column - SPEC.observation)[None, :] * lanes + lane[:, None], mask=acts, other=0.0)
    noise = normal(noise_at, lane, 0, lanes, acts, SPEC)
    x = features(observed, column, acting.normalizer, SPEC.observation, SPEC.normalized)
    mean, raw = policy_of(run_trunk(x, trunk, SPEC, ACTOR)[-1], head, SPEC)
    drawn, _log_p, _spread, _slope = squashed(mean, raw, noise, SPEC)
    drawn = tl.where(tl.load(acting.warming) > 0.0, 2.0 * first - 1.0, drawn)
    which = column - SPEC.observation
    one = (which >= 0) & (which < SPEC.action)
    centre = tl.load(acting.centre + which, mask=one, other=0.0)[None, :]
    reach = tl.load(acting.reach + which, mask=one, other=0.0)[None, :]
    tl.store(acting.raw + at, drawn, mask=acts)
    tl.store(acting.action + at, centre + reach * drawn, mask=acts)

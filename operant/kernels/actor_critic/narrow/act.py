"""Triton kernel of acting: the actions of one tick and, in the same launch, the batch of the update that follows.

A lane's action depends on that lane alone. Of the newest tick a batch reads only the observation, so both can run at
once. Common constants: SPEC: `NarrowSpec`; REPLAY: `ReplaySpec`; BLOCK_M: lanes of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.actor_critic.gaussian import (
    clip,
    load_observation,
    load_uniform,
    normal,
    squashed_gaussian,
    store_action,
)
from operant.kernels.actor_critic.narrow.network import (
    deterministic_action,
    forward_trunk,
    gaussian_outputs,
    load_gaussian_head,
    load_mean_head,
    load_trunk,
)
from operant.kernels.ops.replay import normalize_observation, sample_tile


@triton.jit
def _act_tile(tile, buffers, actor, t, lanes, SPEC: tl.constexpr, BLOCK_M: tl.constexpr):
    """Write the actions of BLOCK_M lanes, tile number `tile`, at tick t. `buffers` and `actor` as in `act`."""
    ACTOR: tl.constexpr = SPEC.actor
    lane = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    observation, _mask = load_observation(buffers, t, lane, lanes, SPEC)
    trunk = load_trunk(actor.single, actor.packed, SPEC, ACTOR)
    uniform, mask, offset, noise_ptr = load_uniform(buffers, t, lane, lanes, SPEC)
    noise = normal(noise_ptr, lane, 0, lanes, mask, SPEC)
    x = normalize_observation(
        observation, tl.arange(0, SPEC.columns), buffers.normalizer, SPEC.observation, SPEC.normalized
    )
    if SPEC.stochastic:
        gaussian_head = load_gaussian_head(actor.single, actor.packed, SPEC, ACTOR)
        mean, raw = gaussian_outputs(forward_trunk(x, trunk, SPEC, ACTOR)[-1], gaussian_head, SPEC)
        action, _log_prob, _std_noise, _log_std_grad = squashed_gaussian(mean, raw, noise, SPEC)
    else:
        mean_head = load_mean_head(actor.single, actor.packed, SPEC, ACTOR)
        std = tl.load(buffers.exploration + lane, mask=lane < lanes, other=0.0)[:, None]
        action = clip(
            deterministic_action(forward_trunk(x, trunk, SPEC, ACTOR)[-1], mean_head, SPEC) + std * noise, 1.0
        )
    store_action(buffers, action, uniform, mask, offset, SPEC)


@triton.jit(do_not_specialize=["t", "arguments"])
def act(
    buffers,
    actor,
    t,
    lanes,
    tiles,
    replay,
    batch,
    arguments,
    SPEC: tl.constexpr,
    REPLAY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SAMPLE_BLOCK_M: tl.constexpr,
):
    """Write the actions of tick t, in the first `tiles` programs; the others sample the batch of the first update after
    it.

    | parameter | shape  | meaning                                    |
    |-----------|--------|--------------------------------------------|
    | buffers   | struct | `ActBuffers`: observations in, actions out |
    | actor     | struct | `PackedWeights` of the actor               |
    | t, lanes  | scalar | tick of the iteration; number of lanes N   |
    | tiles     | scalar | cdiv(N, BLOCK_M)                           |
    | replay    | struct | `ReplayBuffers`                            |
    | batch     | struct | `BatchBuffers`, written                    |
    | arguments | struct | `BatchArguments` of that update            |
    """
    program = tl.program_id(0)
    if program < tiles:
        _act_tile(program, buffers, actor, t, lanes, SPEC, BLOCK_M)
    else:
        sample_tile(program - tiles, replay, batch, arguments, REPLAY, SAMPLE_BLOCK_M)

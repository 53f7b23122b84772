"""Environment for tests of games: a line of five positions, exact, drawn in two colours."""

from typing import NamedTuple

from numpy import float32

from operant.envs import Box, Discrete, Env, device


class Walk(NamedTuple):
    """Line of five positions; the last one gives a reward."""

    end: float = 5.0


@device
def _walk_reset(s, p, key):
    s[0] = float32(0.0)


@device
def _walk_step(s, action, p, key, tally):
    s[0] += float32(1.0) if action == 2 else float32(-1.0) if action == 1 else float32(0.0)
    tally[0] += float32(action)
    return s[0], s[0] >= p.end


@device
def _walk_observe(s, obs, p):
    obs[0] = s[0]


@device
def _walk_legal(s, mask, p):
    mask[0] = 1
    mask[1] = 1 if s[0] > float32(0.5) else 0
    mask[2] = 1


@device
def _walk_shade(s, p, x, y):
    on = int(x * p.end) == int(s[0])
    return (float32(1.0), float32(0.0), float32(0.0)) if on else (float32(0.0), float32(0.0), float32(1.0))


WALK = Env(
    Walk,
    1,
    observation=Box(1),
    action=Discrete(3),
    time_limit=40,
    reset=_walk_reset,
    step=_walk_step,
    observe=_walk_observe,
    pixel_shader=_walk_shade,
    legal=_walk_legal,
    tally=("sum",),
    actions=("stay", "left", "right"),
    name="walk",
)

"""Memory chain: one bit is shown at the start and queried at the end. bsuite's memory_len (Osband et al. 2020,
`bsuite/environments/memory_chain.py`).

Rules
- The observation is bsuite's: the remaining time, from 1 down to 0; the query, always 0 with a single bit; and the
  context, -1 or 1 at the start and 0 later. The start is observed twice, before the first step and after it.
- Only the last action of an episode of length + 1 steps counts: reward 1 if it names the context (0 for -1), otherwise
  -1.
- bsuite's lengths range from 1 to 100.

Optimum: 1. Without memory: 0 on average, for every length above 1.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, GROUND, RED, Box, Discrete, Env, device, in_box, in_disc, integer

CONTEXT, SHOWN, STEPS, FIELDS = range(4)  # rows of the state: the bit; time of the observation; steps taken


class Params(NamedTuple):
    """Parameters of the memory chain: number of steps over which the bit must be remembered."""

    length: int = 100


@device
def reset(s, p, key):
    s[CONTEXT], s[SHOWN], s[STEPS] = float32(integer(key, 0, 2)), float32(0.0), float32(0.0)


@device
def step(s, action, p, key, tally):
    steps, right = int32(s[STEPS]), int32(s[CONTEXT]) == int32(action)
    over = steps == int32(p.length)
    s[SHOWN], s[STEPS] = float32(steps), float32(steps + int32(1))
    return (float32(1.0) if right else float32(-1.0)) if over else float32(0.0), over


@device
def observe(s, obs, p):
    shown, context = s[SHOWN], float32(2.0) * s[CONTEXT] - float32(1.0)
    obs[0] = float32(1.0) - shown / float32(p.length)
    obs[1] = float32(0.0)
    obs[2] = context if shown == float32(0.0) else float32(0.0)


@device
def pixel_shader(s, p, x, y):
    if in_disc(x, y, float32(0.5), float32(0.4), float32(0.25)):
        if s[SHOWN] != float32(0.0):
            return GREY
        return GREEN if s[CONTEXT] != float32(0.0) else RED
    if in_box(x, y, float32(0.5), float32(0.88), float32(0.45), float32(0.06)):
        return BLUE if x - float32(0.05) < float32(0.9) * (float32(1.0) - s[SHOWN] / float32(p.length)) else GREY
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(3, low=(0.0, 0.0, -1.0), high=(1.0, 0.0, 1.0)),
    action=Discrete(2),
    time_limit=None,  # episodes have a fixed length
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={"length": (1, 1_000_000)},
    actions=("minus", "plus"),
    step_s=1 / 10,
)

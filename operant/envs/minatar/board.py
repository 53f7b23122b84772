"""What MinAtar's games share: sticky actions, and the observation and picture of a board whose rows are masks of ten
bits. Knows no game's rules.
"""

from typing import Any

from numpy import float32, int32

from operant.envs import GROUND, Box, Discrete, Env, IntState, device, device_call, uniform

SIDE = 10
LAST = SIDE - 1  # row or column
FULL = (1 << SIDE) - 1  # a row with every cell


@device
def whole(number):
    """A number of the state as int32."""
    return int32(number)


@device
def sticky_action(last, action, p, key):
    """The action that is taken: the given one, or the last again."""
    return last if uniform(key, 0) < p.sticky else int32(action)


@device
def bit(column, there):
    """The mask of a cell, empty where it is not there or lies beyond the sides."""
    return int32(1 << int32(column)) if there and column >= 0 and column < SIDE else int32(0)


def game(
    params: Any,
    fields: int,
    state: IntState,
    *,
    reset: Any,
    step: Any,
    masks: Any,
    colours: tuple[tuple[float32, float32, float32], ...],
    actions: tuple[str, ...],
    time_limit: int | None = 10_000,
) -> Env:
    """A game. `masks(s, cells, row)` is the row's mask of each channel; a row is a shard of the observation, and of two
    in a cell the later is seen.
    """
    channels = len(colours)

    @device_call
    def observe(s, cells, obs, p, shard):
        row = int32(shard)
        seen = masks(s, cells, row)
        for column in range(SIDE):
            for channel in range(channels):
                obs[channels * (SIDE * row + column) + channel] = (
                    255 if (seen[channel] >> int32(column)) & int32(1) != 0 else 0
                )

    @device_call
    def pixel_shader(s, cells, p, x, y):
        column, row = int32(x * float32(SIDE)), int32(y * float32(SIDE))
        seen, colour = masks(s, cells, row), GROUND
        for channel in range(channels):
            if (seen[channel] >> column) & int32(1) != 0:
                colour = colours[channel]
        return colour

    return Env(
        params,
        fields,
        observation=Box(SIDE * SIDE * channels, low=0, high=255, dtype="uint8", shape=(SIDE, SIDE, channels)),
        action=Discrete(len(actions)),
        time_limit=time_limit,
        reset=reset,
        step=step,
        observe=observe,
        pixel_shader=pixel_shader,
        ranges={"sticky": (0.0, 1.0)},
        observation_shards=SIDE,
        int_state=state,
        actions=actions,
        step_s=1 / 10,
    )

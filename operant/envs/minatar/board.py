"""Shared parts of MinAtar's games: sticky actions, observations and pictures of a board whose rows are 10-bit masks.
Independent of each game's rules.
"""

from typing import Any

from numpy import float32, int32

from operant.envs import GROUND, Box, Discrete, Env, IntState, device, device_call, uniform

SIDE = 10
LAST = SIDE - 1  # last row or column
FULL = (1 << SIDE) - 1  # mask of a full row


@device
def whole(number):
    """Convert a float32 value of the state to int32."""
    return int32(number)


@device
def sticky_action(last, action, p, key):
    """Choose the action to execute: `action`, or with probability `p.sticky` the last action again."""
    return last if uniform(key, 0) < p.sticky else int32(action)


@device
def bit(column, present):
    """Mask with the bit of a column set within a row of 10; 0 if the object is not `present` or the column is off the
    board.
    """
    return int32(1 << int32(column)) if present and column >= 0 and column < SIDE else int32(0)


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
    """Declare the environment of a MinAtar game on a board of 10 x 10 cells. `masks(s, cells, row)` returns the row's
    10-bit mask of each channel, `colours` are the channels' colours in pictures, and `params` and `fields` are those of
    `Env`.

    Observation shards are rows. In pictures, later channels cover earlier ones.
    """
    channels = len(colours)

    @device_call
    def observe(s, cells, obs, p, shard):
        row = int32(shard)
        row_masks = masks(s, cells, row)
        for column in range(SIDE):
            for channel in range(channels):
                obs[channels * (SIDE * row + column) + channel] = (
                    255 if (row_masks[channel] >> int32(column)) & int32(1) != 0 else 0
                )

    @device_call
    def pixel_shader(s, cells, p, x, y):
        column, row = int32(x * float32(SIDE)), int32(y * float32(SIDE))
        row_masks, colour = masks(s, cells, row), GROUND
        for channel in range(channels):
            if (row_masks[channel] >> column) & int32(1) != 0:
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

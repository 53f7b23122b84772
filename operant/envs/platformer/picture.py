"""The platformer's picture: colour of a point of the world and of the bar above it. Independent of the rules."""

from typing import Any

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, GROUND, ORANGE, RED, YELLOW, device, device_call, in_box, in_disc
from operant.envs.platformer.tiles import (
    CLOCK,
    FLAG,
    HALF,
    HEIGHT,
    SPIKES,
    VX,
    VY,
    X,
    Y,
    coin_of,
    floor_of,
    ground_of,
    has_spikes,
    is_block,
    over_of,
    unit,
    word_at,
)

BAR = float32(0.8)  # tiles, height of the bar above the world
PIXELS = float32(5.0)  # per tile, in a picture of 64 x 64 pixels of a world of 12 rows
SKY = (float32(0.10), float32(0.13), float32(0.26))
EARTH = (float32(0.40), float32(0.27), float32(0.16))
WHITE = (float32(0.95), float32(0.95), float32(0.95))


@device
def _bar_colour(s, p, across, down, side):
    """Colour of a point of the bar above the world: two squares whose brightness shows vx and vy (grey at rest), then
    the remaining time.
    """
    if across < float32(1.8):
        speed = s[VX] / p.speed if across < float32(0.8) else s[VY] / p.jump
        light = float32(0.5) + float32(0.5) * unit(speed)
        return (light, light, light) if across < float32(0.8) or across > float32(1.0) else GROUND
    share = (across - float32(2.4)) / (side - float32(2.8))
    within = share >= float32(0.0) and share < float32(1.0) - s[CLOCK] / float32(p.steps)
    return BLUE if within and down > float32(0.2) and down < float32(0.6) else GROUND


@device
def _tile_colour(word, row, across, above):
    """Colour of a point of the tile in `row` of a column, given by its packed word. `across` and `above` are the
    point's offsets from the tile's lower left corner, in [0, 1).
    """
    ground = ground_of(word)
    if row < ground:
        return GREEN if row == ground - 1 and above > float32(0.6) else EARTH
    if row == over_of(word) and row > 0:
        if is_block(word):
            inner = in_box(across, above, float32(0.5), float32(0.5), float32(0.35), float32(0.35))
            return GREY if inner else EARTH
        return ORANGE if above > float32(0.6) else SKY
    if (
        has_spikes(word)
        and row == ground
        and above < SPIKES * (float32(1.2) - abs(float32(2.0) * across - float32(1.0)))
    ):
        return RED
    if row == coin_of(word) and row > 0 and in_disc(across, above, float32(0.5), float32(0.5), float32(0.32)):
        return YELLOW
    return SKY


def shader(rows: int, columns: int) -> Any:
    """Make the device function `pixel_shader` of the platformer for a world of rows x columns tiles."""

    @device_call
    def pixel_shader(s, cells, p, x, y):
        side = float32(rows) + BAR
        across, down = x * side, y * side
        if down < BAR:
            return _bar_colour(s, p, across, down, side)
        # The camera moves by whole pixels of a 64 x 64 picture, so that all tiles look the same there.
        left = float32(floor_of(PIXELS * (s[X] - float32(4.0)))) / PIXELS
        across += min(max(left, float32(0.0)), float32(columns) - side)
        up = side - down
        offset, above = across - s[X], up - s[Y]
        if abs(offset) < HALF and above >= float32(0.0) and above < HEIGHT:
            # The eye looks in the direction of movement.
            forward = offset if s[VX] >= float32(0.0) else -offset
            return GROUND if in_box(forward, above, float32(0.14), float32(0.6), float32(0.1), float32(0.15)) else WHITE
        column, row = min(int32(across), int32(columns - 1)), int32(up)
        word = word_at(cells, column)
        flag, foot = float32(columns - FLAG) + float32(0.5), up - float32(ground_of(word))
        if foot >= float32(0.0) and foot < float32(5.0) and abs(across - flag) < float32(1.5):
            if abs(across - flag) < float32(0.15):
                return GREY
            if foot > float32(3.4) and across < flag:
                return BLUE
        return _tile_colour(word, row, across - float32(column), up - float32(row))

    return pixel_shader

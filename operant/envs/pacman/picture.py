"""Pacman's picture: colour of a point of the maze with pickups and actors. Independent of the rules."""

from numpy import float32, int32

from operant.envs import BLUE, GROUND, ORANGE, YELLOW, device, device_call, in_box, in_disc
from operant.envs.pacman.maze import (
    EYES,
    FRIGHTENED,
    GHOSTS,
    HEIGHT,
    PACMAN,
    POWER,
    STRIDE,
    WIDTH,
    across_of,
    below_of,
    entry_of,
    heading_of,
    mood_of,
    position_of,
)

WALL, PINK, WHITE = (
    (float32(0.16), float32(0.21), float32(0.5)),
    (float32(0.96), float32(0.62), float32(0.78)),
    (float32(0.95), float32(0.95), float32(0.95)),
)
SCARED, SCARLET, DOT = (
    (float32(0.2), float32(0.25), float32(0.95)),
    (float32(0.9), float32(0.15), float32(0.1)),
    (float32(0.85), float32(0.75), float32(0.6)),
)
COLOURS = (SCARLET, PINK, BLUE, ORANGE)  # of the ghosts
RADIUS = float32(0.8)  # cells, of the actors


@device
def _is_wall(column, row):
    """Whether the point (column, row) of the maze, in cells, is inside a wall or outside of the maze."""
    outside = column < float32(0.0) or column >= float32(WIDTH) or row < float32(0.0) or row >= float32(HEIGHT)
    return outside or entry_of(int32(row) * int32(STRIDE) + int32(column)) == 0


@device_call
def _shade_maze(cells, column, row):
    """Colour of the point (column, row) of the maze, in cells: wall, dot, pill or floor."""
    # Walls are drawn narrower than their cells, so that corridors look as wide as the actors.
    gap = float32(0.24)
    if _is_wall(column, row):
        open_near = not (_is_wall(column - gap, row - gap) and _is_wall(column + gap, row - gap))
        return (
            GROUND
            if open_near or not (_is_wall(column - gap, row + gap) and _is_wall(column + gap, row + gap))
            else WALL
        )
    entry = entry_of(int32(row) * int32(STRIDE) + int32(column))
    pickup = (entry >> int32(4) & int32(255)) - int32(1)
    if pickup < 0 or (cells[pickup >> int32(5)] >> (pickup & int32(31))) & int32(1) == 0:
        return GROUND
    across, below = column - float32(int32(column)) - float32(0.5), row - float32(int32(row)) - float32(0.5)
    if entry & int32(POWER):
        return WHITE if in_disc(across, below, float32(0.0), float32(0.0), float32(0.48)) else GROUND
    # Slightly off centre: where a cell is two pixels wide, a dot covers exactly one pixel.
    return DOT if in_box(across, below, float32(-0.05), float32(-0.05), float32(0.24), float32(0.24)) else GROUND


@device_call
def _shade_ghost(word, column, row, colour):
    """Whether the point (column, row) of the maze, in cells, shows the ghost of this packed word, and the
    colour there.
    """
    heading, mood = heading_of(word), mood_of(word)
    across, below = (
        column - float32(word & int32(31)) - float32(0.5),
        row - float32(position_of(word) >> int32(5)) - float32(0.5),
    )
    if abs(across) > RADIUS or abs(below) > RADIUS:
        return False, GROUND
    # Eyes look in the direction of movement.
    right, down = float32(0.1) * float32(across_of(heading)), float32(0.1) * float32(below_of(heading)) - float32(0.12)
    if in_disc(
        abs(across - float32(1.8) * right),
        below,
        float32(0.28),
        down + float32(0.08) * float32(below_of(heading)),
        float32(0.11),
    ):
        return True, SCARED if mood == EYES else GROUND
    if in_disc(abs(across - right), below, float32(0.28), down, float32(0.23)):
        return True, WHITE
    # Body: a dome above, and a hem of three points below.
    hem = RADIUS - float32(0.6) * abs(abs(across) - float32(0.4))
    within = in_disc(across, below, float32(0.0), float32(0.0), RADIUS) if below < float32(0.0) else below < hem
    return within and mood != EYES, SCARED if mood == FRIGHTENED else colour


@device_call
def pixel_shader(s, cells, p, x, y):
    """Colour at (x, y) of the maze, centred in a square of 32 cells. Frightened ghosts are blue, eaten ones
    only eyes.
    """
    column, row = float32(32.0) * x - float32((32 - WIDTH) / 2), float32(32.0) * y - float32((32 - HEIGHT) / 2)
    if column < float32(0.0) or column >= float32(WIDTH) or row < float32(0.0) or row >= float32(HEIGHT):
        return GROUND
    for ghost in range(4):
        visible, colour = _shade_ghost(cells[GHOSTS + ghost], column, row, COLOURS[ghost])
        if visible:
            return colour
    pacman = cells[PACMAN]
    across, below = (
        column - float32(pacman & int32(31)) - float32(0.5),
        row - float32(position_of(pacman) >> int32(5)) - float32(0.5),
    )
    if in_disc(across, below, float32(0.0), float32(0.0), RADIUS):
        heading = heading_of(pacman)
        right, down = float32(across_of(heading)), float32(below_of(heading))
        mouth = across * right + below * down > float32(1.4) * abs(across * down + below * right)
        return GROUND if mouth else YELLOW
    return _shade_maze(cells, column, row)

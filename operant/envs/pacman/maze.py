"""Pacman's maze, the packed words of its actors, and movement in it. Independent of the rules."""

import numpy as np
from numpy import int32

from operant.envs import device, device_call

MAZE = (
    "############################",
    "#............##............#",
    "#.####.#####.##.#####.####.#",
    "#o####.#####.##.#####.####o#",
    "#.####.#####.##.#####.####.#",
    "#..........................#",
    "#.####.##.########.##.####.#",
    "#.####.##.########.##.####.#",
    "#......##....##....##......#",
    "######.##### ## #####.######",
    "######.##### ## #####.######",
    "######.##          ##.######",
    "######.## ######## ##.######",
    "######.## ######## ##.######",
    "      .   ########   .      ",
    "######.## ######## ##.######",
    "######.## ######## ##.######",
    "######.##          ##.######",
    "######.## ######## ##.######",
    "######.## ######## ##.######",
    "#............##............#",
    "#.####.#####.##.#####.####.#",
    "#.####.#####.##.#####.####.#",
    "#o..##.......  .......##..o#",
    "###.##.##.########.##.##.###",
    "###.##.##.########.##.##.###",
    "#......##....##....##......#",
    "#.##########.##.##########.#",
    "#.##########.##.##########.#",
    "#..........................#",
    "############################",
)
"""`#` is a wall, `.` a dot, `o` a power pill. Dots and pills are pickups."""

WIDTH, HEIGHT = 28, 31
PICKUPS, DOTS = 244, 240
STRIDE = 32  # a position is row * 32 + column
START = 23 * STRIDE + 13

UP, RIGHT, DOWN, LEFT = range(4)
HUNTING, FRIGHTENED, EYES = range(3)  # moods of a ghost

WORDS = 8  # of 32 pickups each: bit k of word w is 1 while pickup 32 w + k is there
PACMAN, GHOSTS, CLOCK, FRIGHT, REMAINING, CELLS = WORDS, WORDS + 1, WORDS + 5, WORDS + 6, WORDS + 7, WORDS + 8
"""Offsets in a lane's words: Pacman, four ghosts, clock, remaining frightened steps, remaining pickups.

An actor's word: position (bits 0 to 9), heading (10, 11), and for a ghost mood (12, 13) and wait in steps (16 to 30).
"""

POWER = 1 << 12


def _lookup_table() -> np.ndarray:
    """Make the maze's lookup table by position, int16 (HEIGHT * STRIDE,): open directions and pickups.

    Bits 0 to 3: open directions up, right, down, left. Bits 4 to 11: 1 + index of the pickup, or 0. Bit 12: the pickup
    is a pill. The entry of a wall is 0.
    """
    table, pickups = np.zeros(HEIGHT * STRIDE, np.int16), 0
    for row, line in enumerate(MAZE):
        for column, kind in enumerate(line):
            if kind != "#":
                neighbours = (
                    MAZE[row - 1][column],
                    line[(column + 1) % WIDTH],
                    MAZE[row + 1][column],
                    line[column - 1],
                )
                table[row * STRIDE + column] = sum(
                    1 << direction for direction, other in enumerate(neighbours) if other != "#"
                )
            if kind in ".o":
                pickups += 1
                table[row * STRIDE + column] |= pickups << 4 | (POWER if kind == "o" else 0)
    return table


ENTRIES = _lookup_table()
DOT_POSITIONS = np.array(
    [position for position, entry in enumerate(ENTRIES) if entry >> 4 and not entry & POWER], np.int16
)


@device
def position_of(word):
    """Position (row * STRIDE + column) in an actor's packed word."""
    return word & int32(1023)


@device
def heading_of(word):
    """Heading (0 up, 1 right, 2 down, 3 left) in an actor's packed word."""
    return (word >> int32(10)) & int32(3)


@device
def mood_of(word):
    """Mood (HUNTING, FRIGHTENED or EYES) in a ghost's packed word."""
    return (word >> int32(12)) & int32(3)


@device
def across_of(heading):
    """Change of column when an actor moves one cell with this heading: 1, -1 or 0."""
    return (int32(2) - heading) * (heading & int32(1))


@device
def below_of(heading):
    """Change of row when an actor moves one cell with this heading: 1, -1 or 0."""
    return (heading - int32(1)) * (int32(1) - (heading & int32(1)))


@device_call
def entry_of(position):
    """Look up the open directions and pickup of a position in the table made by `_lookup_table`.

    A call, not inlined: each inlined copy would duplicate the table in the GPU's small constant memory.
    """
    return int32(ENTRIES[position])


@device_call
def neighbour_of(position, direction):
    """Position next to `position` in a direction (0 up, 1 right, 2 down, 3 left), through the tunnel if necessary."""
    column = position & int32(31)
    if direction == UP:
        return int32(position - STRIDE)
    if direction == DOWN:
        return int32(position + STRIDE)
    if direction == RIGHT:
        return int32(position + 1) if column < WIDTH - 1 else int32(position - (WIDTH - 1))
    return int32(position - 1) if column > 0 else int32(position + (WIDTH - 1))

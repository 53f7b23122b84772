"""Pacman's maze, the words that hold its actors, and ways through it. Knows no rule of the game."""

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
"""`#` a wall, `.` a dot, `o` a power pill. Both `o` and `.` are pickups."""

WIDTH, HEIGHT = 28, 31
PICKUPS, DOTS = 244, 240
STRIDE = 32  # a place is row * 32 + column
START = 23 * STRIDE + 13

UP, RIGHT, DOWN, LEFT = range(4)
HUNTING, FRIGHTENED, EYES = range(3)  # moods of a ghost

WORDS = 8  # of 32 pickups each, bit k of word w is pickup 32 w + k: 1 while it is there
PACMAN, GHOSTS, CLOCK, FRIGHT, REMAINING, CELLS = WORDS, WORDS + 1, WORDS + 5, WORDS + 6, WORDS + 7, WORDS + 8
"""Where Pacman, the four ghosts, the steps taken, the frightened steps left and the pickups left stand among a lane's
words.

An actor's word: its place (bits 0 to 9) and heading (10, 11), a ghost's mood (12, 13) and the steps it waits (16 to
30).
"""

POWER = 1 << 12


def _table() -> np.ndarray:
    """For each place which ways are open (bits 0 to 3, up, right, down, left), 1 + the number of its pickup or 0 (bits
    4 to 11), and whether that is a pill.

    A wall has 0. Returns int16 (HEIGHT * STRIDE).
    """
    table, pickups = np.zeros(HEIGHT * STRIDE, np.int16), 0
    for row, line in enumerate(MAZE):
        for column, kind in enumerate(line):
            if kind != "#":
                beside = (MAZE[row - 1][column], line[(column + 1) % WIDTH], MAZE[row + 1][column], line[column - 1])
                table[row * STRIDE + column] = sum(1 << way for way, other in enumerate(beside) if other != "#")
            if kind in ".o":
                pickups += 1
                table[row * STRIDE + column] |= pickups << 4 | (POWER if kind == "o" else 0)
    return table


PLACES = _table()
DOT_PLACES = np.array([place for place, entry in enumerate(PLACES) if entry >> 4 and not entry & POWER], np.int16)


@device
def place_of(word):
    return word & int32(1023)


@device
def heading_of(word):
    return (word >> int32(10)) & int32(3)


@device
def mood_of(word):
    return (word >> int32(12)) & int32(3)


@device
def across_of(heading):
    """How many columns a step leads to the right: 1, -1 or 0."""
    return (int32(2) - heading) * (heading & int32(1))


@device
def below_of(heading):
    """How many rows a step leads down: 1, -1 or 0."""
    return (heading - int32(1)) * (int32(1) - (heading & int32(1)))


@device_call
def entry_of(place):
    """What the table says of a place. Called, not pasted: each paste would bring a copy of the table to a GPU's small
    constant memory.
    """
    return int32(PLACES[place])


@device_call
def place_beside(place, way):
    """The place beside, through the tunnel if need be."""
    column = place & int32(31)
    if way == UP:
        return int32(place - STRIDE)
    if way == DOWN:
        return int32(place + STRIDE)
    if way == RIGHT:
        return int32(place + 1) if column < WIDTH - 1 else int32(place - (WIDTH - 1))
    return int32(place - 1) if column > 0 else int32(place + (WIDTH - 1))

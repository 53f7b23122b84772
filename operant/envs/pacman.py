"""Pacman: eat every dot of the maze, and let no ghost catch you, unless a power pill has frightened it. The arcade's maze: 240 dots and 4 power pills.

Rules and constants: PufferLib's Pacman (`ocean/pacman/pacman.h`, `config/pacman.ini`; github.com/PufferAI/PufferLib), written anew from reading it. Its
movement is in whole cells, too. The maze and the ghosts' ways are those of the arcade game (Namco 1980), with the house filled in: the ghosts begin before it.

The rules of a step, in this order
- The clock ticks. The ghosts' mode follows it: they scatter for 70 steps, chase for 140, scatter again and so on; after the sixth change they scatter for good.
  When it changes, they turn back.
- Each ghost has a cell that it makes for, by where all stood before the step. Scattering, a corner of its own. Chasing, Blinky Pacman's cell; Pinky the fourth
  cell ahead of him; Inky the cell that lies as far beyond the second one ahead of him as Blinky lies before it; Clyde Pacman's cell while he is more than
  eight cells away from it (as the crow flies), else his corner.
- The action turns Pacman up, right, down or left (0 to 3), unless a wall is there. He moves a cell the way that he then heads, unless a wall is there, and
  eats the dot or power pill in his cell. A pill frightens the ghosts, for its step and 35 more, and turns them back; not those that are only eyes.
- Each ghost waits for a number of steps after the start, then moves a cell in every step, a frightened one only in every second (in the step of the pill, not
  in the next, and so on). One that has just been told so turns back. Any other never does: of the other ways it takes a random one if it is frightened, else
  that whose cell is nearest to the cell it makes for, as the crow flies; of equally near ones the first of up, left, down, right. With a wall ahead it stays.
- After its move, a ghost on Pacman's cell or on one beside it catches him, or is eaten if it is frightened. Of an eaten one the eyes run home, to the cell it
  began in, and are a ghost as before when they are there.
- The side exits of the maze lead to each other. The game ends when he is caught, or when the last dot or pill is eaten; after 10,000 steps it is truncated.
- Reward: +1 for a dot, a pill or a ghost. He begins on a random cell with a dot (which he has not eaten), heading right, or in the middle below the house.

Where this differs, and why:
- A frightened ghost's rests are counted from the last pill; PufferLib counts each ghost's, through a second pill, so that it may miss being turned back.
- Ghosts are no longer frightened after the last step in which one may be eaten; there they look so until the next step begins, in which they catch.
- On both sides of the tunnel's seam one is beside the other. A waiting ghost does not turn. Of equally near ways PufferLib prefers down, up, right, left.
What looks like an oversight is kept: to scatter, not to chase, for good (`mode_changes = 5` is the arcade's way); a dot at the start has to be come back to.

The observation, 291 bytes; "whether" is 255 or 0. Of Pacman 11: column, row; whether he heads up, right, down, left; whether these ways are open; 255 x the
share of the frightened steps that is left, rounded down. Of Blinky, Pinky, Inky and Clyde 9 each: column, row; whether it heads up, right, down, left; whether
it hunts, is frightened, is eyes. Of the pickups 244: whether each is there still, along the rows from the top left. Modes and waits are not seen (nor are they
in PufferLib, whose floats hold the same). Columns and rows are categorical features, and a network reads them one-hot: in a maze, what is right
in one column says nothing of the next (as numbers two recipes brought 178 and 189 pickups, one-hot the same 206 to 209 and 205 to 215: benches/LOG.md).

Random numbers. Of a reset: Pacman's cell is draw 0, `integer(key, 0, 240)` along the rows from the top left; the waits of Blinky, Pinky, Inky and Clyde are
draws 1 to 4, `integer(key, 1 + ghost, wait_steps)`. Of a step: a frightened ghost's turn is draw `ghost` (0 to 3), `integer(key, ghost, n)` among its n ways in
the order up, left, down, right; not drawn where there is one way only.

A lane is 16 words of 32 bits: the pickups as 244 bits, a word for each actor, the clock, the frightened steps left, the pickups left.
"""

from typing import NamedTuple

import numpy as np
from numpy import float32, int32

from operant.envs import BLUE, GROUND, ORANGE, YELLOW, Box, Discrete, Env, IntState, device, device_call, in_box, in_disc, integer

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
BLINKY, PINKY, INKY, CLYDE = range(4)
HUNTING, FRIGHTENED, EYES = range(3)  # moods of a ghost
SCORE, EATEN, GHOSTS_EATEN, CLEARED, CAUGHT = range(5)  # tallies

WORDS = 8  # of 32 pickups each, bit k of word w is pickup 32 w + k: 1 while it is there
PACMAN, GHOSTS, CLOCK, FRIGHT, REMAINING, CELLS = WORDS, WORDS + 1, WORDS + 5, WORDS + 6, WORDS + 7, WORDS + 8
"""Where Pacman, the four ghosts, the steps taken, the frightened steps left and the pickups left stand among a lane's words.

An actor's word: its place (bits 0 to 9) and heading (10, 11), a ghost's mood (12, 13) and the steps it waits (16 to 30).
"""

HOMES = (11 * STRIDE + 13, 11 * STRIDE + 14, 11 * STRIDE + 12, 11 * STRIDE + 15)  # of Blinky, Pinky, Inky, Clyde
CORNERS = ((24, -3), (3, -3), (27, 31), (0, 31))  # column and row; out of reach, so that a ghost goes round and round
PINKY_LEAD, INKY_LEAD, CLYDE_RADIUS = 4, 2, 8
PLAYER_SEEN, GHOST_SEEN = 11, 9
PICKUPS_SEEN = PLAYER_SEEN + 4 * GHOST_SEEN  # where the pickups begin
SEEN = PICKUPS_SEEN + PICKUPS
POSITIONS_SEEN = (0, *range(PLAYER_SEEN, PICKUPS_SEEN, GHOST_SEEN))  # where columns stand, each before its row

WALL, PINK, WHITE = (float32(0.16), float32(0.21), float32(0.5)), (float32(0.96), float32(0.62), float32(0.78)), (float32(0.95), float32(0.95), float32(0.95))
SCARED, SCARLET, DOT = (float32(0.2), float32(0.25), float32(0.95)), (float32(0.9), float32(0.15), float32(0.1)), (float32(0.85), float32(0.75), float32(0.6))
COLOURS = (SCARLET, PINK, BLUE, ORANGE)  # of the ghosts
RADIUS = float32(0.8)  # cells, of who runs


class Params(NamedTuple):
    """Rewards, clocks and starts."""

    pickup: float = 1.0
    ghost: float = 1.0
    frightened_steps: int = 35  # after the step of the pill; a byte tells up to 255 apart
    scatter_steps: int = 70
    chase_steps: int = 140
    mode_changes: int = 6  # after so many the mode stays as it is
    wait_steps: int = 49  # a ghost waits fewer steps than this, each number as likely
    random_start: bool = True


POWER = 1 << 12


def _table() -> np.ndarray:
    """For each place which ways are open (bits 0 to 3, up, right, down, left), 1 + the number of its pickup or 0 (bits 4 to 11), and whether that is a pill.

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
def _place(word):
    return word & int32(1023)


@device
def _heading(word):
    return (word >> int32(10)) & int32(3)


@device
def _mood(word):
    return (word >> int32(12)) & int32(3)


@device
def _across(heading):
    """How many columns a step leads to the right: 1, -1 or 0."""
    return (int32(2) - heading) * (heading & int32(1))


@device
def _below(heading):
    """How many rows a step leads down: 1, -1 or 0."""
    return (heading - int32(1)) * (int32(1) - (heading & int32(1)))


@device_call
def _with_mood(word, old, new):
    """A ghost's word with the mood `new` if it has the mood `old`."""
    return word + (int32(new - old) << int32(12)) if _mood(word) == old else word


@device_call
def _entry(place):
    """What the table says of a place. Called, not pasted: each paste would bring a copy of the table to a GPU's small constant memory."""
    return int32(PLACES[place])


@device_call
def _beside(place, way):
    """The place beside, through the tunnel if need be."""
    column = place & int32(31)
    if way == UP:
        return int32(place - STRIDE)
    if way == DOWN:
        return int32(place + STRIDE)
    if way == RIGHT:
        return int32(place + 1) if column < WIDTH - 1 else int32(place - (WIDTH - 1))
    return int32(place - 1) if column > 0 else int32(place + (WIDTH - 1))


@device
def _touch(one, other):
    """Whether two places are the same, or side by side."""
    across = abs((one & int32(31)) - (other & int32(31)))
    return min(across, int32(WIDTH) - across) + abs((one >> int32(5)) - (other >> int32(5))) <= 1


@device_call
def _way(ways, place, frightened, column, row, ghost, key):
    """Which of the open ways (bits) a ghost takes that must not turn back: to (column, row), or a random one."""
    skip = int32(0)
    if frightened:
        count = (ways & int32(1)) + ((ways >> int32(1)) & int32(1)) + ((ways >> int32(2)) & int32(1)) + (ways >> int32(3))
        skip = int32(integer(key, ghost, count)) if count > 1 else int32(0)
    best, nearest = int32(0), int32(2**30)
    for k in range(4):
        way = int32(-k) & int32(3)  # up, left, down, right
        if (ways >> way) & int32(1):
            across = (place & int32(31)) + _across(way) - column
            below = (place >> int32(5)) + _below(way) - row
            distance = across * across + below * below
            # Frightened, all ways are as near as each other, and the first `skip` are passed over.
            if frightened:
                distance = int32(0) if skip == 0 else int32(2**30)
                skip -= int32(1)
            if distance < nearest:
                best, nearest = way, distance
    return best


@device_call
def _move_ghost(word, ghost, home, column, row, pacman, clock, turns_back, rests, key):
    """A ghost's word after its move: it makes for (column, row), or home if it is eyes. And whether it was eaten, and whether it caught Pacman, 0 or 1 each."""
    place, heading, mood, wait = _place(word), _heading(word), _mood(word), word >> int32(16)
    if clock > wait and not (rests and mood == FRIGHTENED):
        ways = _entry(place) & int32(15)
        back = heading ^ int32(2)
        if turns_back and mood != EYES:
            heading = back
        else:
            if mood == EYES:
                column, row = home & int32(31), home >> int32(5)
            heading = _way(ways & ~(int32(1) << back), place, mood == FRIGHTENED, column, row, ghost, key)
        if (ways >> heading) & int32(1):
            place = _beside(place, heading)
    eaten, caught = int32(0), int32(0)
    if mood == EYES:
        mood = int32(HUNTING if place == home else EYES)
    elif _touch(place, pacman):
        eaten = mood  # FRIGHTENED is 1, HUNTING 0
        caught = int32(1) - mood
        mood = int32(EYES if mood == FRIGHTENED else HUNTING)
    return place | heading << int32(10) | mood << int32(12) | wait << int32(16), eaten, caught


@device
def _mode(clock, p):
    """Whether the ghosts chase in the step that makes the clock read so, and whether that is a change."""
    passed, cycle = clock - int32(1), int32(max(p.scatter_steps + p.chase_steps, 1))
    within = int32(passed % cycle)
    change = int32(int32(2) * int32(passed // cycle) + int32(1 if within >= p.scatter_steps else 0))
    changed = passed > 0 and (within == 0 or within == p.scatter_steps) and change <= p.mode_changes
    return (min(change, p.mode_changes) & int32(1)) == 1, changed


@device_call
def _targets(pacman, blinky, clyde, chasing):
    """The cells that Blinky, Pinky, Inky and Clyde make for: column and row of each."""
    if not chasing:
        return (*CORNERS[0], *CORNERS[1], *CORNERS[2], *CORNERS[3])
    column, row, heading = pacman & int32(31), _place(pacman) >> int32(5), _heading(pacman)
    across, below = _across(heading), _below(heading)
    inky_column = int32(2) * (column + int32(INKY_LEAD) * across) - (blinky & int32(31))
    inky_row = int32(2) * (row + int32(INKY_LEAD) * below) - (_place(blinky) >> int32(5))
    clyde_across, clyde_below = column - (clyde & int32(31)), row - (_place(clyde) >> int32(5))
    far = clyde_across * clyde_across + clyde_below * clyde_below > CLYDE_RADIUS * CLYDE_RADIUS
    clyde_column, clyde_row = (column, row) if far else (int32(CORNERS[3][0]), int32(CORNERS[3][1]))
    return column, row, column + PINKY_LEAD * across, row + PINKY_LEAD * below, inky_column, inky_row, clyde_column, clyde_row


@device_call
def reset(s, cells, workspace, p, key):
    """All pickups in their places, everyone at his start."""
    for w in range(WORDS):
        cells[w] = int32(-1 if w < WORDS - 1 else (1 << (PICKUPS - 32 * (WORDS - 1))) - 1)
    cells[PACMAN] = (int32(DOT_PLACES[int32(integer(key, 0, DOTS))]) if p.random_start else int32(START)) | int32(RIGHT << 10)
    for ghost in range(4):
        cells[GHOSTS + ghost] = int32(HOMES[ghost]) | int32(integer(key, 1 + ghost, p.wait_steps)) << int32(16)
    cells[CLOCK], cells[FRIGHT], cells[REMAINING] = 0, 0, PICKUPS


@device_call
def step(s, cells, workspace, action, p, key, tally):
    """A step: see the module's docstring."""
    pacman, clock, fright, remaining = cells[PACMAN], cells[CLOCK] + int32(1), cells[FRIGHT], cells[REMAINING]
    blinky, pinky, inky, clyde = cells[GHOSTS], cells[GHOSTS + 1], cells[GHOSTS + 2], cells[GHOSTS + 3]
    chasing, turns_back = _mode(clock, p)
    x0, y0, x1, y1, x2, y2, x3, y3 = _targets(pacman, blinky, clyde, chasing)

    place, heading = _place(pacman), _heading(pacman)
    ways = _entry(place) & int32(15)
    if (ways >> int32(action)) & int32(1):
        heading = int32(action)
    if (ways >> heading) & int32(1):
        place = _beside(place, heading)
    entry = _entry(place)
    pickup = max((entry >> int32(4) & int32(255)) - int32(1), int32(0))
    word, bit = cells[pickup >> int32(5)], int32(1) << (pickup & int32(31))
    eats = entry >> int32(4) != 0 and word & bit != 0
    if eats:
        cells[pickup >> int32(5)] = word & ~bit
        remaining -= int32(1)

    fright = int32(max(fright - 1, 0))
    if eats and entry & int32(POWER):
        fright, turns_back = int32(p.frightened_steps), True
        blinky, pinky = _with_mood(blinky, HUNTING, FRIGHTENED), _with_mood(pinky, HUNTING, FRIGHTENED)
        inky, clyde = _with_mood(inky, HUNTING, FRIGHTENED), _with_mood(clyde, HUNTING, FRIGHTENED)
    rests = (p.frightened_steps - fright) & 1 == 1
    blinky, eaten0, caught0 = _move_ghost(blinky, BLINKY, int32(HOMES[0]), int32(x0), int32(y0), place, clock, turns_back, rests, key)
    pinky, eaten1, caught1 = _move_ghost(pinky, PINKY, int32(HOMES[1]), int32(x1), int32(y1), place, clock, turns_back, rests, key)
    inky, eaten2, caught2 = _move_ghost(inky, INKY, int32(HOMES[2]), int32(x2), int32(y2), place, clock, turns_back, rests, key)
    clyde, eaten3, caught3 = _move_ghost(clyde, CLYDE, int32(HOMES[3]), int32(x3), int32(y3), place, clock, turns_back, rests, key)
    if fright == 0:
        blinky, pinky = _with_mood(blinky, FRIGHTENED, HUNTING), _with_mood(pinky, FRIGHTENED, HUNTING)
        inky, clyde = _with_mood(inky, FRIGHTENED, HUNTING), _with_mood(clyde, FRIGHTENED, HUNTING)

    cells[PACMAN], cells[CLOCK], cells[FRIGHT], cells[REMAINING] = place | heading << int32(10), clock, fright, remaining
    cells[GHOSTS], cells[GHOSTS + 1], cells[GHOSTS + 2], cells[GHOSTS + 3] = blinky, pinky, inky, clyde
    pickups, ghosts = float32(1 if eats else 0), float32(eaten0 + eaten1 + eaten2 + eaten3)
    cleared, caught = remaining == 0, caught0 + caught1 + caught2 + caught3 > 0
    tally[SCORE] += pickups + ghosts
    tally[EATEN] += pickups
    tally[GHOSTS_EATEN] += ghosts
    tally[CLEARED] += float32(1 if cleared else 0)
    tally[CAUGHT] += float32(1 if caught and not cleared else 0)
    return p.pickup * pickups + p.ghost * ghosts, cleared or caught


@device
def _observe_actor(obs, at, word):
    """Six bytes: column, row, heading."""
    heading = _heading(word)
    obs[at] = word & int32(31)
    obs[at + 1] = _place(word) >> int32(5)
    for way in range(4):
        obs[at + 2 + way] = 255 if heading == way else 0


@device
def _observe_pacman(obs, pacman, fright, p):
    """Eleven bytes: six of any actor, the ways that are open, and the time that is left."""
    ways = _entry(_place(pacman))
    _observe_actor(obs, 0, pacman)
    for way in range(4):
        obs[6 + way] = int32(255) * ((ways >> int32(way)) & int32(1))
    obs[10] = min(fright * int32(255) // int32(max(p.frightened_steps, 1)), int32(255))


@device
def _observe_ghost(obs, at, word):
    """Nine bytes: six of any actor, and its mood."""
    _observe_actor(obs, at, word)
    mood = _mood(word)
    for k in range(3):
        obs[at + 6 + k] = 255 if mood == k else 0


@device
def _observe_bits(obs, at, word, count):
    """The lowest `count` bits of a word, a byte each."""
    for k in range(count):
        obs[at + k] = int32(255) * ((word >> int32(k)) & int32(1))


@device_call
def observe(s, cells, obs, p, shard):
    """A shard is that of one of a lane's words: 32 pickups, or fewer, Pacman, or a ghost."""
    word, fright = cells[shard], cells[FRIGHT]  # read before anything is written: a compiler cannot know that cells and obs lie apart
    if shard < WORDS - 1:
        _observe_bits(obs, PICKUPS_SEEN + 32 * shard, word, 32)
    elif shard == WORDS - 1:
        _observe_bits(obs, PICKUPS_SEEN + 32 * shard, word, PICKUPS - 32 * (WORDS - 1))
    elif shard == PACMAN:
        _observe_pacman(obs, word, fright, p)
    else:
        _observe_ghost(obs, PLAYER_SEEN + GHOST_SEEN * (shard - GHOSTS), word)


@device
def _is_wall(column, row):
    """Whether a point of the maze, in cells, is within a wall; beside the maze all is."""
    outside = column < float32(0.0) or column >= float32(WIDTH) or row < float32(0.0) or row >= float32(HEIGHT)
    return outside or _entry(int32(row) * int32(STRIDE) + int32(column)) == 0


@device_call
def _shade_maze(cells, column, row):
    """The colour of a point of the maze, in cells: wall, dot, pill or floor."""
    # Walls keep away from the ways, which look as wide as who runs in them.
    gap = float32(0.24)
    if _is_wall(column, row):
        open_near = not (_is_wall(column - gap, row - gap) and _is_wall(column + gap, row - gap))
        return GROUND if open_near or not (_is_wall(column - gap, row + gap) and _is_wall(column + gap, row + gap)) else WALL
    entry = _entry(int32(row) * int32(STRIDE) + int32(column))
    pickup = (entry >> int32(4) & int32(255)) - int32(1)
    if pickup < 0 or (cells[pickup >> int32(5)] >> (pickup & int32(31))) & int32(1) == 0:
        return GROUND
    across, below = column - float32(int32(column)) - float32(0.5), row - float32(int32(row)) - float32(0.5)
    if entry & int32(POWER):
        return WHITE if in_disc(across, below, float32(0.0), float32(0.0), float32(0.48)) else GROUND
    # Off its middle by a hair: it is a single pixel where a cell is two pixels wide, and not none or four.
    return DOT if in_box(across, below, float32(-0.05), float32(-0.05), float32(0.24), float32(0.24)) else GROUND


@device_call
def _shade_ghost(word, column, row, colour):
    """Whether a point of the maze, in cells, shows a ghost, and its colour there."""
    heading, mood = _heading(word), _mood(word)
    across, below = column - float32(word & int32(31)) - float32(0.5), row - float32(_place(word) >> int32(5)) - float32(0.5)
    if abs(across) > RADIUS or abs(below) > RADIUS:
        return False, GROUND
    # Its eyes look where it heads.
    right, down = float32(0.1) * float32(_across(heading)), float32(0.1) * float32(_below(heading)) - float32(0.12)
    if in_disc(abs(across - float32(1.8) * right), below, float32(0.28), down + float32(0.08) * float32(_below(heading)), float32(0.11)):
        return True, SCARED if mood == EYES else GROUND
    if in_disc(abs(across - right), below, float32(0.28), down, float32(0.23)):
        return True, WHITE
    # A dome above, and a hem of three points below.
    hem = RADIUS - float32(0.6) * abs(abs(across) - float32(0.4))
    within = in_disc(across, below, float32(0.0), float32(0.0), RADIUS) if below < float32(0.0) else below < hem
    return within and mood != EYES, SCARED if mood == FRIGHTENED else colour


@device_call
def pixel_shader(s, cells, p, x, y):
    """The maze in the middle of a square of 32 cells; a frightened ghost is deep blue, an eaten one a pair of eyes."""
    column, row = float32(32.0) * x - float32((32 - WIDTH) / 2), float32(32.0) * y - float32((32 - HEIGHT) / 2)
    if column < float32(0.0) or column >= float32(WIDTH) or row < float32(0.0) or row >= float32(HEIGHT):
        return GROUND
    for ghost in range(4):
        seen, colour = _shade_ghost(cells[GHOSTS + ghost], column, row, COLOURS[ghost])
        if seen:
            return colour
    pacman = cells[PACMAN]
    across, below = column - float32(pacman & int32(31)) - float32(0.5), row - float32(_place(pacman) >> int32(5)) - float32(0.5)
    if in_disc(across, below, float32(0.0), float32(0.0), RADIUS):
        heading = _heading(pacman)
        right, down = float32(_across(heading)), float32(_below(heading))
        mouth = across * right + below * down > float32(1.4) * abs(across * down + below * right)
        return GROUND if mouth else YELLOW
    return _shade_maze(cells, column, row)


def _categories() -> tuple[int, ...]:
    """How many categories each byte of an observation has: as many as there are columns, or rows; 0 for a numeric one."""
    categories = [0] * SEEN
    for at in POSITIONS_SEEN:
        categories[at : at + 2] = WIDTH, HEIGHT
    return tuple(categories)


ENV = Env(
    Params,
    0,
    observation=Box(SEEN, low=0, high=tuple(k - 1 if k else 255 for k in _categories()), dtype="uint8", categories=_categories()),
    action=Discrete(4),
    time_limit=10_000,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    observation_shards=WORDS + 5,
    int_state=IntState(CELLS, "int32"),
    tally=("score", "pickups", "ghosts", "cleared", "caught"),
    actions=("up", "right", "down", "left"),
    step_s=1 / 8,
    ranges={
        "pickup": (-1e6, 1e6),
        "ghost": (-1e6, 1e6),
        "frightened_steps": (0, 10_000),
        "scatter_steps": (0, 10_000),
        "chase_steps": (0, 10_000),
        "mode_changes": (0, 20_000),
        "wait_steps": (1, 10_000),  # one at least of which to draw, and within the bits that a ghost's word has for it
    },
)

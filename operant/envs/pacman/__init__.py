"""Pacman: eat every dot of the maze without being caught by a ghost, unless a power pill has frightened it. The
arcade's maze: 240 dots and 4 power pills.

Rules and constants: PufferLib's Pacman (`ocean/pacman/pacman.h`, `config/pacman.ini`; github.com/PufferAI/PufferLib),
reimplemented from reading it; its movement is in whole cells as well. The maze and the ghosts' behaviour are those of
the arcade game (Namco 1980), with the house filled in: the ghosts start in front of it.

Rules, in the order of a step
- The clock advances. The ghosts' mode follows it: they scatter for 70 steps, chase for 140, scatter again and so on;
  after the sixth change they scatter permanently. When the mode changes, they reverse direction.
- Each ghost has a target cell, from the positions before the step. In scatter mode: its own corner. In chase mode:
  Blinky targets Pacman's cell; Pinky the fourth cell ahead of him; Inky the reflection of Blinky's cell about the
  second cell ahead of Pacman; Clyde Pacman's cell while he is more than eight cells away from it (Euclidean distance),
  otherwise his corner.
- The action turns Pacman up, right, down or left (0 to 3), unless a wall is there. He moves one cell in his direction,
  unless a wall is there, and eats the dot or power pill in his cell. A pill frightens the ghosts, for its step and 35
  more, and reverses their direction, except for ghosts that are only eyes.
- Each ghost waits for a number of steps after the start, then moves one cell in every step; a frightened one only in
  every second step (in the step of the pill, not in the next, and so on). A ghost that must reverse does so. Otherwise
  it never reverses: among the other open directions a frightened ghost picks a random one, and any other ghost the one
  whose cell is nearest to its target (Euclidean distance; ties in the order up, left, down, right). In front of a wall
  it stays.
- After its move, a ghost in Pacman's cell or a neighbouring one catches him, or is eaten if it is frightened. The eyes
  of an eaten ghost return to the cell where it started, and become a ghost there.
- The side exits of the maze are connected. The game ends when Pacman is caught, or when the last dot or pill is eaten;
  it is truncated after 10,000 steps.
- Reward: +1 for a dot, a pill or a ghost. Pacman starts on a random cell with a dot (which is not eaten), heading
  right, or in the middle below the house.

Differences from PufferLib
- The rests of a frightened ghost are counted from the last pill. PufferLib counts each ghost's own rests, through a
  second pill, so that it may miss a reversal.
- Ghosts are no longer frightened after the last step in which one can be eaten; in PufferLib they look frightened until
  the next step begins, in which they catch Pacman.
- Cells on both sides of the tunnel's seam are neighbours. A waiting ghost does not turn. PufferLib breaks ties in the
  order down, up, right, left.

Two details of PufferLib that look like oversights are reproduced: the permanent mode is scatter, not chase
(`mode_changes = 5` is the arcade's rule), and the dot at the start has to be eaten later.

Observation: 291 bytes; flags are 0 or 255. Pacman, 11 bytes: column, row; heading (up, right, down, left); open
directions (4); the remaining fraction of the frightened steps times 255, rounded down. Blinky, Pinky, Inky and Clyde, 9
bytes each: column, row; heading (4); hunting, frightened, eyes. Pickups, 244 bytes: whether each is still there, in row
order from the top left. Modes and waits are hidden (as in PufferLib, whose floats hold the same data). Columns and rows
are categorical features, read one-hot: in a maze, the right action in one column says nothing about the next. (As
numeric features two recipes reached 178 and 189 pickups, one-hot the same recipes reached 206 to 209 and 205 to 215:
benches/LOG.md.)

Random numbers of a reset: Pacman's cell is draw 0, `integer(key, 0, 240)` in row order from the top left; the waits of
Blinky, Pinky, Inky and Clyde are draws 1 to 4, `integer(key, 1 + ghost, wait_steps)`. Of a step: the direction of a
frightened ghost is draw `ghost` (0 to 3), `integer(key, ghost, n)` among its n directions in the order up, left, down,
right; no draw if there is only one.

Storage: a lane has 16 words of 32 bits: the pickups as 244 bits, one word per actor, the clock, the remaining
frightened steps, the remaining pickups.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import Box, Discrete, Env, IntState, device, device_call, integer
from operant.envs.pacman.maze import (
    CELLS,
    CLOCK,
    DOT_POSITIONS,
    DOTS,
    EYES,
    FRIGHT,
    FRIGHTENED,
    GHOSTS,
    HEIGHT,
    HUNTING,
    PACMAN,
    PICKUPS,
    POWER,
    REMAINING,
    RIGHT,
    START,
    STRIDE,
    WIDTH,
    WORDS,
    across_of,
    below_of,
    entry_of,
    heading_of,
    mood_of,
    neighbour_of,
    position_of,
)
from operant.envs.pacman.picture import pixel_shader

BLINKY, PINKY, INKY, CLYDE = range(4)
SCORE, EATEN, GHOSTS_EATEN, CLEARED, CAUGHT = range(5)  # tallies

HOMES = (11 * STRIDE + 13, 11 * STRIDE + 14, 11 * STRIDE + 12, 11 * STRIDE + 15)  # of Blinky, Pinky, Inky, Clyde
CORNERS = ((24, -3), (3, -3), (27, 31), (0, 31))  # column and row; unreachable, so that a ghost circles around it
PINKY_LEAD, INKY_LEAD, CLYDE_RADIUS = 4, 2, 8
PLAYER_SEEN, GHOST_SEEN = 11, 9
PICKUPS_SEEN = PLAYER_SEEN + 4 * GHOST_SEEN  # offset of the pickups
SEEN = PICKUPS_SEEN + PICKUPS
POSITIONS_SEEN = (0, *range(PLAYER_SEEN, PICKUPS_SEEN, GHOST_SEEN))  # offsets of the columns; the row follows


class Params(NamedTuple):
    """Parameters of Pacman: rewards, timers and starts."""

    pickup: float = 1.0
    ghost: float = 1.0
    frightened_steps: int = 35  # after the step of the pill; the observation resolves up to 255
    scatter_steps: int = 70
    chase_steps: int = 140
    mode_changes: int = 6  # number of changes of the ghosts' mode
    wait_steps: int = 49  # exclusive upper bound of a ghost's uniform random wait
    random_start: bool = True


@device_call
def _with_mood(word, old, new):
    """Change the mood of a ghost, given by its packed word, from `old` to `new`; returns the word. A ghost with another
    mood is unchanged.
    """
    return word + (int32(new - old) << int32(12)) if mood_of(word) == old else word


@device
def _adjacent(one, other):
    """Whether two cells, given as packed positions, are equal or adjacent."""
    across = abs((one & int32(31)) - (other & int32(31)))
    return min(across, int32(WIDTH) - across) + abs((one >> int32(5)) - (other >> int32(5))) <= 1


@device_call
def _choose_direction(open_directions, position, frightened, column, row, ghost, key):
    """Choose the direction of ghost number `ghost` among those set in the bit mask `open_directions`: the one that
    leads nearest to (column, row), or a random one if it is frightened.
    """
    skip = int32(0)
    if frightened:
        count = (
            (open_directions & int32(1))
            + ((open_directions >> int32(1)) & int32(1))
            + ((open_directions >> int32(2)) & int32(1))
            + (open_directions >> int32(3))
        )
        skip = int32(integer(key, ghost, count)) if count > 1 else int32(0)
    best, nearest = int32(0), int32(2**30)
    for k in range(4):
        direction = int32(-k) & int32(3)  # up, left, down, right
        if (open_directions >> direction) & int32(1):
            across = (position & int32(31)) + across_of(direction) - column
            below = (position >> int32(5)) + below_of(direction) - row
            distance = across * across + below * below
            # For a frightened ghost all directions are equal, and the first `skip` are skipped.
            if frightened:
                distance = int32(0) if skip == 0 else int32(2**30)
                skip -= int32(1)
            if distance < nearest:
                best, nearest = direction, distance
    return best


@device_call
def _move_ghost(word, ghost, home, column, row, pacman, clock, reverses, rests, key):
    """Move a ghost, given by its packed word, towards (column, row), or towards the cell `home` if it is only eyes.
    Returns its new word, and as 0 or 1 whether it was eaten and whether it caught Pacman.
    """
    position, heading, mood, wait = position_of(word), heading_of(word), mood_of(word), word >> int32(16)
    if clock > wait and not (rests and mood == FRIGHTENED):
        open_directions = entry_of(position) & int32(15)
        opposite = heading ^ int32(2)
        if reverses and mood != EYES:
            heading = opposite
        else:
            if mood == EYES:
                column, row = home & int32(31), home >> int32(5)
            heading = _choose_direction(
                open_directions & ~(int32(1) << opposite), position, mood == FRIGHTENED, column, row, ghost, key
            )
        if (open_directions >> heading) & int32(1):
            position = neighbour_of(position, heading)
    eaten, caught = int32(0), int32(0)
    if mood == EYES:
        mood = int32(HUNTING if position == home else EYES)
    elif _adjacent(position, pacman):
        eaten = mood  # FRIGHTENED is 1, HUNTING 0
        caught = int32(1) - mood
        mood = int32(EYES if mood == FRIGHTENED else HUNTING)
    return position | heading << int32(10) | mood << int32(12) | wait << int32(16), eaten, caught


@device
def _is_chasing(clock, p):
    """Whether the ghosts chase (rather than scatter) at this value of the clock, and whether that has just changed."""
    passed, cycle = clock - int32(1), int32(max(p.scatter_steps + p.chase_steps, 1))
    within = int32(passed % cycle)
    change = int32(int32(2) * int32(passed // cycle) + int32(1 if within >= p.scatter_steps else 0))
    changed = passed > 0 and (within == 0 or within == p.scatter_steps) and change <= p.mode_changes
    return (min(change, p.mode_changes) & int32(1)) == 1, changed


@device_call
def _targets(pacman, blinky, clyde, chasing):
    """Column and row of the target cells of Blinky, Pinky, Inky and Clyde, in this order, while they chase (`chasing`)
    or scatter.
    """
    if not chasing:
        return (*CORNERS[0], *CORNERS[1], *CORNERS[2], *CORNERS[3])
    column, row, heading = pacman & int32(31), position_of(pacman) >> int32(5), heading_of(pacman)
    across, below = across_of(heading), below_of(heading)
    inky_column = int32(2) * (column + int32(INKY_LEAD) * across) - (blinky & int32(31))
    inky_row = int32(2) * (row + int32(INKY_LEAD) * below) - (position_of(blinky) >> int32(5))
    clyde_across, clyde_below = column - (clyde & int32(31)), row - (position_of(clyde) >> int32(5))
    distant = clyde_across * clyde_across + clyde_below * clyde_below > CLYDE_RADIUS * CLYDE_RADIUS
    clyde_column, clyde_row = (column, row) if distant else (int32(CORNERS[3][0]), int32(CORNERS[3][1]))
    return (
        column,
        row,
        column + PINKY_LEAD * across,
        row + PINKY_LEAD * below,
        inky_column,
        inky_row,
        clyde_column,
        clyde_row,
    )


@device_call
def reset(s, cells, workspace, p, key):
    """Place all pickups and actors at their starts."""
    for w in range(WORDS):
        cells[w] = int32(-1 if w < WORDS - 1 else (1 << (PICKUPS - 32 * (WORDS - 1))) - 1)
    cells[PACMAN] = (int32(DOT_POSITIONS[int32(integer(key, 0, DOTS))]) if p.random_start else int32(START)) | int32(
        RIGHT << 10
    )
    for ghost in range(4):
        cells[GHOSTS + ghost] = int32(HOMES[ghost]) | int32(integer(key, 1 + ghost, p.wait_steps)) << int32(16)
    cells[CLOCK], cells[FRIGHT], cells[REMAINING] = 0, 0, PICKUPS


@device_call
def step(s, cells, workspace, action, p, key, tally):
    """Advance the game by one step, see the module docstring; returns the reward and whether the game is over."""
    pacman, clock, fright, remaining = cells[PACMAN], cells[CLOCK] + int32(1), cells[FRIGHT], cells[REMAINING]
    blinky, pinky, inky, clyde = cells[GHOSTS], cells[GHOSTS + 1], cells[GHOSTS + 2], cells[GHOSTS + 3]
    chasing, reverses = _is_chasing(clock, p)
    x0, y0, x1, y1, x2, y2, x3, y3 = _targets(pacman, blinky, clyde, chasing)

    position, heading = position_of(pacman), heading_of(pacman)
    open_directions = entry_of(position) & int32(15)
    if (open_directions >> int32(action)) & int32(1):
        heading = int32(action)
    if (open_directions >> heading) & int32(1):
        position = neighbour_of(position, heading)
    entry = entry_of(position)
    pickup = max((entry >> int32(4) & int32(255)) - int32(1), int32(0))
    word, bit = cells[pickup >> int32(5)], int32(1) << (pickup & int32(31))
    eats = entry >> int32(4) != 0 and word & bit != 0
    if eats:
        cells[pickup >> int32(5)] = word & ~bit
        remaining -= int32(1)

    fright = int32(max(fright - 1, 0))
    if eats and entry & int32(POWER):
        fright, reverses = int32(p.frightened_steps), True
        blinky, pinky = _with_mood(blinky, HUNTING, FRIGHTENED), _with_mood(pinky, HUNTING, FRIGHTENED)
        inky, clyde = _with_mood(inky, HUNTING, FRIGHTENED), _with_mood(clyde, HUNTING, FRIGHTENED)
    rests = (p.frightened_steps - fright) & 1 == 1
    blinky, eaten0, caught0 = _move_ghost(
        blinky, BLINKY, int32(HOMES[0]), int32(x0), int32(y0), position, clock, reverses, rests, key
    )
    pinky, eaten1, caught1 = _move_ghost(
        pinky, PINKY, int32(HOMES[1]), int32(x1), int32(y1), position, clock, reverses, rests, key
    )
    inky, eaten2, caught2 = _move_ghost(
        inky, INKY, int32(HOMES[2]), int32(x2), int32(y2), position, clock, reverses, rests, key
    )
    clyde, eaten3, caught3 = _move_ghost(
        clyde, CLYDE, int32(HOMES[3]), int32(x3), int32(y3), position, clock, reverses, rests, key
    )
    if fright == 0:
        blinky, pinky = _with_mood(blinky, FRIGHTENED, HUNTING), _with_mood(pinky, FRIGHTENED, HUNTING)
        inky, clyde = _with_mood(inky, FRIGHTENED, HUNTING), _with_mood(clyde, FRIGHTENED, HUNTING)

    cells[PACMAN], cells[CLOCK], cells[FRIGHT], cells[REMAINING] = (
        position | heading << int32(10),
        clock,
        fright,
        remaining,
    )
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
    """Write six observation bytes of an actor (Pacman or a ghost), given by its packed word, from index `at` on:
    column, row, heading (one-hot).
    """
    heading = heading_of(word)
    obs[at] = word & int32(31)
    obs[at + 1] = position_of(word) >> int32(5)
    for direction in range(4):
        obs[at + 2 + direction] = 255 if heading == direction else 0


@device
def _observe_pacman(obs, pacman, fright, p):
    """Write the eleven observation bytes of Pacman: column, row and heading, open directions, remaining frightened
    time.
    """
    open_directions = entry_of(position_of(pacman))
    _observe_actor(obs, 0, pacman)
    for direction in range(4):
        obs[6 + direction] = int32(255) * ((open_directions >> int32(direction)) & int32(1))
    obs[10] = min(fright * int32(255) // int32(max(p.frightened_steps, 1)), int32(255))


@device
def _observe_ghost(obs, at, word):
    """Write nine observation bytes of a ghost, given by its packed word, from index `at` on: column, row, heading
    (one-hot) and mood (one-hot).
    """
    _observe_actor(obs, at, word)
    mood = mood_of(word)
    for k in range(3):
        obs[at + 6 + k] = 255 if mood == k else 0


@device
def _observe_bits(obs, at, word, count):
    """Write the lowest `count` bits of a word to the observation, one byte each, 0 or 255, from index `at` on."""
    for k in range(count):
        obs[at + k] = int32(255) * ((word >> int32(k)) & int32(1))


@device_call
def observe(s, cells, obs, p, shard):
    """Write the observation bytes of one shard (one for each word of the lane): up to 32 pickups, Pacman, or a
    ghost.
    """
    # Load before the first store: cells and obs might alias.
    word, fright = cells[shard], cells[FRIGHT]
    if shard < WORDS - 1:
        _observe_bits(obs, PICKUPS_SEEN + 32 * shard, word, 32)
    elif shard == WORDS - 1:
        _observe_bits(obs, PICKUPS_SEEN + 32 * shard, word, PICKUPS - 32 * (WORDS - 1))
    elif shard == PACMAN:
        _observe_pacman(obs, word, fright, p)
    else:
        _observe_ghost(obs, PLAYER_SEEN + GHOST_SEEN * (shard - GHOSTS), word)


def _categories() -> tuple[int, ...]:
    """Number of categories of each observed byte: WIDTH for columns, HEIGHT for rows, 0 for numeric features."""
    categories = [0] * SEEN
    for at in POSITIONS_SEEN:
        categories[at : at + 2] = WIDTH, HEIGHT
    return tuple(categories)


ENV = Env(
    Params,
    0,
    observation=Box(
        SEEN, low=0, high=tuple(k - 1 if k else 255 for k in _categories()), dtype="uint8", categories=_categories()
    ),
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
        "wait_steps": (1, 10_000),  # at least one value to draw; fits into the bits of a ghost's word
    },
)

"""Pacman: eat every dot of the maze, and let no ghost catch you, unless a power pill has frightened it. The arcade's
maze: 240 dots and 4 power pills.

Rules and constants: PufferLib's Pacman (`ocean/pacman/pacman.h`, `config/pacman.ini`; github.com/PufferAI/PufferLib),
written anew from reading it. Its movement is in whole cells, too. The maze and the ghosts' ways are those of the arcade
game (Namco 1980), with the house filled in: the ghosts begin before it.

The rules of a step, in this order
- The clock ticks. The ghosts' mode follows it: they scatter for 70 steps, chase for 140, scatter again and so on; after
  the sixth change they scatter for good.
  When it changes, they turn back.
- Each ghost has a cell that it makes for, by where all stood before the step. Scattering, a corner of its own. Chasing,
  Blinky Pacman's cell; Pinky the fourth cell ahead of him; Inky the cell that lies as far beyond the second one ahead
  of him as Blinky lies before it; Clyde Pacman's cell while he is more than eight cells away from it (as the crow
  flies), else his corner.
- The action turns Pacman up, right, down or left (0 to 3), unless a wall is there. He moves a cell the way that he then
  heads, unless a wall is there, and eats the dot or power pill in his cell. A pill frightens the ghosts, for its step
  and 35 more, and turns them back; not those that are only eyes.
- Each ghost waits for a number of steps after the start, then moves a cell in every step, a frightened one only in
  every second (in the step of the pill, not in the next, and so on). One that has just been told so turns back. Any
  other never does: of the other ways it takes a random one if it is frightened, else that whose cell is nearest to the
  cell it makes for, as the crow flies; of equally near ones the first of up, left, down, right. With a wall ahead it
  stays.
- After its move, a ghost on Pacman's cell or on one beside it catches him, or is eaten if it is frightened. Of an eaten
  one the eyes run home, to the cell it
  began in, and are a ghost as before when they are there.
- The side exits of the maze lead to each other. The game ends when he is caught, or when the last dot or pill is eaten;
  after 10,000 steps it is truncated.
- Reward: +1 for a dot, a pill or a ghost. He begins on a random cell with a dot (which he has not eaten), heading
  right, or in the middle below the house.

Where this differs, and why:
- A frightened ghost's rests are counted from the last pill; PufferLib counts each ghost's, through a second pill, so
  that it may miss being turned back.
- Ghosts are no longer frightened after the last step in which one may be eaten; there they look so until the next step
  begins, in which they catch.
- On both sides of the tunnel's seam one is beside the other. A waiting ghost does not turn. Of equally near ways
  PufferLib prefers down, up, right, left. What looks like an oversight is kept: to scatter, not to chase, for good
  (`mode_changes = 5` is the arcade's way); a dot at the start has to be come back to.

The observation, 291 bytes; "whether" is 255 or 0. Of Pacman 11: column, row; whether he heads up, right, down, left;
whether these ways are open; 255 x the share of the frightened steps that is left, rounded down. Of Blinky, Pinky, Inky
and Clyde 9 each: column, row; whether it heads up, right, down, left; whether it hunts, is frightened, is eyes. Of the
pickups 244: whether each is there still, along the rows from the top left. Modes and waits are not seen (nor are they
in PufferLib, whose floats hold the same). Columns and rows are categorical features, and a network reads them one-hot:
in a maze, what is right in one column says nothing of the next (as numbers two recipes brought 178 and 189 pickups,
one-hot the same 206 to 209 and 205 to 215: benches/LOG.md).

Random numbers. Of a reset: Pacman's cell is draw 0, `integer(key, 0, 240)` along the rows from the top left; the waits
of Blinky, Pinky, Inky and Clyde are draws 1 to 4, `integer(key, 1 + ghost, wait_steps)`. Of a step: a frightened
ghost's turn is draw `ghost` (0 to 3), `integer(key, ghost, n)` among its n ways in the order up, left, down, right; not
drawn where there is one way only.

A lane is 16 words of 32 bits: the pickups as 244 bits, a word for each actor, the clock, the frightened steps left, the
pickups left.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import Box, Discrete, Env, IntState, device, device_call, integer
from operant.envs.pacman.maze import (
    CELLS,
    CLOCK,
    DOT_PLACES,
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
    place_beside,
    place_of,
)
from operant.envs.pacman.picture import pixel_shader

BLINKY, PINKY, INKY, CLYDE = range(4)
SCORE, EATEN, GHOSTS_EATEN, CLEARED, CAUGHT = range(5)  # tallies

HOMES = (11 * STRIDE + 13, 11 * STRIDE + 14, 11 * STRIDE + 12, 11 * STRIDE + 15)  # of Blinky, Pinky, Inky, Clyde
CORNERS = ((24, -3), (3, -3), (27, 31), (0, 31))  # column and row; out of reach, so that a ghost goes round and round
PINKY_LEAD, INKY_LEAD, CLYDE_RADIUS = 4, 2, 8
PLAYER_SEEN, GHOST_SEEN = 11, 9
PICKUPS_SEEN = PLAYER_SEEN + 4 * GHOST_SEEN  # where the pickups begin
SEEN = PICKUPS_SEEN + PICKUPS
POSITIONS_SEEN = (0, *range(PLAYER_SEEN, PICKUPS_SEEN, GHOST_SEEN))  # where columns stand, each before its row


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


@device_call
def _with_mood(word, old, new):
    """A ghost's word with the mood `new` if it has the mood `old`."""
    return word + (int32(new - old) << int32(12)) if mood_of(word) == old else word


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
        count = (
            (ways & int32(1)) + ((ways >> int32(1)) & int32(1)) + ((ways >> int32(2)) & int32(1)) + (ways >> int32(3))
        )
        skip = int32(integer(key, ghost, count)) if count > 1 else int32(0)
    best, nearest = int32(0), int32(2**30)
    for k in range(4):
        way = int32(-k) & int32(3)  # up, left, down, right
        if (ways >> way) & int32(1):
            across = (place & int32(31)) + across_of(way) - column
            below = (place >> int32(5)) + below_of(way) - row
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
    """A ghost's word after its move: it makes for (column, row), or home if it is eyes. And whether it was eaten, and
    whether it caught Pacman, 0 or 1 each.
    """
    place, heading, mood, wait = place_of(word), heading_of(word), mood_of(word), word >> int32(16)
    if clock > wait and not (rests and mood == FRIGHTENED):
        ways = entry_of(place) & int32(15)
        back = heading ^ int32(2)
        if turns_back and mood != EYES:
            heading = back
        else:
            if mood == EYES:
                column, row = home & int32(31), home >> int32(5)
            heading = _way(ways & ~(int32(1) << back), place, mood == FRIGHTENED, column, row, ghost, key)
        if (ways >> heading) & int32(1):
            place = place_beside(place, heading)
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
    column, row, heading = pacman & int32(31), place_of(pacman) >> int32(5), heading_of(pacman)
    across, below = across_of(heading), below_of(heading)
    inky_column = int32(2) * (column + int32(INKY_LEAD) * across) - (blinky & int32(31))
    inky_row = int32(2) * (row + int32(INKY_LEAD) * below) - (place_of(blinky) >> int32(5))
    clyde_across, clyde_below = column - (clyde & int32(31)), row - (place_of(clyde) >> int32(5))
    far = clyde_across * clyde_across + clyde_below * clyde_below > CLYDE_RADIUS * CLYDE_RADIUS
    clyde_column, clyde_row = (column, row) if far else (int32(CORNERS[3][0]), int32(CORNERS[3][1]))
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
    """All pickups in their places, everyone at his start."""
    for w in range(WORDS):
        cells[w] = int32(-1 if w < WORDS - 1 else (1 << (PICKUPS - 32 * (WORDS - 1))) - 1)
    cells[PACMAN] = (int32(DOT_PLACES[int32(integer(key, 0, DOTS))]) if p.random_start else int32(START)) | int32(
        RIGHT << 10
    )
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

    place, heading = place_of(pacman), heading_of(pacman)
    ways = entry_of(place) & int32(15)
    if (ways >> int32(action)) & int32(1):
        heading = int32(action)
    if (ways >> heading) & int32(1):
        place = place_beside(place, heading)
    entry = entry_of(place)
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
    blinky, eaten0, caught0 = _move_ghost(
        blinky, BLINKY, int32(HOMES[0]), int32(x0), int32(y0), place, clock, turns_back, rests, key
    )
    pinky, eaten1, caught1 = _move_ghost(
        pinky, PINKY, int32(HOMES[1]), int32(x1), int32(y1), place, clock, turns_back, rests, key
    )
    inky, eaten2, caught2 = _move_ghost(
        inky, INKY, int32(HOMES[2]), int32(x2), int32(y2), place, clock, turns_back, rests, key
    )
    clyde, eaten3, caught3 = _move_ghost(
        clyde, CLYDE, int32(HOMES[3]), int32(x3), int32(y3), place, clock, turns_back, rests, key
    )
    if fright == 0:
        blinky, pinky = _with_mood(blinky, FRIGHTENED, HUNTING), _with_mood(pinky, FRIGHTENED, HUNTING)
        inky, clyde = _with_mood(inky, FRIGHTENED, HUNTING), _with_mood(clyde, FRIGHTENED, HUNTING)

    cells[PACMAN], cells[CLOCK], cells[FRIGHT], cells[REMAINING] = (
        place | heading << int32(10),
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
    """Six bytes: column, row, heading."""
    heading = heading_of(word)
    obs[at] = word & int32(31)
    obs[at + 1] = place_of(word) >> int32(5)
    for way in range(4):
        obs[at + 2 + way] = 255 if heading == way else 0


@device
def _observe_pacman(obs, pacman, fright, p):
    """Eleven bytes: six of any actor, the ways that are open, and the time that is left."""
    ways = entry_of(place_of(pacman))
    _observe_actor(obs, 0, pacman)
    for way in range(4):
        obs[6 + way] = int32(255) * ((ways >> int32(way)) & int32(1))
    obs[10] = min(fright * int32(255) // int32(max(p.frightened_steps, 1)), int32(255))


@device
def _observe_ghost(obs, at, word):
    """Nine bytes: six of any actor, and its mood."""
    _observe_actor(obs, at, word)
    mood = mood_of(word)
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
    # read before anything is written: a compiler cannot know that cells and obs lie apart
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
    """How many categories each byte of an observation has: as many as there are columns, or rows; 0 for a
    numeric one.
    """
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
        "wait_steps": (1, 10_000),  # one at least of which to draw, and within the bits that a ghost's word has for it
    },
)

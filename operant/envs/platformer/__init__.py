"""Platformer: run and jump to the flag, over gaps, steps, walls, spikes and planks, and through tunnels. Every episode
is a new level.

An original game in the style of Super Mario Bros. (1985) and CoinRun (Cobbe, Klimov, Hesse, Kim & Schulman 2019); as in
CoinRun, two small squares in a corner show the velocity. Lengths in tiles, x to the right, y upwards from the floor of
the world; times in frames of 1/30 s, two per step.

Rules, in the order of a frame
- Actions: left, stay, right (0 to 2), and the same with the jump button held (3 to 5).
- The horizontal speed approaches the wanted speed by the acceleration. On the ground the button starts a jump;
  otherwise gravity applies, reduced while rising with the button held, so that jumps are high or low (3.66 to 1.78
  tiles). A held button jumps again: the button has no state.
- The player moves horizontally and stops at solid tiles; then vertically, likewise. It lands on a plank only if its
  feet were not below the plank's top before; otherwise it passes through.
- It collects the coins in its tiles.
- It dies with its feet in spikes (half a tile high), or one tile deep in a pit. It wins half way into the flag's tile.
  When the clock runs out it dies as well, so an episode always terminates, and the observation shows when.

Reward: `progress` for each tile beyond the furthest position so far, `coin`, `goal`, and `death` of any kind.

Levels: five tiles of flat ground, one to four high, then obstacles while there is space, and flat ground with the flag
at the end. The hardness h is 0, 1, 2 by thirds of the level. Ranges are drawn uniformly:

    step      1 to 1+h tiles up or down
    gap       2 to 3+h wide, the ground after it 1 higher to 1 lower
    spikes    1 to 2+h
    wall      1 to 1+h high, 1 to 2 wide
    planks    2 to 3 inside a pit, 2 to 3 from its sides, 0 to 2 higher
    climb     a wall of 3 (h = 0) or 4 tiles, and a plank two tiles up in front of it
    tunnel    3 to 4 blocks above the ground, 1 or (h = 2) 2 spikes under them

After each obstacle come 2 to 4-h tiles of flat ground; most obstacles have a coin. Obstacle k uses block k of the
reset's random numbers: kind, size, extent and the ground after it are (word * n) >> 32 of words 0 to 3; it has a coin
unless the lowest two bits of word 0 are both 0. Tests solve levels by a search.

Observation: 119 values in [-1, 1]. Nine tiles of each of ten columns, from two behind the player to seven ahead, and
from four below its feet to four above: 1 for solid, 0.5 for a plank, -1 for deadly; the lowest tile shows what one
would land on from there. For each column, whether it holds a coin and its height. Then the position inside the tile,
the velocity (1: maximum), whether the player stands, its height, its distance behind its furthest position, and the
remaining distance and time. A picture is 12.8 tiles wide and shows all of this except a distant flag and the furthest
position.

Storage: a column is one 16-bit word: the height of the ground (0: a pit), one object above it (its row; a plank or a
solid block), whether spikes stand on the ground, and the row of a remaining coin (see `column_word`). A level has 128
bytes; a frame reads a few columns, a picture one per pixel. Regenerating the columns from random numbers would need no
memory, but ten rounds of Philox and the rules of obstacles for each observed column and each pixel; and a handmade
level could not be played.

All lengths and speeds are multiples of 1/256 of a tile, which float32 adds without rounding: motion is bit-identical on
every device, and tests compare it exactly.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import Box, Discrete, Env, IntState, device, device_call
from operant.envs.platformer.level import generate
from operant.envs.platformer.picture import shader
from operant.envs.platformer.tiles import (
    BEST,
    CLOCK,
    EDGE,
    FIELDS,
    FLAG,
    HALF,
    HEIGHT,
    SPIKES,
    STANDS,
    START_X,
    VX,
    VY,
    X,
    Y,
    coin_of,
    floor_of,
    ground_of,
    has_spikes,
    is_plank,
    is_solid,
    over_of,
    unit,
    word_at,
)

WON, COINS, PROGRESS, SPIKED, FELL, TOO_LATE = range(6)  # tallies; progress is the fraction of the distance to the flag
LEFT, STAY, RIGHT, JUMP = range(4)  # actions; JUMP + another is both

# Observation window: columns behind and ahead of the player, rows below and above its feet; then two values per column
# for coins, then the rest.
BEHIND, AHEAD, BELOW, ABOVE = 2, 7, 4, 4
SEEN_COLUMNS, SEEN_ROWS = BEHIND + 1 + AHEAD, BELOW + 1 + ABOVE
SEEN_COINS = SEEN_COLUMNS * SEEN_ROWS
SEEN_REST = SEEN_COINS + 2 * SEEN_COLUMNS
SEEN = SEEN_REST + 9


class Params(NamedTuple):
    """Parameters of the platformer: rewards and motion.

    The ranges keep horizontal speeds below half a tile per frame, and jumps and falls below one: faster players would
    tunnel through tiles.
    """

    progress: float = 0.1  # per tile
    coin: float = 0.2
    goal: float = 3.0
    death: float = -0.5  # at -1, early policies learn to wait in front of an obstacle until the time is over
    tau: float = 1 / 30  # s per frame, for a viewer only: speeds are per frame
    frames: int = 2  # per step
    steps: int = 256  # maximum per episode
    speed: float = 72 / 256  # tiles/frame
    acceleration: float = 9 / 256  # tiles/frame^2
    jump: float = 144 / 256  # tiles/frame
    gravity_held: float = 12 / 256  # tiles/frame^2, while rising with the button held
    gravity: float = 36 / 256  # tiles/frame^2
    fall: float = 144 / 256  # tiles/frame, maximum


@device
def _move_along(cells, x, y, vx):
    """Move the player horizontally for a frame, up to solid tiles. Returns its position x and speed vx after
    the frame.
    """
    x += vx
    low, high = floor_of(y), floor_of(y + HEIGHT - EDGE)
    if vx != float32(0.0):
        column = floor_of(x + HALF - EDGE) if vx > float32(0.0) else floor_of(x - HALF)
        word = word_at(cells, column)
        if is_solid(word, low) or is_solid(word, high):
            x = float32(column) - HALF if vx > float32(0.0) else float32(int32(column + 1)) + HALF
            vx = float32(0.0)
    return x, vx


@device
def _move_up_or_down(y, vy, one, other):
    """Move the player vertically for a frame. `one` and `other` are the packed words of the two columns under it.
    Returns its height y, speed vy, and whether it then stands.
    """
    before, stands = y, False
    y += vy
    if vy > float32(0.0):
        row = floor_of(y + HEIGHT - EDGE)
        if is_solid(one, row) or is_solid(other, row):
            y, vy = float32(row) - HEIGHT, float32(0.0)
    else:
        row = floor_of(y)
        top = float32(int32(row + 1))
        on_plank = before >= top and (is_plank(one, row) or is_plank(other, row))
        if on_plank or is_solid(one, row) or is_solid(other, row):
            y, vy, stands = top, float32(0.0), True
    return y, vy, stands


@device
def _take_coin(cells, column, low, high):
    """Remove the coin of a column if its row is in [low, high]; returns the number of coins removed, 0 or 1."""
    word = word_at(cells, column)
    coin = coin_of(word)
    if coin > 0 and coin >= low and coin <= high:
        cells[column] = int32(word & 1023)
        return float32(1.0)
    return float32(0.0)


@device
def _is_spiked(word, y):
    """Whether a player whose feet are at height y touches the spikes of a column of tiles, given by its packed word."""
    return has_spikes(word) and y < float32(ground_of(word)) + SPIKES


@device_call
def step(s, cells, workspace, action, p, key, tally):
    x, y, vx, vy, stands, best, clock = (
        s[X],
        s[Y],
        s[VX],
        s[VY],
        s[STANDS] > float32(0.0),
        s[BEST],
        s[CLOCK] + float32(1.0),
    )
    jumps = action >= JUMP
    way = p.speed * float32(int32((action - JUMP if jumps else action) - STAY))
    flag = float32(int32(cells.shape[0] - FLAG)) + float32(0.5)
    coins, spiked, fell, won = float32(0.0), False, False, False

    for _ in range(p.frames):
        vx = min(vx + p.acceleration, way) if vx < way else max(vx - p.acceleration, way)
        if jumps and stands:
            vy = p.jump
        else:
            vy = max(vy - (p.gravity_held if jumps and vy > float32(0.0) else p.gravity), -p.fall)
        x, vx = _move_along(cells, x, y, vx)
        left, right = floor_of(x - HALF), floor_of(x + HALF - EDGE)
        one, other = word_at(cells, left), word_at(cells, right)
        y, vy, stands = _move_up_or_down(y, vy, one, other)
        low, high = floor_of(y), floor_of(y + HEIGHT - EDGE)
        coins += _take_coin(cells, left, low, high)
        coins += _take_coin(cells, right, low, high)
        spiked, fell, won = _is_spiked(one, y) or _is_spiked(other, y), y < float32(-1.0), x >= flag
        if spiked or fell or won:
            break

    too_late = clock >= float32(p.steps) and not (spiked or fell or won)
    dies = spiked or fell or too_late
    further = max(x - best, float32(0.0))
    tally[WON] += float32(1.0) if won else float32(0.0)
    tally[COINS] += coins
    tally[PROGRESS] += further / (flag - float32(START_X))
    tally[SPIKED] += float32(1.0) if spiked else float32(0.0)
    tally[FELL] += float32(1.0) if fell else float32(0.0)
    tally[TOO_LATE] += float32(1.0) if too_late else float32(0.0)
    s[X], s[Y], s[VX], s[VY] = x, y, vx, vy
    s[STANDS], s[BEST], s[CLOCK] = float32(1.0) if stands else float32(0.0), max(x, best), clock
    reward = (
        p.progress * further + p.coin * coins + (p.goal if won else float32(0.0)) + (p.death if dies else float32(0.0))
    )
    return reward, won or dies


@device
def _observed_tile(word, row):
    """Observed value of the tile in a row of a column of tiles, given by its packed word: 1 solid, 0.5 plank, -1
    deadly, else 0.
    """
    deadly = row < 0 or (has_spikes(word) and row == ground_of(word))
    return (
        float32(1.0)
        if is_solid(word, row)
        else float32(-1.0)
        if deadly
        else float32(0.5)
        if is_plank(word, row)
        else float32(0.0)
    )


@device
def _landing_row(word, row):
    """Row in which a fall from `row` ends in a column of tiles, given by its packed word; `row` itself if that tile is
    blocked.
    """
    floor = int32(ground_of(word) - (0 if has_spikes(word) else 1))
    over = over_of(word)
    return min(row, max(floor, over if over > 0 and over <= row else int32(-1)))


@device
def _observe_column(obs, k, word, row):
    """Write the observed tiles and coin of one column, given by its packed word, as number k; rows are relative to
    `row`.
    """
    obs[k * SEEN_ROWS] = _observed_tile(word, _landing_row(word, int32(row - BELOW)))
    for j in range(1, SEEN_ROWS):
        obs[k * SEEN_ROWS + j] = _observed_tile(word, int32(row + j - BELOW))
    coin = coin_of(word)
    obs[SEEN_COINS + 2 * k] = float32(1.0) if coin > 0 else float32(0.0)
    obs[SEEN_COINS + 2 * k + 1] = unit(float32(int32(coin - row)) / float32(8.0)) if coin > 0 else float32(0.0)


@device
def _observe_rest(s, obs, width, p):
    """Write the observation values after the columns and coins: velocity, distances and time. `width` is the world's
    length in tiles.
    """
    x, y, vx, vy, stands, best, clock = s[X], s[Y], s[VX], s[VY], s[STANDS], s[BEST], s[CLOCK]
    column, row = floor_of(x), floor_of(y)
    obs[SEEN_REST], obs[SEEN_REST + 1] = x - float32(column), y - float32(row)
    obs[SEEN_REST + 2], obs[SEEN_REST + 3] = unit(vx / p.speed), unit(vy / p.jump)
    obs[SEEN_REST + 4], obs[SEEN_REST + 5] = stands, unit(y / float32(16.0))
    obs[SEEN_REST + 6], obs[SEEN_REST + 7] = unit((best - x) / float32(8.0)), unit((width - x) / width)
    obs[SEEN_REST + 8] = unit(float32(1.0) - clock / float32(p.steps))


@device_call
def observe(s, cells, obs, p, shard):
    """Write the rows of one shard (part of the observation): one observed column, or for the last shard the other
    values.
    """
    if shard < SEEN_COLUMNS:
        _observe_column(obs, shard, word_at(cells, int32(floor_of(s[X]) + shard - BEHIND)), floor_of(s[Y]))
    else:
        _observe_rest(s, obs, float32(int32(cells.shape[0])), p)


def platformer(rows: int = 12, columns: int = 64) -> Env:
    """Declare the environment of the platformer in a world `rows` (10 to 15) tiles high and `columns` (24 to 1,024)
    tiles long. Raises ValueError for other sizes.

    A user's file that ends in `ENV = platformer(columns=128)` is an environment; increase `Params.steps` with the
    length.
    """
    if not (isinstance(rows, int) and isinstance(columns, int) and 10 <= rows <= 15 and 24 <= columns <= 1024):
        raise ValueError(f"a world must be 10 to 15 tiles high and 24 to 1,024 long, not {rows} x {columns}")
    highest = rows - 8  # maximum height of the ground: a wall of four tiles and a jump from it stay visible

    @device_call
    def reset(s, cells, workspace, p, key):
        s[Y] = float32(generate(cells, int32(highest), key))
        s[X], s[BEST] = float32(START_X), float32(START_X)
        s[VX], s[VY], s[STANDS], s[CLOCK] = float32(0.0), float32(0.0), float32(1.0), float32(0.0)

    return Env(
        Params,
        FIELDS,
        observation=Box(SEEN, low=-1.0, high=1.0),
        action=Discrete(6),
        time_limit=None,  # episodes end by the observed clock
        reset=reset,
        step=step,
        observe=observe,
        pixel_shader=shader(rows, columns),
        ranges={
            "progress": (-1e6, 1e6),
            "coin": (-1e6, 1e6),
            "goal": (-1e6, 1e6),
            "death": (-1e6, 1e6),
            "tau": (0.001, 1.0),
            "frames": (1, 100),
            "steps": (1, 1_000_000),
            "speed": (1 / 256, 0.49),
            "acceleration": (1 / 256, 1.0),
            "jump": (1 / 256, 0.99),
            "gravity_held": (1 / 256, 1.0),
            "gravity": (1 / 256, 1.0),
            "fall": (1 / 256, 0.99),
        },
        observation_shards=SEEN_COLUMNS + 1,
        int_state=IntState(columns, "int16"),
        tally=("goal", "coins", "progress", "spiked", "fell", "too_late"),
        actions=("left", "stay", "right", "left+jump", "jump", "right+jump"),
    )


ENV = platformer()

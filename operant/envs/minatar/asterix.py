"""MinAtar's Asterix: gather gold and keep away from enemies; both come in from the sides, one at most in each of eight
rows.

The rules of a step
- When the spawn timer is up, an enemy or gold (one in three) comes into a random row that is free, from either side; in
  none, if none is free.
- The player moves a cell to the left, up, right or down, if told to; never into the top or bottom row.
- Gold in the player's cell is gathered; an enemy there ends the game. When the move timer is up, all enemies and gold
  move a cell on (those beyond the
  side are gone), and that is looked at again.
- Reward: +1 for gold. The player begins at row 5, column 5. A spawn comes every 10 steps, a move every 5.
- With `ramping`, each 102 steps: spawns come a step sooner, to 1; every second time moves do, too.

Channels: player, enemy, the cell behind an enemy or gold, gold. Random numbers of a spawn: it comes from the left if
`uniform(key, 1)` is below 1/2, and is gold if `uniform(key, 2)` is below 1/3; of f free rows it takes the one numbered
`integer(key, 3, f)` from above.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREY, RED, YELLOW, IntState, device_call, integer, uniform
from operant.envs.minatar.board import LAST, bit, game, sticky_action, whole

# The state: the player's place, steps until a spawn, a move and the ramp, steps between spawns and moves, how often it
# was ramped, and the last action.
X, Y, SPAWN, MOVE, RAMP, SPAWN_EVERY, MOVE_EVERY, RAMPED, LAST_ACTION, FIELDS = range(10)
STAY, LEFT, UP, RIGHT, DOWN = range(5)  # actions
ROWS = 8
EMPTY, THERE, GOLD, RIGHTWARD = 0, 64, 32, 16  # what a row's number holds beside the column, 0 to 9
COLUMN = 15
RAMP_EVERY = 100


class Params(NamedTuple):
    """How actions stick, and whether it gets harder."""

    sticky: float = 0.1
    ramping: bool = True


@device_call
def reset(s, rows, workspace, p, key):
    for k in range(ROWS):
        rows[k] = EMPTY
    s[X], s[Y], s[SPAWN], s[MOVE], s[RAMP] = (
        float32(5.0),
        float32(5.0),
        float32(10.0),
        float32(5.0),
        float32(RAMP_EVERY),
    )
    s[SPAWN_EVERY], s[MOVE_EVERY], s[RAMPED], s[LAST_ACTION] = float32(10.0), float32(5.0), float32(0.0), float32(STAY)


@device_call
def spawn(rows, key):
    free = 0
    for k in range(ROWS):
        free += 1 if rows[k] == EMPTY else 0
    if free > 0:
        ahead = integer(key, 3, free)
        what = THERE | (RIGHTWARD if uniform(key, 1) < float32(0.5) else LAST)
        what |= GOLD if uniform(key, 2) < float32(1 / 3) else 0
        for k in range(ROWS):
            if rows[k] == EMPTY:
                if ahead == 0:
                    rows[k] = what
                ahead -= 1


@device_call
def touch(rows, x, y):
    """What the player finds in its row's number: (reward, whether the game is over)."""
    what = whole(rows[y - 1])
    if what == EMPTY or what & COLUMN != x:
        return float32(0.0), False
    if what & GOLD == 0:
        return float32(0.0), True
    rows[y - 1] = EMPTY
    return float32(1.0), False


@device_call
def move(rows):
    """All go on by a cell."""
    for k in range(ROWS):
        what = whole(rows[k])
        if what != EMPTY:
            end, way = (LAST, 1) if what & RIGHTWARD != 0 else (0, -1)
            rows[k] = EMPTY if what & COLUMN == end else what + way


@device_call
def ramp(s):
    """Sooner spawns and moves, once the timer is up."""
    spawn_every, move_every = s[SPAWN_EVERY], s[MOVE_EVERY]
    if spawn_every > float32(1.0) or move_every > float32(1.0):
        if s[RAMP] >= float32(0.0):
            s[RAMP] -= float32(1.0)
        else:
            if move_every > float32(1.0) and whole(s[RAMPED]) & 1 == 1:
                s[MOVE_EVERY] = move_every - float32(1.0)
            if spawn_every > float32(1.0):
                s[SPAWN_EVERY] = spawn_every - float32(1.0)
            s[RAMPED] += float32(1.0)
            s[RAMP] = float32(RAMP_EVERY)


@device_call
def step(s, rows, workspace, action, p, key, tally):
    x, y = whole(s[X]), whole(s[Y])
    taken = sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if s[SPAWN] == float32(0.0):
        spawn(rows, key)
        s[SPAWN] = s[SPAWN_EVERY]

    if taken == LEFT:
        x = max(x - 1, 0)
    elif taken == RIGHT:
        x = min(x + 1, LAST)
    elif taken == UP:
        y = max(y - 1, 1)
    elif taken == DOWN:
        y = min(y + 1, ROWS)

    reward, over = touch(rows, x, y)
    if s[MOVE] == float32(0.0):
        s[MOVE] = s[MOVE_EVERY]
        move(rows)
        more, caught = touch(rows, x, y)
        reward, over = reward + more, over or caught

    s[SPAWN] -= float32(1.0)
    s[MOVE] -= float32(1.0)
    s[X], s[Y], s[LAST_ACTION] = float32(x), float32(y), float32(taken)
    if p.ramping:
        ramp(s)
    return reward, over


@device_call
def masks(s, rows, row):
    """What a row holds: player, enemy, its or gold's trail, gold."""
    what = whole(rows[min(max(row - 1, 0), ROWS - 1)]) if row >= 1 and row <= ROWS else int32(EMPTY)
    there, column = what != EMPTY, what & COLUMN
    gold = what & GOLD != 0
    behind = column - 1 if what & RIGHTWARD != 0 else column + 1
    return (
        bit(whole(s[X]), row == whole(s[Y])),
        bit(column, there and not gold),
        bit(behind, there),
        bit(column, there and gold),
    )


ENV = game(
    Params,
    FIELDS,
    IntState(ROWS, "int8"),
    reset=reset,
    step=step,
    masks=masks,
    colours=(BLUE, RED, GREY, YELLOW),
    actions=("stay", "left", "up", "right", "down"),
)

"""MinAtar's Asterix: collect gold and avoid enemies. Both enter from the sides, at most one in each of eight rows.

Rules
- When the spawn timer expires, an enemy or gold (with probability 1/3) enters a random free row from a random side,
  unless no row is free.
- The player moves one cell left, up, right or down; never into the top or bottom row.
- Gold in the player's cell is collected; an enemy there ends the game. When the move timer expires, all enemies and
  gold move one cell (and leave the board at the sides), and the player's cell is checked again.
- Reward: +1 for gold. The player starts at row 5, column 5. A spawn comes every 10 steps, a move every 5.
- With `ramping`, every 102 steps the spawn interval shrinks by a step, to a minimum of 1; every second time the move
  interval does as well.

Channels: player, enemy, trail (the cell behind an enemy or gold), gold. Random numbers of a spawn: it enters from the
left if `uniform(key, 1)` is below 1/2, and is gold if `uniform(key, 2)` is below 1/3; of f free rows it enters number
`integer(key, 3, f)` from the top.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREY, RED, YELLOW, IntState, device_call, integer, uniform
from operant.envs.minatar.board import LAST, bit, game, sticky_action, whole

# Rows of the state: position of the player; steps until the next spawn, move and ramp; intervals of spawns and moves;
# number of ramps; last action.
X, Y, SPAWN, MOVE, RAMP, SPAWN_EVERY, MOVE_EVERY, RAMPED, LAST_ACTION, FIELDS = range(10)
STAY, LEFT, UP, RIGHT, DOWN = range(5)  # actions
ROWS = 8
EMPTY, OCCUPIED, GOLD, RIGHTWARD = 0, 64, 32, 16  # flags in a row's word; the low bits are the column, 0 to 9
COLUMN = 15
RAMP_EVERY = 100


class Params(NamedTuple):
    """Parameters of Asterix: probability of sticky actions, and growing difficulty."""

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
    """Let an enemy or gold enter a random free row of Asterix's board, from a random side; does nothing if no row is
    free.
    """
    free = 0
    for k in range(ROWS):
        free += 1 if rows[k] == EMPTY else 0
    if free > 0:
        index = integer(key, 3, free)
        item = OCCUPIED | (RIGHTWARD if uniform(key, 1) < float32(0.5) else LAST)
        item |= GOLD if uniform(key, 2) < float32(1 / 3) else 0
        for k in range(ROWS):
            if rows[k] == EMPTY:
                if index == 0:
                    rows[k] = item
                index -= 1


@device_call
def meet_item(rows, x, y):
    """Collect the gold or meet the enemy in the player's cell (x, y): returns the reward and whether the game
    is over.
    """
    item = whole(rows[y - 1])
    if item == EMPTY or item & COLUMN != x:
        return float32(0.0), False
    if item & GOLD == 0:
        return float32(0.0), True
    rows[y - 1] = EMPTY
    return float32(1.0), False


@device_call
def move_items(rows):
    """Move all enemies and gold of Asterix by one cell; they leave the board at the sides."""
    for k in range(ROWS):
        item = whole(rows[k])
        if item != EMPTY:
            end, direction = (LAST, 1) if item & RIGHTWARD != 0 else (0, -1)
            rows[k] = EMPTY if item & COLUMN == end else item + direction


@device_call
def raise_difficulty(s):
    """Count down the timer of the difficulty; when it expires, shorten the intervals between spawns and between
    moves.
    """
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
    executed = sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if s[SPAWN] == float32(0.0):
        spawn(rows, key)
        s[SPAWN] = s[SPAWN_EVERY]

    if executed == LEFT:
        x = max(x - 1, 0)
    elif executed == RIGHT:
        x = min(x + 1, LAST)
    elif executed == UP:
        y = max(y - 1, 1)
    elif executed == DOWN:
        y = min(y + 1, ROWS)

    reward, over = meet_item(rows, x, y)
    if s[MOVE] == float32(0.0):
        s[MOVE] = s[MOVE_EVERY]
        move_items(rows)
        more, caught = meet_item(rows, x, y)
        reward, over = reward + more, over or caught

    s[SPAWN] -= float32(1.0)
    s[MOVE] -= float32(1.0)
    s[X], s[Y], s[LAST_ACTION] = float32(x), float32(y), float32(executed)
    if p.ramping:
        raise_difficulty(s)
    return reward, over


@device_call
def masks(s, rows, row):
    """10-bit masks of row number `row` of the board for each channel: player, enemy, trail, gold."""
    item = whole(rows[min(max(row - 1, 0), ROWS - 1)]) if row >= 1 and row <= ROWS else int32(EMPTY)
    occupied, column = item != EMPTY, item & COLUMN
    gold = item & GOLD != 0
    trail = column - 1 if item & RIGHTWARD != 0 else column + 1
    return (
        bit(whole(s[X]), row == whole(s[Y])),
        bit(column, occupied and not gold),
        bit(trail, occupied),
        bit(column, occupied and gold),
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

"""MinAtar's Space Invaders: a cannon below shoots at a cluster of aliens above, which come down and shoot back.

The rules of a step
- The cannon moves a cell to the left or right, or shoots, if told to; five steps lie between two shots. Shots fly up,
  those of the aliens down, a cell a step.
  A shot of the aliens in the cannon's cell ends the game, and so does an alien.
- When the aliens' move timer is up, they move a cell to the side; where one of them stands at that side they turn and
  come a row down instead, which ends the
  game if one stands in the bottom row. The next move is as many steps ahead as there are aliens, 12 at most.
- Every 10 steps the lowest alien of the column nearest to the cannon shoots (of two as near the left one).
- A shot and an alien in a cell are both gone. Reward: +1 for an alien. When the last one is gone, a new cluster stands
  in rows 0 to 3, columns 2 to 7; with
  `ramping` the most steps between two moves are then one fewer, to 6.
- The cannon begins in column 5, and the aliens moving left.

Channels: cannon, alien, alien that moves left, alien that moves right, shot of the cannon, shot of an alien. Random
numbers: none but the sticky action's.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, RED, YELLOW, IntState, device_call
from operant.envs.minatar.board import FULL, LAST, SIDE, bit, game, sticky_action, whole

# The state: the cannon's column and steps until it may shoot; which way the aliens go, steps until their move and their
# shot, and the most steps between moves.
X, COOLING, WAY, MOVE, SHOT, MOVE_EVERY, LAST_ACTION, FIELDS = range(8)
STAY, LEFT, RIGHT, FIRE = range(4)  # actions
# where the masks of the ten rows begin: of aliens, of shots that fly up, of shots that fly down
ALIENS, UP, DOWN = 0, SIDE, 2 * SIDE
CLUSTER_ROWS, CLUSTER = 4, 0b0011111100
COOL_DOWN, SHOT_EVERY, FIRST_MOVE_EVERY, LAST_MOVE_EVERY = 5, 10, 12, 6


class Params(NamedTuple):
    """How actions stick, and whether it gets harder."""

    sticky: float = 0.1
    ramping: bool = True


@device_call
def reset(s, rows, workspace, p, key):
    for row in range(3 * SIDE):
        rows[row] = CLUSTER if row < CLUSTER_ROWS else 0
    s[X], s[COOLING], s[WAY], s[SHOT], s[LAST_ACTION] = (
        float32(5.0),
        float32(0.0),
        float32(-1.0),
        float32(SHOT_EVERY),
        float32(STAY),
    )
    s[MOVE], s[MOVE_EVERY] = float32(FIRST_MOVE_EVERY), float32(FIRST_MOVE_EVERY)


@device_call
def ones(mask):
    """How many cells a mask has."""
    mask, count = int32(mask), 0
    for column in range(SIDE):
        count += (mask >> column) & 1
    return int32(count)


@device_call
def count_aliens(rows):
    """How many aliens there are, and the columns that have one."""
    count, columns = int32(0), int32(0)
    for row in range(SIDE):
        count += ones(rows[ALIENS + row])
        columns |= whole(rows[ALIENS + row])
    return count, columns


@device_call
def fly(rows):
    """All shots go on by a cell."""
    for k in range(LAST):
        rows[UP + k] = rows[UP + k + 1]
        rows[DOWN + LAST - k] = rows[DOWN + LAST - k - 1]
    rows[UP + LAST] = 0
    rows[DOWN] = 0


@device_call
def move_aliens(s, rows):
    """The aliens' move, when their timer is up: whether it ends the game."""
    count, columns = count_aliens(rows)
    s[MOVE] = min(float32(count), s[MOVE_EVERY])
    way, lowest = s[WAY], whole(rows[ALIENS + LAST])
    if columns & (1 if way < float32(0.0) else 1 << LAST) != 0:
        s[WAY] = -way
        for k in range(LAST):
            rows[ALIENS + LAST - k] = rows[ALIENS + LAST - k - 1]
        rows[ALIENS] = lowest
        return lowest != 0
    for row in range(SIDE):
        mask = whole(rows[ALIENS + row])
        rows[ALIENS + row] = mask >> 1 if way < float32(0.0) else (mask << 1) & FULL
    return False


@device_call
def shoot_back(rows, x):
    """The lowest alien of the column nearest to the cannon shoots."""
    _, columns = count_aliens(rows)
    column = -1
    for distance in range(SIDE):
        left, right = x - distance, x + distance
        if column < 0 and left >= 0 and (columns >> left) & 1 != 0:
            column = left
        if column < 0 and right <= LAST and (columns >> right) & 1 != 0:
            column = right
    if column >= 0:
        lowest = 0
        for row in range(SIDE):
            lowest = row if (whole(rows[ALIENS + row]) >> column) & 1 != 0 else lowest
        rows[DOWN + lowest] = whole(rows[DOWN + lowest]) | (1 << column)


@device_call
def kills(rows):
    """Aliens and shots that share a cell are gone: how many."""
    killed = int32(0)
    for row in range(SIDE):
        aliens, shots = whole(rows[ALIENS + row]), whole(rows[UP + row])
        killed += ones(aliens & shots)
        rows[ALIENS + row], rows[UP + row] = aliens & ~shots, shots & ~aliens
    return killed


@device_call
def step(s, rows, workspace, action, p, key, tally):
    x, taken = whole(s[X]), sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if taken == FIRE and s[COOLING] == float32(0.0):
        rows[UP + LAST] = whole(rows[UP + LAST]) | (1 << x)
        s[COOLING] = float32(COOL_DOWN)
    elif taken == LEFT:
        x = max(x - 1, 0)
    elif taken == RIGHT:
        x = min(x + 1, LAST)
    s[X], s[LAST_ACTION] = float32(x), float32(taken)

    fly(rows)
    over = ((whole(rows[DOWN + LAST]) | whole(rows[ALIENS + LAST])) >> x) & 1 != 0
    if s[MOVE] == float32(0.0):
        landed = move_aliens(s, rows)
        over = over or landed or (whole(rows[ALIENS + LAST]) >> x) & 1 != 0
    if s[SHOT] == float32(0.0):
        s[SHOT] = float32(SHOT_EVERY)
        shoot_back(rows, x)
    reward = float32(kills(rows))

    s[COOLING] = max(s[COOLING] - float32(1.0), float32(0.0))
    s[MOVE] -= float32(1.0)
    s[SHOT] -= float32(1.0)
    left, _ = count_aliens(rows)
    if left == 0:
        if p.ramping and s[MOVE_EVERY] > float32(LAST_MOVE_EVERY):
            s[MOVE_EVERY] -= float32(1.0)
        for row in range(CLUSTER_ROWS):
            rows[ALIENS + row] = CLUSTER
    return reward, over


@device_call
def masks(s, rows, row):
    """What a row holds: cannon, alien, alien that moves left, alien that moves right, the cannon's shot, an alien's."""
    aliens, none, leftward = whole(rows[ALIENS + row]), int32(0), s[WAY] < float32(0.0)
    cannon = bit(whole(s[X]), row == LAST)
    return (
        cannon,
        aliens,
        aliens if leftward else none,
        none if leftward else aliens,
        whole(rows[UP + row]),
        whole(rows[DOWN + row]),
    )


ENV = game(
    Params,
    FIELDS,
    IntState(3 * SIDE, "int16"),
    reset=reset,
    step=step,
    masks=masks,
    colours=(BLUE, GREEN, GREEN, GREEN, YELLOW, RED),
    actions=("stay", "left", "right", "fire"),
)

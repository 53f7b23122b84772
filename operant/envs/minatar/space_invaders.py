"""MinAtar's Space Invaders: a cannon at the bottom shoots at a cluster of aliens, which descend and shoot back.

Rules
- The cannon moves one cell to the left or right, or fires, at most every fifth step. Its shots move up and the aliens'
  shots down, one cell per step. An alien's shot or an alien in the cannon's cell ends the game.
- When the aliens' move timer expires, they move one cell sideways. If one of them is at that side, they reverse and
  descend one row instead, which ends the game if one is in the bottom row. The next move follows after as many steps as
  there are aliens, at most 12.
- Every 10 steps the lowest alien of the column nearest to the cannon fires (the left one of two equally near).
- A shot of the cannon and an alien in the same cell are both removed. Reward: +1 for an alien. After the last one, a
  new cluster appears in rows 0 to 3, columns 2 to 7; with `ramping` the maximum interval of moves then shrinks by one,
  to a minimum of 6.
- The cannon starts in column 5, and the aliens move left.

Channels: cannon, alien, alien moving left, alien moving right, shot of the cannon, shot of an alien. Random numbers:
only the sticky action's.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, RED, YELLOW, IntState, device_call
from operant.envs.minatar.board import FULL, LAST, SIDE, bit, game, sticky_action, whole

# Rows of the state: column of the cannon, steps until it can fire; direction of the aliens, steps until their next move
# and shot, maximum interval of moves; last action.
X, COOLING, DIRECTION, MOVE, SHOT, MOVE_EVERY, LAST_ACTION, FIELDS = range(8)
STAY, LEFT, RIGHT, FIRE = range(4)  # actions
# offsets of the masks of the ten rows: aliens, shots moving up, shots moving down
ALIENS, UP, DOWN = 0, SIDE, 2 * SIDE
CLUSTER_ROWS, CLUSTER = 4, 0b0011111100
COOL_DOWN, SHOT_EVERY, FIRST_MOVE_EVERY, LAST_MOVE_EVERY = 5, 10, 12, 6


class Params(NamedTuple):
    """Parameters of Space Invaders: probability of sticky actions, and growing difficulty."""

    sticky: float = 0.1
    ramping: bool = True


@device_call
def reset(s, rows, workspace, p, key):
    for row in range(3 * SIDE):
        rows[row] = CLUSTER if row < CLUSTER_ROWS else 0
    s[X], s[COOLING], s[DIRECTION], s[SHOT], s[LAST_ACTION] = (
        float32(5.0),
        float32(0.0),
        float32(-1.0),
        float32(SHOT_EVERY),
        float32(STAY),
    )
    s[MOVE], s[MOVE_EVERY] = float32(FIRST_MOVE_EVERY), float32(FIRST_MOVE_EVERY)


@device_call
def count_cells(mask):
    """Count the set bits of a 10-bit mask of cells."""
    mask, count = int32(mask), 0
    for column in range(SIDE):
        count += (mask >> column) & 1
    return int32(count)


@device_call
def count_aliens(rows):
    """Count the aliens; returns their number and the 10-bit mask of columns that contain one."""
    count, columns = int32(0), int32(0)
    for row in range(SIDE):
        count += count_cells(rows[ALIENS + row])
        columns |= whole(rows[ALIENS + row])
    return count, columns


@device_call
def move_shots(rows):
    """Move all shots of Space Invaders by one cell: the cannon's up, the aliens' down."""
    for k in range(LAST):
        rows[UP + k] = rows[UP + k + 1]
        rows[DOWN + LAST - k] = rows[DOWN + LAST - k - 1]
    rows[UP + LAST] = 0
    rows[DOWN] = 0


@device_call
def move_aliens(s, rows):
    """Move the cluster of aliens sideways, or at a side one row down; returns whether an alien left the bottom row,
    which ends the game.
    """
    count, columns = count_aliens(rows)
    s[MOVE] = min(float32(count), s[MOVE_EVERY])
    direction, lowest = s[DIRECTION], whole(rows[ALIENS + LAST])
    if columns & (1 if direction < float32(0.0) else 1 << LAST) != 0:
        s[DIRECTION] = -direction
        for k in range(LAST):
            rows[ALIENS + LAST - k] = rows[ALIENS + LAST - k - 1]
        rows[ALIENS] = lowest
        return lowest != 0
    for row in range(SIDE):
        mask = whole(rows[ALIENS + row])
        rows[ALIENS + row] = mask >> 1 if direction < float32(0.0) else (mask << 1) & FULL
    return False


@device_call
def shoot_back(rows, x):
    """Fire a shot from the lowest alien of the column nearest to the cannon's column `x`."""
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
def remove_hits(rows):
    """Remove aliens and shots of the cannon that share a cell; returns the number of aliens removed."""
    killed = int32(0)
    for row in range(SIDE):
        aliens, shots = whole(rows[ALIENS + row]), whole(rows[UP + row])
        killed += count_cells(aliens & shots)
        rows[ALIENS + row], rows[UP + row] = aliens & ~shots, shots & ~aliens
    return killed


@device_call
def step(s, rows, workspace, action, p, key, tally):
    x, executed = whole(s[X]), sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if executed == FIRE and s[COOLING] == float32(0.0):
        rows[UP + LAST] = whole(rows[UP + LAST]) | (1 << x)
        s[COOLING] = float32(COOL_DOWN)
    elif executed == LEFT:
        x = max(x - 1, 0)
    elif executed == RIGHT:
        x = min(x + 1, LAST)
    s[X], s[LAST_ACTION] = float32(x), float32(executed)

    move_shots(rows)
    over = ((whole(rows[DOWN + LAST]) | whole(rows[ALIENS + LAST])) >> x) & 1 != 0
    if s[MOVE] == float32(0.0):
        landed = move_aliens(s, rows)
        over = over or landed or (whole(rows[ALIENS + LAST]) >> x) & 1 != 0
    if s[SHOT] == float32(0.0):
        s[SHOT] = float32(SHOT_EVERY)
        shoot_back(rows, x)
    reward = float32(remove_hits(rows))

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
    """10-bit masks of row number `row` of the board for each channel: cannon, alien, alien moving left, alien moving
    right, cannon's shot, alien's shot.
    """
    aliens, none, leftward = whole(rows[ALIENS + row]), int32(0), s[DIRECTION] < float32(0.0)
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

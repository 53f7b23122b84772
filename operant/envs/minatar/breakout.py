"""MinAtar's Breakout: a ball that flies along diagonals, a paddle of one cell below, three rows of bricks above.

The rules of a step
- The paddle moves a cell to the left or right, if told to and not at the side.
- The ball moves a cell along its diagonal. A side turns it sideways, the ceiling down. A brick breaks and turns it up
  or down, and the ball stays in its row;
  but not when it met a brick in the step before: then it flies on into the cell.
- In the bottom row, if no brick stands, all come back. On the column of the paddle the ball returns the way it flew
  sideways, if it comes down straight above
  it, or the way it came, if it flies to its cell. Beside the paddle the game ends.
- Reward: +1 for a brick. The ball begins in the left or right column below the bricks, each as likely, flying down and
  inwards.

Channels: paddle, ball, its place a step before, brick. Random numbers: the ball's column is draw 0 of the reset,
`integer(key, 0, 2)`, 0: left.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, YELLOW, IntState, device_call, integer
from operant.envs.minatar.board import FULL, LAST, bit, game, sticky_action, whole

# The state: places of paddle and ball, the ball's place a step before, where it flies (-1 or 1 each), whether it met a
# brick, and the last action.
PADDLE, X, Y, LAST_X, LAST_Y, RIGHTWARD, DOWNWARD, MET, LAST_ACTION, FIELDS = range(10)
STAY, LEFT, RIGHT = range(3)  # actions
ROWS, FIRST_ROW = 3, 1  # of bricks


class Params(NamedTuple):
    """How actions stick."""

    sticky: float = 0.1


@device_call
def reset(s, bricks, workspace, p, key):
    right = integer(key, 0, 2) == 1
    column = float32(LAST) if right else float32(0.0)
    s[PADDLE], s[X], s[Y], s[LAST_X], s[LAST_Y] = float32(4.0), column, float32(3.0), column, float32(3.0)
    s[RIGHTWARD], s[DOWNWARD] = float32(-1.0) if right else float32(1.0), float32(1.0)
    s[MET], s[LAST_ACTION] = float32(0.0), float32(STAY)
    for row in range(ROWS):
        bricks[row] = FULL


@device_call
def step(s, bricks, workspace, action, p, key, tally):
    paddle, last_x, last_y, rightward, downward = (
        whole(s[PADDLE]),
        whole(s[X]),
        whole(s[Y]),
        whole(s[RIGHTWARD]),
        whole(s[DOWNWARD]),
    )
    met_before, taken = s[MET] != float32(0.0), sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if taken == LEFT:
        paddle = max(paddle - 1, 0)
    elif taken == RIGHT:
        paddle = min(paddle + 1, LAST)

    x, y, met, reward, over = last_x + rightward, last_y + downward, False, float32(0.0), False
    if x < 0 or x > LAST:
        x, rightward = last_x, -rightward
    row = y - FIRST_ROW
    if y < 0:
        y, downward = 0, -downward
    elif row >= 0 and row < ROWS and (bricks[row] >> x) & 1 != 0:
        met = True
        if not met_before:
            bricks[row] = bricks[row] & ~(1 << x)
            y, downward, reward = last_y, -downward, float32(1.0)
    elif y == LAST:
        if bricks[0] == 0 and bricks[1] == 0 and bricks[2] == 0:
            for k in range(ROWS):
                bricks[k] = FULL
        over = last_x != paddle and x != paddle
        if not over:
            y, downward = last_y, -downward
            if last_x != paddle:
                rightward = -rightward

    s[PADDLE], s[X], s[Y], s[LAST_X], s[LAST_Y] = (
        float32(paddle),
        float32(x),
        float32(y),
        float32(last_x),
        float32(last_y),
    )
    s[RIGHTWARD], s[DOWNWARD] = float32(rightward), float32(downward)
    s[MET], s[LAST_ACTION] = float32(1.0) if met else float32(0.0), float32(taken)
    return reward, over


@device_call
def masks(s, bricks, row):
    """What a row holds: paddle, ball, its trail, bricks."""
    paddle, ball, trail = (
        bit(whole(s[PADDLE]), row == LAST),
        bit(whole(s[X]), row == whole(s[Y])),
        bit(whole(s[LAST_X]), row == whole(s[LAST_Y])),
    )
    wall = whole(bricks[row - FIRST_ROW]) if row >= FIRST_ROW and row < FIRST_ROW + ROWS else int32(0)
    return paddle, ball, trail, wall


ENV = game(
    Params,
    FIELDS,
    IntState(ROWS, "int16"),
    reset=reset,
    step=step,
    masks=masks,
    colours=(BLUE, YELLOW, GREY, GREEN),
    actions=("stay", "left", "right"),
)

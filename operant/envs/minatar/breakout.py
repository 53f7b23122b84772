"""MinAtar's Breakout: a ball that moves diagonally, a paddle of one cell at the bottom, three rows of bricks at the
top.

Rules
- The paddle moves one cell to the left or right, up to the sides.
- The ball moves one cell along its diagonal. A side reverses its horizontal direction, the ceiling its vertical one. A
  brick breaks and reverses the vertical direction, and the ball stays in its row; directly after a contact with a brick
  in the previous step it enters the cell instead.
- When the ball reaches the bottom row and no brick is left, all bricks return. If the ball comes down in the paddle's
  column, only its vertical direction reverses; if it is about to enter the paddle's cell diagonally, it returns the way
  it came. If it misses the paddle, the game ends.
- Reward: +1 for a brick. The ball starts in the left or right column below the bricks, with equal probability, moving
  down and inwards.

Channels: paddle, ball, trail (the ball's previous cell), brick. Random numbers: the ball's column is draw 0 of the
reset, `integer(key, 0, 2)`, 0 for left.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, YELLOW, IntState, device_call, integer
from operant.envs.minatar.board import FULL, LAST, bit, game, sticky_action, whole

# Rows of the state: paddle, ball, previous cell of the ball, its direction (-1 or 1 each), 1 after hitting a brick,
# last action.
PADDLE, X, Y, LAST_X, LAST_Y, RIGHTWARD, DOWNWARD, HIT, LAST_ACTION, FIELDS = range(10)
STAY, LEFT, RIGHT = range(3)  # actions
ROWS, FIRST_ROW = 3, 1  # of bricks


class Params(NamedTuple):
    """Parameters of MinAtar's Breakout: probability of sticky actions."""

    sticky: float = 0.1


@device_call
def reset(s, bricks, workspace, p, key):
    right = integer(key, 0, 2) == 1
    column = float32(LAST) if right else float32(0.0)
    s[PADDLE], s[X], s[Y], s[LAST_X], s[LAST_Y] = float32(4.0), column, float32(3.0), column, float32(3.0)
    s[RIGHTWARD], s[DOWNWARD] = float32(-1.0) if right else float32(1.0), float32(1.0)
    s[HIT], s[LAST_ACTION] = float32(0.0), float32(STAY)
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
    hit_before, executed = s[HIT] != float32(0.0), sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if executed == LEFT:
        paddle = max(paddle - 1, 0)
    elif executed == RIGHT:
        paddle = min(paddle + 1, LAST)

    x, y, hit, reward, over = last_x + rightward, last_y + downward, False, float32(0.0), False
    if x < 0 or x > LAST:
        x, rightward = last_x, -rightward
    row = y - FIRST_ROW
    if y < 0:
        y, downward = 0, -downward
    elif row >= 0 and row < ROWS and (bricks[row] >> x) & 1 != 0:
        hit = True
        if not hit_before:
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
    s[HIT], s[LAST_ACTION] = float32(1.0) if hit else float32(0.0), float32(executed)
    return reward, over


@device_call
def masks(s, bricks, row):
    """10-bit masks of row number `row` of the board for each channel: paddle, ball, trail, bricks."""
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

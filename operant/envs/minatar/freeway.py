"""MinAtar's Freeway: a chicken crosses eight lanes of cars.

Rules
- The chicken moves one row up or down, at most every third step. From the top row it returns to the bottom; the cars
  then get new speeds and directions, and keep their positions.
- A car of speed v (1 to 5) waits v steps between moves of one cell, and wraps around at the sides. A car in the
  chicken's cell, before its move or after, sends the chicken back to the bottom.
- Reward: +1 for reaching the top row. The chicken starts in the bottom row, unable to move for three steps, with all
  cars in the left column. The game ends after 2,501 steps.

Channels: chicken, car, and for each speed from 1 to 5 the trails of the cars of that speed. Random numbers, from draw
`first`, which is 0 in a reset and 1 in a step: the car of lane k from the top has speed 1 + `integer(key, first + k,
5)`, and moves right if `uniform(key, first + 8 + k)` is at least 0.5.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import GREEN, GREY, ORANGE, RED, YELLOW, IntState, device_call, integer, uniform
from operant.envs.minatar.board import LAST, bit, game, sticky_action, whole

# rows of the state: row of the chicken, steps until it can move, remaining steps, last action
ROW, WAIT, LEFT_STEPS, LAST_ACTION, FIELDS = range(5)
STAY, UP, DOWN = range(3)  # actions
CARS, COLUMN = 8, 4  # number of cars, one per row 1 to 8; column of the chicken
REST = 3  # steps between moves of the chicken
STEPS = 2500
X, TIMER, VELOCITY = 0, CARS, 2 * CARS  # offsets of each field of all cars


class Params(NamedTuple):
    """Parameters of Freeway: probability of sticky actions."""

    sticky: float = 0.1


@device_call
def new_speeds(cars, key, first):
    """Draw new speeds and directions for all cars of Freeway; `first` is the number of the first random draw."""
    for k in range(CARS):
        speed = 1 + integer(key, first + k, 5)
        cars[TIMER + k] = speed
        cars[VELOCITY + k] = speed if uniform(key, first + CARS + k) >= float32(0.5) else -speed


@device_call
def reset(s, cars, workspace, p, key):
    for k in range(CARS):
        cars[X + k] = 0
    new_speeds(cars, key, 0)
    s[ROW], s[WAIT], s[LEFT_STEPS], s[LAST_ACTION] = float32(LAST), float32(REST), float32(STEPS), float32(STAY)


@device_call
def step(s, cars, workspace, action, p, key, tally):
    row, wait, left, reward = whole(s[ROW]), whole(s[WAIT]), whole(s[LEFT_STEPS]), float32(0.0)
    executed = sticky_action(whole(s[LAST_ACTION]), action, p, key)
    if executed != STAY and wait == 0:
        wait = REST
        row = row - 1 if executed == UP else min(row + 1, LAST)
    if row == 0:
        row, reward = LAST, float32(1.0)
        new_speeds(cars, key, 1)

    for k in range(CARS):
        x, timer, velocity = whole(cars[X + k]), whole(cars[TIMER + k]), whole(cars[VELOCITY + k])
        hit = x == COLUMN
        if timer == 0:
            timer = abs(velocity)
            x += 1 if velocity > 0 else -1
            x = LAST if x < 0 else 0 if x > LAST else x
            hit = hit or x == COLUMN
        else:
            timer -= 1
        if hit and row == k + 1:
            row = LAST
        cars[X + k], cars[TIMER + k] = x, timer

    s[ROW], s[WAIT], s[LEFT_STEPS], s[LAST_ACTION] = (
        float32(row),
        float32(max(wait - 1, 0)),
        float32(left - 1),
        float32(executed),
    )
    return reward, left < 1


@device_call
def masks(s, cars, row):
    """10-bit masks of row number `row` of the board for each channel: chicken, car, and one trail per speed."""
    chicken, k, on_road = bit(COLUMN, row == whole(s[ROW])), min(max(row - 1, 0), CARS - 1), row >= 1 and row <= CARS
    x, velocity = whole(cars[X + k]), whole(cars[VELOCITY + k])
    behind, speed = x - 1 if velocity > 0 else x + 1, abs(velocity)
    trail = bit(LAST if behind < 0 else 0 if behind > LAST else behind, on_road)
    none = int32(0)
    return (
        chicken,
        bit(x, on_road),
        trail if speed == 1 else none,
        trail if speed == 2 else none,
        trail if speed == 3 else none,
        trail if speed == 4 else none,
        trail if speed == 5 else none,
    )


_SLOW = (float32(0.25), float32(0.25), float32(0.25))

ENV = game(
    Params,
    FIELDS,
    IntState(3 * CARS, "int8"),
    reset=reset,
    step=step,
    masks=masks,
    colours=(YELLOW, ORANGE, RED, GREEN, GREY, _SLOW, _SLOW),
    actions=("stay", "up", "down"),
    time_limit=None,  # games have a fixed length
)

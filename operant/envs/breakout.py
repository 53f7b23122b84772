"""Breakout: two walls of 6 x 18 bricks, one after the other, six balls, 864 points. Positions in pixels of a field 576
x 330, y downwards.

Rules and constants: PufferLib's Breakout (`ocean/breakout/breakout.h`, `config/breakout.ini`;
github.com/PufferAI/PufferLib), written anew from reading it. A frame, of four in a step:

    a ball that lies still is launched down to the left or the right, and the paddle rests; else the paddle moves the
    ball flies on, or else meets the first thing in its way: of what it would touch within the frame the earliest, then
    what it touches most broadly the ball is lost below the paddle: a new one lies in the middle, at the first speed,
    over a paddle of full width the game ends with the sixth lost ball, or with the last brick of the second wall

At a brick or a wall the ball stops for the rest of the frame and turns; a brick pays 7, 4 or 1 point by its pair of
rows, counted from above, and one of the upper three rows brings the ball to its highest speed. The ceiling halves the
paddle. At the paddle the ball stays where it is and is sent off anew, by where it fell: the middle sends it straight
up, the edges 45 degrees aside. Every fourth time it gets faster. The first time after the last brick of a wall (so at
432 points) the wall stands again. Speed and paddle are as before only for a new ball.

Where this differs, and why:
- A game that ends in a frame ends the step; PufferLib plays the remaining frames of the step in the next game.
- Games end after 10,000 steps (11 minutes at 60 frames a second), as a ball can go round the bricks for ever. A
  truncation, which bootstraps.
- The paddle's shape says whether it was halved, and velocity whether a ball lies still: neither is kept twice. What
  looks like an oversight is kept: a ball that touches a side already is not stopped there (it flies into the brick, or
  out of the field, from where it is put back), and the end of a narrow paddle sends a ball down.

Random numbers: whether a ball is launched to the left (0) or to the right (1) is `integer(key, frame, 2)`, of the frame
in the step, from 0.

Bricks are bits, 108 in four words of 32, 1 where one is gone: a step moves 32 bytes of them (and 80 of other state)
where flags of a byte would move 216, and words of a row 48. What a step moves is mostly the observation, 472 bytes,
which is why the rest of the state is not packed.
"""

import math
from typing import NamedTuple

from numpy import float32, int32

from operant.envs import (
    BLUE,
    GREEN,
    GREY,
    GROUND,
    ORANGE,
    RED,
    YELLOW,
    Box,
    Discrete,
    Env,
    IntState,
    device,
    device_call,
    in_box,
    in_disc,
    integer,
)

# Rows of the state: the left edges of paddle and ball and the ball's upper edge (pixels), the ball's velocity (pixels a
# frame), the speed that the paddle gives it (pixels a second), how often the paddle met it since it got faster (0 to
# 3), points, balls that are left beside the one in play.
PADDLE_X, PADDLE_WIDTH, BALL_X, BALL_Y, BALL_VX, BALL_VY, SPEED, HITS, SCORE, BALLS, FIELDS = range(11)
STAY, LEFT, RIGHT = range(3)  # actions
SCORED, WON, RETURNS = range(3)  # tallies

ROWS, COLUMNS = 6, 18
BRICKS = ROWS * COLUMNS
WORDS = (BRICKS + 31) // 32
SEEN = 10  # numbers observed before the bricks
WALL_SCORE = sum(COLUMNS * (7 - 3 * (row // 2)) for row in range(ROWS))  # 432
MOST_SCORE = 2 * WALL_SCORE

# What the ball meets: a brick by its number, or one of these.
NOTHING, SIDE, CEILING, PADDLE = -1, BRICKS, BRICKS + 1, BRICKS + 2

_LAUNCH = math.pi / 3.25  # from straight down
_LAUNCH_X, _LAUNCH_Y = float32(math.sin(_LAUNCH)), float32(math.cos(_LAUNCH))
_QUARTER = float32(math.pi / 4)
_ESCAPE = float32(1.1)  # frames of the highest speed, by which a ball that left the field is put back
_NEAR = float32(0.01)  # pixels, far more than rounding: what is looked at at all must not depend on it


class Params(NamedTuple):
    """The field, the paddle, the ball and the bricks."""

    frames: int = 4  # a step
    tau: float = 1 / 60  # s, of a frame
    width: float = 576.0  # pixels
    height: float = 330.0  # pixels
    paddle_width: float = 62.0  # pixels; half of it once the ball met the ceiling
    paddle_height: float = 8.0  # pixels
    paddle_y: float = 312.0  # pixels
    paddle_speed: float = 620.0  # pixels a second
    ball: float = 32.0  # pixels, its side
    ball_y: float = 135.0  # pixels, where a new ball lies
    speed: float = 256.0  # pixels a second, of a new ball
    speed_step: float = 64.0  # pixels a second, with every fourth return
    speed_max: float = 448.0  # pixels a second
    bricks_y: float = 50.0  # pixels, the first row
    brick_width: float = 32.0  # pixels
    brick_height: float = 12.0  # pixels
    spare_balls: int = 5


@device
def _word(words, k):
    """Word k of four, in registers: a place that is looked up by number would lie in memory."""
    return words[0] if k == 0 else words[1] if k == 1 else words[2] if k == 2 else words[3]


@device
def _standing(words, brick):
    return (_word(words, brick >> 5) >> int32(brick & 31)) & int32(1) == int32(0)


@device
def _without(words, brick):
    """The wall without a brick."""
    bit = int32(1) << int32(brick & 31)
    k = brick >> 5
    return (
        words[0] | (bit if k == 0 else int32(0)),
        words[1] | (bit if k == 1 else int32(0)),
        words[2] | (bit if k == 2 else int32(0)),
        words[3] | (bit if k == 3 else int32(0)),
    )


@device_call
def _meet(best, edge, low, high, along, across, speed_along, speed_across, ball, what, sideways):
    """The earlier of `best` and an edge in the ball's way: (time in frames, overlap, place along, place across, what,
    whether it is turned sideways).

    The edge lies at `edge` in the direction of the flight and reaches from `low` to `high` across it. `along` and
    `across` are the ball's upper left corner, seen in that direction, and the corner when they meet is what is
    returned. Of two met at once the one with the larger overlap counts, of equal ones the first.
    """
    size = ball if speed_along > float32(0.0) else float32(0.0)
    t = (edge - (along + size)) / speed_along
    place = across + speed_across * t
    overlap = min(high, place + ball) - max(low, place)
    if (
        overlap > float32(0.0)
        and t > float32(0.0)
        and t <= float32(1.0)
        and (t < best[0] or (t == best[0] and overlap > best[1]))
    ):
        return t, overlap, edge - size, place, what, sideways
    return best


@device_call
def _meet_bricks(best, words, x, y, vx, vy, p):
    """The first brick in the way, of those in the box that the ball sweeps."""
    top, bottom = min(y, y + vy) - p.bricks_y - _NEAR, max(y, y + vy) + p.ball - p.bricks_y + _NEAR
    if top < float32(ROWS) * p.brick_height and bottom > float32(0.0):
        left, right = min(x, x + vx) - _NEAR, max(x, x + vx) + p.ball + _NEAR
        first_row, last_row = (
            max(int32(top / p.brick_height), int32(0)),
            min(int32(bottom / p.brick_height), int32(ROWS - 1)),
        )
        first_column, last_column = (
            max(int32(left / p.brick_width), int32(0)),
            min(int32(right / p.brick_width), int32(COLUMNS - 1)),
        )
        for row in range(first_row, last_row + 1):
            brick_y = p.bricks_y + float32(row) * p.brick_height
            for column in range(first_column, last_column + 1):
                brick = int32(row * COLUMNS + column)
                if _standing(words, brick):
                    brick_x = float32(column) * p.brick_width
                    if vx != float32(0.0):
                        edge = brick_x if vx > float32(0.0) else brick_x + p.brick_width
                        best = _meet(best, edge, brick_y, brick_y + p.brick_height, x, y, vx, vy, p.ball, brick, True)
                    if vy != float32(0.0):
                        edge = brick_y if vy > float32(0.0) else brick_y + p.brick_height
                        best = _meet(best, edge, brick_x, brick_x + p.brick_width, y, x, vy, vx, p.ball, brick, False)
    return best


@device
def _meet_walls(best, x, y, vx, vy, p):
    """The sides and the ceiling, if they are met before `best`."""
    if (vx > float32(0.0) and x + vx > p.width - p.ball - _NEAR) or (vx < float32(0.0) and x + vx < _NEAR):
        edge = p.width if vx > float32(0.0) else float32(0.0)
        best = _meet(best, edge, float32(0.0), p.height, x, y, vx, vy, p.ball, int32(SIDE), True)
    if vy < float32(0.0) and y + vy < _NEAR:
        best = _meet(best, float32(0.0), float32(0.0), p.width, y, x, vy, vx, p.ball, int32(CEILING), False)
    return best


@device
def _inside(x, y, p):
    """A ball that left the field, put back: it was sent off towards a side that it touched already, or rounding let it
    out.
    """
    back = _ESCAPE * p.speed_max * p.tau
    x = x + back if x < float32(0.0) else x - back if x > p.width else x
    return x, y + back if y < float32(0.0) else y


@device
def _points(brick):
    return float32(7 - 3 * (brick // (2 * COLUMNS)))


@device
def reset(s, cells, workspace, p, key):
    s[PADDLE_X], s[PADDLE_WIDTH] = float32(0.5) * (p.width - p.paddle_width), p.paddle_width
    s[BALL_X], s[BALL_Y] = float32(0.5) * (p.width - p.ball), p.ball_y
    s[BALL_VX], s[BALL_VY] = float32(0.0), float32(0.0)
    s[SPEED], s[HITS] = p.speed, float32(0.0)
    s[SCORE], s[BALLS] = float32(0.0), float32(p.spare_balls)
    for k in range(WORDS):
        cells[k] = 0


@device_call
def step(s, cells, workspace, action, p, key, tally):
    paddle_x, paddle_width, x, y, vx, vy = s[PADDLE_X], s[PADDLE_WIDTH], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY]
    speed, hits, score, balls = s[SPEED], s[HITS], s[SCORE], s[BALLS]
    words = (cells[0], cells[1], cells[2], cells[3])
    push = float32(1.0) if action == RIGHT else float32(-1.0) if action == LEFT else float32(0.0)
    reward, returns, over = float32(0.0), float32(0.0), False

    for frame in range(p.frames):
        if vx == float32(0.0) and vy == float32(0.0):
            vx, vy = speed * p.tau * _LAUNCH_X, speed * p.tau * _LAUNCH_Y
            if integer(key, frame, 2) == 0:
                vx = -vx
        else:
            paddle_x = min(max(paddle_x + push * p.paddle_speed * p.tau, float32(0.0)), p.width - paddle_width)

        x, y = _inside(x, y, p)
        best = (float32(2.0), float32(-1.0), float32(0.0), float32(0.0), int32(NOTHING), False)
        best = _meet_bricks(best, words, x, y, vx, vy, p)
        best = _meet_walls(best, x, y, vx, vy, p)
        if vy > float32(0.0) and y + vy > p.paddle_y - p.ball - _NEAR:
            best = _meet(
                best, p.paddle_y, paddle_x, paddle_x + paddle_width, y, x, vy, vx, p.ball, int32(PADDLE), False
            )
        _, _, along, across, what, sideways = best

        if what == PADDLE:
            angle = _QUARTER * (float32(2.0) * (x + float32(0.5) * p.ball - paddle_x) / paddle_width - float32(1.0))
            vx, vy = speed * p.tau * math.sin(angle), -speed * p.tau * math.cos(angle)
            returns += float32(1.0)
            hits += float32(1.0)
            if hits == float32(4.0):
                hits = float32(0.0)
                if speed < p.speed_max:
                    speed += p.speed_step
            if score == float32(WALL_SCORE):
                words = (int32(0), int32(0), int32(0), int32(0))
        elif what == NOTHING:
            x += vx
            y += vy
        else:
            if sideways:
                x, y, vx = along, across, -vx
            else:
                x, y, vy = across, along, -vy
            if what == CEILING:
                paddle_width = float32(0.5) * p.paddle_width
            elif what != SIDE:
                words = _without(words, what)
                reward += _points(what)
                score += _points(what)
                if what < 3 * COLUMNS:
                    speed = p.speed_max

        if y >= p.paddle_y + p.paddle_height:
            balls -= float32(1.0)
            paddle_x, paddle_width = float32(0.5) * (p.width - p.paddle_width), p.paddle_width
            x, y, vx, vy = float32(0.5) * (p.width - p.ball), p.ball_y, float32(0.0), float32(0.0)
            speed, hits = p.speed, float32(0.0)
        over = balls < float32(0.0) or score == float32(MOST_SCORE)
        if over:
            break

    if reward > float32(0.0):
        tally[SCORED] += reward
    if returns > float32(0.0):
        tally[RETURNS] += returns
    if score == float32(MOST_SCORE):
        tally[WON] += float32(1.0)
    s[PADDLE_X], s[PADDLE_WIDTH], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY] = paddle_x, paddle_width, x, y, vx, vy
    s[SPEED], s[HITS], s[SCORE], s[BALLS] = speed, hits, score, balls
    cells[0], cells[1], cells[2], cells[3] = words
    return reward, over


@device
def _observe_word(obs, first, count, word):
    """The bits of a word as numbers 0 and 1, from obs[first]."""
    for k in range(count):
        obs[first + k] = float32(1.0) if (word >> int32(k)) & int32(1) != int32(0) else float32(0.0)


@device
def _observe_numbers(s, obs, p):
    paddle_x, paddle_width, x, y, vx, vy = s[PADDLE_X], s[PADDLE_WIDTH], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY]
    score, balls = s[SCORE], s[BALLS]
    obs[0], obs[1] = paddle_x / p.width, p.paddle_y / p.height
    obs[2], obs[3] = x / p.width, y / p.height
    obs[4], obs[5] = vx / float32(512.0), vy / float32(512.0)
    obs[6] = float32(0.0) if vx == float32(0.0) and vy == float32(0.0) else float32(0.2)
    obs[7], obs[8], obs[9] = score / float32(MOST_SCORE), balls / float32(5.0), paddle_width / p.paddle_width


@device_call
def observe(s, cells, obs, p, shard):
    """A shard is a word of bricks; the last is the other numbers."""
    if shard < WORDS - 1:
        _observe_word(obs, SEEN + 32 * shard, 32, cells[shard])
    elif shard == WORDS - 1:
        _observe_word(obs, SEEN + 32 * shard, BRICKS - 32 * (WORDS - 1), cells[shard])
    else:
        _observe_numbers(s, obs, p)


@device
def pixel_shader(s, cells, p, x, y):
    # The field fills the square: it is drawn higher than it is, and the ball round all the same.
    right, down = x * p.width, y * p.height
    half_ball = float32(0.5) * p.ball
    stretch = p.width / p.height
    if in_disc(right, down * stretch, s[BALL_X] + half_ball, (s[BALL_Y] + half_ball) * stretch, half_ball):
        return YELLOW
    half_paddle, half_height = float32(0.5) * s[PADDLE_WIDTH], float32(0.5) * p.paddle_height
    if in_box(right, down, s[PADDLE_X] + half_paddle, p.paddle_y + half_height, half_paddle, half_height):
        return BLUE
    row, column = (down - p.bricks_y) / p.brick_height, right / p.brick_width
    if row >= float32(0.0) and row < float32(ROWS):
        brick = int32(row) * int32(COLUMNS) + min(int32(column), int32(COLUMNS - 1))
        gone = (cells[brick >> 5] >> int32(brick & 31)) & int32(1)
        if gone == int32(0):
            red, green, blue = RED if row < float32(2.0) else ORANGE if row < float32(4.0) else GREEN
            # A chequered wall shows each brick at any size, where lines between them would be a pixel wide or none.
            light = float32(1.0) if (int32(row) + int32(column)) & 1 == 0 else float32(0.75)
            return red * light, green * light, blue * light
    # Above the wall: the score as a bar, and the balls that are left.
    if down < float32(0.03) * p.height:
        return BLUE if right < p.width * s[SCORE] / float32(MOST_SCORE) else GROUND
    if down > float32(0.06) * p.height and down < float32(0.09) * p.height:
        place = float32(15.0) * x - float32(0.3)
        if place >= float32(0.0) and place < s[BALLS] and place - float32(int32(place)) < float32(0.5):
            return GREY
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(SEEN + BRICKS, low=-1.0, high=1.1),  # 1, but where a ball has just left the field
    action=Discrete(3),
    time_limit=10_000,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={
        # Wall, paddle and ball have their places in the field, the ball is as broad as its way of a frame, and six
        # balls are all that can be observed.
        "frames": (1, 100),
        "tau": (0.001, 0.05),
        "width": (200.0, 5000.0),
        "height": (330.0, 5000.0),
        "paddle_width": (1.0, 200.0),
        "paddle_height": (0.0, 18.0),
        "paddle_y": (170.0, 312.0),
        "paddle_speed": (0.0, 10_000.0),
        "ball": (8.0, 64.0),
        "ball_y": (0.0, 250.0),
        "speed": (10.0, 1000.0),
        "speed_step": (0.0, 500.0),
        "speed_max": (10.0, 1000.0),
        "bricks_y": (0.0, 200.0),
        "brick_width": (8.0, 100.0),
        "brick_height": (4.0, 20.0),
        "spare_balls": (0, 5),
    },
    observation_shards=WORDS + 1,
    int_state=IntState(WORDS, "int32"),
    tally=("scored", "won", "returns"),
    actions=("stay", "left", "right"),
)

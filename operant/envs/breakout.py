"""Breakout: two walls of 6 x 18 bricks, one after the other, six balls, 864 points. Positions in pixels of a field 576
x 330, y downwards.

Rules and constants: PufferLib's Breakout (`ocean/breakout/breakout.h`, `config/breakout.ini`;
github.com/PufferAI/PufferLib), reimplemented from reading it. A step has four frames. In each frame:

1. A ball at rest is launched downwards to the left or right, and the paddle does not move. Otherwise the paddle moves.
2. The ball moves, or stops at the earliest collision within the frame; of simultaneous collisions the one with the
   larger overlap counts.
3. A ball below the paddle is lost. A new one appears in the middle, at the initial speed, with a paddle of full width.
4. The game ends with the sixth lost ball, or with the last brick of the second wall.

At a brick or a wall the ball stops for the rest of the frame and reflects. A brick pays 7, 4 or 1 point by its pair of
rows, from the top; a brick of the upper three rows sets the ball to its highest speed. The ceiling halves the paddle's
width. At the paddle the ball keeps its position and leaves at an angle that depends on the point of contact: straight
up in the middle, 45 degrees sideways at the edges. Every fourth return increases the speed. At the first return after
the last brick of the first wall (at 432 points) a new wall appears. Speed and paddle width are reset only with a new
ball.

Differences from PufferLib
- A game that ends in a frame ends the step; PufferLib plays the remaining frames of the step in the next game.
- Games are truncated (with bootstrapping) after 10,000 steps, 11 minutes at 60 frames per second, because a ball can
  circle around the bricks forever.
- The paddle's width records whether it was halved, and the velocity whether the ball is at rest; neither is stored
  twice.

Two details of PufferLib that look like oversights are reproduced: a ball that already touches a side is not stopped
there (it enters the brick, or leaves the field and is put back), and the edge of a narrow paddle can send a ball
downwards.

Random numbers: the launch direction, left (0) or right (1), is `integer(key, frame, 2)`, where `frame` counts the
frames of the step from 0.

Storage: 108 bricks are bits in four 32-bit words, 1 for a broken brick. A step moves 32 bytes for them (and 80 for the
rest of the state), against 216 bytes with one byte per brick and 48 with one word per row. The observation, 472 bytes,
dominates, so the rest of the state is not packed.
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

# Rows of the state: left edge and width of the paddle, left and upper edge of the ball (pixels), velocity of the ball
# (pixels/frame), its speed after the next return (pixels/s), returns since the last increase of speed (0 to 3), score,
# spare balls.
PADDLE_X, PADDLE_WIDTH, BALL_X, BALL_Y, BALL_VX, BALL_VY, SPEED, HITS, SCORE, BALLS, FIELDS = range(11)
STAY, LEFT, RIGHT = range(3)  # actions
SCORED, WON, RETURNS = range(3)  # tallies

ROWS, COLUMNS = 6, 18
BRICKS = ROWS * COLUMNS
WORDS = (BRICKS + 31) // 32
SEEN = 10  # observation values before the bricks
WALL_SCORE = sum(COLUMNS * (7 - 3 * (row // 2)) for row in range(ROWS))  # 432
MOST_SCORE = 2 * WALL_SCORE

# Collision targets: the index of a brick, or one of these.
NOTHING, SIDE, CEILING, PADDLE = -1, BRICKS, BRICKS + 1, BRICKS + 2

_LAUNCH = math.pi / 3.25  # from straight down
_LAUNCH_X, _LAUNCH_Y = float32(math.sin(_LAUNCH)), float32(math.cos(_LAUNCH))
_QUARTER = float32(math.pi / 4)
_ESCAPE = float32(1.1)  # frames at the highest speed: distance by which a ball outside the field is put back
_NEAR = float32(0.01)  # pixels; a margin far above rounding errors for the choice of collision candidates


class Params(NamedTuple):
    """Parameters of Breakout: geometry and speeds of field, paddle, ball and bricks."""

    frames: int = 4  # per step
    tau: float = 1 / 60  # s per frame
    width: float = 576.0  # pixels
    height: float = 330.0  # pixels
    paddle_width: float = 62.0  # pixels; halved after the ball hits the ceiling
    paddle_height: float = 8.0  # pixels
    paddle_y: float = 312.0  # pixels
    paddle_speed: float = 620.0  # pixels/s
    ball: float = 32.0  # pixels, its side length
    ball_y: float = 135.0  # pixels, upper edge of a new ball
    speed: float = 256.0  # pixels/s, of a new ball
    speed_step: float = 64.0  # pixels/s, added at every fourth return
    speed_max: float = 448.0  # pixels/s
    bricks_y: float = 50.0  # pixels, upper edge of the first row
    brick_width: float = 32.0  # pixels
    brick_height: float = 12.0  # pixels
    spare_balls: int = 5


@device
def _word(words, k):
    """Select word number k of the four that hold the bricks' bits. They are not indexed, so that they stay in
    registers.
    """
    return words[0] if k == 0 else words[1] if k == 1 else words[2] if k == 2 else words[3]


@device
def _is_unbroken(words, brick):
    """Whether brick number `brick` is unbroken; `words` hold one bit per brick, 1 for broken."""
    return (_word(words, brick >> 5) >> int32(brick & 31)) & int32(1) == int32(0)


@device
def _break_brick(words, brick):
    """Set the bit of brick number `brick` to broken; returns the four new words."""
    bit = int32(1) << int32(brick & 31)
    k = brick >> 5
    return (
        words[0] | (bit if k == 0 else int32(0)),
        words[1] | (bit if k == 1 else int32(0)),
        words[2] | (bit if k == 2 else int32(0)),
        words[3] | (bit if k == 3 else int32(0)),
    )


@device_call
def _earlier_collision(best, edge, low, high, along, across, speed_along, speed_across, ball, target, sideways):
    """Compute the collision of the ball with one edge within a frame, and return the earlier of it and the collision
    `best`. The edge lies at coordinate `edge` on the axis `along` and spans [low, high] on the axis `across`.

    A collision is (time in frames, overlap, along, across, target, sideways). `along` and `across` are the ball's upper
    left corner, before the frame as arguments and at the collision in the result. `sideways`: the collision reflects
    vx, not vy. Of simultaneous collisions the larger overlap wins, then the first.
    """
    size = ball if speed_along > float32(0.0) else float32(0.0)
    t = (edge - (along + size)) / speed_along
    contact = across + speed_across * t
    overlap = min(high, contact + ball) - max(low, contact)
    if (
        overlap > float32(0.0)
        and t > float32(0.0)
        and t <= float32(1.0)
        and (t < best[0] or (t == best[0] and overlap > best[1]))
    ):
        return t, overlap, edge - size, contact, target, sideways
    return best


@device_call
def _earliest_with_bricks(best, words, x, y, vx, vy, p):
    """Return the earliest of the collision `best` and the ball's collisions with bricks near its path in this frame."""
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
                if _is_unbroken(words, brick):
                    brick_x = float32(column) * p.brick_width
                    if vx != float32(0.0):
                        edge = brick_x if vx > float32(0.0) else brick_x + p.brick_width
                        best = _earlier_collision(
                            best, edge, brick_y, brick_y + p.brick_height, x, y, vx, vy, p.ball, brick, True
                        )
                    if vy != float32(0.0):
                        edge = brick_y if vy > float32(0.0) else brick_y + p.brick_height
                        best = _earlier_collision(
                            best, edge, brick_x, brick_x + p.brick_width, y, x, vy, vx, p.ball, brick, False
                        )
    return best


@device
def _earliest_with_walls(best, x, y, vx, vy, p):
    """Return the earliest of the collision `best` and the ball's collisions with the sides and the ceiling in this
    frame.
    """
    if (vx > float32(0.0) and x + vx > p.width - p.ball - _NEAR) or (vx < float32(0.0) and x + vx < _NEAR):
        edge = p.width if vx > float32(0.0) else float32(0.0)
        best = _earlier_collision(best, edge, float32(0.0), p.height, x, y, vx, vy, p.ball, int32(SIDE), True)
    if vy < float32(0.0) and y + vy < _NEAR:
        best = _earlier_collision(
            best, float32(0.0), float32(0.0), p.width, y, x, vy, vx, p.ball, int32(CEILING), False
        )
    return best


@device
def _put_inside(x, y, p):
    """Put the ball at (x, y) back into the field if it left it; returns its position.

    A ball leaves the field when it starts towards a side that it already touches, or by rounding.
    """
    back = _ESCAPE * p.speed_max * p.tau
    x = x + back if x < float32(0.0) else x - back if x > p.width else x
    return x, y + back if y < float32(0.0) else y


@device
def _brick_reward(brick):
    """Reward for breaking brick number `brick`: 7, 4 or 1 by its pair of rows, from the top."""
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

        x, y = _put_inside(x, y, p)
        best = (float32(2.0), float32(-1.0), float32(0.0), float32(0.0), int32(NOTHING), False)
        best = _earliest_with_bricks(best, words, x, y, vx, vy, p)
        best = _earliest_with_walls(best, x, y, vx, vy, p)
        if vy > float32(0.0) and y + vy > p.paddle_y - p.ball - _NEAR:
            best = _earlier_collision(
                best, p.paddle_y, paddle_x, paddle_x + paddle_width, y, x, vy, vx, p.ball, int32(PADDLE), False
            )
        _, _, along, across, target, sideways = best

        if target == PADDLE:
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
        elif target == NOTHING:
            x += vx
            y += vy
        else:
            if sideways:
                x, y, vx = along, across, -vx
            else:
                x, y, vy = across, along, -vy
            if target == CEILING:
                paddle_width = float32(0.5) * p.paddle_width
            elif target != SIDE:
                words = _break_brick(words, target)
                reward += _brick_reward(target)
                score += _brick_reward(target)
                if target < 3 * COLUMNS:
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
    """Write the lowest `count` bits of an integer as 0.0 and 1.0 to the observation, from obs[first] on."""
    for k in range(count):
        obs[first + k] = float32(1.0) if (word >> int32(k)) & int32(1) != int32(0) else float32(0.0)


@device
def _observe_numbers(s, obs, p):
    """Write the first ten observation values: positions, velocity, score, balls and paddle width, scaled."""
    paddle_x, paddle_width, x, y, vx, vy = s[PADDLE_X], s[PADDLE_WIDTH], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY]
    score, balls = s[SCORE], s[BALLS]
    obs[0], obs[1] = paddle_x / p.width, p.paddle_y / p.height
    obs[2], obs[3] = x / p.width, y / p.height
    obs[4], obs[5] = vx / float32(512.0), vy / float32(512.0)
    obs[6] = float32(0.0) if vx == float32(0.0) and vy == float32(0.0) else float32(0.2)
    obs[7], obs[8], obs[9] = score / float32(MOST_SCORE), balls / float32(5.0), paddle_width / p.paddle_width


@device_call
def observe(s, cells, obs, p, shard):
    """Write the rows of one shard (part of the observation): the bricks of one word, or for the last shard the other
    values.
    """
    if shard < WORDS - 1:
        _observe_word(obs, SEEN + 32 * shard, 32, cells[shard])
    elif shard == WORDS - 1:
        _observe_word(obs, SEEN + 32 * shard, BRICKS - 32 * (WORDS - 1), cells[shard])
    else:
        _observe_numbers(s, obs, p)


@device
def pixel_shader(s, cells, p, x, y):
    # The field is stretched vertically to fill the square; the ball stays round.
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
            # Checkerboard shading separates bricks at any size; lines between them would be one pixel wide or vanish.
            light = float32(1.0) if (int32(row) + int32(column)) & 1 == 0 else float32(0.75)
            return red * light, green * light, blue * light
    # Above the wall: a bar for the score, and the spare balls.
    if down < float32(0.03) * p.height:
        return BLUE if right < p.width * s[SCORE] / float32(MOST_SCORE) else GROUND
    if down > float32(0.06) * p.height and down < float32(0.09) * p.height:
        slot = float32(15.0) * x - float32(0.3)
        if slot >= float32(0.0) and slot < s[BALLS] and slot - float32(int32(slot)) < float32(0.5):
            return GREY
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(SEEN + BRICKS, low=-1.0, high=1.1),  # above 1 only for a ball that has just left the field
    action=Discrete(3),
    time_limit=10_000,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={
        # Wall, paddle and ball fit into the field; the ball moves at most its own width per frame; the observation can
        # represent at most six balls.
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

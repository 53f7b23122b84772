"""Pong, first to 21 against a paddle that follows the ball: the agent holds the right one. Positions in pixels of a
field 500 x 640, y upwards.

Rules and constants: PufferLib's Pong (`ocean/pong/pong.h`, `config/pong.ini`; github.com/PufferAI/PufferLib), written
anew from reading it. A frame moves, in this order: the agent's paddle, the opponent's towards where the ball is (at
most as fast), then the ball; it turns at the walls, and at a paddle that it meets. Where the agent's paddle moves as it
meets the ball, the ball is given a spin: that is how points are made, since an opponent of 8 pixels a frame only misses
a ball of 9 or more. Eight frames a step, fewer where a point ends the round.

Where this differs, and why:
- A step that ends a round shows the new round at once; PufferLib shows the frame before it, since it returns before it
  looks.
- The scores are observed as shares of 21; PufferLib divides whole numbers, so that its agent sees zeros until the end.
- A return of the ball pays nothing: PufferLib pays 0.1 and leaves it out of the score that it reports. Without it the
  return of an episode is the score, and
  what an evaluation measures is what is compared. `return_reward` brings it back.
- Games end after 4,000 steps (9 minutes at 60 frames a second), as two paddles that never miss would play for ever. A
  truncation, which bootstraps. What looks like an oversight is kept: a round begins level or downwards, never upwards,
  and the ball is put back into the field on the right side only.

Random numbers: whether a round begins level (0) or downwards (1) is `integer(key, 0, 2)`; a step ends at most one
round. All positions are whole or half pixels, so the game itself is the same to the bit on every device.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import BLUE, GREY, GROUND, ORANGE, YELLOW, Box, Discrete, Env, device, in_box, in_disc, integer

# Rows of the state: the lower edges of both paddles, the lower left corner of the ball (pixels), its velocity (pixels a
# frame), the scores.
OPPONENT, AGENT, BALL_X, BALL_Y, BALL_VX, BALL_VY, OPPONENT_SCORE, AGENT_SCORE, FIELDS = range(9)
STAY, UP, DOWN = range(3)  # actions
SCORED, CONCEDED, RETURNS, WON = range(4)  # tallies


class Params(NamedTuple):
    """The field, the paddles and the ball."""

    frames: int = 8  # a step
    points: int = 21  # that win the game
    width: float = 500.0  # pixels, from paddle to paddle
    height: float = 640.0  # pixels
    paddle: float = 70.0  # pixels, its length
    paddle_speed: float = 8.0  # pixels a frame, of both
    ball: float = 32.0  # pixels, its side
    serve_x: float = 10.0  # pixels a frame: the ball's speed across the field, always
    serve_y: float = 1.0  # pixels a frame, where a round begins downwards
    spin: float = 3.0  # pixels a frame that a moving paddle adds to the ball
    ball_max_y: float = 13.0  # pixels a frame
    return_reward: float = 0.0  # for meeting the ball


@device
def _clip(x, low, high):
    return min(max(x, low), high)


@device
def _serve(s, p, key):
    """A round begins: both paddles in the middle, the ball on the opponent's side, on its way to the agent."""
    s[OPPONENT] = float32(0.5) * (p.height - p.paddle)
    s[AGENT] = float32(0.5) * (p.height - p.paddle)
    s[BALL_X] = p.width / float32(5.0)
    s[BALL_Y] = float32(0.5) * (p.height - p.ball)
    s[BALL_VX] = p.serve_x
    s[BALL_VY] = -p.serve_y if integer(key, 0, 2) == 1 else float32(0.0)


@device
def reset(s, p, key):
    _serve(s, p, key)
    s[OPPONENT_SCORE] = float32(0.0)
    s[AGENT_SCORE] = float32(0.0)


@device
def step(s, action, p, key, tally):
    opponent, agent, x, y, vx, vy = s[OPPONENT], s[AGENT], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY]
    opponent_score, agent_score = s[OPPONENT_SCORE], s[AGENT_SCORE]
    # Half a paddle may leave the field.
    lowest, highest = float32(-0.5) * p.paddle, p.height - float32(0.5) * p.paddle
    turn = float32(1.0) if action == UP else float32(-1.0) if action == DOWN else float32(0.0)
    reward, point = float32(0.0), float32(0.0)

    for _ in range(p.frames):
        agent = _clip(agent + p.paddle_speed * turn, lowest, highest)
        opponent = _clip(
            opponent + _clip(y - (opponent + float32(0.5) * p.paddle), -p.paddle_speed, p.paddle_speed), lowest, highest
        )
        x += vx
        y += vy
        if y < float32(0.0) or y + p.ball > p.height:
            vy = -vy
        if x < float32(0.0):
            if y + p.ball > opponent and y < opponent + p.paddle:
                vx = -vx
            else:
                point = float32(1.0)
                break
        if x + p.ball > p.width:
            if y + p.ball > agent and y < agent + p.paddle:
                vx = -vx
                vy = _clip(vy + p.spin * turn, -p.ball_max_y, p.ball_max_y)
                if abs(vy) < float32(0.01):  # a level ball would make for a dull game
                    vy = p.spin
                x = _clip(x, float32(0.0), p.width - p.ball)
                y = _clip(y, float32(0.0), p.height - p.ball)
                reward += p.return_reward
                tally[RETURNS] += float32(1.0)
            else:
                point = float32(-1.0)
                break

    over = False
    if point != float32(0.0):
        if point > float32(0.0):
            agent_score += float32(1.0)
            tally[SCORED] += float32(1.0)
        else:
            opponent_score += float32(1.0)
            tally[CONCEDED] += float32(1.0)
        over = max(agent_score, opponent_score) >= float32(p.points)
        if over and point > float32(0.0):
            tally[WON] += float32(1.0)
    s[OPPONENT_SCORE], s[AGENT_SCORE] = opponent_score, agent_score
    if point != float32(0.0) and not over:
        _serve(s, p, key)
    else:
        s[OPPONENT], s[AGENT], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY] = opponent, agent, x, y, vx, vy
    return reward + point, over


@device
def observe(s, obs, p):
    opponent, agent, x, y, vx, vy = s[OPPONENT], s[AGENT], s[BALL_X], s[BALL_Y], s[BALL_VX], s[BALL_VY]
    opponent_score, agent_score = s[OPPONENT_SCORE], s[AGENT_SCORE]
    obs[0], obs[1] = (opponent + float32(0.5) * p.paddle) / p.height, (agent + float32(0.5) * p.paddle) / p.height
    obs[2], obs[3] = x / p.width, y / p.height
    obs[4], obs[5] = (vx + p.serve_x) / (float32(2.0) * p.serve_x), (vy + p.ball_max_y) / (float32(2.0) * p.ball_max_y)
    obs[6], obs[7] = opponent_score / float32(p.points), agent_score / float32(p.points)


@device
def pixel_shader(s, p, x, y):
    # The paddles stand beside the field, and the scores above it: bars that grow from the middle, half the picture for
    # 21 points.
    margin, thickness, head = float32(0.1) * p.width, float32(0.055) * p.width, float32(0.09) * p.height
    right = x * (p.width + float32(2.0) * margin) - margin
    up = (float32(1.0) - y) * (p.height + float32(2.0) * head) - head
    middle, half_ball, half_paddle = float32(0.5) * p.width, float32(0.5) * p.ball, float32(0.5) * p.paddle
    # The field fills the square: it is drawn lower than it is, and the ball round all the same.
    squeeze = (p.width + float32(2.0) * margin) / (p.height + float32(2.0) * head)
    if in_disc(right, up * squeeze, s[BALL_X] + half_ball, (s[BALL_Y] + half_ball) * squeeze, float32(1.2) * half_ball):
        return YELLOW
    if in_box(
        right, up, p.width + float32(0.5) * thickness, s[AGENT] + half_paddle, float32(0.5) * thickness, half_paddle
    ):
        return BLUE
    if in_box(right, up, float32(-0.5) * thickness, s[OPPONENT] + half_paddle, float32(0.5) * thickness, half_paddle):
        return ORANGE
    if up > p.height + float32(0.35) * head and up < p.height + float32(0.8) * head:
        reach = (middle + margin - float32(0.04) * p.width) / float32(p.points)
        beside = abs(right - middle) - float32(0.02) * p.width
        if beside > float32(0.0) and beside < reach * (s[AGENT_SCORE] if right > middle else s[OPPONENT_SCORE]):
            return BLUE if right > middle else ORANGE
    if (
        abs(up - float32(-0.1) * head) < float32(0.1) * head
        or abs(up - p.height - float32(0.1) * head) < float32(0.1) * head
    ):
        return GREY
    # The net: dashes of a twentieth of the field's height.
    dash = up * float32(10.0) / p.height
    if (
        up > float32(0.0)
        and up < p.height
        and abs(right - middle) < float32(0.012) * p.width
        and dash - float32(int(dash)) < float32(0.5)
    ):
        return GREY
    return GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(8, low=-0.1, high=1.1),
    action=Discrete(3),
    time_limit=4000,
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={
        # The ball is never faster than what is observed as 1, and moves a tenth of the field in a frame at most: it is
        # put back, or turned, only then.
        "frames": (1, 100),
        "points": (1, 1000),
        "width": (200.0, 5000.0),
        "height": (200.0, 5000.0),
        "paddle": (1.0, 640.0),
        "paddle_speed": (0.0, 100.0),
        "ball": (1.0, 100.0),
        "serve_x": (0.1, 20.0),
        "serve_y": (-5.0, 5.0),
        "spin": (0.0, 5.0),
        "ball_max_y": (5.0, 20.0),
        "return_reward": (-1e6, 1e6),
    },
    tally=("scored", "conceded", "returns", "won"),
    actions=("stay", "up", "down"),
)

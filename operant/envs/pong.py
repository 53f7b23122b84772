"""Pong, first to 21 points against a paddle that follows the ball; the agent has the right paddle. Positions in pixels
of a field 500 x 640, y upwards.

Rules and constants: PufferLib's Pong (`ocean/pong/pong.h`, `config/pong.ini`; github.com/PufferAI/PufferLib),
reimplemented from reading it. A frame moves the agent's paddle, then the opponent's towards the ball (at a limited
speed), then the ball, which reflects at the walls and at a paddle. If the agent's paddle moves at the contact, the ball
gets a spin. That is how points are made: an opponent with a speed of 8 pixels/frame misses only balls with a vertical
speed of 9 or more. A step has eight frames, fewer if a point ends the round.

Differences from PufferLib
- The observation after the end of a round shows the new round; PufferLib shows the frame before, because it returns
  before it observes.
- The observed scores are fractions of 21; PufferLib uses an integer division, so that its agent sees zeros until the
  end.
- Returning the ball pays nothing. PufferLib pays 0.1 and excludes it from its reported score. Without it the episode's
  return is the score, which evaluations compare. `return_reward` restores it.
- Games are truncated (with bootstrapping) after 4,000 steps, 9 minutes at 60 frames per second, because two paddles
  that never miss would play forever.

Two details of PufferLib that look like oversights are reproduced: a round begins with a level ball or one that moves
downwards, never upwards; and the ball is put back into the field on the right side only.

Random numbers: whether a round begins level (0) or downwards (1) is `integer(key, 0, 2)`; a step ends at most one
round. All positions are multiples of half a pixel, so the game is bit-identical on every device.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import BLUE, GREY, GROUND, ORANGE, YELLOW, Box, Discrete, Env, device, in_box, in_disc, integer

# Rows of the state: lower edges of both paddles, lower left corner of the ball (pixels), its velocity (pixels/frame),
# scores.
OPPONENT, AGENT, BALL_X, BALL_Y, BALL_VX, BALL_VY, OPPONENT_SCORE, AGENT_SCORE, FIELDS = range(9)
STAY, UP, DOWN = range(3)  # actions
SCORED, CONCEDED, RETURNS, WON = range(4)  # tallies


class Params(NamedTuple):
    """Parameters of Pong: geometry and speeds of field, paddles and ball."""

    frames: int = 8  # per step
    points: int = 21  # needed to win
    width: float = 500.0  # pixels, distance between the paddles
    height: float = 640.0  # pixels
    paddle: float = 70.0  # pixels, length
    paddle_speed: float = 8.0  # pixels/frame, of both
    ball: float = 32.0  # pixels, side length
    serve_x: float = 10.0  # pixels/frame, constant horizontal speed of the ball
    serve_y: float = 1.0  # pixels/frame, vertical speed of a downward serve
    spin: float = 3.0  # pixels/frame, added to the ball by a moving paddle
    ball_max_y: float = 13.0  # pixels/frame
    return_reward: float = 0.0  # for each return of the ball


@device
def _clip(x, low, high):
    """Clamp x to [low, high]."""
    return min(max(x, low), high)


@device
def _serve(s, p, key):
    """Begin a round of Pong: paddles centred, ball on the opponent's side, moving towards the agent."""
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
    direction = float32(1.0) if action == UP else float32(-1.0) if action == DOWN else float32(0.0)
    reward, point = float32(0.0), float32(0.0)

    for _ in range(p.frames):
        agent = _clip(agent + p.paddle_speed * direction, lowest, highest)
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
                vy = _clip(vy + p.spin * direction, -p.ball_max_y, p.ball_max_y)
                if abs(vy) < float32(0.01):  # avoid a level ball
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
    # Paddles are drawn outside the field. Scores are bars above it that grow from the middle.
    margin, thickness, head = float32(0.1) * p.width, float32(0.055) * p.width, float32(0.09) * p.height
    right = x * (p.width + float32(2.0) * margin) - margin
    up = (float32(1.0) - y) * (p.height + float32(2.0) * head) - head
    middle, half_ball, half_paddle = float32(0.5) * p.width, float32(0.5) * p.ball, float32(0.5) * p.paddle
    # The field is compressed vertically to fill the square; the ball stays round.
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
        scale = (middle + margin - float32(0.04) * p.width) / float32(p.points)
        offset = abs(right - middle) - float32(0.02) * p.width
        if offset > float32(0.0) and offset < scale * (s[AGENT_SCORE] if right > middle else s[OPPONENT_SCORE]):
            return BLUE if right > middle else ORANGE
    if (
        abs(up - float32(-0.1) * head) < float32(0.1) * head
        or abs(up - p.height - float32(0.1) * head) < float32(0.1) * head
    ):
        return GREY
    # Net: dashes of 1/20 of the field's height.
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
        # Keep the observed speed within [0, 1], and the ball's motion per frame below a tenth of the field, as the
        # handling of collisions assumes.
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

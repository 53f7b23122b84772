"""T-maze: a sign at the start tells which way to turn at the end of a corridor (Bakker 2001, "Reinforcement Learning
with Long Short-Term Memory").

The rules of a step
- The corridor leads from the start eastwards to the junction, where one arm leads north and one south. Its length in
  cells is drawn for each episode, each from `low` to `high` as likely (`high` counts as `low` where it is below it).
  With `log_uniform` each doubling of `low` up to `high` is as likely, and in it each length: of 10 to 1,000 one in
  seven has fewer than 20 cells, so that there is something to learn from before long corridors are walked.
- The action goes north, east, south or west (0 to 3; on the keys up, right, down, left). Into a wall it stands still,
  which costs 0.1.
- Three bits are seen: at the start 011 where the goal lies north, 110 where it lies south; 101 in the corridor; 010 at
  the junction.
- North or south of the junction the episode ends: reward 4 in the goal's arm, -0.1 in the other one. It also ends, with
  -0.1, after four times as many steps as
  the straight way takes, which Bakker leaves open.

Optimum: 4, and the tally `right`, the share of episodes that ended in the goal's arm, 1. Without memory: at most 1.95
on average, and 0.5.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, GROUND, YELLOW, Box, Discrete, Env, device, in_box, in_disc, integer

# rows of the state: cells from the start, cells, the action NORTH or SOUTH, steps taken
PLACE, LENGTH, GOAL, STEPS, FIELDS = range(5)

NORTH, EAST, SOUTH, WEST = range(4)
RIGHT, CORRIDOR = range(2)  # tallies
PATIENCE = 4  # times the straight way's steps
VIEW = 9  # cells that the picture is wide


class Params(NamedTuple):
    """The corridor, and the rewards."""

    low: int = 10  # cells
    high: int = 10  # cells
    right: float = 4.0
    wrong: float = -0.1
    bump: float = -0.1
    log_uniform: bool = False


@device
def reset(s, p, key):
    low, high = int32(p.low), max(int32(p.low), int32(p.high))
    if p.log_uniform:
        doublings = int32(0)
        while low << (doublings + int32(1)) <= high:
            doublings += int32(1)
        low = low << integer(key, 2, doublings + int32(1))
        high = min(high, int32(2) * low - int32(1))
    s[PLACE], s[LENGTH], s[STEPS] = float32(0.0), float32(low + integer(key, 0, high - low + int32(1))), float32(0.0)
    s[GOAL] = float32(NORTH) if integer(key, 1, 2) == 0 else float32(SOUTH)


@device
def step(s, action, p, key, tally):
    place, length, steps = int32(s[PLACE]), int32(s[LENGTH]), int32(s[STEPS]) + int32(1)
    turns = int32(action) == NORTH or int32(action) == SOUTH
    ends = turns and place == length
    right = ends and int32(action) == int32(s[GOAL])
    tired = steps >= int32(PATIENCE) * (length + int32(1))
    ahead = place + int32(1 if action == EAST else -1 if action == WEST else 0)
    stands = ahead < 0 or ahead > length or ahead == place

    s[PLACE], s[STEPS] = float32(min(max(ahead, int32(0)), length)), float32(steps)
    tally[RIGHT] += float32(1.0) if right else float32(0.0)
    tally[CORRIDOR] += float32(length) if ends or tired else float32(0.0)
    if right:
        return p.right, True
    return p.wrong if ends or tired else p.bump if stands else float32(0.0), ends or tired


@device
def observe(s, obs, p):
    start, junction, north = s[PLACE] == float32(0.0), s[PLACE] == s[LENGTH], int32(s[GOAL]) == NORTH
    obs[0] = 0 if junction or (start and north) else 1
    obs[1] = 1 if junction or start else 0
    obs[2] = 0 if junction or (start and not north) else 1


@device
def pixel_shader(s, p, x, y):
    # A window that moves with the agent: the sign is seen at the start alone.
    across, up = (x - float32(0.5)) * float32(VIEW), (float32(0.5) - y) * float32(VIEW)
    if in_disc(across, up, float32(0.0), float32(0.0), float32(0.3)):
        return YELLOW
    sign = float32(1.2) if int32(s[GOAL]) == NORTH else float32(-1.2)
    if s[PLACE] == float32(0.0) and in_disc(across, up, float32(0.0), sign, float32(0.4)):
        return GREEN
    start, junction = -s[PLACE], s[LENGTH] - s[PLACE]
    if in_box(across, up, junction, float32(0.0), float32(0.5), float32(3.0)):
        return BLUE
    corridor = in_box(
        across,
        up,
        float32(0.5) * (start + junction),
        float32(0.0),
        float32(0.5) * (junction - start) + float32(0.5),
        float32(0.5),
    )
    return GREY if corridor else GROUND


ENV = Env(
    Params,
    FIELDS,
    observation=Box(3, low=0, high=1, dtype="uint8"),
    action=Discrete(4),
    time_limit=None,  # its patience ends before that
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    ranges={
        "low": (1, 1_000_000),
        "high": (1, 1_000_000),
        "right": (-1e6, 1e6),
        "wrong": (-1e6, 1e6),
        "bump": (-1e6, 1e6),
    },
    tally=("right", "corridor"),
    actions=("up", "right", "down", "left"),
    step_s=1 / 8,
)

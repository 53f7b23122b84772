"""T-maze: a sign at the start states which way to turn at the end of a corridor (Bakker 2001, "Reinforcement Learning
with Long Short-Term Memory").

Rules
- The corridor leads eastwards from the start to the junction, with one arm to the north and one to the south. Its
  length in cells is drawn uniformly from `low` to `high` for each episode (`high` counts as `low` if it is smaller).
  With `log_uniform` the length is drawn uniformly within a random doubling of `low` up to `high`: for 10 to 1,000, one
  in seven corridors has fewer than 20 cells, which gives a learning signal before long corridors are mastered.
- The action moves north, east, south or west (0 to 3; on the keys up, right, down, left). A move into a wall has no
  effect and costs 0.1.
- The observation has three bits: at the start 011 for a goal in the north, 110 for one in the south; 101 in the
  corridor; 010 at the junction.
- Moving north or south at the junction ends the episode: reward 4 in the goal's arm, -0.1 in the other one. The episode
  also ends, with -0.1, after four times the number of steps of the direct path, a limit that Bakker leaves open.

Optimum: 4, with 1 for the tally `right`, the fraction of episodes that ended in the goal's arm. Without memory: at most
1.95 on average, and 0.5.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, GROUND, YELLOW, Box, Discrete, Env, device, in_box, in_disc, integer

# rows of the state: cells from the start; length in cells; NORTH or SOUTH; steps
POSITION, LENGTH, GOAL, STEPS, FIELDS = range(5)

NORTH, EAST, SOUTH, WEST = range(4)
RIGHT, CORRIDOR = range(2)  # tallies
PATIENCE = 4  # limit of an episode in multiples of the direct path
VIEW = 9  # width of the picture in cells


class Params(NamedTuple):
    """Parameters of the T-maze: corridor and rewards."""

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
    s[POSITION], s[LENGTH], s[STEPS] = float32(0.0), float32(low + integer(key, 0, high - low + int32(1))), float32(0.0)
    s[GOAL] = float32(NORTH) if integer(key, 1, 2) == 0 else float32(SOUTH)


@device
def step(s, action, p, key, tally):
    position, length, steps = int32(s[POSITION]), int32(s[LENGTH]), int32(s[STEPS]) + int32(1)
    turns = int32(action) == NORTH or int32(action) == SOUTH
    ends = turns and position == length
    right = ends and int32(action) == int32(s[GOAL])
    timed_out = steps >= int32(PATIENCE) * (length + int32(1))
    target = position + int32(1 if action == EAST else -1 if action == WEST else 0)
    blocked = target < 0 or target > length or target == position

    s[POSITION], s[STEPS] = float32(min(max(target, int32(0)), length)), float32(steps)
    tally[RIGHT] += float32(1.0) if right else float32(0.0)
    tally[CORRIDOR] += float32(length) if ends or timed_out else float32(0.0)
    if right:
        return p.right, True
    return p.wrong if ends or timed_out else p.bump if blocked else float32(0.0), ends or timed_out


@device
def observe(s, obs, p):
    start, junction, north = s[POSITION] == float32(0.0), s[POSITION] == s[LENGTH], int32(s[GOAL]) == NORTH
    obs[0] = 0 if junction or (start and north) else 1
    obs[1] = 1 if junction or start else 0
    obs[2] = 0 if junction or (start and not north) else 1


@device
def pixel_shader(s, p, x, y):
    # Window centred on the agent: the sign is visible only at the start.
    across, up = (x - float32(0.5)) * float32(VIEW), (float32(0.5) - y) * float32(VIEW)
    if in_disc(across, up, float32(0.0), float32(0.0), float32(0.3)):
        return YELLOW
    sign = float32(1.2) if int32(s[GOAL]) == NORTH else float32(-1.2)
    if s[POSITION] == float32(0.0) and in_disc(across, up, float32(0.0), sign, float32(0.4)):
        return GREEN
    start, junction = -s[POSITION], s[LENGTH] - s[POSITION]
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
    time_limit=None,  # episodes end by PATIENCE
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

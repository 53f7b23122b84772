"""Snake: eat food to grow, without running into the wall or yourself. The arcade game (Blockade, Gremlin 1976) for one
player in a walled field.

Rules
- The action turns the snake up, right, down or left (0 to 3). An action towards its neck is ignored: the snake keeps
  its heading.
- The head moves one cell. If that leaves the board or enters the body, the snake dies; the cell that the tail leaves in
  the same step is free.
- Food makes the snake one cell longer, and new food appears on a random free cell. If none is free, the board is full
  and the game is won.
- The snake starves after as many steps without food as the board has cells.
- Reward: +1 for food, -1 for a death of any kind. The snake starts with three cells in the middle of the board, heading
  right.

Random numbers: one draw per food, draw 0 of the step or reset in which it appears. Of f free cells it selects number
`integer(key, 0, f)` in row order from the top left.

Storage: each cell holds the clock value at which the head entered it, and belongs to the body for as many steps as the
snake is long. A step reads one cell and writes one; no tail has to move. The observation has three bytes per cell, (H,
W, 3): the number of steps that the cell stays body (tail 1, head the length of the snake, at most 255), 255 at the
head, 255 at the food. The first plane encodes the order of the segments, without which a position would not determine
the future.
"""

from typing import Any, NamedTuple

from numpy import float32, int32

from operant.envs import (
    GREEN,
    GREY,
    GROUND,
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

ROW, COLUMN, HEADING, LENGTH, FOOD, CLOCK, HUNGER, FIELDS = range(8)
"""Rows of the state, all integers: position of the head, heading, length, cell of the food (-1: none), steps, steps
without food.
"""

LENGTH_AT_END, WON, HIT_WALL, HIT_ITSELF, STARVED = range(5)  # tallies

UP, RIGHT, DOWN, LEFT = range(4)
START_LENGTH = 3
MOST_CELLS = 4096  # its square, the maximum of the clock, is the limit of exact float32 counting
PLANES = 3  # bytes per cell in the observation
# cells per shard of the observation, loaded together before any store; divides the number of cells of every board
TOGETHER = 4


class Params(NamedTuple):
    """Parameters of Snake: rewards."""

    food: float = 1.0
    death: float = -1.0


@device_call
def free_cell(cells, clock, length, key):
    """Choose a free cell of the board uniformly at random; -1 if the board is full. `length` is the snake's."""
    index = int32(integer(key, 0, cells.shape[0] - length))
    for cell in range(0, cells.shape[0], TOGETHER):
        # Load several cells at once, or a GPU would wait for each. Cumulative counts of free cells:
        one = int32(1 if clock - cells[cell] >= length else 0)
        two = one + int32(1 if clock - cells[cell + 1] >= length else 0)
        three = two + int32(1 if clock - cells[cell + 2] >= length else 0)
        four = three + int32(1 if clock - cells[cell + 3] >= length else 0)
        if index < four:
            return cell + (0 if index < one else 1 if index < two else 2 if index < three else 3)
        index -= four
    return -1


@device
def write_cell(obs, cell, remaining, length, food):
    """Write the three observation bytes of a cell. `remaining` is the number of steps that the cell stays part of the
    snake: 0 or less if it is free, `length` at the head.
    """
    obs[PLANES * cell] = min(max(remaining, int32(0)), int32(255))
    obs[PLANES * cell + 1] = 255 if remaining == length else 0
    obs[PLANES * cell + 2] = 255 if cell == food else 0


def _rules(height: int, width: int) -> tuple[Any, Any]:
    """Make the device functions `reset` and `step` of Snake for a board of height x width."""
    count = height * width

    @device_call
    def reset(s, cells, workspace, p, key):
        for cell in range(count):
            cells[cell] = -count
        row, column = height // 2, width // 2
        head = row * width + column
        for k in range(START_LENGTH):
            cells[head - k] = -k
        s[ROW], s[COLUMN], s[HEADING] = float32(row), float32(column), float32(RIGHT)
        s[LENGTH], s[CLOCK], s[HUNGER] = float32(START_LENGTH), float32(0.0), float32(0.0)
        # Equivalent to `free_cell`: the body occupies consecutive cells.
        food = int32(integer(key, 0, count - START_LENGTH))
        s[FOOD] = float32(food if food <= head - START_LENGTH else int32(food + START_LENGTH))

    @device
    def step(s, cells, workspace, action, p, key, tally):
        row, column, heading, length = int32(s[ROW]), int32(s[COLUMN]), int32(s[HEADING]), int32(s[LENGTH])
        food, clock, hunger = int32(s[FOOD]), int32(s[CLOCK]) + 1, int32(s[HUNGER]) + 1
        if action != heading ^ 2:  # heading ^ 2 is the opposite direction
            heading = action
        if heading % 2 == UP:
            row += heading - 1
        else:
            column += 2 - heading

        if row < 0 or row >= height or column < 0 or column >= width:
            tally[LENGTH_AT_END] += float32(length)
            tally[HIT_WALL] += float32(1.0)
            return p.death, True
        cell = row * width + column
        if clock - cells[cell] < length:
            tally[LENGTH_AT_END] += float32(length)
            tally[HIT_ITSELF] += float32(1.0)
            return p.death, True

        cells[cell] = clock
        s[ROW], s[COLUMN], s[HEADING], s[CLOCK] = float32(row), float32(column), float32(heading), float32(clock)
        if cell != food:
            s[HUNGER] = float32(hunger)
            if hunger < count:
                return float32(0.0), False
            tally[LENGTH_AT_END] += float32(length)
            tally[STARVED] += float32(1.0)
            return p.death, True

        length += 1
        s[LENGTH], s[HUNGER] = float32(length), float32(0.0)
        s[FOOD] = float32(free_cell(cells, clock, length, key))
        if length < count:
            return p.food, False
        tally[LENGTH_AT_END] += float32(length)
        tally[WON] += float32(1.0)
        return p.food, True

    return reset, step


def _views(height: int, width: int) -> tuple[Any, Any]:
    """Make the device functions `observe` and `pixel_shader` of Snake for a board of height x width."""

    @device_call
    def observe(s, cells, obs, p, shard):
        cell = TOGETHER * shard
        length, food = int32(s[LENGTH]), int32(s[FOOD])
        last = length - int32(s[CLOCK])
        # Load all cells before the first store: cells and obs might alias.
        one, two, three, four = cells[cell], cells[cell + 1], cells[cell + 2], cells[cell + 3]
        write_cell(obs, cell, int32(last + one), length, food)
        write_cell(obs, cell + 1, int32(last + two), length, food)
        write_cell(obs, cell + 2, int32(last + three), length, food)
        write_cell(obs, cell + 3, int32(last + four), length, food)

    @device_call
    def pixel_shader(s, cells, p, x, y):
        # Board with a surrounding wall of half a cell.
        side = float32(max(height, width) + 1)
        right, down = (
            x * side - float32(0.5) * (side - float32(width)),
            y * side - float32(0.5) * (side - float32(height)),
        )
        if right < float32(0.0) or right >= float32(width) or down < float32(0.0) or down >= float32(height):
            within_wall = in_box(
                right,
                down,
                float32(width / 2),
                float32(height / 2),
                float32(width / 2 + 0.5),
                float32(height / 2 + 0.5),
            )
            return GREY if within_wall else GROUND
        row, column = int(down), int(right)
        cell = row * width + column
        across, below, half = right - float32(column) - float32(0.5), down - float32(row) - float32(0.5), float32(0.36)
        if cell == int(s[FOOD]):
            return RED if in_disc(across, below, float32(0.0), float32(0.0), float32(0.4)) else GROUND
        born, last = cells[cell], int(s[CLOCK]) - int(s[LENGTH])
        if born <= last:
            return GROUND
        # A segment connects to its predecessor and successor, whose clock values differ by one.
        outside_across, outside_below = abs(across) > half, abs(below) > half
        if outside_across and outside_below:
            return GROUND
        row += (1 if below > half else -1) if outside_below else 0
        column += (1 if across > half else -1) if outside_across else 0
        if outside_across or outside_below:
            if row < 0 or row >= height or column < 0 or column >= width:
                return GROUND
            other = cells[row * width + column]
            if other <= last or abs(other - born) != 1:
                return GROUND
        return YELLOW if cell == int(s[ROW]) * width + int(s[COLUMN]) else GREEN

    return observe, pixel_shader


def snake(height: int = 10, width: int = 10) -> Env:
    """Declare the environment of Snake on a board with even height and width, at least 4 each and at most 4,096 cells.
    Raises ValueError for other sizes.

    An even board has a Hamiltonian cycle, so that every game can be won. A user's file that ends in `ENV = snake(16,
    16)` is an environment.
    """
    if (
        not (isinstance(height, int) and isinstance(width, int))
        or min(height, width) < 4
        or height % 2
        or width % 2
        or height * width > MOST_CELLS
    ):
        raise ValueError(
            f"height and width must be even and at least 4, with at most {MOST_CELLS:,} cells: got {height} x {width}"
        )
    count = height * width
    (reset, step), (observe, pixel_shader) = _rules(height, width), _views(height, width)

    return Env(
        Params,
        FIELDS,
        observation=Box(PLANES * count, low=0, high=255, dtype="uint8", shape=(height, width, PLANES)),
        action=Discrete(4),
        time_limit=None,  # games end by starvation at the latest
        reset=reset,
        step=step,
        observe=observe,
        pixel_shader=pixel_shader,
        ranges={
            "food": (-1e6, 1e6),
            "death": (-1e6, 1e6),
        },
        # The clock is at most count^2: at most `count` steps for each food.
        observation_shards=count // TOGETHER,
        int_state=IntState(count, "int16" if count * count < 2**15 else "int32"),
        tally=("length", "won", "hit_wall", "hit_itself", "starved"),
        actions=("up", "right", "down", "left"),
        step_s=1 / 8,
    )


ENV = snake()

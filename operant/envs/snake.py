"""Snake: eat to grow, and run into neither the wall nor yourself. The game of the arcades (Blockade, Gremlin 1976), for
one, in a walled field.

The rules of a step
- The action turns the snake up, right, down or left (0 to 3). It cannot turn back into its neck: told to, it goes on
  ahead.
- Its head moves a cell. Beyond the wall, or on its own body, it dies where it was; the cell that its tail leaves in the
  same step is free.
- On food it grows by a cell, and new food appears on one of the free cells, each as likely; with none left the board is
  full and the game is won.
- After as many steps without food as the board has cells it starves.
- Reward: +1 for food, -1 for a death of any kind. It begins three cells long in the middle of the board, heading right.

Random numbers: one draw for each food, draw 0 of the step or the reset that it appears in: with f free cells it is the
one numbered `integer(key, 0, f)` from 0, counted along the rows from the top left.

What is kept, and why. Each cell keeps the clock's reading when the head came into it, and is body for as many steps
after that as the snake is long: a step reads one cell and writes one, and there is no tail to move. The observation has
three bytes a cell, (H, W, 3): how many steps the cell stays body (the tail 1, the head as many as the snake is long, or
255 where that is more), 255 at the head, 255 at the food. The first tells the order of the segments, without which a
position would not tell what can happen next.
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
"""Rows of the state, whole numbers all: the head's place, where it heads, cells of the snake, the food's cell (-1:
none), steps, steps without food.
"""

LENGTH_AT_END, WON, HIT_WALL, HIT_ITSELF, STARVED = range(5)  # tallies

UP, RIGHT, DOWN, LEFT = range(4)
START_LENGTH = 3
MOST_CELLS = 4096  # whose square, the most that the clock reads, is the largest whole number that a float32 counts to
PLANES = 3  # bytes of a cell in the observation
# cells of a shard of the observation, which are read before any is written; a board has a whole number of such shards
TOGETHER = 4


class Params(NamedTuple):
    """Rewards."""

    food: float = 1.0
    death: float = -1.0


@device_call
def free_cell(cells, clock, length, key):
    """A cell that is not body, each as likely; -1 where there is none."""
    ahead = int32(integer(key, 0, cells.shape[0] - length))
    for cell in range(0, cells.shape[0], TOGETHER):
        # Several cells are asked for at once, or a GPU would wait for each. How many of the first one, two and so on
        # are free:
        one = int32(1 if clock - cells[cell] >= length else 0)
        two = one + int32(1 if clock - cells[cell + 1] >= length else 0)
        three = two + int32(1 if clock - cells[cell + 2] >= length else 0)
        four = three + int32(1 if clock - cells[cell + 3] >= length else 0)
        if ahead < four:
            return cell + (0 if ahead < one else 1 if ahead < two else 2 if ahead < three else 3)
        ahead -= four
    return -1


@device
def paint(obs, cell, remaining, length, food):
    """Write a cell's three bytes. `remaining` is how many steps it stays body, 0 or less where it is none: of the
    head's as many as the snake is long.
    """
    obs[PLANES * cell] = min(max(remaining, int32(0)), int32(255))
    obs[PLANES * cell + 1] = 255 if remaining == length else 0
    obs[PLANES * cell + 2] = 255 if cell == food else 0


def _rules(height: int, width: int) -> tuple[Any, Any]:
    """`reset` and `step` of a board."""
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
        # As `free_cell`: all cells before the tail are free, and all after the head.
        food = int32(integer(key, 0, count - START_LENGTH))
        s[FOOD] = float32(food if food <= head - START_LENGTH else int32(food + START_LENGTH))

    @device
    def step(s, cells, workspace, action, p, key, tally):
        row, column, heading, length = int32(s[ROW]), int32(s[COLUMN]), int32(s[HEADING]), int32(s[LENGTH])
        food, clock, hunger = int32(s[FOOD]), int32(s[CLOCK]) + 1, int32(s[HUNGER]) + 1
        if action != heading ^ 2:  # the opposite of up is down, of right left
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
    """`observe` and `pixel_shader` of a board."""

    @device_call
    def observe(s, cells, obs, p, shard):
        cell = TOGETHER * shard
        length, food = int32(s[LENGTH]), int32(s[FOOD])
        last = length - int32(s[CLOCK])
        # A compiler cannot know that cells and obs lie apart, and would wait for each cell before it writes the next.
        one, two, three, four = cells[cell], cells[cell + 1], cells[cell + 2], cells[cell + 3]
        paint(obs, cell, int32(last + one), length, food)
        paint(obs, cell + 1, int32(last + two), length, food)
        paint(obs, cell + 2, int32(last + three), length, food)
        paint(obs, cell + 3, int32(last + four), length, food)

    @device_call
    def pixel_shader(s, cells, p, x, y):
        # The board, and a wall around it of half a cell.
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
        # A segment reaches out to the ones before and behind it, whose heads came a step later and earlier: so one sees
        # how it winds.
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
    """The game on a board of any even height and width, at least 4, and at most 4,096 cells in all. Raises ValueError
    for others.

    An even board has a round tour of its cells, so that every game can be won. A file of a user's own that ends in `ENV
    = snake(16, 16)` is an environment.
    """
    if (
        not (isinstance(height, int) and isinstance(width, int))
        or min(height, width) < 4
        or height % 2
        or width % 2
        or height * width > MOST_CELLS
    ):
        raise ValueError(
            f"a board's height and width are even and at least 4, and it has at most {MOST_CELLS:,} cells: not "
            f"{height} x {width}"
        )
    count = height * width
    (reset, step), (observe, pixel_shader) = _rules(height, width), _views(height, width)

    return Env(
        Params,
        FIELDS,
        observation=Box(PLANES * count, low=0, high=255, dtype="uint8", shape=(height, width, PLANES)),
        action=Discrete(4),
        time_limit=None,  # it starves before that
        reset=reset,
        step=step,
        observe=observe,
        pixel_shader=pixel_shader,
        ranges={
            "food": (-1e6, 1e6),
            "death": (-1e6, 1e6),
        },
        # The clock never passes a board's worth of steps for each cell.
        observation_shards=count // TOGETHER,
        int_state=IntState(count, "int16" if count * count < 2**15 else "int32"),
        tally=("length", "won", "hit_wall", "hit_itself", "starved"),
        actions=("up", "right", "down", "left"),
        step_s=1 / 8,
    )


ENV = snake()

"""Go against a greedy opponent, which answers in the same step. Rules: Tromp & Taylor's, but suicide is forbidden and a
ko is a simple one. The opponent and the limit of moves are as PufferLib's go has them (pufferlib/ocean/go).

The rules of a game
- The agent is black and begins on an empty board. An action is a point, counted along the rows from the top left, or,
  the last one, a pass. A stone is put on an empty point; then the opponent's chains without liberties are taken off. A
  move after which its own chain would have no liberty is illegal.
- Ko: no move may bring back the position before the opponent's last one. That is what a stone alone in having taken one
  stone, and left with that one liberty, forbids for one move. Longer cycles (a triple ko) are left to the limit of
  moves, as in PufferLib: to forbid every position of the game would take the keys of up to 3 size^2 of them a lane, ten
  times the board, and a search through them for each point of the mask.
- **An illegal action is a pass**, and leaves the board as it is.
- The game ends by two passes in a row, of whichever two, or after 3 size^2 plies (a ply is a move or a pass of one
  side; a step is two, or one at the end).
- The score is by area, dead stones left standing: a side's stones, and the empty points from which only its stones are
  reached. White has komi beside it.
- Reward: in the step that ends the game 1 for a win, 0 for a draw (which a komi of half a point rules out), and -1 for
  a loss, less `Params.rout` times the share by which it was lost, of all points and komi: nearly all games of a
  beginner's are lost, and it learns from losing them by less. So **the share of wins is at least (1 + the mean return)
  / 2**, and just that where `rout` and `passing` are 0.
- On the way, `Params.stone` for each stone by which black's lead in stones grows in a step, and at the end as much less
  as the lead has brought till then: a capture pays when it happens, and the sum over a game is what its end alone would
  give (Ng, Harada & Russell 1999: such a hint changes no optimal policy, but for the discount). And each pass costs
  `Params.passing`; a win gives that back. Without it, doing nothing is what is learnt first.

The opponent, white. It plays at a point of the first kind of these of which it has a legal one, each of that kind as
likely:
1. one that takes a chain off; 2. the last liberty of a chain of its own; 3. to 5. a liberty of a chain of black's with
   2, 3, 4 liberties; 6. any. Only where it has no legal move does it pass. (PufferLib's `hard` opponent: but that one
   mixes 1 and 2, and takes the first point where this one draws.)

Random numbers: draw 0 of the step in which the opponent chooses a point among n: the one numbered `integer(key, 0, n)`,
counted along the rows.

The observation has five bytes a point, (size, size, 5), so that a convolutional network can read it: 255 for a stone of
black's; 255 for one of white's; the liberties l of a stone's chain as 255 >> (l - 1), so 255 in atari; 255 for white's
last stone (there is none where it passed), 128 for the point that ko forbids; and, everywhere the same, the plies
played, of the limit, times 255.

What is kept, and why. Each point has two cells: how many liberties its chain has, negative where it is white's, 0 where
it is empty; and its chain's name, which is one of its points, or -1. Whether a move is legal, what it takes, and how
urgent it seems to the opponent can then be told from the four neighbours. A move costs three passes over the board:
over stones that are taken off or renamed, over empty points to count liberties, over stones to write them down.
"""

from typing import Any, NamedTuple

from numpy import float32, int32

from operant.envs import GROUND, RED, Box, Discrete, Env, IntState, device, device_call, in_box, in_disc, integer

PLIES, KO, LAST, PASSED, LEAD, SKIPPED, FIELDS = range(7)
"""Rows of the state, whole numbers all: plies played; the point that ko forbids black, and white's last stone (-1:
none); whether white passed; black's stones less white's; how often black passed.
"""

WON, MARGIN, CAPTURES, LOST, PLIES_AT_END, PASSES = range(6)  # tallies

BLACK, WHITE = 1, -1
EMPTY, NO_CHAIN = 0, -1  # liberties and name of what is not a chain
PLANES = 5  # bytes of a point in the observation
# the liberties of what lies beyond the edge, for either side a chain of the other's that nothing can be done about
BEYOND = 100

COLUMNS = "abcdefghjklmnopqrst"  # as players name them, from the left, without i; rows are numbered from the bottom

# the opponent's kinds of points; a black chain's liberties, 2 to 4, are those between
TAKE, SAVE, ANY, ILLEGAL = 0, 1, 5, 6

WOOD = (float32(0.82), float32(0.65), float32(0.38))
LINE = (float32(0.36), float32(0.26), float32(0.13))
BLACK_STONE = (float32(0.07), float32(0.07), float32(0.08))
WHITE_STONE = (float32(0.96), float32(0.95), float32(0.92))


class Params(NamedTuple):
    """White's points for moving second; how much worse than by a hair it is to lose the whole board; the hint for a
    stone; what a pass costs.
    """

    komi: float = 7.5
    rout: float = 1.0
    stone: float = 0.02
    passing: float = 0.02


@device
def neighbours(board, size, first, row, column, beyond):
    """The cells above, left, right and below of a point, of the kind that begins at cell `first`; `beyond` where the
    board ends.
    """
    cell = first + row * size + column
    above = int32(board[cell - size]) if row > 0 else int32(beyond)
    left = int32(board[cell - 1]) if column > 0 else int32(beyond)
    right = int32(board[cell + 1]) if column < size - 1 else int32(beyond)
    below = int32(board[cell + size]) if row < size - 1 else int32(beyond)
    return above, left, right, below


@device
def opens(liberties, colour):
    """Whether a neighbour lets `colour` move to a point: it is empty, a chain of its own with another liberty, or one
    of the other's that it takes.
    """
    own = liberties * colour
    return own == 0 or own > 1 or own == -1


@device_call
def may_play(cells, size, point, colour, ko):
    """Whether `colour` may put a stone on a point of the board."""
    if cells[point] != EMPTY or point == ko:
        return False
    above, left, right, below = neighbours(cells, size, 0, point // size, point % size, -colour * BEYOND)
    return opens(above, colour) or opens(left, colour) or opens(right, colour) or opens(below, colour)


@device
def within(name, first, second, third, fourth):
    """Whether a chain is one of four."""
    return name == first or name == second or name == third or name == fourth  # numba has no `in` for several types


@device_call
def count_liberties(cells, workspace, size):
    """Write each stone's chain's liberties, from the names of the chains and the stones' colours. `workspace` has a 0
    for each name.
    """
    count = size * size
    for row in range(size):
        for column in range(size):
            if cells[count + row * size + column] == NO_CHAIN:
                above, left, right, below = neighbours(cells, size, count, row, column, NO_CHAIN)
                if above != NO_CHAIN:
                    workspace[above] += 1
                if left != NO_CHAIN and left != above:
                    workspace[left] += 1
                if right != NO_CHAIN and not within(right, above, left, NO_CHAIN, NO_CHAIN):
                    workspace[right] += 1
                if below != NO_CHAIN and not within(below, above, left, right, NO_CHAIN):
                    workspace[below] += 1
    for point in range(count):
        name, liberties = cells[count + point], cells[point]
        if name != NO_CHAIN:
            cells[point] = workspace[name] if liberties > 0 else -workspace[name]


@device_call
def play(cells, workspace, size, point, colour):
    """Put a stone on a point where it may be, and take off what that leaves without liberties. How many stones, and the
    point that ko now forbids, or -1.
    """
    count = size * size
    row, column = point // size, point % size
    liberties = neighbours(cells, size, 0, row, column, EMPTY)
    names = neighbours(cells, size, count, row, column, NO_CHAIN)
    # By direction: the chain to be taken, the chain to be joined.
    taken_0, joined_0 = (
        names[0] if liberties[0] == -colour else NO_CHAIN,
        names[0] if liberties[0] * colour > 0 else NO_CHAIN,
    )
    taken_1, joined_1 = (
        names[1] if liberties[1] == -colour else NO_CHAIN,
        names[1] if liberties[1] * colour > 0 else NO_CHAIN,
    )
    taken_2, joined_2 = (
        names[2] if liberties[2] == -colour else NO_CHAIN,
        names[2] if liberties[2] * colour > 0 else NO_CHAIN,
    )
    taken_3, joined_3 = (
        names[3] if liberties[3] == -colour else NO_CHAIN,
        names[3] if liberties[3] * colour > 0 else NO_CHAIN,
    )
    taken, place = 0, -1
    for other in range(count):
        name = cells[count + other]
        workspace[other] = 0
        if name != NO_CHAIN:
            if within(name, taken_0, taken_1, taken_2, taken_3):
                cells[other] = EMPTY
                cells[count + other] = NO_CHAIN
                taken, place = taken + 1, other
            elif within(name, joined_0, joined_1, joined_2, joined_3):
                cells[count + other] = point
    cells[point] = colour
    cells[count + point] = point
    count_liberties(cells, workspace, size)
    alone = max(joined_0, joined_1, joined_2, joined_3) == NO_CHAIN
    return taken, place if taken == 1 and alone and cells[point] == colour else -1


@device
def urgency(liberties):
    """The kind that a point beside these liberties is, to white, if it may play there."""
    if liberties == BLACK:
        return TAKE
    if liberties == WHITE:
        return SAVE
    return liberties if 1 < liberties < ANY else ANY


@device_call
def choose(cells, workspace, size, ko, key):
    """The point that white plays, or -1: a pass. `workspace` keeps each point's kind between the two passes."""
    best, found = ILLEGAL, 0
    for row in range(size):
        for column in range(size):
            point, kind = row * size + column, ILLEGAL
            if cells[point] == EMPTY and point != ko:
                above, left, right, below = neighbours(cells, size, 0, row, column, BEYOND)
                if opens(above, WHITE) or opens(left, WHITE) or opens(right, WHITE) or opens(below, WHITE):
                    kind = min(urgency(above), urgency(left), urgency(right), urgency(below))
            workspace[point] = kind
            found = 1 if kind < best else found + 1 if kind == best else found
            best = min(kind, best)
    if best == ILLEGAL:
        return -1
    ahead = int32(integer(key, 0, found))
    for point in range(size * size):
        if workspace[point] == best:
            if ahead == 0:
                return point
            ahead -= 1
    return -1


@device
def root(workspace, point):
    """The point that stands for an empty one's region, shortening the way to it."""
    while workspace[point] >= 0:
        above = workspace[point]
        if workspace[above] >= 0:
            workspace[point] = workspace[above]
        point = above
    return point


@device
def join(workspace, other, point):
    """Make `point`, which stands for its region, stand for another's too."""
    if other != point:
        workspace[point] = -1 - ((-1 - workspace[point]) | (-1 - workspace[other]))
        workspace[other] = point


@device_call
def area(cells, workspace, size):
    """Black's area less white's.

    In `workspace` an empty point names another of its region, and the one that stands for the region holds -1, less 1
    for black beside it, less 2 for white.
    """
    lead = 0
    for row in range(size):
        for column in range(size):
            point = row * size + column
            if cells[point] != EMPTY:
                lead += 1 if cells[point] > 0 else -1
                continue
            above, left, right, below = neighbours(cells, size, 0, row, column, EMPTY)
            black = above > 0 or left > 0 or right > 0 or below > 0
            white = above < 0 or left < 0 or right < 0 or below < 0
            workspace[point] = -1 - ((1 if black else 0) | (2 if white else 0))
            if row > 0 and above == EMPTY:
                join(workspace, root(workspace, point - size), point)
            if column > 0 and left == EMPTY:
                join(workspace, root(workspace, point - 1), point)
    for point in range(size * size):
        if cells[point] == EMPTY:
            beside = -1 - workspace[root(workspace, point)]
            lead += (1 if beside == 1 else 0) - (1 if beside == 2 else 0)
    return lead


@device_call
def shade_board(cells, size, ko, last, x, y):
    """The colour of a point of the picture: a board with lines and dots, stones, a mark on white's last one, and a
    small box where ko forbids black to play.
    """
    side = float32(size + 1)
    right, down = x * side - float32(1.0), y * side - float32(1.0)  # the board's first point is at (0, 0)
    edge = float32(size - 1)
    if min(right, down) < float32(-0.75) or max(right, down) > edge + float32(0.75):
        return GROUND
    column = min(max(int(right + float32(0.5)), 0), size - 1)
    row = min(max(int(down + float32(0.5)), 0), size - 1)
    across, below = right - float32(column), down - float32(row)
    point = row * size + column
    if cells[point] != EMPTY and in_disc(across, below, float32(0.0), float32(0.0), float32(0.47)):
        if point == last and in_disc(across, below, float32(0.0), float32(0.0), float32(0.2)):
            return RED
        return BLACK_STONE if cells[point] > 0 else WHITE_STONE
    if point == ko and in_box(across, below, float32(0.0), float32(0.0), float32(0.28), float32(0.28)):
        return RED
    # A line is a pixel of 64 where that leaves room. Slightly beside the middle, so that it never falls on two.
    thin = min(side * float32(1.0 / 128.0), float32(0.11))
    beside = float32(0.02) * thin
    if (
        min(right, down) > -thin
        and max(right, down) < edge + thin
        and min(abs(across + beside), abs(below + beside)) < thin
    ):
        return LINE
    # The dots: the centre, and four near the corners.
    inset, middle = 2 if size < 12 else 3, size // 2
    near = row in (inset, size - 1 - inset) and column in (inset, size - 1 - inset) and size > 6
    if (near or (row == middle and column == middle and size % 2 == 1)) and in_disc(
        across, below, float32(0.0), float32(0.0), float32(2.5) * thin
    ):
        return LINE
    return WOOD


def _rules(size: int) -> tuple[Any, Any]:
    """`reset` and `step` of a board of `size` by `size`."""
    count, limit = size * size, 3 * size * size

    @device_call
    def reset(s, cells, workspace, p, key):
        for point in range(count):
            cells[point] = EMPTY
            cells[count + point] = NO_CHAIN
        s[PLIES], s[KO], s[LAST], s[PASSED] = float32(0.0), float32(-1.0), float32(-1.0), float32(0.0)
        s[LEAD], s[SKIPPED] = float32(0.0), float32(0.0)

    @device_call
    def step(s, cells, workspace, action, p, key, tally):
        plies, passed, before = int32(s[PLIES]) + 1, s[PASSED] > float32(0.0), int32(s[LEAD])
        lead, taken, lost, margin, answer, skipped = before, 0, 0, float32(0.0), -1, s[SKIPPED]
        moves = action >= 0 and action < count and may_play(cells, size, action, BLACK, int32(s[KO]))
        ko = -1
        if moves:
            taken, ko = play(cells, workspace, size, action, BLACK)
            lead += 1 + taken
        ended = plies == limit or (passed and not moves)
        if not ended:
            plies += 1
            answer = choose(cells, workspace, size, ko, key)
            ko = -1
            if answer >= 0:
                lost, ko = play(cells, workspace, size, answer, WHITE)
                lead -= 1 + lost
            ended = plies == limit or (answer < 0 and not moves)
        else:
            ko = -1  # it forbade white, who moves no more
        if ended:
            margin = float32(area(cells, workspace, size)) - p.komi

        s[PLIES], s[KO], s[LAST], s[LEAD] = float32(plies), float32(ko), float32(answer), float32(lead)
        s[PASSED] = float32(1.0) if answer < 0 else float32(0.0)
        skips = float32(0.0) if moves else float32(1.0)
        s[SKIPPED] = skipped + skips
        won = ended and margin > float32(0.0)
        tally[WON] += float32(1.0) if won else float32(0.0)
        tally[MARGIN] += margin if ended else float32(0.0)
        tally[CAPTURES] += float32(taken)
        tally[LOST] += float32(lost)
        tally[PLIES_AT_END] += float32(plies) if ended else float32(0.0)
        tally[PASSES] += skips
        loss = float32(-1.0) + p.rout * margin / (float32(count) + p.komi) if margin < float32(0.0) else float32(0.0)
        return (float32(1.0) + p.passing * skipped if won else loss - p.passing * skips) + p.stone * float32(
            (0 if ended else lead) - before
        ), ended

    return reset, step


def _views(size: int) -> tuple[Any, Any, Any]:
    """`observe`, `legal` and `pixel_shader` of a board of `size` by `size`."""
    count, limit = size * size, 3 * size * size

    @device_call
    def observe(s, cells, obs, p, shard):
        """A shard is a row of the board."""
        last, ko, clock = int32(s[LAST]), int32(s[KO]), int32(s[PLIES]) * 255 // limit
        for point in range(shard * size, (shard + 1) * size):
            liberties, first = int32(cells[point]), PLANES * point
            obs[first] = 255 if liberties > 0 else 0
            obs[first + 1] = 255 if liberties < 0 else 0
            shift = liberties - 1 if liberties > 0 else -1 - liberties  # -1 where there is no stone
            obs[first + 2] = 255 >> shift if 0 <= shift < 8 else 0
            obs[first + 3] = 255 if point == last else 128 if point == ko else 0
            obs[first + 4] = clock

    @device_call
    def legal(s, cells, mask, p, shard):
        """A shard is a row of the board; the last has the pass, too."""
        ko = int32(s[KO])
        for column in range(size):
            point = shard * size + column
            above, left, right, below = neighbours(cells, size, 0, shard, column, -BLACK * BEYOND)
            allowed = opens(above, BLACK) or opens(left, BLACK) or opens(right, BLACK) or opens(below, BLACK)
            mask[point] = 1 if allowed and cells[point] == EMPTY and point != ko else 0
        if shard == size - 1:
            mask[count] = 1

    @device_call
    def pixel_shader(s, cells, p, x, y):
        return shade_board(cells, size, int32(s[KO]), int32(s[LAST]), x, y)

    return observe, legal, pixel_shader


def go(size: int = 9) -> Env:
    """The game on a board of `size` by `size`, 5 to 19. Raises ValueError for others.

    A file of a user's own that ends in `ENV = go(13)` is an environment.
    """
    if not isinstance(size, int) or not 5 <= size <= 19:
        raise ValueError(f"a board's size is 5 to 19, not {size}")
    count = size * size
    (reset, step), (observe, legal, pixel_shader) = _rules(size), _views(size)
    return Env(
        Params,
        FIELDS,
        observation=Box(PLANES * count, low=0, high=255, dtype="uint8", shape=(size, size, PLANES)),
        action=Discrete(count + 1),
        time_limit=None,  # plies are counted by the rules, which end the game by the score
        reset=reset,
        step=step,
        observe=observe,
        legal=legal,
        pixel_shader=pixel_shader,
        observation_shards=size,
        int_state=IntState(2 * count, "int8" if count < 128 else "int16"),
        workspace=count,
        tally=("won", "margin", "captures", "lost", "plies", "passes"),
        actions=(*(f"{COLUMNS[point % size]}{size - point // size}" for point in range(count)), "pass"),
        turns=True,
        step_s=1 / 2,
        # What a loss is measured by is the board and komi together.
        ranges={
            "komi": (float(-(count // 2)), float(count)),
            "rout": (-1e6, 1e6),
            "stone": (-1e6, 1e6),
            "passing": (-1e6, 1e6),
        },
    )


ENV = go()

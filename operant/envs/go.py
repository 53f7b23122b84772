"""Go against a greedy opponent, which answers in the same step. Tromp-Taylor rules, except that suicide is forbidden
and only simple ko applies. The opponent and the limit of moves follow PufferLib's go (pufferlib/ocean/go).

Rules
- The agent is black and starts on an empty board. An action is a point, in row order from the top left, or a pass, the
  last action. A stone is placed on an empty point; then the opponent's chains without liberties are removed. A move
  after which its own chain has no liberty is illegal.
- Ko: no move may recreate the position before the opponent's last move. The rule applies for one move after a single
  stone has captured one stone and is left with that one liberty. Longer cycles (triple ko) are left to the limit of
  moves, as in PufferLib: positional superko would need the hashes of up to 3 size^2 positions per lane, ten times the
  board, and a search through them for each point of the mask.
- **An illegal action is a pass** and leaves the board unchanged.
- The game ends after two consecutive passes, of either side, or after 3 size^2 plies (a ply is a move or a pass of one
  side; a step is two plies, or one at the end).
- Area scoring, with dead stones left on the board: a side's stones, and the empty points that only its stones reach.
  White also gets komi.
- Terminal reward: 1 for a win, 0 for a draw (impossible with a fractional komi), and for a loss -1 minus `Params.rout`
  times the margin as a fraction of all points and komi. Beginners lose nearly all games, and this lets them learn from
  losing by less. Therefore **the win rate is at least (1 + the mean return) / 2**, with equality if `rout` and
  `passing` are 0.
- Intermediate reward: `Params.stone` for each stone by which black's lead in stones grows in a step, paid back at the
  end: captures pay when they happen, and the sum over a game is unchanged (potential-based shaping, Ng, Harada &
  Russell 1999: it preserves optimal policies, apart from the discount). Each pass costs `Params.passing`; a win pays
  that back. Without this cost, passing is learnt first.

Opponent (white). It plays a random legal point of the first category that has one:

1. a point that captures a chain,
2. the last liberty of one of its chains,
3. a liberty of a black chain with 2 liberties,
4. a liberty of a black chain with 3 liberties,
5. a liberty of a black chain with 4 liberties,
6. any point.

It passes only without a legal move. (PufferLib's `hard` opponent, except that that one merges categories 1 and 2 and
plays the first point instead of a random one.)

Random numbers: draw 0 of the step in which the opponent chooses among n points selects number `integer(key, 0, n)` in
row order.

Observation: five bytes per point, (size, size, 5), for convolutional networks. 255 for a black stone; 255 for a white
stone; 255 >> (l - 1) for a stone whose chain has l liberties, so 255 in atari; 255 for white's last stone (none after a
pass) and 128 for the point forbidden by ko; and, equal for all points, the plies played as a fraction of the limit,
times 255.

Storage: each point has two cells: the liberties of its chain, negative for white, 0 for an empty point; and the chain's
id, which is one of its points, or -1. The four neighbours then determine whether a move is legal, what it captures, and
its category for the opponent. A move takes three passes over the board: remove or relabel stones, count liberties at
empty points, write them to the stones.
"""

from typing import Any, NamedTuple

from numpy import float32, int32

from operant.envs import GROUND, RED, Box, Discrete, Env, IntState, device, device_call, in_box, in_disc, integer

PLIES, KO, LAST, PASSED, LEAD, SKIPPED, FIELDS = range(7)
"""Rows of the state, all integers: plies; point forbidden to black by ko and white's last stone (-1: none); 1 if white
passed; black's stones minus white's; passes of black.
"""

WON, MARGIN, CAPTURES, LOST, PLIES_AT_END, PASSES = range(6)  # tallies

BLACK, WHITE = 1, -1
EMPTY, NO_CHAIN = 0, -1  # liberties and chain id of an empty point
PLANES = 5  # bytes per point in the observation
# liberties of points beyond the edge: for either side an opponent's chain that cannot be captured
BEYOND = 100

COLUMNS = "abcdefghjklmnopqrst"  # columns in Go notation, without i; rows are numbered from the bottom

# the opponent's categories of points; the values 2 to 4 between are the liberties of a black chain
TAKE, SAVE, ANY, ILLEGAL = 0, 1, 5, 6

WOOD = (float32(0.82), float32(0.65), float32(0.38))
LINE = (float32(0.36), float32(0.26), float32(0.13))
BLACK_STONE = (float32(0.07), float32(0.07), float32(0.08))
WHITE_STONE = (float32(0.96), float32(0.95), float32(0.92))


class Params(NamedTuple):
    """Parameters of Go: komi and rewards."""

    komi: float = 7.5  # points for white
    rout: float = 1.0  # extra penalty for losing the whole board
    stone: float = 0.02  # shaping reward per stone of lead
    passing: float = 0.02  # cost of a pass


@device
def neighbours(board, size, first, row, column, beyond):
    """Read the four values above, left, right and below of a point, from the size x size values that begin at
    `board[first]`; `beyond` stands for points off the board.
    """
    cell = first + row * size + column
    above = int32(board[cell - size]) if row > 0 else int32(beyond)
    left = int32(board[cell - 1]) if column > 0 else int32(beyond)
    right = int32(board[cell + 1]) if column < size - 1 else int32(beyond)
    below = int32(board[cell + size]) if row < size - 1 else int32(beyond)
    return above, left, right, below


@device
def allows_move(liberties, colour):
    """Whether one neighbour makes a move of `colour` (1 black, -1 white) legal, given its liberties, positive for
    black: it is empty, a friendly chain with another liberty, or an enemy chain that the move captures.
    """
    own = liberties * colour
    return own == 0 or own > 1 or own == -1


@device_call
def may_play(cells, size, point, colour, ko):
    """Whether a move of `colour` (1 black, -1 white) at a point of the size x size board `cells` is legal. `ko` is the
    point that ko forbids, or -1.
    """
    if cells[point] != EMPTY or point == ko:
        return False
    above, left, right, below = neighbours(cells, size, 0, point // size, point % size, -colour * BEYOND)
    return (
        allows_move(above, colour)
        or allows_move(left, colour)
        or allows_move(right, colour)
        or allows_move(below, colour)
    )


@device
def is_one_of(chain, first, second, third, fourth):
    """Whether the chain id `chain` equals one of four others."""
    return chain == first or chain == second or chain == third or chain == fourth  # numba: no `in` for mixed types


@device_call
def count_liberties(cells, workspace, size):
    """Count the liberties of every chain of stones and write them, signed by colour, to the cells of its stones. Chain
    ids must be up to date, and `workspace` 0 for each of them.
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
                if right != NO_CHAIN and not is_one_of(right, above, left, NO_CHAIN, NO_CHAIN):
                    workspace[right] += 1
                if below != NO_CHAIN and not is_one_of(below, above, left, right, NO_CHAIN):
                    workspace[below] += 1
    for point in range(count):
        chain, liberties = cells[count + point], cells[point]
        if chain != NO_CHAIN:
            cells[point] = workspace[chain] if liberties > 0 else -workspace[chain]


@device_call
def play(cells, workspace, size, point, colour):
    """Place a stone of `colour` (1 black, -1 white) at a legal point and remove captured chains. Returns the number of
    stones captured, and the point that ko now forbids or -1.
    """
    count = size * size
    row, column = point // size, point % size
    liberties = neighbours(cells, size, 0, row, column, EMPTY)
    chains = neighbours(cells, size, count, row, column, NO_CHAIN)
    # By direction: the chain to capture, the chain to join.
    captured_0, joined_0 = (
        chains[0] if liberties[0] == -colour else NO_CHAIN,
        chains[0] if liberties[0] * colour > 0 else NO_CHAIN,
    )
    captured_1, joined_1 = (
        chains[1] if liberties[1] == -colour else NO_CHAIN,
        chains[1] if liberties[1] * colour > 0 else NO_CHAIN,
    )
    captured_2, joined_2 = (
        chains[2] if liberties[2] == -colour else NO_CHAIN,
        chains[2] if liberties[2] * colour > 0 else NO_CHAIN,
    )
    captured_3, joined_3 = (
        chains[3] if liberties[3] == -colour else NO_CHAIN,
        chains[3] if liberties[3] * colour > 0 else NO_CHAIN,
    )
    captured, captured_point = 0, -1
    for other in range(count):
        chain = cells[count + other]
        workspace[other] = 0
        if chain != NO_CHAIN:
            if is_one_of(chain, captured_0, captured_1, captured_2, captured_3):
                cells[other] = EMPTY
                cells[count + other] = NO_CHAIN
                captured, captured_point = captured + 1, other
            elif is_one_of(chain, joined_0, joined_1, joined_2, joined_3):
                cells[count + other] = point
    cells[point] = colour
    cells[count + point] = point
    count_liberties(cells, workspace, size)
    alone = max(joined_0, joined_1, joined_2, joined_3) == NO_CHAIN
    return captured, captured_point if captured == 1 and alone and cells[point] == colour else -1


@device
def urgency(liberties):
    """Category of a point for the opponent (white), from TAKE (0, most urgent) to ANY (5), given the liberties of one
    neighbouring chain, positive for black.
    """
    if liberties == BLACK:
        return TAKE
    if liberties == WHITE:
        return SAVE
    return liberties if 1 < liberties < ANY else ANY


@device_call
def choose_reply(cells, workspace, size, ko, key):
    """Choose the point that white plays: a random legal one of the most urgent category; -1 for a pass. `ko` is the
    forbidden point, or -1. Overwrites `workspace` with the categories.
    """
    best, candidates = ILLEGAL, 0
    for row in range(size):
        for column in range(size):
            point, kind = row * size + column, ILLEGAL
            if cells[point] == EMPTY and point != ko:
                above, left, right, below = neighbours(cells, size, 0, row, column, BEYOND)
                if (
                    allows_move(above, WHITE)
                    or allows_move(left, WHITE)
                    or allows_move(right, WHITE)
                    or allows_move(below, WHITE)
                ):
                    kind = min(urgency(above), urgency(left), urgency(right), urgency(below))
            workspace[point] = kind
            candidates = 1 if kind < best else candidates + 1 if kind == best else candidates
            best = min(kind, best)
    if best == ILLEGAL:
        return -1
    index = int32(integer(key, 0, candidates))
    for point in range(size * size):
        if workspace[point] == best:
            if index == 0:
                return point
            index -= 1
    return -1


@device
def region_root(workspace, point):
    """Return the representative of the region that contains an empty point (union-find with path halving in
    `workspace`).
    """
    while workspace[point] >= 0:
        above = workspace[point]
        if workspace[above] >= 0:
            workspace[point] = workspace[above]
        point = above
    return point


@device
def join_regions(workspace, other, point):
    """Merge the region with representative `other` into the one with representative `point` (union-find in
    `workspace`).
    """
    if other != point:
        workspace[point] = -1 - ((-1 - workspace[point]) | (-1 - workspace[other]))
        workspace[other] = point


@device_call
def area_lead(cells, workspace, size):
    """Score the size x size board `cells`: black's area minus white's, in points. Overwrites `workspace`.

    Regions of empty points are union-find sets in `workspace`: a point holds its parent, a representative -1 - b, where
    bit 0 of b is set if the region touches black and bit 1 if it touches white.
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
                join_regions(workspace, region_root(workspace, point - size), point)
            if column > 0 and left == EMPTY:
                join_regions(workspace, region_root(workspace, point - 1), point)
    for point in range(size * size):
        if cells[point] == EMPTY:
            borders = -1 - workspace[region_root(workspace, point)]
            lead += (1 if borders == 1 else 0) - (1 if borders == 2 else 0)
    return lead


@device_call
def shade_board(cells, size, ko, last, x, y):
    """Colour at the point (x, y) of a picture of the board: lines and dots, stones, a mark on white's last stone
    (`last`) and a box at the forbidden point (`ko`).
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
    # Lines are one pixel wide at 64 x 64 if possible, slightly off centre, so that they never cover two pixels.
    thin = min(side * float32(1.0 / 128.0), float32(0.11))
    offset = float32(0.02) * thin
    if (
        min(right, down) > -thin
        and max(right, down) < edge + thin
        and min(abs(across + offset), abs(below + offset)) < thin
    ):
        return LINE
    # Star points: the centre, and four near the corners.
    inset, middle = 2 if size < 12 else 3, size // 2
    near = row in (inset, size - 1 - inset) and column in (inset, size - 1 - inset) and size > 6
    if (near or (row == middle and column == middle and size % 2 == 1)) and in_disc(
        across, below, float32(0.0), float32(0.0), float32(2.5) * thin
    ):
        return LINE
    return WOOD


def _rules(size: int) -> tuple[Any, Any]:
    """Make the device functions `reset` and `step` of Go for a board of `size` x `size`."""
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
        lead, captured, lost, margin, answer, skipped = before, 0, 0, float32(0.0), -1, s[SKIPPED]
        moves = action >= 0 and action < count and may_play(cells, size, action, BLACK, int32(s[KO]))
        ko = -1
        if moves:
            captured, ko = play(cells, workspace, size, action, BLACK)
            lead += 1 + captured
        ended = plies == limit or (passed and not moves)
        if not ended:
            plies += 1
            answer = choose_reply(cells, workspace, size, ko, key)
            ko = -1
            if answer >= 0:
                lost, ko = play(cells, workspace, size, answer, WHITE)
                lead -= 1 + lost
            ended = plies == limit or (answer < 0 and not moves)
        else:
            ko = -1  # it applied to white, who does not move again
        if ended:
            margin = float32(area_lead(cells, workspace, size)) - p.komi

        s[PLIES], s[KO], s[LAST], s[LEAD] = float32(plies), float32(ko), float32(answer), float32(lead)
        s[PASSED] = float32(1.0) if answer < 0 else float32(0.0)
        skips = float32(0.0) if moves else float32(1.0)
        s[SKIPPED] = skipped + skips
        won = ended and margin > float32(0.0)
        tally[WON] += float32(1.0) if won else float32(0.0)
        tally[MARGIN] += margin if ended else float32(0.0)
        tally[CAPTURES] += float32(captured)
        tally[LOST] += float32(lost)
        tally[PLIES_AT_END] += float32(plies) if ended else float32(0.0)
        tally[PASSES] += skips
        loss = float32(-1.0) + p.rout * margin / (float32(count) + p.komi) if margin < float32(0.0) else float32(0.0)
        return (float32(1.0) + p.passing * skipped if won else loss - p.passing * skips) + p.stone * float32(
            (0 if ended else lead) - before
        ), ended

    return reset, step


def _views(size: int) -> tuple[Any, Any, Any]:
    """Make the device functions `observe`, `legal` and `pixel_shader` of Go for a board of `size` x `size`."""
    count, limit = size * size, 3 * size * size

    @device_call
    def observe(s, cells, obs, p, shard):
        """Write the observation of one row of the board, number `shard`."""
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
        """Write the mask of legal points of one row of the board, number `shard`; the last row also writes the pass."""
        ko = int32(s[KO])
        for column in range(size):
            point = shard * size + column
            above, left, right, below = neighbours(cells, size, 0, shard, column, -BLACK * BEYOND)
            allowed = (
                allows_move(above, BLACK)
                or allows_move(left, BLACK)
                or allows_move(right, BLACK)
                or allows_move(below, BLACK)
            )
            mask[point] = 1 if allowed and cells[point] == EMPTY and point != ko else 0
        if shard == size - 1:
            mask[count] = 1

    @device_call
    def pixel_shader(s, cells, p, x, y):
        return shade_board(cells, size, int32(s[KO]), int32(s[LAST]), x, y)

    return observe, legal, pixel_shader


def go(size: int = 9) -> Env:
    """Declare the environment of Go on a board of `size` x `size`, 5 to 19. Raises ValueError for any other size.

    A user's file that ends in `ENV = go(13)` is an environment.
    """
    if not isinstance(size, int) or not 5 <= size <= 19:
        raise ValueError(f"the board size must be 5 to 19, not {size}")
    count = size * size
    (reset, step), (observe, legal, pixel_shader) = _rules(size), _views(size)
    return Env(
        Params,
        FIELDS,
        observation=Box(PLANES * count, low=0, high=255, dtype="uint8", shape=(size, size, PLANES)),
        action=Discrete(count + 1),
        time_limit=None,  # the rules limit the plies and score the game
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
        # Keep the number of points plus komi positive: losses are fractions of it.
        ranges={
            "komi": (float(-(count // 2)), float(count)),
            "rout": (-1e6, 1e6),
            "stone": (-1e6, 1e6),
            "passing": (-1e6, 1e6),
        },
    )


ENV = go()

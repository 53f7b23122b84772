"""2048: slide the tiles of a 4 x 4 board and merge equal ones. Gabriele Cirulli's game of 2014
(github.com/gabrielecirulli/2048).

Rules
- The action slides all tiles up, right, down or left (0 to 3). Along each line, starting at the side that the tiles
  move to, two equal neighbours merge into one tile of twice the value; a merged tile does not merge again in the same
  move.
- If the board changed, a new tile appears on a random empty cell: a 2 with probability 0.9, otherwise a 4. A game
  begins with two tiles.
- A move that would change nothing is illegal (`legal` writes 0). If played anyway, it changes nothing, adds no tile and
  costs 0.05.
- The game is over when no legal move exists: -1, in addition to the reward of the last move.
- Reward of each merge: 0.05, and for a new tile 2^e >= 128 another 0.03 (e - 6)^1.5, the power rounded to hundredths.

Rewards are PufferLib's (`ocean/g2048/g2048.h`; github.com/PufferAI/PufferLib), reimplemented from reading it.

Differences from PufferLib
- Actions are in clockwise order, as in Snake; PufferLib has up, down, left, right.
- Every game begins with two new tiles. PufferLib begins 38 % of its training games with one or two tiles of 4,096 and
  more instead, and excludes these games from its reported scores: a curriculum belongs to a recipe, not to the rules.
- PufferLib ends a game after 1,000 steps or more, depending on its score and on the best of all earlier games, so that
  illegal moves cannot continue forever. Here a game is over (-1) after 100 illegal moves in a row. A time limit long
  enough for a good game (65,536 takes some 30,000 moves) would keep a stuck game running as long; and without a time
  limit nothing needs bootstrapping. A player that respects `legal` never reaches this rule; a random player on a board
  with a single legal move reaches it once in 10^12 times.

Random numbers: the four words of draw 0. In a step, word 0 selects the empty cell number (word * f) >> 32 of f, in row
order from the top left; word 1 selects the tile, a 2 if its 24 high bits, as a fraction of 2^24, are below 0.9. In a
reset, words 0 and 1 are the first tile, 2 and 3 the second.

Storage: a state row holds a board row, four exponents of 5 bits (0 is empty; no game can exceed 131,072 = 2^17), the
left cell lowest. The four bits above these 20 are still exact in a float32; those of the first two rows count
consecutive illegal moves. A lane has 16 bytes and takes four loads, and the four columns slide up together as bit
fields of four integers, without a branch. Other moves transpose or flip the board before and after. All arithmetic is
integer, rewards included (in ten-thousandths), until the last multiplication: a game is bit-identical on every device.

All functions of a step are inlined: with a single remaining call, numba counts references to the lane's arrays, and a
step on a CPU takes three times as long (270 instead of 88 ns).
"""

import math
from typing import NamedTuple

from numpy import float32, int32, uint64

from operant.compute.rng import block, unit
from operant.envs import GROUND, Box, Discrete, Env, device, device_call

SIDE = 4  # cells
KINDS = 18  # exponents 0 to 17
BITS = 5  # of an exponent
FIELDS = SIDE  # rows of the state, a row of the board each
MOST_PATIENCE = 255  # maximum of the 8-bit counter in the state

UP, RIGHT, DOWN, LEFT = range(4)  # actions
# tallies: sum of merged tiles, exponent of the best tile, 1 if that is at least 11, illegal moves
SCORE, BEST, REACHED_2048, INVALID = range(4)

LOWEST = int32(0x8421)  # the lowest bit of each of a row's four fields
BOARD = int32(0xFFFFF)  # the bits of a row that are cells
EXPONENT = int32(31)  # one field
OTHER_FIELDS = int32(31 | 31 << 10)  # fields 0 and 2
LOW_HALF = int32(31 | 31 << 5)  # fields 0 and 1
UNIT = float32(1e-4)  # of rewards

# Pictures: a tile is 16 x 16 dots, including a gap of one dot at the right and the bottom.
DOTS = 16
GLYPHS = tuple(
    int32(int(dots.replace(" ", ""), 2))
    for dots in (
        "111 101 101 101 111",
        "010 110 010 010 111",
        "111 001 111 100 111",
        "111 001 111 001 111",
        "101 101 111 001 001",
        "111 100 111 001 111",
        "111 100 111 101 111",
        "111 001 010 010 010",
        "111 101 111 101 111",
        "111 101 111 001 111",
        "101 101 110 101 101",
    )
)
"""Bitmaps of the digits and K, 3 x 5 dots in row order; the first dot is the highest bit."""
THOUSANDS = 10  # index of the K
EMPTY_TILE = (float32(0.14), float32(0.16), float32(0.20))
SHADES = (
    (float32(0.20), float32(0.26), float32(0.44)),  # 1
    (float32(0.16), float32(0.47), float32(0.74)),  # 4
    (float32(0.30), float32(0.76), float32(0.66)),  # 16 ...
    (float32(0.95), float32(0.88), float32(0.36)),
    (float32(0.93), float32(0.57), float32(0.10)),
    (float32(0.76), float32(0.22), float32(0.16)),
    (float32(0.55), float32(0.15), float32(0.45)),
    (float32(0.86), float32(0.62), float32(0.86)),
    (float32(1.00), float32(1.00), float32(1.00)),
    (float32(1.00), float32(1.00), float32(1.00)),
)
"""Tile colours of the even exponents; odd exponents use the mean of their neighbours."""
DARK, LIGHT = GROUND, (float32(1.0), float32(1.0), float32(1.0))


class Params(NamedTuple):
    """Parameters of 2048: rewards (rounded to 0.0001), tile probability and patience."""

    two: float = 0.9  # probability that a new tile is a 2 and not a 4
    merge: float = 0.05  # for each merge
    growth: float = 0.03  # times (e - 6)^1.5, for each merge to 2^e
    invalid: float = -0.05  # for an illegal move
    game_over: float = -1.0
    patience: int = 100  # consecutive illegal moves that end a game


# These three are called, not inlined by numba: fifty inlined copies took five seconds to compile, and LLVM inlines them
# anyway.


@device_call
def _nonzero_fields(row):
    """Find the tiles of a board row, packed as 5-bit exponents: set the lowest bit of each field that is not 0, and no
    other bit.
    """
    folded = row | (row >> int32(1))
    return int32((folded | (folded >> int32(2)) | (row >> int32(4))) & LOWEST)


@device_call
def _field_masks(bits):
    """Extend bits of a packed board row to masks: set all five bits of each field whose lowest bit is set in `bits`."""
    return int32((bits << int32(BITS)) - bits)


@device_call
def _equal_fields(one, other):
    """Compare two board rows, packed as 5-bit exponents: set the lowest bit of each field that is equal in both and not
    0.
    """
    return int32(_nonzero_fields(one) & ~_nonzero_fields(one ^ other))


@device
def _mirrored(a, b, c, d, sideways):
    """Transpose the board, given as four packed rows, if `sideways` is -1; return it unchanged if it is 0."""
    # Block transpose by XOR swaps: first within each 2 x 2 quarter, then the off-diagonal quarters.
    others, half = OTHER_FIELDS & sideways, LOW_HALF & sideways
    top, bottom = ((a >> int32(BITS)) ^ b) & others, ((c >> int32(BITS)) ^ d) & others
    a, b = a ^ (top << int32(BITS)), b ^ top
    c, d = c ^ (bottom << int32(BITS)), d ^ bottom
    even, odd = ((a >> int32(2 * BITS)) ^ c) & half, ((b >> int32(2 * BITS)) ^ d) & half
    a, c = a ^ (even << int32(2 * BITS)), c ^ even
    b, d = b ^ (odd << int32(2 * BITS)), d ^ odd
    return int32(a), int32(b), int32(c), int32(d)


@device
def _slide_up(a, b, c, d):
    """Slide the tiles of all four columns up and merge equal ones, on a board given as four packed rows.

    Returns the four rows, and per column the exponents of the merged tiles: the upper pair's and the lower pair's.
    """
    # Close the gaps, from the bottom up.
    fixed = _field_masks(_nonzero_fields(c))
    c, d = c | (d & ~fixed), d & fixed
    fixed = _field_masks(_nonzero_fields(b))
    b, c, d = b | (c & ~fixed), (c & fixed) | (d & ~fixed), d & fixed
    fixed = _field_masks(_nonzero_fields(a))
    a, b, c, d = a | (b & ~fixed), (b & fixed) | (c & ~fixed), (c & fixed) | (d & ~fixed), d & fixed
    # Merging pairs, from the top: a tile belongs to at most one pair.
    upper = _equal_fields(a, b)
    middle = int32(_equal_fields(b, c) & ~upper)
    lower = int32(_equal_fields(c, d) & ~middle)
    in_upper, in_middle, in_lower = _field_masks(upper), _field_masks(middle), _field_masks(lower)
    first, second = (a & in_upper) | (b & in_middle), c & in_lower
    merged = c + lower
    new_a = a + upper
    new_b = (merged & in_upper) | ((b + middle) & ~in_upper)
    moved_up = in_upper | in_middle
    new_c = (d & moved_up & ~in_lower) | (merged & ~moved_up)
    new_d = d & ~(moved_up | in_lower)
    return int32(new_a), int32(new_b), int32(new_c), int32(new_d), int32(first), int32(second)


@device
def moved(a, b, c, d, action):
    """Move the board's four rows (packed 5-bit exponents) in the direction `action`, without adding a tile. Returns the
    new rows and, as eight fields of two integers, the exponents of the tiles that merged.
    """
    sideways, back = int32(-(action & 1)), ((action + 1) & 2) != 0
    a, b, c, d = _mirrored(a, b, c, d, sideways)
    a, b, c, d = (d, c, b, a) if back else (a, b, c, d)
    a, b, c, d, first, second = _slide_up(a, b, c, d)
    a, b, c, d = (d, c, b, a) if back else (a, b, c, d)
    a, b, c, d = _mirrored(a, b, c, d, sideways)
    return a, b, c, d, first, second


@device
def _growth(exponent):
    """Growth reward of a merge of two tiles of 2^exponent, in rounded hundredths: (e - 6)^1.5 with e = exponent + 1,
    the merged tile; 0 for e <= 6.
    """
    over = float32(max(exponent - 5, 0))
    return int32(over * math.sqrt(over) * float32(100.0) + float32(0.5))


@device
def _merge_rewards(first, second):
    """Sum the merged tiles, the number of merges and the growth reward in hundredths. `first` and `second` are the
    exponents of merged tiles that `moved` returned.
    """
    score, merges, growth = int32(0), int32(0), int32(0)
    for k in range(SIDE):
        one, other = (first >> int32(BITS * k)) & EXPONENT, (second >> int32(BITS * k)) & EXPONENT
        score += (int32(2) << one) + (int32(2) << other)
        merges += (1 if one else 0) + (1 if other else 0)
        growth += _growth(one) + _growth(other)
    return int32(score - 2 * (2 * SIDE - merges)), int32(merges), int32(growth)


@device
def with_tile(a, b, c, d, cell_word, kind_word, p):
    """Add a tile, a 2 or a 4, on an empty cell of the board, given as four packed rows; cell and tile are chosen by two
    random words. A full board is unchanged. Returns the rows and the number of cells that were empty.
    """
    free_a, free_b, free_c, free_d = (
        LOWEST & ~_nonzero_fields(a),
        LOWEST & ~_nonzero_fields(b),
        LOWEST & ~_nonzero_fields(c),
        LOWEST & ~_nonzero_fields(d),
    )
    # A product with LOWEST is a prefix sum over the fields: empty cells up to each cell. The top field is the row's.
    up_to_a, up_to_b, up_to_c, up_to_d = (
        int32(free_a * LOWEST),
        int32(free_b * LOWEST),
        int32(free_c * LOWEST),
        int32(free_d * LOWEST),
    )
    count_a = (up_to_a >> int32(3 * BITS)) & EXPONENT
    count_b = count_a + ((up_to_b >> int32(3 * BITS)) & EXPONENT)
    count_c = count_b + ((up_to_c >> int32(3 * BITS)) & EXPONENT)
    count = int32(count_c + ((up_to_d >> int32(3 * BITS)) & EXPONENT))
    # Empty cell n (from 0) is the one whose inclusive prefix sum is n + 1.
    n = int32((uint64(cell_word) * uint64(count)) >> uint64(32))
    target = int32((n + 1) * LOWEST)
    kind = int32(1) if unit(kind_word) < p.two else int32(2)
    a += int32(free_a & ~_nonzero_fields(up_to_a ^ target)) * kind
    b += int32(free_b & ~_nonzero_fields((up_to_b + count_a * LOWEST) ^ target)) * kind
    c += int32(free_c & ~_nonzero_fields((up_to_c + count_b * LOWEST) ^ target)) * kind
    d += int32(free_d & ~_nonzero_fields((up_to_d + count_c * LOWEST) ^ target)) * kind
    return int32(a), int32(b), int32(c), int32(d), count


@device
def _equal_neighbours(a, b, c, d):
    """Find equal neighbouring tiles on the board, given as four packed rows: returns the lowest bits of cells that
    equal their right neighbour, and of cells that equal the one below.
    """
    right = (
        _equal_fields(a, a >> int32(BITS))
        | _equal_fields(b, b >> int32(BITS))
        | _equal_fields(c, c >> int32(BITS))
        | _equal_fields(d, d >> int32(BITS))
    )
    return int32(right), int32(_equal_fields(a, b) | _equal_fields(b, c) | _equal_fields(c, d))


@device
def _ten_thousandths(reward):
    """Convert a reward to units of 0.0001, rounded."""
    return int32(math.floor(reward * float32(10000.0) + float32(0.5)))


@device
def _highest_exponent(a, b, c, d):
    """Highest exponent on the board, given its four packed rows."""
    best = int32(0)
    for k in range(SIDE):
        shift = int32(BITS * k)
        best = max(
            best,
            max(
                max((a >> shift) & EXPONENT, (b >> shift) & EXPONENT),
                max((c >> shift) & EXPONENT, (d >> shift) & EXPONENT),
            ),
        )
    return int32(best)


@device
def _load_board(s):
    """Load the board's four packed rows and the count of consecutive illegal moves from the state."""
    a, b, c, d = int32(s[0]), int32(s[1]), int32(s[2]), int32(s[3])
    return a & BOARD, b & BOARD, c & BOARD, d & BOARD, (a >> int32(4 * BITS)) | ((b >> int32(4 * BITS)) << int32(4))


@device
def _store_board(s, a, b, c, d, stuck):
    """Store the board's four packed rows and the count of consecutive illegal moves in the state."""
    s[0], s[1] = (
        float32(a | ((stuck & int32(15)) << int32(4 * BITS))),
        float32(b | ((stuck >> int32(4)) << int32(4 * BITS))),
    )
    s[2], s[3] = float32(c), float32(d)


@device
def reset(s, p, key):
    """Place two tiles on an empty board."""
    words = block(key, 0)
    a, b, c, d, _ = with_tile(int32(0), int32(0), int32(0), int32(0), words[0], words[1], p)
    a, b, c, d, _ = with_tile(a, b, c, d, words[2], words[3], p)
    _store_board(s, a, b, c, d, int32(0))


@device
def step(s, action, p, key, tally):
    """Play one move, an illegal one without effect, and return its reward and whether the game is over."""
    a, b, c, d, stuck = _load_board(s)
    to_a, to_b, to_c, to_d, first, second = moved(a, b, c, d, action)
    changed = ((a ^ to_a) | (b ^ to_b) | (c ^ to_c) | (d ^ to_d)) != 0
    score, merges, growth = _merge_rewards(first, second)
    words = block(key, 0)
    new_a, new_b, new_c, new_d, empty = with_tile(to_a, to_b, to_c, to_d, words[0], words[1], p)
    a, b, c, d, empty = (new_a, new_b, new_c, new_d, empty - 1) if changed else (a, b, c, d, empty)
    stuck = int32(0) if changed else int32(stuck + 1)
    _store_board(s, a, b, c, d, stuck)

    right, below = _equal_neighbours(a, b, c, d)
    over = (empty <= 0 and (right | below) == 0) or stuck >= p.patience
    gained = (
        merges * _ten_thousandths(p.merge) + growth * _ten_thousandths(p.growth) // 100
        if changed
        else _ten_thousandths(p.invalid)
    )
    gained += _ten_thousandths(p.game_over) if over else int32(0)
    best = _highest_exponent(a, b, c, d) if over else int32(0)
    tally[SCORE] += float32(score)
    tally[INVALID] += float32(0.0) if changed else float32(1.0)
    tally[BEST] += float32(best)
    tally[REACHED_2048] += float32(1.0) if best >= 11 else float32(0.0)
    return float32(gained) * UNIT, over


@device
def observe(s, obs, p):
    """Write the exponents of the 16 cells in row order from the top left."""
    a, b, c, d, _ = _load_board(s)
    for k in range(SIDE):
        shift = int32(BITS * k)
        obs[k] = (a >> shift) & EXPONENT
        obs[SIDE + k] = (b >> shift) & EXPONENT
        obs[2 * SIDE + k] = (c >> shift) & EXPONENT
        obs[3 * SIDE + k] = (d >> shift) & EXPONENT


@device
def _gap_right(full):
    """Find the tiles of a row whose right neighbour is empty. `full` and the result have the lowest bit of each such
    cell's field set.
    """
    return full & ~(full >> int32(BITS)) & (LOWEST >> int32(BITS))


@device
def _gap_left(full):
    """Find the empty cells of a row whose right neighbour is a tile. `full` and the result have the lowest bit of each
    such cell's field set.
    """
    return (full >> int32(BITS)) & ~full


@device
def legal(s, mask, p):
    """Write 1 to the mask for each move that changes the board, 0 for each other move.

    A move changes the board if two neighbours along its axis are equal, or if a tile has an empty neighbour on the side
    that it moves to.
    """
    a, b, c, d, _ = _load_board(s)
    right, below = _equal_neighbours(a, b, c, d)
    full_a, full_b, full_c, full_d = _nonzero_fields(a), _nonzero_fields(b), _nonzero_fields(c), _nonzero_fields(d)
    upward = (full_b & ~full_a) | (full_c & ~full_b) | (full_d & ~full_c)
    downward = (full_a & ~full_b) | (full_b & ~full_c) | (full_c & ~full_d)
    rightward = _gap_right(full_a) | _gap_right(full_b) | _gap_right(full_c) | _gap_right(full_d)
    leftward = _gap_left(full_a) | _gap_left(full_b) | _gap_left(full_c) | _gap_left(full_d)
    mask[UP] = 1 if (below | upward) != 0 else 0
    mask[RIGHT] = 1 if (right | rightward) != 0 else 0
    mask[DOWN] = 1 if (below | downward) != 0 else 0
    mask[LEFT] = 1 if (right | leftward) != 0 else 0


@device_call
def inked(exponent, across, down):
    """Whether dot (across, down) of a tile's 15 x 15 picture is part of its number, which is in thousands from 16,384
    on.
    """
    number = int32(1) << exponent
    thousands = number > int32(9999)
    if thousands:
        number //= int32(1000)
    glyphs, power = int32(1), int32(1)
    while number // power >= int32(10):
        power *= int32(10)
        glyphs += int32(1)
    digits = glyphs
    glyphs += int32(1) if thousands else int32(0)
    dot = int32(2) if glyphs <= 2 else int32(1)  # short numbers are drawn at twice the size
    x, y = (
        across - (int32(DOTS - 1) - dot * (int32(4) * glyphs - int32(1))) // int32(2),
        down - (int32(DOTS - 1) - int32(5) * dot) // int32(2),
    )
    if x < 0 or y < 0 or y >= 5 * dot:
        return False
    column, row = x // dot, y // dot
    position, column = column // 4, column % 4
    if position >= glyphs or column == 3:
        return False
    glyph = int32(THOUSANDS)
    if position < digits:
        for _ in range(position + 1, digits):
            number //= int32(10)
        glyph = number % int32(10)
    return (GLYPHS[glyph] >> (int32(14) - int32(3) * row - column)) & int32(1) != 0


@device_call
def pixel_shader(s, p, x, y):
    """Colour tiles by exponent and draw their numbers; at 64 x 64 pixels each dot is one pixel."""
    across, down = int32(x * float32(SIDE * DOTS)), int32(y * float32(SIDE * DOTS))
    column, row = across // int32(DOTS), down // int32(DOTS)
    across, down = across % int32(DOTS), down % int32(DOTS)
    if across == DOTS - 1 or down == DOTS - 1:
        return GROUND
    exponent = (int32(s[row]) >> (int32(BITS) * column)) & EXPONENT
    if exponent == 0:
        return EMPTY_TILE
    lower, upper = SHADES[exponent // 2], SHADES[(exponent + 1) // 2]
    red, green, blue = (
        float32(0.5) * (lower[0] + upper[0]),
        float32(0.5) * (lower[1] + upper[1]),
        float32(0.5) * (lower[2] + upper[2]),
    )
    if not inked(exponent, across, down):
        return red, green, blue
    return DARK if float32(0.3) * red + float32(0.6) * green + float32(0.1) * blue > float32(0.52) else LIGHT


ENV = Env(
    Params,
    FIELDS,
    observation=Box(SIDE * SIDE, low=0, high=KINDS - 1, dtype="uint8", shape=(SIDE, SIDE), categories=KINDS),
    action=Discrete(4),
    time_limit=None,  # games end by a full board or by `patience`
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
    legal=legal,
    tally=("score", "best_exponent", "reached_2048", "invalid_moves"),
    actions=("up", "right", "down", "left"),
    turns=True,
    step_s=1 / 8,
    ranges={
        "two": (0.0, 1.0),
        # Eight merges of the highest tiles, in ten-thousandths, fit into 31 bits.
        "merge": (-1000.0, 1000.0),
        "growth": (-5.0, 5.0),
        "invalid": (-1000.0, 1000.0),
        "game_over": (-1000.0, 1000.0),
        "patience": (1, MOST_PATIENCE),
    },
)

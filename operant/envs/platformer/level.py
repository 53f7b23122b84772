"""The platformer's level generator: random obstacles one after another (see `operant.envs.platformer`). Independent of
motion.
"""

from numpy import int32, uint64

from operant.compute import rng
from operant.envs import device, device_call
from operant.envs.platformer.tiles import FINISH, START, column_word

# Lengths in columns.
LONGEST, SHORTEST = 11, 6  # maximum length of an obstacle and the ground after it: of any kind, and of the first three


@device
def _pick(word, n):
    """Map a random 32-bit word to an integer in [0, n), as (word * n) >> 32."""
    return int32((uint64(word) * uint64(n)) >> uint64(32))


@device
def _fill(cells, column, count, word):
    """Write a column's packed word to `count` columns of the level from `column` on; returns the column after them."""
    for k in range(count):
        cells[column + k] = word
    return int32(column + count)


@device_call
def _obstacle(cells, column, ground, highest, hardness, kind, words):
    """Write an obstacle of a kind (0 to 6) and hardness (0 to 2) to the level from `column` on; returns the column
    after it and the height of the ground there.
    """
    size, extent = words[1], words[2]
    coin = int32(1) if (words[0] & 3) != 0 else int32(0)
    if kind == 0:  # a step up or down
        rise = int32(1 + _pick(extent, 1 + hardness))
        up, down = min(int32(ground + rise), highest), max(int32(ground - rise), int32(1))
        after = up if (_pick(size, 2) == 1 and up > ground) or down == ground else down
        return _fill(cells, column, 1, column_word(after, 0, 0, 0, coin * (after + 1))), after
    if kind == 1:  # a gap
        wide = int32(2 + _pick(size, 2 + hardness))
        after = min(max(int32(ground + _pick(extent, 3) - 1), int32(1)), highest)
        end = _fill(cells, column, wide, int32(0))
        cells[column + wide // 2] = column_word(0, 0, 0, 0, coin * (ground + 2))
        return end, after
    if kind == 2:  # spikes
        wide = int32(1 + _pick(size, 2 + hardness))
        end = _fill(cells, column, wide, column_word(ground, 0, 0, 1, 0))
        cells[column + wide // 2] = column_word(ground, 0, 0, 1, coin * (ground + 2))
        return end, ground
    if kind == 3:  # a wall
        top = int32(ground + 1 + _pick(extent, 1 + hardness))
        end = _fill(cells, column, 1 + _pick(size, 2), column_word(top, 0, 0, 0, 0))
        cells[column] = column_word(top, 0, 0, 0, coin * top)
        return end, ground
    if kind == 4:  # planks over a pit
        row = max(int32(ground - 1 + _pick(extent, 3)), int32(1))
        end = _fill(cells, column, 2 + min(hardness, 1), int32(0))
        plank = end
        end = _fill(cells, plank, 2 + _pick(size, 2), column_word(0, row, 0, 0, 0))
        cells[plank] = column_word(0, row, 0, 0, coin * (row + 1))
        return _fill(cells, end, 2 + hardness // 2, int32(0)), ground
    if kind == 5:  # a wall with a plank in front of it
        end = _fill(cells, column, 2 + _pick(size, 2), column_word(ground, ground + 1, 0, 0, 0))
        cells[column] = column_word(ground, ground + 1, 0, 0, coin * ground)
        return _fill(cells, end, 2, column_word(ground + 3 + min(hardness, 1), 0, 0, 0, 0)), ground
    # Tunnel with spikes inside.
    wide = int32(3 + _pick(size, 2))
    end = _fill(cells, column, wide, column_word(ground, ground + 3, 1, 0, 0))
    _fill(cells, column + 1, 1 + hardness // 2, column_word(ground, ground + 3, 1, 1, 0))
    cells[column + 1] = column_word(ground, ground + 3, 1, 1, coin * (ground + 1))
    return end, ground


@device_call
def generate(cells, highest, key):
    """Generate a random level in `cells`, with ground up to `highest` tiles; returns the height of the ground at its
    start.
    """
    columns = int32(cells.shape[0])
    end, first = int32(columns - FINISH), int32(1 + _pick(rng.block(key, 0)[0], highest))
    ground = first
    column = _fill(cells, 0, START, column_word(ground, 0, 0, 0, 0))
    draw = int32(0)
    while end - column >= SHORTEST:
        draw += int32(1)
        words = rng.block(key, draw)
        hardness = int32(3 * (column - START) // (end - START))
        kind = _pick(words[0], 7 if end - column >= LONGEST else 3)
        column, ground = _obstacle(cells, column, ground, highest, hardness, kind, words)
        column = _fill(cells, column, 2 + _pick(words[3], 3 - hardness), column_word(ground, 0, 0, 0, 0))
    _fill(cells, column, columns - column, column_word(ground, 0, 0, 0, 0))
    return first

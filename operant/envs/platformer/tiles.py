"""The platformer's tiles: the rows of the state, the player's size, and the word that holds a column of a level. Knows
no rule of the game.
"""

from numpy import float32, int32

from operant.envs import device

# Rows of the state: the middle of its feet, its velocity (tiles a frame), whether it stands (1 or 0), the furthest x so
# far, steps taken.
X, Y, VX, VY, STANDS, BEST, CLOCK, FIELDS = range(8)
HALF, HEIGHT = float32(0.375), float32(0.875)  # tiles, of the player: half its width, and its height
START_X = 2.5
EDGE = float32(1 / 1024)  # tiles, less than any length here: what lies on the border of two tiles is in the first
SPIKES = float32(0.5)  # tiles, their height
WALL = 15  # the column beyond either end of the level
START, FINISH, FLAG = 5, 6, 3  # flat ground at the beginning, at the end; the flag's place, counted from the end


@device
def column_word(ground, over, solid, spikes, coin):
    """A column's word: heights below 16, where 0 is none; solid and spikes 0 or 1."""
    return int32(ground | (over << 4) | (solid << 8) | (spikes << 9) | (coin << 10))


@device
def ground_of(word):
    return int32(word & 15)


@device
def over_of(word):
    return int32((word >> 4) & 15)


@device
def is_block(word):
    return ((word >> 8) & 1) == 1


@device
def has_spikes(word):
    return ((word >> 9) & 1) == 1


@device
def coin_of(word):
    return int32((word >> 10) & 15)


@device
def floor_of(height):
    """The row of a height, or the column of an x, down to -16."""
    return int32(int32(height + float32(16.0)) - int32(16))


@device
def word_at(cells, column):
    return int32(cells[column]) if column >= 0 and column < cells.shape[0] else int32(WALL)


@device
def is_solid(word, row):
    ground = ground_of(word)
    return (row < ground and ground > 0) or (is_block(word) and row == over_of(word))


@device
def is_plank(word, row):
    return row == over_of(word) and row > 0 and not is_block(word)


@device
def unit(number):
    """Within -1 and 1."""
    return min(max(number, float32(-1.0)), float32(1.0))

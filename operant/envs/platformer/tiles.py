"""The platformer's tiles: rows of the state, size of the player, and the packed word of a column. Independent of the
rules.
"""

from numpy import float32, int32

from operant.envs import device

# Rows of the state: centre of the player's feet, velocity (tiles/frame), 1 if it stands, furthest x, steps.
X, Y, VX, VY, STANDS, BEST, CLOCK, FIELDS = range(8)
HALF, HEIGHT = float32(0.375), float32(0.875)  # tiles, half width and height of the player
START_X = 2.5
EDGE = float32(1 / 1024)  # tiles, below the resolution of positions: a point on a border belongs to the first tile
SPIKES = float32(0.5)  # tiles, height
WALL = 15  # word of the columns beyond both ends of the level
START, FINISH, FLAG = 5, 6, 3  # columns of flat ground at the start and the end; column of the flag from the end


@device
def column_word(ground, over, solid, spikes, coin):
    """Pack a column of tiles into one word: height of the ground, row of the object above it and row of the coin, each
    below 16 (0: none); `solid` (object is a block) and `spikes` are 0 or 1.
    """
    return int32(ground | (over << 4) | (solid << 8) | (spikes << 9) | (coin << 10))


@device
def ground_of(word):
    """Height of the ground in a packed column of tiles; 0 for a pit."""
    return int32(word & 15)


@device
def over_of(word):
    """Row of the object above the ground in a packed column of tiles; 0 for none."""
    return int32((word >> 4) & 15)


@device
def is_block(word):
    """Whether the object above the ground in a packed column of tiles is a solid block rather than a plank."""
    return ((word >> 8) & 1) == 1


@device
def has_spikes(word):
    """Whether spikes stand on the ground in a packed column of tiles."""
    return ((word >> 9) & 1) == 1


@device
def coin_of(word):
    """Row of the coin in a packed column of tiles; 0 for none."""
    return int32((word >> 10) & 15)


@device
def floor_of(height):
    """Round a coordinate >= -16 down to its row or column."""
    return int32(int32(height + float32(16.0)) - int32(16))


@device
def word_at(cells, column):
    """Packed word of a column of tiles; a solid wall outside of the world."""
    return int32(cells[column]) if column >= 0 and column < cells.shape[0] else int32(WALL)


@device
def is_solid(word, row):
    """Whether the tile in a row of a packed column of tiles is ground or a block."""
    ground = ground_of(word)
    return (row < ground and ground > 0) or (is_block(word) and row == over_of(word))


@device
def is_plank(word, row):
    """Whether the tile in a row of a packed column of tiles is a plank."""
    return row == over_of(word) and row > 0 and not is_block(word)


@device
def unit(number):
    """Clamp a number to [-1, 1]."""
    return min(max(number, float32(-1.0)), float32(1.0))

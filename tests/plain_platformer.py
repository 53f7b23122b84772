"""The platformer's rules in plain Python, on whole numbers of 1/256 of a tile: levels, motion, and a search for a way
to the flag.

What tests of the environment compare it with. Written from the rules; shares no code, no layout of cells and no
arithmetic with it.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from plain_philox import Key

TILE = 256
HALF, HEIGHT = 96, 224  # of the player
SPEED, PUSH, JUMP, SOFT, HARD, FALL = 72, 9, 144, 12, 36, 144
STEPS, FRAMES = 256, 2
SOLID, PLANK, SPIKES, EMPTY = "#-^."
ABOVE, BELOW = 24, 8  # rows that a column lists above and below the floor of the world


class Level:
    """Columns of tiles, and the coins that are left, a row for a column."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.ground = [0] * columns
        self.planks: dict[int, int] = {}
        self.blocks: dict[int, int] = {}
        self.spikes: set[int] = set()
        self.coins: dict[int, int] = {}
        self._tiles: list[str] = []

    @classmethod
    def of_key(cls, key: Key, rows: int = 12, columns: int = 64) -> Level:
        """The level that a reset draws."""
        level, highest = cls(columns), rows - 8
        ground = 1 + _part(key.block(0)[0], highest)
        heights = [ground] * 5
        end, draw = columns - 6, 0
        while end - len(heights) >= 6:
            draw += 1
            words = key.block(draw)
            at = len(heights)
            hardness = 3 * (at - 5) // (end - 5)
            kind = _part(words[0], 7 if end - at >= 11 else 3)
            ground = level._add(heights, ground, highest, hardness, kind, words)
            heights += [ground] * (2 + _part(words[3], 3 - hardness))
        level.ground = heights + [ground] * (columns - len(heights))
        if any(level.ground[column] > 15 for column in range(columns)):
            raise AssertionError("higher than a world")
        return level

    def _add(
        self, heights: list[int], ground: int, highest: int, hardness: int, kind: int, words: tuple[int, ...]
    ) -> int:
        """Append an obstacle's columns; the ground behind it."""
        at, coin = len(heights), words[0] % 4 != 0
        if kind == 0:
            rise = 1 + _part(words[2], 1 + hardness)
            higher, lower = min(ground + rise, highest), max(ground - rise, 1)
            wanted = (higher, lower) if _part(words[1], 2) == 1 else (lower, higher)
            after = wanted[0] if wanted[0] != ground else wanted[1]
            heights.append(after)
            place = (at, after + 1)
        elif kind == 1:
            width = 2 + _part(words[1], 2 + hardness)
            heights += [0] * width
            after = sorted((1, ground + (-1, 0, 1)[_part(words[2], 3)], highest))[1]
            place = (at + width // 2, ground + 2)
        elif kind == 2:
            width, after = 1 + _part(words[1], 2 + hardness), ground
            heights += [ground] * width
            self.spikes |= set(range(at, at + width))
            place = (at + width // 2, ground + 2)
        elif kind == 3:
            top, after = ground + 1 + _part(words[2], 1 + hardness), ground
            heights += [top] * (1 + _part(words[1], 2))
            place = (at, top)
        elif kind == 4:
            row, after = max(ground - 1 + _part(words[2], 3), 1), ground
            plank = at + (2, 3, 3)[hardness]
            width = 2 + _part(words[1], 2)
            self.planks |= dict.fromkeys(range(plank, plank + width), row)
            heights += [0] * (plank + width + (2, 2, 3)[hardness] - at)
            place = (plank, row + 1)
        elif kind == 5:
            width, after = 2 + _part(words[1], 2), ground
            self.planks |= dict.fromkeys(range(at, at + width), ground + 1)
            heights += [ground] * width + [ground + (3, 4, 4)[hardness]] * 2
            place = (at, ground)
        else:
            width, after = 3 + _part(words[1], 2), ground
            self.blocks |= dict.fromkeys(range(at, at + width), ground + 3)
            self.spikes |= {at + 1, at + (1, 1, 2)[hardness]}
            heights += [ground] * width
            place = (at + 1, ground + 1)
        if coin:
            self.coins[place[0]] = place[1]
        return after

    def words(self) -> list[int]:
        """The level as the environment's columns hold it, coins that were taken left out."""
        found = []
        for column, ground in enumerate(self.ground):
            over = self.planks.get(column, 0) + self.blocks.get(column, 0)
            found.append(
                ground
                + 16 * over
                + 256 * (column in self.blocks)
                + 512 * (column in self.spikes)
                + 1024 * self.coins.get(column, 0)
            )
        return found

    def tile(self, column: int, row: int) -> str:
        """Kind of a tile, from BELOW rows under the floor to ABOVE rows over it; beyond the ends all is solid."""
        if not self._tiles:
            self._tiles = [self._column(k) for k in range(self.columns)]
        return self._tiles[column][row + BELOW] if 0 <= column < self.columns else SOLID

    def _column(self, column: int) -> str:
        ground = self.ground[column]
        tiles = [SOLID if row < ground and ground else EMPTY for row in range(-BELOW, ABOVE)]
        if column in self.spikes:
            tiles[ground + BELOW] = SPIKES
        if column in self.planks:
            tiles[self.planks[column] + BELOW] = PLANK
        if column in self.blocks:
            tiles[self.blocks[column] + BELOW] = SOLID
        return "".join(tiles)

    @property
    def flag(self) -> int:
        """Its place, in 1/256 of a tile."""
        return (self.columns - 3) * TILE + TILE // 2


class Body(NamedTuple):
    """Position and velocity of the player, in 1/256 of a tile and of a tile a frame."""

    x: int
    y: int
    vx: int
    vy: int
    stands: bool


def _part(word: int, n: int) -> int:
    return word * n >> 32


def start(level: Level) -> Body:
    """State at the beginning of an episode."""
    return Body(5 * TILE // 2, level.ground[2] * TILE, 0, 0, True)


def tiles_of(body: Body) -> tuple[list[int], list[int]]:
    """The columns and the rows that it is in."""
    columns = range((body.x - HALF) // TILE, (body.x + HALF - 1) // TILE + 1)
    return list(columns), list(range(body.y // TILE, (body.y + HEIGHT - 1) // TILE + 1))


def frame(level: Level, body: Body, action: int) -> Body:
    """Motion of a frame."""
    x, y, vx, vy, stands = body
    wanted, button = SPEED * (action % 3 - 1), action >= 3
    vx += max(-PUSH, min(PUSH, wanted - vx))
    if button and stands:
        vy = JUMP
    else:
        vy = max(vy - (SOFT if button and vy > 0 else HARD), -FALL)

    rows = tiles_of(body)[1]
    x += vx
    column = (x + HALF - 1) // TILE if vx > 0 else (x - HALF) // TILE
    if vx and any(level.tile(column, row) == SOLID for row in rows):
        x, vx = (column * TILE - HALF if vx > 0 else (column + 1) * TILE + HALF), 0

    columns = {(x - HALF) // TILE, (x + HALF - 1) // TILE}
    feet, y, stands = y, y + vy, False
    row = (y + HEIGHT - 1) // TILE if vy > 0 else y // TILE
    met = {level.tile(column, row) for column in columns}
    if vy > 0 and SOLID in met:
        y, vy = row * TILE - HEIGHT, 0
    elif vy <= 0 and (SOLID in met or (PLANK in met and feet >= (row + 1) * TILE)):
        y, vy, stands = (row + 1) * TILE, 0, True
    return Body(x, y, vx, vy, stands)


def end_of(level: Level, body: Body) -> str:
    """Cause by which a frame ended the episode, or None."""
    for column in tiles_of(body)[0]:
        if level.tile(column, body.y // TILE) == SPIKES and body.y % TILE < TILE // 2:
            return "spiked"
    return "fell" if body.y < -TILE else "goal" if body.x >= level.flag else ""


def step(level: Level, body: Body, action: int) -> tuple[Body, str, int]:
    """A step of two frames: the body, how the episode ended, and how many coins it took (out of the level)."""
    coins = 0
    for _ in range(FRAMES):
        body = frame(level, body, action)
        columns, rows = tiles_of(body) if level.coins else ([], [])
        for column in columns:
            if column in level.coins and level.coins[column] in rows:
                del level.coins[column]
                coins += 1
        end = end_of(level, body)
        if end:
            return body, end, coins
    return body, "", coins


def solve(level: Level, most: int = 100_000) -> list[int] | None:
    """Actions that lead to the flag, found by a search through what can be reached: the states are exact, those very
    near to one that was reached before are left out, and those that promise the shortest way go first. None where it
    finds no way within `most` steps tried, or within the time.
    """
    coins, level.coins = level.coins, {}  # they matter to no motion
    body = start(level)
    before: dict[int, tuple[int, int]] = {}
    bodies, reached, queue = [body], {_near(body)}, [(0.0, 0, 0)]
    while queue and len(bodies) < most:
        _, steps, number = heapq.heappop(queue)
        for action in (2, 5, 4, 3, 1, 0):
            body, end, _ = step(level, bodies[number], action)
            if end == "goal":
                level.coins = coins
                return _way(before, number, action)
            if end or _near(body) in reached or steps + 1 >= STEPS:
                continue
            reached.add(_near(body))
            before[len(bodies)] = (number, action)
            heapq.heappush(queue, (steps + 1 + 3.0 * (level.flag - body.x) / (FRAMES * SPEED), steps + 1, len(bodies)))
            bodies.append(body)
    level.coins = coins
    return None


def _near(body: Body) -> tuple[int, ...]:
    return body.x // 24, body.y // 24, body.vx // 24, body.vy // 24, body.stands


def _way(before: dict[int, tuple[int, int]], number: int, last: int) -> list[int]:
    actions = [last]
    while number:
        number, action = before[number]
        actions.append(action)
    return actions[::-1]

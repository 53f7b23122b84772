"""Pacman against an independent reference in plain Python, on sets of cells, drawing from `plain_philox`; worked
examples of each ghost.
"""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learning import learnt
from plain_philox import RESET, STEP, Key

from operant import envs
from operant.compute.device import device_params
from operant.envs import pacman as rules
from operant.envs.drawing import BLUE, GROUND, ORANGE, YELLOW
from operant.envs.pacman import maze, picture
from operant.worlds.base import EPISODES, TALLIES
from operant.worlds.device_world import DeviceWorld

SEED, LANES = 13, 64
Cell = tuple[int, int]  # column, row
MOVES = {0: (0, -1), 1: (1, 0), 2: (0, 1), 3: (-1, 0)}  # up, right, down, left
PREFERENCE = (0, 3, 2, 1)
NAMES = ("blinky", "pinky", "inky", "clyde")
HOMES = {"blinky": (13, 11), "pinky": (14, 11), "inky": (12, 11), "clyde": (15, 11)}
CORNERS = {"blinky": (24, -3), "pinky": (3, -3), "inky": (27, 31), "clyde": (0, 31)}
MOODS = ("hunting", "frightened", "eyes")

OPEN = {(column, row) for row, line in enumerate(maze.MAZE) for column, kind in enumerate(line) if kind != "#"}
PICKUPS = [(column, row) for row, line in enumerate(maze.MAZE) for column, kind in enumerate(line) if kind in ".o"]
PILLS = {(column, row) for column, row in PICKUPS if maze.MAZE[row][column] == "o"}
DOTS = [cell for cell in PICKUPS if cell not in PILLS]


def beside(cell: Cell, way: int) -> Cell:
    """Neighbouring cell, through the tunnel if necessary."""
    return ((cell[0] + MOVES[way][0]) % 28, cell[1] + MOVES[way][1])


WAYS = {cell: tuple(way for way in range(4) if beside(cell, way) in OPEN) for cell in OPEN}
BESIDE = {cell: {way: beside(cell, way) for way in ways} for cell, ways in WAYS.items()}
NEAR = {cell: {other for other in OPEN if abs(cell[0] - other[0]) + abs(cell[1] - other[1]) <= 3} for cell in OPEN}
BITS = {cell: 1 << PICKUPS.index(cell) if cell in PICKUPS else 0 for cell in OPEN}


def bits(pickups: set[Cell]) -> int:
    """Pickups as bits."""
    return sum(BITS[cell] for cell in pickups)


def squared_distance(one: Cell, other: Cell) -> int:
    return (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2


class Ghost:
    """Reference ghost."""

    def __init__(self, name: str, wait: int) -> None:
        self.name, self.wait, self.cell, self.heading, self.mood = name, wait, HOMES[name], 0, "hunting"

    def choose(self, target: Cell, key: Key | None) -> int:
        """Direction of the ghost, never back; `key` decides for a frightened one."""
        ways = [way for way in PREFERENCE if way in WAYS[self.cell] and way != (self.heading + 2) % 4]
        if self.mood == "frightened" and key is not None:
            return ways[key.integer(NAMES.index(self.name), len(ways))] if len(ways) > 1 else ways[0]
        column, row = self.cell
        return min(ways, key=lambda way: squared_distance((column + MOVES[way][0], row + MOVES[way][1]), target))


class Game:
    """Reference game."""

    def __init__(self, key: Key) -> None:
        self.left = 2**244 - 1  # bits of the pickups that are there
        self.pacman, self.heading = DOTS[key.integer(0, len(DOTS))], 1
        self.ghosts = [Ghost(name, key.integer(1 + k, 49)) for k, name in enumerate(NAMES)]
        self.clock, self.fright = 0, 0
        self.eaten = {"pickups": 0, "ghosts": 0}

    def mode(self) -> tuple[bool, bool]:
        """Whether the ghosts chase at this clock, and whether the mode has just changed."""
        begins = [1]
        for length in (70, 140) * 3:
            begins.append(begins[-1] + length)
        index = max(k for k, begin in enumerate(begins) if self.clock >= begin)
        return index % 2 == 1, index > 0 and self.clock == begins[index]

    def targets(self, chasing: bool) -> dict[str, Cell]:
        if not chasing:
            return CORNERS
        cells = {ghost.name: ghost.cell for ghost in self.ghosts}
        (column, row), (right, down) = self.pacman, MOVES[self.heading]
        middle = (column + 2 * right, row + 2 * down)
        return {
            "blinky": self.pacman,
            "pinky": (column + 4 * right, row + 4 * down),
            "inky": (middle[0] + middle[0] - cells["blinky"][0], middle[1] + middle[1] - cells["blinky"][1]),
            "clyde": self.pacman if squared_distance(self.pacman, cells["clyde"]) > 8**2 else CORNERS["clyde"],
        }

    def step(self, action: int, key: Key) -> tuple[int, str]:
        """Reward, and the cause of the end of the game, if any."""
        self.clock += 1
        chasing, turning = self.mode()
        targets = self.targets(chasing)
        if action in WAYS[self.pacman]:
            self.heading = action
        if self.heading in WAYS[self.pacman]:
            self.pacman = BESIDE[self.pacman][self.heading]
        reward = 0
        self.fright = max(self.fright - 1, 0)
        if self.left & BITS[self.pacman]:
            self.left -= BITS[self.pacman]
            reward += 1
            self.eaten["pickups"] += 1
            if self.pacman in PILLS:
                self.fright, turning = 35, True
                for ghost in self.ghosts:
                    ghost.mood = "eyes" if ghost.mood == "eyes" else "frightened"
        caught = False
        for ghost in self.ghosts:
            met = self.move(ghost, targets[ghost.name], turning, key)
            reward += met == "eaten"
            self.eaten["ghosts"] += met == "eaten"
            caught |= met == "caught"
        if self.fright == 0:
            for ghost in self.ghosts:
                ghost.mood = "hunting" if ghost.mood == "frightened" else ghost.mood
        return reward, "cleared" if not self.left else "caught" if caught else ""

    def move(self, ghost: Ghost, target: Cell, turning: bool, key: Key) -> str:
        rests = ghost.mood == "frightened" and (35 - self.fright) % 2 == 1
        if self.clock > ghost.wait and not rests:
            if turning and ghost.mood != "eyes":
                ghost.heading = (ghost.heading + 2) % 4
            else:
                ghost.heading = ghost.choose(HOMES[ghost.name] if ghost.mood == "eyes" else target, key)
            if ghost.heading in WAYS[ghost.cell]:
                ghost.cell = BESIDE[ghost.cell][ghost.heading]
        if ghost.mood == "eyes":
            ghost.mood = "hunting" if ghost.cell == HOMES[ghost.name] else "eyes"
            return ""
        if ghost.cell != self.pacman and ghost.cell not in BESIDE[self.pacman].values():
            return ""
        if ghost.mood == "hunting":
            return "caught"
        ghost.mood = "eyes"
        return "eaten"

    def words(self) -> list[int]:
        """State words of the environment, (16)."""
        pickups = [self.left >> 32 * w & 0xFFFFFFFF for w in range(8)]
        signed = [word - (word >> 31 << 32) for word in pickups]
        place = [column + 32 * row for column, row in (self.pacman, *(ghost.cell for ghost in self.ghosts))]
        ghosts = [
            at | ghost.heading << 10 | MOODS.index(ghost.mood) << 12 | ghost.wait << 16
            for at, ghost in zip(place[1:], self.ghosts, strict=True)
        ]
        return [*signed, place[0] | self.heading << 10, *ghosts, self.clock, self.fright, self.left.bit_count()]

    def observation(self) -> np.ndarray:
        """Bytes (291)."""
        seen = [*self.pacman, *(255 * (self.heading == way) for way in range(4))]
        seen += [*(255 * (way in WAYS[self.pacman]) for way in range(4)), 255 * self.fright // 35]
        for ghost in self.ghosts:
            seen += [
                *ghost.cell,
                *(255 * (ghost.heading == way) for way in range(4)),
                *(255 * (ghost.mood == mood) for mood in MOODS),
            ]
        return np.array([*seen, *(255 * (self.left >> k & 1) for k in range(244))], np.uint8)


def late(game: Game, generator: np.random.Generator) -> None:
    """Bring a game near its end: a pill and a few dots left, ghosts in any mood, random clocks."""
    cells = sorted(OPEN)
    game.left = bits(
        {sorted(PILLS)[generator.integers(4)], *(DOTS[k] for k in generator.integers(0, 240, generator.integers(0, 4)))}
    )
    game.clock, game.fright = int(generator.integers(40, 700)), int(generator.choice([0, 1, 20, 35]))
    game.pacman = cells[generator.integers(len(cells))]
    game.heading = int(generator.choice(WAYS[game.pacman]))
    for ghost in game.ghosts:
        while squared_distance(ghost.cell, game.pacman) < 25 or ghost.cell == HOMES[ghost.name]:
            ghost.cell = cells[generator.integers(len(cells))]
        ghost.heading = int(generator.choice(WAYS[ghost.cell]))
        ghost.mood = str(generator.choice(MOODS)) if game.fright else str(generator.choice(["hunting", "eyes"]))


def good_action(game: Game) -> int:
    """First step to the nearest pickup or frightened ghost that avoids hunting ghosts; otherwise away from the nearest
    one.
    """
    danger = [ghost.cell for ghost in game.ghosts if ghost.mood == "hunting" or game.fright < 3]
    prey = [ghost.cell for ghost in game.ghosts if ghost.mood == "frightened" and game.fright > 10]
    near = set().union(*(NEAR[cell] for cell in danger))
    first: dict[Cell, int] = {}
    ahead: deque[Cell] = deque()
    for way, cell in BESIDE[game.pacman].items():
        if cell not in near and cell not in first:
            first[cell] = way
            ahead.append(cell)
    while ahead:
        cell = ahead.popleft()
        if game.left & BITS[cell] or cell in prey:
            return first[cell]
        for further in BESIDE[cell].values():
            if further not in first and further not in near:
                first[further] = first[cell]
                ahead.append(further)
    return max(
        WAYS[game.pacman],
        key=lambda way: min((squared_distance(beside(game.pacman, way), cell) for cell in danger), default=0),
    )


def compare(lanes: int, steps: int, finals: bool = False) -> dict[str, int]:
    """Play in a world and in the reference, and compare everything in each step. By lane modulo 4: random twice,
    skilled, skilled from late in a game.

    With `finals` also final observations, by a kernel that only this needs. Returns counts: pickups and ghosts
    eaten, games cleared, lost, and truncated ("").
    """
    world = DeviceWorld(envs.find("pacman"), lanes, seed=SEED, every_final=finals)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    cells, seen, final, reward = (
        world.lanes.int_state.numpy(),
        slot.observation.numpy(),
        slot.final_observation.numpy(),
        slot.reward.numpy(),
    )
    games = [Game(Key(SEED, lane, 0, RESET)) for lane in range(lanes)]
    assert all(np.array_equal(seen[:, lane], game.observation()) for lane, game in enumerate(games))
    generator, ages = np.random.default_rng(5), np.zeros(lanes, int)
    met, tallies = {"score": 0, "pickups": 0, "ghosts": 0, "cleared": 0, "caught": 0, "": 0}, np.zeros(5)
    for t in range(1, steps + 1):
        for lane in range(3, lanes, 4):
            if games[lane].clock == 0:
                late(games[lane], generator)
                cells[:, lane] = games[lane].words()
        actions = generator.integers(0, 4, lanes).astype(np.int32)
        for lane in itertools.chain(range(2, lanes, 4), range(3, lanes, 4)):
            actions[lane] = good_action(games[lane])
        slot.action.copy_(torch.from_numpy(actions[None]))
        world.step(bound)
        world.advance(1)
        outcomes = [
            game.step(int(action), Key(SEED, lane, t, STEP))
            for lane, (game, action) in enumerate(zip(games, actions, strict=True))
        ]
        assert np.array_equal(reward, [gained for gained, _ in outcomes]), t
        terminated = np.array([end != "" for _, end in outcomes])
        assert np.array_equal(slot.terminated.numpy(), terminated), t
        ages += 1
        truncated = (ages == world.spec.time_limit) & ~terminated
        assert np.array_equal(slot.truncated.numpy(), truncated), t
        for lane, (_, end) in enumerate(outcomes):
            if end or truncated[lane]:
                met[end] += 1
                for name, count in games[lane].eaten.items():
                    met[name] += count
                    met["score"] += count
                assert not (finals or truncated[lane]) or np.array_equal(final[:, lane], games[lane].observation()), (
                    t,
                    lane,
                )
                games[lane], ages[lane] = Game(Key(SEED, lane, t, RESET)), 0
        assert np.array_equal(cells, np.array([game.words() for game in games], np.int32).T), t
        for lane in range(t % 8, lanes, 8):
            assert np.array_equal(seen[:, lane], games[lane].observation()), (t, lane)
        tallies += world.episode_sums(slot).numpy()[TALLIES:]
    assert tallies.tolist() == list(met.values())[:-1]
    return met


@pytest.mark.slow
def test_steps_equal_the_reference():
    met = compare(LANES, 1_200)
    assert met["cleared"] >= 16 and met["caught"] >= 64 and met["ghosts"] >= 64 and met["pickups"] >= 2_000, met


@pytest.mark.soak
def test_ten_thousand_steps_equal_the_reference():
    met = compare(LANES, 10_000, finals=True)
    assert met["cleared"] >= 200 and met["caught"] >= 500 and met["ghosts"] >= 400 and met[""] > 0, met


# THE MAZE


def test_maze_has_244_reachable_pickups():
    assert len(maze.MAZE) == 31 and {len(line) for line in maze.MAZE} == {28}
    assert all(line == line[::-1] for line in maze.MAZE), "left and right are alike"
    assert len(DOTS) == 240 and {(1, 3), (26, 3), (1, 23), (26, 23)} == PILLS
    assert all(len(ways) >= 2 for ways in WAYS.values()), "a ghost that must not turn back always has a way"
    assert {cell for cell in OPEN if cell[0] in (0, 27)} == {(0, 14), (27, 14)} and not any(
        cell[1] in (0, 30) for cell in OPEN
    )
    seen, ahead = {(13, 23)}, [(13, 23)]
    while ahead:
        cell = ahead.pop()
        found = {beside(cell, way) for way in WAYS[cell]} - seen
        seen |= found
        ahead += found
    assert seen == OPEN, "every open cell can be reached, and with it every pickup"
    assert {*HOMES.values(), (13, 23), (14, 23)} <= OPEN - set(PICKUPS)


def test_eyes_find_home_from_everywhere():
    for name, home in HOMES.items():
        lost = set()
        for cell, heading in itertools.product(sorted(OPEN - {home}), range(4)):
            if beside(cell, (heading + 2) % 4) not in OPEN:
                continue
            ghost = Ghost(name, 0)
            ghost.cell, ghost.heading, ghost.mood = cell, heading, "eyes"
            for _ in range(150):
                ghost.heading = ghost.choose(home, None)
                ghost.cell = beside(ghost.cell, ghost.heading)
                if ghost.cell == home:
                    break
            else:
                lost.add((cell, heading))
        assert not lost, (name, lost)


def test_starts_are_uniform_over_dots(serial_worlds):
    lanes = 240 * 300
    world = DeviceWorld(envs.find("pacman"), lanes, seed=3)
    world.reset(world.bind(world.slot()))
    cells = world.lanes.int_state.numpy()
    places, counts = np.unique(cells[rules.PACMAN] & 1023, return_counts=True)
    assert places.tolist() == sorted(column + 32 * row for column, row in DOTS)
    # Chi-squared with 239 degrees of freedom: deviation 21.9.
    assert abs(float(((counts - 300) ** 2 / 300).sum()) - 239) < 5 * 21.9
    waits = cells[rules.GHOSTS : rules.GHOSTS + 4] >> 16
    for row in waits:
        counts = np.bincount(row)
        assert len(counts) == 49 and abs(float(((counts - lanes / 49) ** 2 / (lanes / 49)).sum()) - 48) < 5 * 9.8
    assert np.abs(np.corrcoef(waits) - np.eye(4)).max() < 0.02


# POSITIONS MADE BY HAND: a lane each

FAR = {"blinky": (26, 1), "pinky": (26, 29), "inky": (1, 29), "clyde": (12, 1)}  # out of the way, and there they wait
NEVER = 20_000


def position(
    pacman: Cell,
    heading: int,
    clock: int,
    fright: int = 0,
    left: set[Cell] | None = None,
    **ghosts: tuple[Cell, int, str],
) -> Game:
    """Position in which a step sees `clock`. Given ghosts are at (cell, heading, mood); others wait far away."""
    game = Game(Key(SEED, 0, 0, RESET))
    game.pacman, game.heading, game.clock, game.fright = pacman, heading, clock - 1, fright
    game.left = bits({(1, 5), (26, 5)} if left is None else left)
    for ghost in game.ghosts:
        ghost.cell, ghost.heading, ghost.mood = ghosts.get(ghost.name, (FAR[ghost.name], 0, "hunting"))
        ghost.wait = 0 if ghost.name in ghosts else NEVER
    return game


class Lanes:
    """Positions, one per lane."""

    def __init__(self, *positions: Game) -> None:
        self.world = DeviceWorld(envs.find("pacman"), len(positions), seed=SEED)
        self.slot = self.world.slot()
        self.bound = self.world.bind(self.slot)
        self.world.reset(self.bound)
        self.int_state = self.world.lanes.int_state.numpy()
        self.int_state[:] = np.array([game.words() for game in positions], np.int32).T

    def step(self, *actions: int) -> list[float]:
        """Rewards. The last action is used for all further lanes."""
        chosen = [*actions, *[actions[-1]] * (self.world.count - len(actions))]
        self.slot.action.copy_(torch.tensor([chosen], dtype=torch.int32))
        self.world.step(self.bound)
        self.world.advance(1)
        return self.slot.reward.tolist()

    def ghost(self, lane: int, name: str) -> tuple[Cell, str]:
        """Position and mood of a ghost."""
        word = int(self.int_state[rules.GHOSTS + NAMES.index(name), lane])
        return (word & 31, word >> 5 & 31), MOODS[word >> 12 & 3]

    def pacman(self, lane: int = 0) -> Cell:
        word = int(self.int_state[rules.PACMAN, lane])
        return word & 31, word >> 5 & 31


UP, RIGHT, DOWN, LEFT = range(4)
CROSSING = (6, 5)  # all four ways are open
SCATTER, CHASE = 20, 300  # clocks
GHOST_WAYS = {
    # Blinky targets Pacman, 20 rows below; next to him, with two equally near directions, the upper one wins.
    "blinky down": ("blinky", position((6, 26), LEFT, CHASE, blinky=(CROSSING, RIGHT, "hunting")), DOWN),
    "blinky not back": ("blinky", position((1, 6), DOWN, CHASE, blinky=(CROSSING, RIGHT, "hunting")), DOWN),
    "blinky of two the upper": ("blinky", position((1, 5), DOWN, CHASE, blinky=(CROSSING, RIGHT, "hunting")), UP),
    "blinky beside": ("blinky", position((9, 5), LEFT, CHASE, blinky=(CROSSING, UP, "hunting")), RIGHT),
    # Pinky targets the fourth cell ahead of him: (5, 5), (6, 6), beyond her own position.
    "pinky ahead": ("pinky", position((9, 5), LEFT, CHASE, pinky=(CROSSING, UP, "hunting")), LEFT),
    "pinky ahead, below": ("pinky", position((6, 2), DOWN, CHASE, pinky=(CROSSING, RIGHT, "hunting")), DOWN),
    # Inky: from Blinky over the second cell ahead, (7, 5), and as far again: (13, 5), (-12, 5), (7, -19).
    "inky, blinky left": (
        "inky",
        position((9, 5), LEFT, CHASE, inky=(CROSSING, UP, "hunting"), blinky=((1, 5), DOWN, "hunting")),
        RIGHT,
    ),
    "inky, blinky right": (
        "inky",
        position((9, 5), LEFT, CHASE, inky=(CROSSING, UP, "hunting"), blinky=((26, 5), DOWN, "hunting")),
        LEFT,
    ),
    "inky, blinky below": (
        "inky",
        position((9, 5), LEFT, CHASE, inky=(CROSSING, UP, "hunting"), blinky=((7, 29), LEFT, "hunting")),
        UP,
    ),
    # Clyde targets him from nine cells away, and his own corner at the bottom left from eight.
    "clyde far": ("clyde", position((15, 5), RIGHT, CHASE, clyde=(CROSSING, UP, "hunting")), RIGHT),
    "clyde near": ("clyde", position((14, 5), RIGHT, CHASE, clyde=(CROSSING, UP, "hunting")), LEFT),
    # Scattering, each its own corner.
    "blinky's corner": ("blinky", position((6, 26), LEFT, SCATTER, blinky=(CROSSING, UP, "hunting")), RIGHT),
    "pinky's corner": ("pinky", position((6, 26), LEFT, SCATTER, pinky=(CROSSING, UP, "hunting")), UP),
    "inky's corner": ("inky", position((6, 26), LEFT, SCATTER, inky=(CROSSING, RIGHT, "hunting")), DOWN),
    "clyde's corner": ("clyde", position((6, 26), LEFT, SCATTER, clyde=(CROSSING, LEFT, "hunting")), DOWN),
    # Eyes return home in every mode.
    "eyes": ("clyde", position((6, 26), LEFT, SCATTER, clyde=(CROSSING, UP, "eyes")), RIGHT),
}


def test_each_ghost_has_its_own_target():
    lanes = Lanes(*(game for _, game, _ in GHOST_WAYS.values()))
    lanes.step(RIGHT)
    for lane, (what, (name, _, way)) in enumerate(GHOST_WAYS.items()):
        assert lanes.ghost(lane, name)[0] == beside(CROSSING, way), what
    assert not lanes.slot.terminated.any()


def test_ghosts_turn_back_when_the_mode_changes():
    corridor = ((6, 12), UP, "hunting")  # only forwards or backwards
    changes, others = (71, 211, 281, 421, 491, 631), (1, 70, 72, 210, 212, 701, 771, 841, 9_000)
    lanes = Lanes(*(position((13, 23), LEFT, clock, blinky=corridor) for clock in (*changes, *others)))
    lanes.step(UP)
    rows = [lanes.ghost(lane, "blinky")[0][1] for lane in range(len(changes) + len(others))]
    assert rows == [13] * len(changes) + [11] * len(others)


def test_ghost_waits_after_the_start():
    game = position((13, 23), LEFT, 1)
    for wait, ghost in zip((0, 1, 2, 48), game.ghosts, strict=True):
        ghost.wait = wait
    lanes = Lanes(game)
    moved = []
    for _ in range(49):
        before = [lanes.ghost(0, name)[0] for name in NAMES]
        lanes.step(UP)
        moved.append([lanes.ghost(0, name)[0] != cell for name, cell in zip(NAMES, before, strict=True)])
    assert [column.index(True) for column in zip(*moved, strict=True)] == [0, 1, 2, 48]


def test_pill_frightens_reverses_and_slows_ghosts():
    # Pacman eats the pill at (1, 3) from above. Blinky is far away in the long corridor; Pinky waits; Inky is
    # eyes.
    corridor = ((21, 15), UP, "hunting")
    lanes = Lanes(position((1, 2), DOWN, CHASE, left={(1, 3), (26, 5)}, blinky=corridor, inky=((6, 12), UP, "eyes")))
    assert lanes.step(DOWN) == [1.0]
    assert lanes.ghost(0, "blinky") == ((21, 16), "frightened") and lanes.ghost(0, "pinky") == (
        FAR["pinky"],
        "frightened",
    )
    assert lanes.ghost(0, "inky") == ((6, 11), "eyes")
    rows = []
    for _ in range(4):
        lanes.step(UP)
        rows.append(lanes.ghost(0, "blinky")[0][1])
    assert rows == [16, 17, 17, 18]
    for step in range(5, 36):
        assert lanes.ghost(0, "blinky")[1] == "frightened" and lanes.slot.observation[10, 0] == 255 * (36 - step) // 35
        lanes.step(UP)
    assert lanes.ghost(0, "blinky")[1] == lanes.ghost(0, "pinky")[1] == "hunting" and lanes.slot.observation[10, 0] == 0


def test_eaten_ghost_returns_from_home():
    # Three cells ahead of Pacman in the long corridor on the left; Blinky's home is (13, 11).
    lanes = Lanes(
        position((6, 12), UP, CHASE, fright=29, blinky=((6, 9), DOWN, "frightened"), clyde=((21, 15), UP, "frightened"))
    )
    rewards = lanes.step(UP)
    assert rewards == [0.0] and lanes.ghost(0, "blinky") == ((6, 9), "frightened"), (
        "28 are left: it rests, two cells away"
    )
    assert lanes.step(UP) == [1.0] and lanes.ghost(0, "blinky")[1] == "eyes"
    for _ in range(60):
        lanes.step(DOWN)
        cell, mood = lanes.ghost(0, "blinky")
        if mood == "hunting":
            break
        assert cell != (13, 11) and not lanes.slot.terminated.any()
    assert (cell, mood) == ((13, 11), "hunting")
    assert lanes.int_state[rules.FRIGHT, 0] > 0 and lanes.ghost(0, "clyde")[1] == "frightened", (
        "it hunts while others are frightened still"
    )


def test_ghosts_catch_in_neighbouring_cells_and_across_the_seam_only():
    waiting = {"pinky": ((6, 12), UP, "hunting")}
    near, across, corner = (
        position((6, 15), UP, CHASE, **waiting),
        position((1, 14), LEFT, CHASE),
        position((6, 5), UP, CHASE),
    )
    across.ghosts[1].cell, corner.ghosts[1].cell = (27, 14), (7, 5)
    near.ghosts[1].wait = NEVER
    corner.pacman, corner.heading = (6, 7), UP  # to (6, 6), which touches (7, 5) by a corner only
    lanes = Lanes(near, across, corner)
    tally = lanes.world.lanes.finished
    lanes.step(UP, LEFT, UP)
    assert lanes.slot.terminated.tolist() == [0, 1, 0]
    lanes.step(UP)
    assert lanes.slot.terminated.tolist()[0] == 1 and lanes.slot.reward.tolist() == [0.0, 1.0, 0.0]
    assert tally[rules.CAUGHT].tolist()[:2] == [1.0, 1.0] and tally[rules.CLEARED].sum() == 0


def test_last_pickup_clears_the_maze_next_to_a_ghost():
    game = position((1, 4), DOWN, CHASE, left={(1, 5)}, blinky=((1, 7), UP, "hunting"))
    lanes = Lanes(game, position((1, 4), DOWN, CHASE, left={(1, 5)}))
    assert lanes.step(DOWN) == [1.0, 1.0] and lanes.slot.terminated.tolist() == [1, 1]
    finished = lanes.world.lanes.finished
    assert finished[rules.CLEARED].tolist() == [1.0, 1.0] and finished[rules.CAUGHT].tolist() == [0.0, 0.0]
    assert lanes.int_state[rules.REMAINING].tolist() == [244, 244]


def test_the_tunnel_wraps_both_ways_and_walls_hold():
    left = position((0, 14), LEFT, CHASE, blinky=((2, 14), RIGHT, "hunting"))
    lanes = Lanes(left, position((27, 14), RIGHT, CHASE), position((1, 1), UP, CHASE, clyde=((13, 11), UP, "eyes")))
    lanes.step(LEFT, RIGHT, LEFT)
    assert [lanes.pacman(lane) for lane in range(3)] == [(27, 14), (0, 14), (1, 1)]
    lanes.step(UP, DOWN, RIGHT)
    assert [lanes.pacman(lane) for lane in range(3)] == [(26, 14), (1, 14), (2, 1)], (
        "into a wall he goes on as he headed"
    )


@pytest.mark.slow
def test_rewards_clocks_and_starts_are_parameters():
    env = envs.find("pacman")
    params = env.Params(
        pickup=0.5,
        ghost=4.0,
        frightened_steps=10,
        scatter_steps=5,
        chase_steps=7,
        mode_changes=3,
        wait_steps=1,
        random_start=False,
    )
    world = DeviceWorld(env, 2, seed=SEED, params=params)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    cells = world.lanes.int_state.numpy()
    assert (cells[rules.PACMAN] & 1023).tolist() == [13 + 32 * 23] * 2 and not (
        cells[rules.GHOSTS : rules.GHOSTS + 4] >> 16
    ).any()
    # Changes before the steps 6, 13 and 18, and never again: in a corridor without another way, Blinky turns back
    # thrice.
    turns = []
    slot.action.fill_(UP)
    for clock in range(1, 40):
        cells[:, 0] = position((13, 23), LEFT, clock, blinky=((6, 12), UP, "hunting")).words()
        cells[:, 1] = position((1, 2), DOWN, clock, left={(1, 3), (26, 5)}, blinky=((1, 5), UP, "hunting")).words()
        slot.action[0, 1] = DOWN
        world.step(bound)
        world.advance(1)
        if (cells[rules.GHOSTS, 0] & 1023) == 6 + 32 * 13:
            turns.append(clock)
        # Blinky, two cells away, turns back to three.
        assert slot.reward.tolist() == [0.0, 0.5] and cells[rules.FRIGHT, 1] == 10 and slot.observation[10, 1] == 255
    assert turns == [6, 13, 18]
    cells[:, 1] = position((1, 2), DOWN, 30, fright=9, left={(1, 29)}, blinky=((1, 4), UP, "frightened")).words()
    world.step(bound)
    assert slot.reward[1] == 4.0


@settings(max_examples=20, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8), min_size=1, max_size=40),
    st.integers(1, 6),
)
def test_invariants_of_every_game(seed, actions, often):
    world = DeviceWorld(envs.find("pacman"), 8, seed=seed)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    cells, running, open_places = (
        world.lanes.int_state.numpy(),
        world.lanes.running.numpy(),
        {column + 32 * row for column, row in OPEN},
    )
    before = cells.copy()
    for row in itertools.chain.from_iterable([row] * often for row in actions):
        slot.action.copy_(torch.tensor([row], dtype=torch.int32))
        world.step(bound)
        world.advance(1)
        ended = slot.terminated.numpy().astype(bool)
        actors = cells[rules.PACMAN : rules.GHOSTS + 4]
        assert {int(place) for place in (actors & 1023).ravel()} <= open_places, "nobody is in a wall"
        remaining = np.array(
            [
                [int(word).bit_count() if word >= 0 else 32 - int(~word).bit_count() for word in lane]
                for lane in cells[:8].T
            ]
        ).sum(axis=1)
        assert np.array_equal(remaining, cells[rules.REMAINING])
        going = ~ended
        assert not (cells[:8] & ~before[:8])[:, going].any(), "what is eaten stays away"
        assert np.array_equal(running[1 + rules.SCORE], running[1 + rules.EATEN] + running[1 + rules.GHOSTS_EATEN])
        assert np.array_equal(running[1 + rules.SCORE], running[0]), "the return is the score"
        assert np.array_equal((244 - remaining)[going], running[1 + rules.EATEN][going])
        for old, new in zip(
            before[rules.PACMAN : rules.GHOSTS + 4, going].ravel(), actors[:, going].ravel(), strict=True
        ):
            cell, other = (old & 31, old >> 5 & 31), (new & 31, new >> 5 & 31)
            assert cell == other or other in [beside(cell, way) for way in range(4)], "a cell a step"
        assert np.array_equal(remaining[ended], np.full(ended.sum(), 244))
        before = cells.copy()


@pytest.mark.slow
def test_picture_shows_maze_and_actors():
    env = envs.find("pacman")
    game = position(
        (6, 5), LEFT, CHASE, left={(1, 3), (12, 1)}, blinky=((6, 12), UP, "frightened"), pinky=((21, 12), UP, "hunting")
    )
    game.ghosts[2].cell, game.ghosts[3].cell, game.ghosts[3].mood = (1, 29), (13, 11), "eyes"
    lanes = Lanes(game)
    s, cells, p = lanes.world.lanes.state[:, 0].numpy(), lanes.int_state[:, 0].copy(), device_params(env.Params())

    def at(column: float, row: float) -> tuple[float, ...]:
        return env.pixel_shader.py_func(
            s, cells, p, np.float32((column + 0.5 + 2) / 32), np.float32((row + 0.5 + 0.5) / 32)
        )

    assert at(6.3, 5) == YELLOW and at(5.7, 5) == GROUND, "he heads left, with his mouth open"
    assert (
        at(6, 12.4) == picture.SCARED
        and at(21, 12.4) == picture.PINK
        and at(1, 29.4) == BLUE
        and at(13, 11.4) == GROUND
    )
    assert at(13.28, 10.9) == picture.WHITE, "the eyes of the eaten one"
    assert at(1, 3) == picture.WHITE and at(12, 1) == picture.DOT and at(11, 1) == GROUND and at(3, 3) == picture.WALL
    cells[rules.GHOSTS + 3] &= 0xFFF
    assert at(13, 11.4) == ORANGE and at(-1, 5) == GROUND


# LEARNING


@pytest.mark.soak
def test_score_improves_with_the_recipe():
    """With lanes and a network for two CPU cores: the mean score of iterations 46 to 60 is more than twice that of the
    first 15.
    """
    overrides = ["env.lanes=480", "net.hidden=[128,128]", "algo.minibatches=8"]
    scores = [sums[TALLIES + rules.SCORE] / sums[EPISODES] for sums in learnt("pacman", overrides, 60)]
    assert scores[-1] > 2.0 * scores[0], scores

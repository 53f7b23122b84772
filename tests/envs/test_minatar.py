"""MinAtar's games against the authors' package, step by step with the same random numbers; worked examples of each
game.

The package is optional for the tests: it requires pandas, scipy and seaborn, which its rules do not use (`pip install
--no-deps minatar`).
"""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch
from plain_philox import RESET, STEP, Key

from operant import envs
from operant.worlds.device_world import DeviceWorld

SEED = 7
STAY, LEFT, RIGHT, FIRE = 0, 1, 2, 3
UP = 1  # of Freeway
GAMES = [name for name in envs.names() if name.startswith("minatar_")]
RAMPING = [name for name in GAMES if "ramping" in envs.find(name).Params._fields]
LANES = 8


class Table:
    """World of few lanes, stepped by the test."""

    def __init__(self, name: str, lanes: int = LANES, **params: float) -> None:
        self.env = envs.find(name)
        self.world = DeviceWorld(self.env, lanes, seed=SEED, params=self.env.Params(**params), every_final=True)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)
        self.world.reset(self._bound)
        self.state = self.world.lanes.state.numpy()
        self.over = self.slot.terminated.numpy()
        self.reward = self.slot.reward.numpy()

    def step(self, actions: np.ndarray | int) -> None:
        self.slot.action.copy_(torch.from_numpy(np.full((1, len(self.reward)), actions, np.int32)))
        self.world.step(self._bound)
        self.world.advance(1)

    def seen(self) -> np.ndarray:
        """Observation after the step, or the final one of a game that ended in it: (N, 10, 10, C), 0 and 1."""
        observation, final = self.slot.observation.numpy(), self.slot.final_observation.numpy()
        seen = np.where(self.over != 0, final, observation)
        assert set(np.unique(seen)) <= {0, 255}
        return np.moveaxis(seen.reshape(*self.env.observation.shape, -1), -1, 0) // 255


class Numbers:
    """Replacement of the package's numpy generator: the environment's random numbers in the order of its draws."""

    def __init__(self) -> None:
        self.key, self.draw = Key(SEED, 0, 0, RESET), 0

    def begin(self, key: Key) -> None:
        self.key, self.draw = key, 0

    def rand(self, count: int | None = None) -> float | np.ndarray:
        return self._next(lambda draw: self.key.uniform(draw), count)

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> int | np.ndarray:
        low, high = (0, low) if high is None else (low, high)
        return self._next(lambda draw: low + self.key.integer(draw, high - low), size)

    def _next(self, number, count):
        drawn = [number(self.draw + k) for k in range(count or 1)]
        self.draw += len(drawn)
        return drawn[0] if count is None else np.array(drawn)


def _spawn_diver(game) -> None:
    """Spawn in Seaquest, with draws 4 and 5, whether or not an enemy came in the same step."""
    game.random.draw = 4
    super(type(game), game)._spawn_diver()


class Oracle:
    """Game of the MinAtar package."""

    def __init__(self, name: str, lane: int, sticky: float, ramping: bool) -> None:
        logging.disable(logging.WARNING)  # the package warns about missing graphics
        try:
            minatar = pytest.importorskip("minatar")
        finally:
            logging.disable(logging.NOTSET)
        self.game = minatar.Environment(
            name.removeprefix("minatar_"), sticky_action_prob=sticky, difficulty_ramping=ramping
        )
        self.lane, self.numbers = lane, Numbers()
        self.game.random = self.game.env.random = self.numbers
        self.actions = self.game.minimal_action_set()
        if hasattr(self.game.env, "_spawn_diver"):
            self.game.env.__class__ = type("Seaquest", (type(self.game.env),), {"_spawn_diver": _spawn_diver})
        self.reset(0)

    def reset(self, tick: int) -> None:
        self.numbers.begin(Key(SEED, self.lane, tick, RESET))
        self.game.reset()
        self.game.last_action = 0

    def step(self, action: int, tick: int) -> tuple[float, bool]:
        self.numbers.begin(Key(SEED, self.lane, tick, STEP))
        return self.game.act(self.actions[action])


def compare(name: str, steps: int, sticky: float, ramping: bool, careful: int) -> tuple[float, int]:
    """Play both and compare everything in each step, including final ones. Returns the sum of rewards and the number of
    games that ended.
    """
    params = {"sticky": sticky} | ({"ramping": ramping} if name in RAMPING else {})
    oracles = [Oracle(name, lane, sticky, ramping) for lane in range(LANES)]  # first: without the package, a skip
    table = Table(name, **params)
    assert len(oracles[0].actions) == table.env.action.n and table.env.observation.shape == tuple(
        oracles[0].game.state_shape()
    )
    generator, rewards, ends = np.random.default_rng(3), 0.0, 0
    assert np.array_equal(table.seen(), [oracle.game.state() for oracle in oracles])
    for t in range(1, steps + 1):
        actions = policy(oracles, generator, careful)
        table.step(actions[None])
        outcomes = [oracle.step(int(action), t) for oracle, action in zip(oracles, actions, strict=True)]
        assert np.array_equal(table.reward, [reward for reward, _ in outcomes]), t
        assert np.array_equal(table.over != 0, [over for _, over in outcomes]), t
        assert not table.slot.truncated.any()
        assert np.array_equal(table.seen(), [oracle.game.state() for oracle in oracles]), t
        rewards += sum(reward for reward, _ in outcomes)
        for oracle, (_, over) in zip(oracles, outcomes, strict=True):
            if over:
                oracle.reset(t)
                ends += 1
    return rewards, ends


def policy(oracles: list[Oracle], generator: np.random.Generator, careful: int) -> np.ndarray:
    """Action for each lane: skilled play in the first `careful` ones, random in the others."""
    actions = generator.integers(0, len(oracles[0].actions), len(oracles)).astype(np.int32)
    for oracle in oracles[:careful]:
        actions[oracle.lane] = foreseen(
            oracle, [*wishes(oracle.game.env, generator), *generator.permutation(len(oracle.actions))], generator
        )
    return actions


def foreseen(oracle: Oracle, candidates: list[int], generator: np.random.Generator) -> int:
    """First action that some random continuation survives for eight steps."""
    for action in candidates:
        for _ in range(8):
            game = copy.deepcopy(oracle.game.env)
            if not any(
                game.act(oracle.actions[k])[1] for k in (action, *generator.integers(0, len(oracle.actions), 7))
            ):
                return int(action)
    return int(candidates[0])


def wishes(game, generator: np.random.Generator) -> list[int]:
    """Preferred actions, best first."""
    if hasattr(game, "brick_map"):
        x = game.ball_x + (1 if game.ball_dir in (1, 2) else -1)
        return [LEFT if x < game.pos else RIGHT if x > game.pos else STAY]
    if hasattr(game, "cars"):
        return [UP]
    if hasattr(game, "alien_map"):
        columns = np.flatnonzero(game.alien_map.any(axis=0))
        nearest = columns[np.argmin(abs(columns - game.pos))]
        return (
            [LEFT] if nearest < game.pos else [RIGHT] if nearest > game.pos else [FIRE] if game.shot_timer == 0 else []
        )
    # to the divers; up with them when oxygen is low or six are on board; shoot ahead
    if hasattr(game, "divers"):
        if game.diver_count != 0 and (game.oxygen < 40 + 20 * game.sub_y or game.diver_count >= 6):
            return [2]
        x, y = game.divers[0][:2] if game.divers else (5, 5)
        ways = [2] * (game.sub_y > max(y, 1)) + [4] * (game.sub_y < y) + [1] * (game.sub_x > x) + [3] * (game.sub_x < x)
        ahead = any(
            other[1] == game.sub_y and (other[0] > game.sub_x) == game.sub_or for other in (*game.e_fish, *game.e_subs)
        )
        return [5] * ahead + list(generator.permutation(ways))
    return []


@pytest.mark.parametrize(("sticky", "ramping"), [(0.0, False), (0.1, True)])
@pytest.mark.parametrize("name", GAMES)
def test_steps_equal_the_package(name, sticky, ramping):
    compare(name, 300, sticky, ramping, careful=1)


@pytest.mark.soak
@pytest.mark.parametrize(("sticky", "ramping"), [(0.0, True), (0.1, True), (0.25, False)])
@pytest.mark.parametrize("name", GAMES)
def test_many_steps_equal_the_package(name, sticky, ramping):
    rewards, ends = compare(name, 5_000, sticky, ramping, careful=4)
    print(f"{name}: {LANES * 5_000} steps compared, rewards {rewards}, {ends} games ended")
    assert rewards > 0 and ends > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_sticky_action_repeats_the_last_one(name):
    """With sticky = 1 every action is to stay; a new game resets the last action."""
    told, stays = Table(name, sticky=1.0), Table(name, sticky=0.0)
    for t in range(60):
        told.step(t % told.env.action.n)
        stays.step(STAY)
        assert np.array_equal(told.seen(), stays.seen()) and np.array_equal(told.reward, stays.reward)


# BY HAND


def where(plane: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns of the cells of a plane."""
    return [(int(row), int(column)) for row, column in np.argwhere(plane)]


def test_worked_example_of_breakout():
    """The first ball comes down at one side, returns the way it came into the bricks, and comes down again."""
    table = Table("minatar_breakout", sticky=0.0)
    assert {where(seen[:, :, 1])[0] for seen in table.seen()} == {(3, 0), (3, 9)}
    lane = next(lane for lane, seen in enumerate(table.seen()) if seen[3, 0, 1])
    assert (
        table.seen()[lane, 1:4, :, 3].all()
        and table.seen()[lane, :, :, 3].sum() == 30
        and where(table.seen()[lane, :, :, 0]) == [(9, 4)]
    )
    path = []
    for action in (RIGHT, RIGHT, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY):
        table.step(action)
        path.append(where(table.seen()[lane, :, :, 1])[0])
    # Down to column 5 above the bottom row, where the paddle stands under the next cell: back up the same way, to the
    # brick of row 3, column 0.
    assert path[:5] == [(4, 1), (5, 2), (6, 3), (7, 4), (8, 5)] and path[5] == (8, 6)
    assert path[6:10] == [(7, 5), (6, 4), (5, 3), (4, 2)]
    assert path[10] == (4, 1) and table.seen()[lane, 3, 1, 3] == 0 and path[11] == (5, 0)


def test_worked_example_of_freeway():
    """A car of speed v moves in every step v + 1; the chicken waits three steps and gets no reward for staying; the
    game has 2,501 steps.
    """
    table = Table("minatar_freeway", sticky=0.0)
    cars = table.seen()[:, 1:9, :, 2:]
    assert table.seen()[:, 1:9, 0, 1].all() and cars.sum() == LANES * 8, "all begin in the left column, with a trail"
    speed = 1 + cars.any(axis=2).argmax(axis=2)
    way = np.where(cars[:, :, 1].any(axis=2), -1, 1)  # the trail of an object that moves left is on its right
    assert set(speed.ravel()) == {1, 2, 3, 4, 5} and set(way.ravel()) == {-1, 1}
    for t in range(1, 2502):
        table.step(STAY)
        if t < 40:
            assert np.array_equal(table.seen()[:, 1:9, :, 1].argmax(axis=2), (way * (t // (speed + 1))) % 10), t
            assert table.seen()[:, 9, 4, 0].all()
        assert not table.reward.any() and (table.over == (t == 2501)).all(), t

    rows, scored = [], 0.0
    for t in range(1, 1001):
        table.step(UP)
        rows.append(where(table.seen()[0, :, :, 0])[0][0])
        assert (
            np.array_equal(table.reward[0] == 1, len(rows) > 1 and rows[-2] == 1 and rows[-1] == 9 and t % 3 == 1)
            or table.reward[0] == 0
        )
        scored += float(table.reward.sum())
    assert rows[:3] == [9, 9, 9] and rows[3] == 8 and scored > 0


def test_worked_example_of_asterix():
    """The first spawn comes in step 11, in which all move; the next in step 16. Enemies in the player's cell end the
    game; gold is collected.
    """
    table = Table("minatar_asterix", sticky=0.0)
    for t in range(1, 19):
        table.step(STAY)
        seen = table.seen()
        things = seen[:, :, :, 1] + seen[:, :, :, 3]
        assert np.array_equal(things.sum(axis=(1, 2)), [int(t > 10)] * LANES) and seen[:, 5, 5, 0].all()
        if t > 10:
            steps = (t - 11) // 5 + 1
            for thing, trail in zip(things, seen[:, :, :, 2], strict=True):
                ((row, column),) = where(thing)
                assert 1 <= row <= 8 and (column, where(trail)) in (
                    (steps, [(row, steps - 1)]),
                    (9 - steps, [(row, 10 - steps)]),
                ), t
    found = {0: 0, 1: 0}
    for _ in range(400):
        before, over_before = table.seen(), table.over.copy()
        table.step(STAY)
        for lane in range(LANES):
            if table.reward[lane] or table.over[lane]:
                beside = before[lane, 5, [4, 6]]
                assert over_before[lane] or beside[:, 3 if table.reward[lane] else 1].any()
                found[int(table.over[lane])] += 1
    assert min(found.values()) > 3, found


@pytest.mark.slow
def test_worked_example_of_space_invaders():
    """A shot moves five rows to the lowest alien above. The nearest column fires in step 11; the aliens move left in
    step 13.
    """
    table = Table("minatar_space_invaders", 1, sticky=0.0)
    cluster = np.zeros((10, 10), int)
    cluster[:4, 2:8] = 1
    for t in range(1, 14):
        table.step(FIRE if t == 1 else STAY)
        seen = table.seen()[0]
        assert where(seen[:, :, 0]) == [(9, 5)] and where(seen[:, :, 4]) == ([(9 - t, 5)] if t < 6 else [])
        assert table.reward[0] == (t == 6) and not table.over[0]
        if t == 6:
            cluster[3, 5] = 0
        if t == 13:
            cluster = np.roll(cluster, -1, axis=1)
        assert (
            np.array_equal(seen[:, :, 1], cluster)
            and np.array_equal(seen[:, :, 2], cluster)
            and not seen[:, :, 3].any()
        ), t
        assert where(seen[:, :, 5]) == ([(2 + t - 11, 5)] if t > 10 else []), t


@pytest.mark.slow
def test_worked_example_of_seaquest():
    """Surfacing without a diver ends the game, as does staying below for 201 steps. A shot leaves the front; the next
    one follows five steps later.
    """
    table = Table("minatar_seaquest", sticky=0.0)
    assert all(
        where(seen[:, :, 0]) == [(0, 5)] and where(seen[:, :, 1]) == [(0, 6)] and seen[9, :, 7].all()
        for seen in table.seen()
    )
    table.step(4)
    assert all(
        where(seen[:, :, 0]) == [(1, 5)] and seen[9, :, 7].sum() == 9 and not table.over.any() for seen in table.seen()
    )
    table.step(2)
    assert table.over.all() and not table.reward.any()

    table.step(STAY)  # of the next game, at the surface
    for t in range(7):
        table.step(5)
        columns = [4 - t, *([4 - (t - 5)] if t >= 5 else [])]
        assert all(
            where(seen[:, :, 2]) == [(0, column) for column in sorted(columns) if column >= 0] for seen in table.seen()
        ), t

    table = Table("minatar_seaquest", 64, sticky=0.0)
    alive = np.ones(64, bool)
    for t in range(1, 202):
        table.step(4 if t == 1 else STAY)
        enemies = table.seen()[:, :, :, 5] + table.seen()[:, :, :, 6]
        if t <= 21:
            assert (
                (enemies.sum(axis=(1, 2)) == (t == 21)).all()
                and not enemies[:, [0, 9]].any()
                and not enemies[:, :, 1:9].any()
            ), t
        assert t < 201 or (table.over[alive] != 0).all()
        alive &= table.over == 0
        assert t != 200 or alive.any()


def test_difficulty_ramps_only_with_the_parameter():
    """Asterix's spawns come sooner after 102 steps; games without the parameter reject it."""
    assert {"minatar_asterix", "minatar_seaquest", "minatar_space_invaders"} == set(RAMPING)
    harder, same = (
        Table("minatar_asterix", 256, sticky=0.0, ramping=True),
        Table("minatar_asterix", 256, sticky=0.0, ramping=False),
    )
    differ = []
    for t in range(1, 140):
        harder.step(STAY)
        same.step(STAY)
        if not np.array_equal(harder.seen(), same.seen()):
            differ.append(t)
    assert differ and differ[0] > 102

"""MinAtar's games against the authors' package, where it is installed, step by step with the same random numbers; and rules of each game worked by hand."""

from __future__ import annotations

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
    """A world of few lanes, stepped by hand."""

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
        """What is seen after the step, or was seen last of a game that ended in it: (N, 10, 10, C), 0 and 1."""
        observation, final = self.slot.observation.numpy(), self.slot.final_observation.numpy()
        seen = np.where(self.over != 0, final, observation)
        assert set(np.unique(seen)) <= {0, 255}
        return np.moveaxis(seen.reshape(*self.env.observation.shape, -1), -1, 0) // 255


class Numbers:
    """What the package draws from in place of numpy's generator: the environment's own random numbers, in the order of its draws."""

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


class Oracle:
    """One game of the package."""

    def __init__(self, name: str, lane: int, sticky: float, ramping: bool) -> None:
        logging.disable(logging.WARNING)  # the package warns that it cannot draw
        minatar = pytest.importorskip("minatar")
        logging.disable(logging.NOTSET)
        self.game = minatar.Environment(name.removeprefix("minatar_"), sticky_action_prob=sticky, difficulty_ramping=ramping)
        self.lane, self.numbers = lane, Numbers()
        self.game.random = self.game.env.random = self.numbers
        self.actions = self.game.minimal_action_set()
        if hasattr(self.game.env, "_spawn_diver"):
            spawn = self.game.env._spawn_diver
            self.game.env._spawn_diver = lambda: (setattr(self.numbers, "draw", 4), spawn())  # its draws are 4 and 5, whether or not an enemy comes
        self.reset(0)

    def reset(self, tick: int) -> None:
        self.numbers.begin(Key(SEED, self.lane, tick, RESET))
        self.game.reset()
        self.game.last_action = 0

    def step(self, action: int, tick: int) -> tuple[float, bool]:
        self.numbers.begin(Key(SEED, self.lane, tick, STEP))
        return self.game.act(self.actions[action])


def compare(name: str, steps: int, sticky: float, ramping: bool) -> tuple[float, int]:
    """Play both at once; all is compared in each step, of a game that ends too. Returns the sum of the rewards and how many games ended."""
    params = {"sticky": sticky} | ({"ramping": ramping} if name in RAMPING else {})
    table = Table(name, **params)
    oracles = [Oracle(name, lane, sticky, ramping) for lane in range(LANES)]
    assert len(oracles[0].actions) == table.env.action.n and table.env.observation.shape == tuple(oracles[0].game.state_shape())
    generator, rewards, ends = np.random.default_rng(3), 0.0, 0
    assert np.array_equal(table.seen(), [oracle.game.state() for oracle in oracles])
    for t in range(1, steps + 1):
        actions = policy(name, oracles, generator)
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


def policy(name: str, oracles: list[Oracle], generator: np.random.Generator) -> np.ndarray:
    """An action for each lane: at random in even ones; in odd ones such as lead far into the game."""
    actions = generator.integers(0, envs.find(name).action.n, len(oracles)).astype(np.int32)
    for oracle in oracles[1::2]:
        game, action = oracle.game.env, actions[oracle.lane]
        if name == "minatar_breakout":
            x = np.clip(game.ball_x + (1 if game.ball_dir in (1, 2) else -1), 0, 9)
            action = LEFT if x < game.pos else RIGHT if x > game.pos else STAY
        elif name == "minatar_freeway":
            action = UP if generator.random() < 0.9 else action
        elif name == "minatar_space_invaders":
            shot_at = game.e_bullet_map[6:9, game.pos].any() or game.alien_map[7:, game.pos].any()
            action = (LEFT if game.pos > 4 else RIGHT) if shot_at else action if generator.random() < 0.3 else FIRE
        elif name == "minatar_asterix":
            action = dodge(game, generator.permutation(5))
        elif name == "minatar_seaquest":
            action = dive(game, generator)
        actions[oracle.lane] = action
    return actions


def dodge(game, actions: np.ndarray) -> int:
    """The first action that leads out of the way of Asterix's enemies."""
    for action in actions:
        x, y = game.player_x + (action == 3) - (action == 1), game.player_y + (action == 4) - (action == 2)
        other = game.entities[y - 1] if 1 <= y <= 8 else None
        if other is None or other[3] or abs(other[0] - x) > 2 or (x < other[0]) == other[2]:
            return int(action)
    return STAY


def dive(game, generator: np.random.Generator) -> int:
    """Seaquest: to the divers, out of the way of enemies near by, and up with divers when the air is short or six are on board."""
    go_up = game.diver_count != 0 and (game.oxygen < 60 or game.diver_count >= 6)
    diver = game.divers[0] if game.divers else [game.sub_x, 5]
    wishes = [2] if go_up else [2] * (game.sub_y > diver[1]) + [4] * (game.sub_y < diver[1]) + [1] * (game.sub_x > diver[0]) + [3] * (game.sub_x < diver[0])
    for action in [*generator.permutation(wishes), *generator.permutation([5, 0, 2, 4, 1, 3])]:
        x, y = game.sub_x + (action == 3) - (action == 1), game.sub_y + (action == 4) - (action == 2)
        near = [other for other in (*game.e_fish, *game.e_subs, *game.e_bullets) if other[1] == y and abs(other[0] - x) < 3 and (x >= other[0]) == other[2]]
        if (not near and y > 0) or (action == 2 and go_up):
            return int(action)
    return 5


@pytest.mark.parametrize(("sticky", "ramping"), [(0.0, False), (0.1, True)])
@pytest.mark.parametrize("name", GAMES)
def test_the_package_plays_alike(name, sticky, ramping):
    compare(name, 300, sticky, ramping)


@pytest.mark.soak
@pytest.mark.parametrize(("sticky", "ramping"), [(0.0, True), (0.1, True), (0.25, False)])
@pytest.mark.parametrize("name", GAMES)
def test_the_package_plays_alike_for_long(name, sticky, ramping):
    rewards, ends = compare(name, 5_000, sticky, ramping)
    print(f"{name}: {LANES * 5_000} steps compared, rewards {rewards}, {ends} games ended")
    assert rewards > 0 and ends > 0


@pytest.mark.parametrize("name", GAMES)
def test_a_sticky_action_is_the_last_one_again(name):
    """With sticky = 1 nothing is done but stay, whatever is told; a new game forgets what was done last."""
    told, stays = Table(name, sticky=1.0), Table(name, sticky=0.0)
    for t in range(60):
        told.step(t % told.env.action.n)
        stays.step(STAY)
        assert np.array_equal(told.seen(), stays.seen()) and np.array_equal(told.reward, stays.reward)


# BREAKOUT


def where(plane: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns of what a plane shows."""
    return [(int(row), int(column)) for row, column in np.argwhere(plane)]


def test_breakout_by_hand():
    """The first ball comes down to one side and is met there: it flies back the way it came, into the bricks, and then down."""
    table = Table("minatar_breakout", sticky=0.0)
    assert {where(seen[:, :, 1])[0] for seen in table.seen()} == {(3, 0), (3, 9)}
    lane = next(lane for lane, seen in enumerate(table.seen()) if seen[3, 0, 1])
    assert table.seen()[lane, 1:4, :, 3].all() and table.seen()[lane, :, :, 3].sum() == 30 and where(table.seen()[lane, :, :, 0]) == [(9, 4)]
    path = []
    for action in (RIGHT, RIGHT, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY):
        table.step(action)
        path.append(where(table.seen()[lane, :, :, 1])[0])
    # Down to column 5 above the bottom row, where the paddle stands under the next cell: back up the same way, to the brick of row 3, column 0.
    assert path[:5] == [(4, 1), (5, 2), (6, 3), (7, 4), (8, 5)] and path[5] == (8, 6)
    assert path[6:10] == [(7, 5), (6, 4), (5, 3), (4, 2)]
    assert path[10] == (4, 1) and table.seen()[lane, 3, 1, 3] == 0 and path[11] == (5, 0)

"""Snake against an independent reference in plain Python, on a list of cells, drawing from `plain_philox`; invariants
of every game.
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
from operant.envs import snake as rules
from operant.envs.drawing import GREEN, GREY, GROUND, RED, YELLOW
from operant.worlds.base import EPISODES, RETURN, TALLIES
from operant.worlds.device_world import DeviceWorld

SEED = 11
MOVES = {0: (-1, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1)}  # up, right, down, left


class Game:
    """Reference game."""

    def __init__(self, height: int, width: int, key: Key) -> None:
        self.height, self.width = height, width
        row, column = height // 2, width // 2
        self.body = deque([(row, column), (row, column - 1), (row, column - 2)])  # head first
        self.heading, self.hungry = 1, 0
        self.food = self.new_food(key)

    def new_food(self, key: Key) -> tuple[int, int] | None:
        taken = set(self.body)
        free = [cell for cell in itertools.product(range(self.height), range(self.width)) if cell not in taken]
        return free[key.integer(0, len(free))] if free else None

    def step(self, action: int, key: Key) -> tuple[int, str]:
        """Reward, and the cause of the end of the game, if any."""
        up, right = MOVES[action]
        neck = self.body[1]
        if (self.body[0][0] + up, self.body[0][1] + right) != neck:
            self.heading = action
        up, right = MOVES[self.heading]
        head = (self.body[0][0] + up, self.body[0][1] + right)
        if not (0 <= head[0] < self.height and 0 <= head[1] < self.width):
            return -1, "hit_wall"
        eats = head == self.food
        if head in self.body and (head != self.body[-1] or eats):
            return -1, "hit_itself"
        self.body.appendleft(head)
        if eats:
            self.hungry = 0
            self.food = self.new_food(key)
            return 1, "won" if self.food is None else ""
        self.body.pop()
        self.hungry += 1
        return (-1, "starved") if self.hungry == self.height * self.width else (0, "")

    def observation(self) -> np.ndarray:
        """Bytes (H W 3)."""
        seen = np.zeros((self.height, self.width, 3), np.uint8)
        for k, (row, column) in enumerate(reversed(self.body)):
            seen[row, column, 0] = min(k + 1, 255)
        seen[(*self.body[0], 1)] = 255
        if self.food is not None:
            seen[(*self.food, 2)] = 255
        return seen.reshape(-1)


def round_tour(height: int, width: int) -> np.ndarray:
    """Action of each cell along a Hamiltonian cycle: down the left column, then right and left through the rows back
    up.

    Upside down if the snake would start against it.
    """
    action = np.zeros((height, width), np.int32)
    action[:, 0] = 2
    for row in range(height):
        rightward = (
            height - 1 - row
        ) % 2 == 0  # the bottom row runs right, the next one left, the top one (an even height) left
        action[row, 1:] = 1 if rightward else 3
        action[row, -1 if rightward else 1] = 0
    action[height - 1, 0] = 1
    action[0, 1:] = 3
    if action[height // 2, width // 2] == 1:
        return action
    return np.array([2, 1, 0, 3], np.int32)[action[::-1]]


def test_hamiltonian_cycle_visits_every_cell():
    for height, width in ((4, 6), (10, 10)):
        tour, cell, seen = round_tour(height, width), (height // 2, width // 2), []
        for _ in range(height * width):
            seen.append(cell)
            up, right = MOVES[int(tour[cell])]
            cell = (cell[0] + up, cell[1] + right)
        assert tour[cell] == 1 and cell == seen[0] and len(set(seen)) == height * width


def chosen(games: list[Game], tour: np.ndarray, generator: np.random.Generator, t: int) -> np.ndarray:
    """Action for each lane, (1, N), by lane modulo 4: random; along the cycle; random without certain death; in narrow
    circles.
    """
    actions = generator.integers(0, 4, len(games)).astype(np.int32)
    for lane, game in enumerate(games):
        head = game.body[0]
        if lane % 4 == 1:
            actions[lane] = tour[head]
        elif lane % 4 == 2:
            safe = [
                move
                for move, (up, right) in MOVES.items()
                if 0 <= (row := head[0] + up) < game.height
                and 0 <= (column := head[1] + right) < game.width
                and (row, column) not in game.body
            ]
            actions[lane] = safe[actions[lane] % len(safe)] if safe else actions[lane]
        elif lane % 4 == 3:
            actions[lane] = (t + lane // 4 * (t // 60)) % 4
    return actions[None]


def compare(env: envs.Env, lanes: int, steps: int, every: int, finals: bool = False) -> dict[str, int]:
    """Play in a world and in the reference: compare rewards, ends, heads, food and lengths in each step, boards in
    every `every`-th lane in rotation.

    With `finals` also final observations, by a kernel that only this needs. Returns counts of the causes of death.
    """
    height, width, _ = env.observation.shape
    world = DeviceWorld(env, lanes, seed=SEED, every_final=finals)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    games = [Game(height, width, Key(SEED, lane, 0, RESET)) for lane in range(lanes)]
    state, seen, final, reward = (
        world.lanes.state.numpy(),
        slot.observation.numpy(),
        slot.final_observation.numpy(),
        slot.reward.numpy(),
    )
    assert all(np.array_equal(seen[:, lane], game.observation()) for lane, game in enumerate(games))
    generator, tour = np.random.default_rng(5), round_tour(height, width)
    ends = dict.fromkeys(env.tally[1:], 0)
    lengths, tallies = 0, np.zeros(len(env.tally))
    for t in range(1, steps + 1):
        actions = chosen(games, tour, generator, t)
        slot.action.copy_(torch.from_numpy(actions))
        world.step(bound)
        world.advance(1)
        outcomes = [
            game.step(int(action), Key(SEED, lane, t, STEP))
            for lane, (game, action) in enumerate(zip(games, actions[0], strict=True))
        ]
        assert np.array_equal(reward, [gained for gained, _ in outcomes]), t
        assert np.array_equal(slot.terminated.numpy(), [end != "" for _, end in outcomes]), t
        for lane, (_, end) in enumerate(outcomes):
            if end:
                ends[end] += 1
                lengths += len(games[lane].body)
                assert not finals or np.array_equal(final[:, lane], games[lane].observation()), (t, lane)
                games[lane] = Game(height, width, Key(SEED, lane, t, RESET))
        assert np.array_equal(
            state[rules.ROW] * width + state[rules.COLUMN],
            [game.body[0][0] * width + game.body[0][1] for game in games],
        ), t
        assert np.array_equal(
            state[rules.FOOD], [game.food[0] * width + game.food[1] for game in games if game.food is not None]
        ), t
        assert np.array_equal(state[rules.LENGTH], [len(game.body) for game in games]), t
        for lane in range(t % every, lanes, every):
            assert np.array_equal(seen[:, lane], games[lane].observation()), (t, lane)
        tallies += world.episode_sums(slot).numpy()[3:]
    assert not slot.truncated.any()
    assert tallies.tolist() == [lengths, *ends.values()]
    return ends


@pytest.mark.slow
def test_steps_equal_the_reference():
    ends = compare(envs.find("snake"), lanes=64, steps=10_000, every=16)
    assert min(ends.values()) >= 16, ends


@pytest.mark.soak
def test_every_board_equals_the_reference():
    ends = compare(envs.find("snake"), lanes=64, steps=40_000, every=1, finals=True)
    assert min(ends.values()) >= 64, ends


SMALL = rules.snake(4, 6)


def test_small_board_is_filled_and_won():
    ends = compare(SMALL, lanes=16, steps=600, every=1)
    assert ends["won"] >= 8, ends


@pytest.mark.soak
def test_board_with_more_than_255_cells():
    env = rules.snake(16, 18)
    assert env.int_state is not None and env.int_state.dtype == "int32"
    ends = compare(env, lanes=8, steps=50_000, every=1)
    assert ends["won"] > 0, ends


def test_food_is_uniform_over_free_cells(serial_worlds):
    lanes = 97 * 400
    world = DeviceWorld(envs.find("snake"), lanes, seed=3)
    slot = world.slot()
    world.reset(world.bind(slot))
    found = slot.observation.view(100, 3, lanes)[:, 2].eq(255).sum(dim=1).double()
    body = slot.observation.view(100, 3, lanes)[:, 0, 0].bool()
    assert body.nonzero().flatten().tolist() == [53, 54, 55] and int(found.sum()) == lanes
    assert found[body].sum() == 0
    # Chi-squared with 96 degrees of freedom: mean 96, deviation 13.9.
    assert abs(float(((found[~body] - 400) ** 2 / 400).sum()) - 96) < 5 * 13.9


class Small:
    """A few lanes of the small board, compiled once."""

    def __init__(self, seed: int) -> None:
        self.world = DeviceWorld(SMALL, 8, seed=seed)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)
        self.world.reset(self._bound)

    def step(self, actions: list[int]) -> None:
        self.slot.action.copy_(torch.tensor(actions, dtype=torch.int32)[None])
        self.world.step(self._bound)
        self.world.advance(1)


@settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**63 - 1), st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8), min_size=1, max_size=60)
)
def test_invariants_of_every_game(seed, actions):
    trial = Small(seed)
    length_before = np.full(8, 3)
    for row in actions:
        trial.step(row)
        length = trial.world.lanes.state[rules.LENGTH].numpy().astype(int)
        ended, reward = trial.slot.terminated.numpy().astype(bool), trial.slot.reward.numpy()
        grid = trial.slot.observation.numpy().reshape(4, 6, 3, 8)
        for lane in range(8):
            remaining, head, food = np.moveaxis(grid[..., lane], -1, 0)
            cells = remaining[remaining > 0]
            assert sorted(cells) == list(range(1, length[lane] + 1)), (
                "its length is the number of its cells, each with its own place in the order"
            )
            assert (head > 0).sum() == 1 and remaining[head > 0] == length[lane]
            assert (food > 0).sum() == 1 and not remaining[food > 0].any()
            places = sorted(zip(*np.nonzero(remaining), strict=True), key=lambda cell: remaining[cell])
            assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in itertools.pairwise(places)), (
                "a segment lies beside the next"
            )
        assert np.array_equal(length[ended], np.full(ended.sum(), 3))
        # The score never falls, and rises by the reward.
        assert np.array_equal(length[~ended], (length_before + (reward == 1.0))[~ended])
        length_before = length


@pytest.mark.parametrize("size", [(2, 10), (5, 6), (6, 5), (0, 0), (64, 66), (10.0, 10)])
def test_unsupported_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"{size[0]} x {size[1]}"):
        rules.snake(*size)


@pytest.mark.slow
def test_rewards_are_parameters():
    env = envs.find("snake")
    world = DeviceWorld(env, 2, seed=SEED, params=env.Params(food=2.5, death=-0.25))
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    food = torch.tensor([56.0, 0.0])  # directly in front of the first snake's head
    world.lanes.state[rules.FOOD] = food
    slot.action.fill_(1)
    gained = []
    for _ in range(5):
        world.step(bound)
        world.advance(1)
        gained.append(slot.reward.tolist())
    assert [first for first, _ in gained[:1]] == [2.5] and [second for _, second in gained] == [
        0.0,
        0.0,
        0.0,
        0.0,
        -0.25,
    ]


def test_picture_shows_body_head_food_and_wall():
    env = envs.find("snake")
    world = DeviceWorld(env, 1, seed=SEED)
    world.reset(world.bind(world.slot()))
    world.lanes.state[rules.FOOD] = 22.0
    s, cells, p = world.lanes.state[:, 0].numpy(), world.lanes.int_state[:, 0].numpy(), device_params(env.Params())

    def at(row: float, column: float) -> tuple[float, ...]:
        return env.pixel_shader.py_func(s, cells, p, np.float32((column + 1) / 11), np.float32((row + 1) / 11))

    assert (at(5, 5), at(5, 4), at(5, 3), at(2, 2), at(8, 8)) == (YELLOW, GREEN, GREEN, RED, GROUND)
    assert at(5, 3.5) == GREEN and at(5.5, 3) == GROUND, "segments that follow each other touch"
    assert at(-0.7, 5) == GREY and at(9.7, 5) == GREY and at(5, -0.99) == GREY


def returns_and_lengths(iterations: int) -> list[tuple[float, float]]:
    """Mean return and mean final length of the games that ended in each fifth of a training with the shipped recipe,
    with lanes for a CPU.
    """
    fifths = learnt("snake", ["env.lanes=480"], iterations, parts=5)
    return [(sums[RETURN] / sums[EPISODES], sums[TALLIES + rules.LENGTH_AT_END] / sums[EPISODES]) for sums in fifths]


@pytest.mark.slow
def test_length_improves_early_with_the_recipe(serial_worlds):
    returns, lengths = zip(*returns_and_lengths(25), strict=True)
    assert returns[0] < -0.5 and returns[-1] > 0.5
    assert lengths[-1] > lengths[0] + 1.0


@pytest.mark.soak
def test_length_improves_with_the_recipe():
    """150 iterations are 2.3 M steps."""
    assert returns_and_lengths(150)[-1][1] > 15.0

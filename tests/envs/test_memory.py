"""Memory environments: POPGym's card games step by step against its package, bsuite's memory chain, the T-maze, hidden
velocities.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from operant import envs
from operant.compute import rng
from operant.compute.device import device_params
from operant.envs.cards import deal
from operant.envs.concentration import concentration
from operant.worlds.device_world import DeviceWorld

f32 = np.float32


class Lane:
    """Single lane in plain Python, from the environment's functions."""

    def __init__(self, env, seed=1, **params):
        ints = (
            (np.zeros(env.int_state.n, env.int_state.dtype), np.zeros(env.workspace, np.int32)) if env.int_state else ()
        )
        self.env, self.s, self.ints, self.p = env, np.zeros(env.fields, f32), ints, device_params(env.Params(**params))
        self._seed, self._tick, self.tally = seed, 0, np.zeros(len(env.tally), f32)
        env.reset.py_func(self.s, *ints, self.p, self._key(rng.RESET))

    def _key(self, purpose):
        self._tick += 1
        return tuple(np.uint32(word) for word in (self._seed, 0, 0, self._tick, 0, purpose))

    @property
    def observation(self):
        obs = np.zeros(self.env.observation.size, self.env.observation.dtype)
        if self.env.observation_shards:
            for shard in range(self.env.observation_shards):
                self.env.observe.py_func(self.s, *self.ints[:1], obs, self.p, shard)
        else:
            self.env.observe.py_func(self.s, *self.ints, obs, self.p)
        return obs

    def step(self, action):
        reward, terminated = self.env.step.py_func(
            self.s, *self.ints, np.int32(action), self.p, self._key(rng.STEP), self.tally
        )
        return float(reward), bool(terminated)

    def kept(self):
        return self.ints[0].copy()


class WorldLane:
    """First lane of a world, by compiled kernels."""

    def __init__(self, env, seed=1, **params):
        self._world = DeviceWorld(env, 2, seed=seed, params=params, every_final=True)
        self._slot = self._world.slot()
        self._bound = self._world.bind(self._slot)
        self._world.reset(self._bound)
        self._seen = self._slot.observation

    @property
    def observation(self):
        return self._seen[:, 0].numpy().copy()

    def step(self, action):
        self._slot.action.fill_(int(action))
        self._world.step(self._bound)
        self._world.advance(1)
        terminated, truncated = bool(self._slot.terminated[0]), bool(self._slot.truncated[0])
        self._seen = self._slot.final_observation if terminated or truncated else self._slot.observation
        return float(self._slot.reward[0]), terminated

    def kept(self):
        return self._world.lanes.int_state[:, 0].numpy().copy()


def stacked(deck, kinds, order):
    """Make a deck deal cards of these kinds in this order."""
    piles = {kind: list(np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)}
    idx = np.array([piles[kind].pop() for kind in order])

    def reset(shuffle=True, rng=None):
        for hand in deck.hands.values():
            hand.clear()
        deck.deck_len, deck.idx = deck.num_cards, idx.copy()

    deck.reset = reset


def episode(lane, count, generator, steps, kinds):
    """Observations (T + 1, O), actions (T), rewards (T) and ends (T) of an episode under random actions; of `kinds`
    kinds, near a plausible count.
    """
    seen, actions, rewards, ends = [lane.observation], [], [], []
    for t in range(steps):
        action = (
            min(t // kinds + int(generator.integers(0, 3)), count - 1) if kinds else int(generator.integers(0, count))
        )
        reward, ended = lane.step(action)
        for row, value in zip((seen, actions, rewards, ends), (lane.observation, action, reward, ended), strict=True):
            row.append(value)
        if ended:
            break
    return np.array(seen), actions, rewards, ends


def games(name, level):
    """POPGym's class, the environment and its parameters for a level."""
    module = pytest.importorskip(f"popgym.envs.{name}")
    theirs = getattr(module, "".join(word.title() for word in name.split("_")) + ("Easy", "Medium", "Hard")[level])()
    params = {
        "repeat_first": ({}, {"decks": 8}, {"decks": 16}),
        "repeat_previous": ({}, {"decks": 2, "k": 32}, {"decks": 3, "k": 64}),
        "autoencode": ({}, {"decks": 2}, {"decks": 3}),
        "count_recall": ({}, {"decks": 2, "kinds": 4}, {"decks": 4, "kinds": 13}),
        "higher_lower": ({}, {"decks": 2}, {"decks": 3}),
        "concentration": ({}, {}, {"ranks": True}),
    }[name][level]
    return theirs, concentration(2) if (name, level) == ("concentration", 1) else envs.find(name), params


def lay(name, theirs, seen, start):
    """Make POPGym's decks deal the same cards; returns its observations in this environment's codes."""
    if name in ("repeat_first", "repeat_previous"):
        stacked(theirs.deck, theirs.deck.suits_idx, seen[::-1, 0])
    elif name == "autoencode":
        stacked(theirs.deck, theirs.deck.suits_idx, seen[: theirs.deck.num_cards][::-1, 1])
    elif name == "higher_lower":
        stacked(theirs.deck, theirs.deck.ranks_idx, seen[::-1, 0])
    elif name == "count_recall":
        stacked(theirs.value_deck, theirs.deck_idx_type, seen[::-1, 0])
        stacked(theirs.query_deck, theirs.deck_idx_type, seen[::-1, 1])
    else:
        stacked(theirs.deck, theirs.deck_idx_type, start)
        down = theirs.facedown_card
        return lambda observation: np.where(np.asarray(observation) == down, 13, observation)
    return np.atleast_1d


def check_beside_popgym(name, level, lane_class, seed):
    theirs, env, params = games(name, level)
    # the one level that is not POPGym's: it has 16 cards of a kind, and 27 actions here
    assert theirs.action_space.n == (17 if (name, level) == ("count_recall", 2) else env.action.n)
    lane, generator = lane_class(env, seed, **params), np.random.default_rng(seed)
    start = lane.kept() if name == "concentration" else None
    kinds = params.get("kinds", 2) if name == "count_recall" else 0
    seen, actions, rewards, ends = episode(lane, int(theirs.action_space.n), generator, env.time_limit or 2000, kinds)
    ours = lay(name, theirs, seen, start)
    observation, _ = theirs.reset()
    for t, action in enumerate(actions):
        assert ours(observation).tolist() == seen[t].tolist(), t
        observation, reward, terminated, truncated, _ = theirs.step(action)
        assert reward == pytest.approx(rewards[t], abs=1e-7), t
        assert terminated == ends[t] and truncated == (t + 1 == env.time_limit), t
    assert ours(observation).tolist() == seen[-1].tolist()
    assert min(rewards) < 0 < max(rewards)


CARD_GAMES = ("repeat_first", "repeat_previous", "autoencode", "count_recall", "higher_lower", "concentration")


@pytest.mark.parametrize(
    "level", [0, *(pytest.param(level, marks=pytest.mark.slow) for level in (1, 2))], ids=["easy", "medium", "hard"]
)
@pytest.mark.parametrize("name", CARD_GAMES)
def test_every_step_equals_popgyms_package(name, level):
    check_beside_popgym(name, level, Lane, seed=1 + level)


@pytest.mark.soak
@pytest.mark.parametrize("level", range(3), ids=["easy", "medium", "hard"])
@pytest.mark.parametrize("name", CARD_GAMES)
def test_worlds_equal_popgyms_package(name, level):
    for seed in range(5):
        check_beside_popgym(name, level, WorldLane, seed)


def test_remaining_cards_are_equally_likely():
    left, seen, count = np.array([9.0, 1.0, 2.0, 0.0, 5.0], f32), np.zeros(4), 8000
    for draw in range(count):
        s = left.copy()
        kind = deal(s, 1, 4, 8, tuple(np.uint32(word) for word in (1, 2, 3, draw, 0, 0)), 0)
        seen[kind] += 1
        assert (left - s).tolist() == [float(k == 1 + kind) for k in range(5)]
    expected = left[1:].astype(float) / 8
    assert np.all(np.abs(seen / count - expected) <= 5 * np.sqrt(expected * (1 - expected) / count))


def memory_of(name, lane, seen, t):
    """Answer of a player with perfect memory at step t."""
    rows = np.array(seen)
    if name == "repeat_first":
        return rows[0, 0]
    if name == "repeat_previous":
        return rows[t - 3, 0] if t >= 3 else 0
    if name == "autoencode":
        cards = int(52 * lane.p.decks)
        return rows[2 * cards - 2 - t, 1] if t >= cards - 1 else 0
    return int((rows[:, 0] == rows[t, 1]).sum())


HALF = ("autoencode", {"decks": 0.5})


@pytest.mark.parametrize(
    ("name", "params"), [("repeat_first", {}), ("repeat_previous", {}), ("autoencode", {}), HALF, ("count_recall", {})]
)
def test_perfect_memory_reaches_the_optimum(name, params):
    lane, seen, total, ended = Lane(envs.find(name), 3, **params), [], 0.0, False
    while not ended:
        seen.append(lane.observation.astype(int))
        reward, ended = lane.step(memory_of(name, lane, seen, len(seen) - 1))
        total += reward
    assert total == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in CARD_GAMES if name != "concentration"])
def test_episode_keeps_its_decks_when_the_parameter_changes(name):
    """A schedule or a resume can change `decks` within an episode: no missing card is dealt, and the episode ends."""
    env = envs.find(name)
    for opened, later, after in ((1, 2, 30), (2, 1, 70)):
        lane, ended, steps = Lane(env, 3, decks=opened), False, 0
        while not ended and steps < 400:
            if steps == after:
                lane.p = device_params(env.Params(decks=later))
            _, ended = lane.step(1)
            steps += 1
            assert lane.s.min() >= 0
        assert ended and steps == {"autoencode": 103 if opened == 1 else 143}.get(name, 52 * opened - 1)


@pytest.mark.parametrize("name", [*CARD_GAMES, "tmaze", "memory_chain"])
def test_reset_clears_the_previous_episode(name):
    """Otherwise a resume would depend on the previous episode."""
    env, found = envs.find(name), []
    for rubbish in (0, 3):
        lane = Lane(env)
        lane.s[:], key = rubbish, tuple(np.uint32(word) for word in (1, 0, 0, 9, 0, rng.RESET))
        for ints in lane.ints:
            ints[:] = rubbish
        env.reset.py_func(lane.s, *lane.ints, lane.p, key)
        found.append((lane.s.tobytes(), *(ints.tobytes() for ints in lane.ints)))
    assert found[0] == found[1]


def maze(**params):
    lane = Lane(envs.find("tmaze"), params.pop("seed", 1), **params)
    return lane, tuple(lane.observation.tolist()) == (0, 1, 1)


UP, RIGHT, DOWN, LEFT = range(4)


def test_observations_and_rewards_along_the_maze():
    for seed in range(8):
        lane, north = maze(low=7, high=7, seed=seed)
        assert lane.observation.tolist() == ([0, 1, 1] if north else [1, 1, 0])
        for _ in range(6):
            assert lane.step(RIGHT) == (0.0, False) and lane.observation.tolist() == [1, 0, 1]
        assert lane.step(RIGHT) == (0.0, False) and lane.observation.tolist() == [0, 1, 0]
        reward, ended = lane.step(UP if (seed < 4) == north else DOWN)  # the goal's arm first, then the other
        assert ended and reward == pytest.approx(4.0 if seed < 4 else -0.1)
        assert lane.tally.tolist() == [float(seed < 4), 7.0]


def test_walls_and_step_limit_of_the_maze():
    lane, _ = maze(low=3, high=1)  # `high` below `low` counts as `low`
    for action in (UP, DOWN, LEFT):
        assert lane.step(action) == (pytest.approx(-0.1), False)
    for action, expected in (
        (RIGHT, 0.0),
        (UP, -0.1),
        (LEFT, 0.0),
        (RIGHT, 0.0),
        (RIGHT, 0.0),
        (RIGHT, 0.0),
        (RIGHT, -0.1),
        (LEFT, 0.0),
    ):
        assert lane.step(action) == (pytest.approx(expected), False)
    assert lane.observation.tolist() == [1, 0, 1]
    rewards = [lane.step(LEFT) for _ in range(5)]
    assert [ended for _, ended in rewards] == [False] * 4 + [True] and rewards[-1][0] == pytest.approx(
        -0.1
    )  # 16 = 4 x (3 + 1) steps
    assert lane.tally.tolist() == [0.0, 3.0]


def corridors(**params):
    """Lengths and goals of 2,000 episodes."""
    key = [np.uint32(word) for word in (5, 0, 0, 0, 0, rng.RESET)]
    env, s = envs.find("tmaze"), np.zeros(4, f32)
    p, lengths, goals = device_params(env.Params(**params)), [], []
    for lane in range(2000):
        env.reset.py_func(s, p, (*key[:2], np.uint32(lane), *key[3:]))
        lengths.append(int(s[1]))
        goals.append(int(s[2]))
    return lengths, goals


def test_log_uniform_corridors_are_equally_frequent_in_each_doubling():
    lengths, _ = corridors(low=10, high=100, log_uniform=True)
    assert min(lengths) == 10 and max(lengths) == 100
    shares = np.histogram(lengths, (10, 20, 40, 80, 101))[0] / 2000
    assert np.all(np.abs(shares - 0.25) < 0.05)
    assert set(corridors(low=10, high=3, log_uniform=True)[0]) == {10}


def test_corridors_and_goals_are_uniform():
    lengths, goals = corridors(low=10, high=13)
    shares = np.bincount(lengths, minlength=14)[10:] / 2000
    assert shares.shape == (4,) and np.all(np.abs(shares - 0.25) < 0.05)
    assert set(goals) == {UP, DOWN} and abs(np.mean(np.array(goals) == UP) - 0.5) < 0.06
    assert abs(np.corrcoef(lengths, goals)[0, 1]) < 0.1


@pytest.mark.parametrize("length", [1, 2, 5])
def test_memory_chain_equals_bsuite(length):
    """`_get_observation` and `_step` of memory_chain.py, worked out: the start is shown twice, and the last step but
    one shows the query.
    """
    for seed in range(6):
        lane, seen, rewards = Lane(envs.find("memory_chain"), seed, length=length), [], []
        context = 1 if lane.observation[2] > 0 else 0
        for t in range(length + 1):
            seen.append(lane.observation.tolist())
            reward, ended = lane.step(context if seed < 3 else 1 - context)
            rewards.append(reward)
            assert ended == (t == length)
        shown = [0, *range(length)]
        assert seen == [pytest.approx([1 - t / length, 0.0, (2 * context - 1) * (t == 0)]) for t in shown]
        assert rewards == [0.0] * length + [1.0 if seed < 3 else -1.0]


@pytest.mark.parametrize(
    ("name", "whole", "rows"), [("cartpole_positions", "cartpole", [0, 2]), ("pendulum_positions", "pendulum", [0, 1])]
)
def test_hidden_velocities_change_only_the_observation(name, whole, rows):
    env, full = envs.find(name), envs.find(whole)
    for same in ("step", "reset", "action", "Params", "time_limit", "ranges", "pixel_shader"):
        assert getattr(env, same) == getattr(full, same)
    assert env.observation.size == 2 and env.observation.bounds() == tuple(
        tuple(bound[row] for row in rows) for bound in full.observation.bounds()
    )
    state, seen, all_seen = (
        np.array([0.3, -0.7, 0.1, 2.0], f32)[: env.fields],
        np.zeros(2, f32),
        np.zeros(full.observation.size, f32),
    )
    env.observe.py_func(state, seen, SimpleNamespace())
    full.observe.py_func(state, all_seen, SimpleNamespace())
    assert seen.tolist() == all_seen[rows].tolist()

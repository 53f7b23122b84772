"""Platformer against `plain_platformer`, the rules in integers; levels solved by a search; invariants of every game."""

from __future__ import annotations

from collections import Counter

import numpy as np
import plain_platformer as plain
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learning import learnt
from plain_philox import RESET, Key
from plain_platformer import Body, Level

from operant import envs
from operant.compute.device import device_params
from operant.envs import platformer as rules
from operant.envs.drawing import BLUE, GREEN, GREY, GROUND, ORANGE, RED, YELLOW
from operant.envs.platformer import picture
from operant.tools.rollouts import Harness
from operant.worlds.base import EPISODES, TALLIES
from operant.worlds.device_world import DeviceWorld

ENV = envs.find("platformer")
SEED, LANES = 11, 64
STAY, RIGHT, JUMP, JUMP_RIGHT = rules.STAY, rules.RIGHT, rules.JUMP + rules.STAY, rules.JUMP + rules.RIGHT
REWARDS = {"goal": 3.0, "spiked": -0.5, "fell": -0.5, "too_late": -0.5, "": 0.0}


class Game:
    """Reference episode."""

    def __init__(self, level: Level) -> None:
        self.level, self.body = level, plain.start(level)
        self.best, self.clock, self.coins = self.body.x, 0, 0

    def step(self, action: int) -> tuple[float, str]:
        """Reward, and the cause of the end of the episode, if any."""
        self.body, end, coins = plain.step(self.level, self.body, action)
        self.clock += 1
        self.coins += coins
        if not end and self.clock == plain.STEPS:
            end = "too_late"
        further = max(self.body.x - self.best, 0)
        self.best += further
        return 0.1 * further / 256 + 0.2 * coins + REWARDS[end], end

    def state(self) -> list[float]:
        body = self.body
        return [
            body.x / 256,
            body.y / 256,
            body.vx / 256,
            body.vy / 256,
            float(body.stands),
            self.best / 256,
            float(self.clock),
        ]

    def observation(self) -> list[float]:
        body, level, worth = (
            self.body,
            self.level,
            {plain.SOLID: 1.0, plain.PLANK: 0.5, plain.SPIKES: -1.0, plain.EMPTY: 0.0},
        )
        column, row = body.x // 256, body.y // 256
        window, coins = [], []
        for k in range(column - 2, column + 8):
            # The lowest row of the window shows the landing tile below it.
            lowest = next((r for r in range(row - 4, -1, -1) if level.tile(k, r) != plain.EMPTY), min(row - 4, -1))
            window += [
                -1.0 if r < 0 and level.tile(k, r) == plain.EMPTY else worth[level.tile(k, r)]
                for r in (lowest, *range(row - 3, row + 5))
            ]
            coins += [1.0, max(-1.0, min(1.0, (level.coins[k] - row) / 8))] if k in level.coins else [0.0, 0.0]
        rest = [body.x % 256 / 256, body.y % 256 / 256, body.vx / 72, body.vy / 144, float(body.stands), body.y / 4096]
        behind = min((self.best - body.x) / 2048, 1.0)
        return [*window, *coins, *rest, behind, 1 - body.x / 256 / level.columns, 1 - self.clock / 256]


class Players:
    """Actions for each lane, by lane modulo 8: 0 and 1 along a path of the search; 2 to 4 mostly right with jumps; 5
    and 6 random; 7 long stretches to one side or still.
    """

    def __init__(self, games: list[Game]) -> None:
        self._generator = np.random.default_rng(3)
        self._held = np.zeros(len(games), int)
        self._ways: dict[int, list[int]] = {}
        self._games = games

    def __call__(self) -> np.ndarray:
        count = len(self._games)
        again = self._generator.random(count) < np.where(np.arange(count) % 8 == 7, 0.01, 0.25)
        steady = self._generator.choice([0, 1, 1, 1, 2, 5], count)
        eager = self._generator.choice([2, 2, 5, 5, 5, 4, 0], count)
        self._held = np.where(again, np.where(np.arange(count) % 8 == 7, steady, eager), self._held)
        actions = np.where(np.isin(np.arange(count) % 8, (5, 6)), self._generator.integers(0, 6, count), self._held)
        for lane in range(count):
            if lane % 8 < 2:
                game = self._games[lane]
                if game.clock == 0:
                    way = plain.solve(game.level)
                    assert way is not None, lane
                    self._ways[lane] = way
                actions[lane] = self._ways[lane][game.clock]
        return actions.astype(np.int32)[None]


def level_of(lane: int, tick: int) -> Level:
    return Level.of_key(Key(SEED, lane, tick, RESET))


def compare(steps: int, every: int, finals: bool = False) -> Counter[str]:
    """Play in a world and in the reference without resynchronization.

    States and columns are exact; observations, every `every`-th lane in rotation, and rewards up to rounding; with
    `finals` also final observations, by a kernel that only this needs. Returns counts of events.
    """
    trial = Harness(ENV, LANES, SEED, every_final=finals)
    trial.reset()
    games = [Game(level_of(lane, 0)) for lane in range(LANES)]
    players, seen, tallies = Players(games), Counter(), np.zeros(len(ENV.tally))
    state, slot, columns = trial.world.lanes.state.numpy(), trial.slot, trial.world.lanes.int_state.numpy()
    for t in range(1, steps + 1):
        actions = players()
        trial.step(torch.from_numpy(actions))
        outcomes = [game.step(int(action)) for game, action in zip(games, actions[0], strict=True)]
        assert np.abs(slot.reward.numpy() - [gained for gained, _ in outcomes]).max() < 1e-5, t
        assert slot.terminated.tolist() == [end != "" for _, end in outcomes], t
        for lane, (_, end) in enumerate(outcomes):
            seen[end] += 1
            if (end and finals) or (not end and lane % every == t % every):
                shown = slot.final_observation if end else slot.observation
                assert np.abs(shown[:, lane].numpy() - games[lane].observation()).max() < 1e-5, (t, lane)
            if end:
                seen["coins"] += games[lane].coins
                games[lane] = Game(level_of(lane, t))
        assert np.array_equal(state, np.array([game.state() for game in games], np.float32).T), t
        for lane in range(t % every, LANES, every):
            assert columns[:, lane].tolist() == games[lane].level.words(), (t, lane)
        tallies += trial.world.episode_sums(slot).numpy()[TALLIES:]
    assert not slot.truncated.any()
    assert tallies[[rules.WON, rules.SPIKED, rules.FELL, rules.TOO_LATE]].tolist() == [
        seen[end] for end in ("goal", "spiked", "fell", "too_late")
    ]
    assert tallies[rules.COINS] == seen["coins"] > 0
    return seen


@pytest.mark.slow
def test_steps_equal_the_reference():
    seen = compare(steps=500, every=16)
    assert min(seen[end] for end in ("goal", "spiked", "fell", "too_late")) >= 8, seen


@pytest.mark.soak
def test_many_steps_equal_the_reference():
    seen = compare(steps=10_000, every=4, finals=True)
    assert min(seen[end] for end in ("goal", "spiked", "fell", "too_late")) >= 50, seen


def check_solvable(lanes: int, seed: int) -> None:
    """Solve the first level of each lane in the reference, then replay them in a world: each reaches the flag."""
    trial = Harness(ENV, lanes, seed, every_final=False)
    trial.reset()
    ways = []
    for lane in range(lanes):
        level = Level.of_key(Key(seed, lane, 0, RESET))
        assert trial.world.lanes.int_state[:, lane].tolist() == level.words(), lane
        way = plain.solve(level)
        assert way is not None, lane
        ways.append(way)
    arrived = np.zeros(lanes, bool)
    for t in range(max(map(len, ways))):
        trial.step(torch.tensor([[way[t] if t < len(way) else STAY for way in ways]], dtype=torch.int32))
        ends = np.array([t == len(way) - 1 for way in ways])
        # After its flag a lane stands still at the start of its next level.
        assert np.array_equal(trial.slot.terminated.numpy().astype(bool), ends), t
        arrived |= ends & (trial.slot.reward.numpy() >= 3.0)
    assert arrived.all()


@pytest.mark.slow
def test_levels_can_be_solved():
    check_solvable(lanes=120, seed=1)


@pytest.mark.soak
def test_thousands_of_levels_can_be_solved():
    check_solvable(lanes=2000, seed=2)


@pytest.mark.slow
def test_search_reports_an_unsolvable_level():
    """A wall of five tiles is too high for a jump; with a plank in front of it there is a path."""
    bare, helped = made(24), made(24)
    for level in (bare, helped):
        level.ground[4] = 6
    helped.planks = {2: 3, 3: 3}
    assert plain.solve(bare, most=10**9) is None
    assert plain.solve(helped) is not None


def test_levels_grow_harder():
    pits, heights = np.zeros(64), np.zeros(64)
    for lane in range(400):
        level = level_of(lane, 0)
        pits += [ground == 0 for ground in level.ground]
        heights += [max(ground - level.ground[0], 0) for ground in level.ground]
    early, late = slice(6, 24), slice(36, 54)
    assert pits[late].sum() > 1.25 * pits[early].sum() and heights[late].sum() > 1.3 * heights[early].sum()
    assert not pits[:5].any() and not pits[-6:].any() and not heights[:5].any()


def made(columns: int = 64) -> Level:
    """Flat level with one tile of ground."""
    level = Level(columns)
    level.ground = [1] * columns
    return level


PRICES = ENV.Params()


class Played:
    """Lane in a handmade level."""

    def __init__(self, level: Level, body: Body | None = None, prices: rules.Params = PRICES) -> None:
        self.world = DeviceWorld(ENV, 1, seed=1, params=prices)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)
        self.world.reset(self._bound)
        self.world.lanes.int_state[:, 0] = torch.tensor(level.words(), dtype=torch.int16)
        start = plain.start(level) if body is None else body
        numbers = [
            start.x / 256,
            start.y / 256,
            start.vx / 256,
            start.vy / 256,
            float(start.stands),
            start.x / 256,
            0.0,
        ]
        self.world.lanes.state[:, 0] = torch.tensor(numbers)
        self.rewards: list[float] = []
        self.heights: list[float] = []

    def step(self, action: int, times: int = 1) -> bool:
        """Whether the episode ended in the last of some steps."""
        for _ in range(times):
            self.slot.action.fill_(action)
            self.world.step(self._bound)
            self.world.advance(1)
            self.rewards.append(float(self.slot.reward))
            self.heights.append(self[rules.Y])
        return bool(self.slot.terminated)

    def __getitem__(self, row: int) -> float:
        return float(self.world.lanes.state[row, 0])


def at(x: float, y: float, vx: int = 0, vy: int = 0, stands: bool = True) -> Body:
    return Body(int(x * 256), int(y * 256), vx, vy, stands)


def test_height_of_a_jump_depends_on_the_button():
    held, tapped = Played(made()), Played(made())
    held.step(JUMP, 8)
    tapped.step(JUMP)
    tapped.step(STAY, 7)
    # 144 + 132 + ... + 12 or 144 + 132 + 96 + 60 + 24, in 1/256 of a tile; the latter is passed by within a step.
    assert max(held.heights) == 1 + 936 / 256 and 1 + 432 / 256 <= max(tapped.heights) <= 1 + 456 / 256
    assert tapped[rules.STANDS] == 1 and tapped[rules.Y] == 1


def test_plank_is_solid_from_above_only():
    level = made()
    level.planks = {column: 3 for column in range(2, 9)}
    game = Played(level)
    game.step(JUMP, 8)
    game.step(STAY, 8)
    assert max(game.heights) > 4 and game[rules.Y] == 4 and game[rules.STANDS] == 1
    low = Played(level)
    low.step(JUMP)
    low.step(STAY, 9)
    assert low[rules.Y] == 1, "a low jump does not reach its upper side"


def test_block_is_solid_from_above_and_below():
    level = made()
    level.blocks = {column: 3 for column in range(2, 9)}
    game = Played(level)
    game.step(JUMP, 8)
    assert max(game.heights) <= 3 - 224 / 256
    above = Played(level, at(4.0, 5.0, stands=False))
    above.step(STAY, 5)
    assert above[rules.Y] == 4 and above[rules.STANDS] == 1


def test_walls_and_ends_of_the_world_stop_the_player():
    level = made()
    level.ground[10] = 4
    game = Played(level)
    game.step(RIGHT, 20)
    assert game[rules.X] == 10 - 96 / 256 and game[rules.VX] == 0
    game.step(rules.LEFT, 30)
    assert game[rules.X] == 96 / 256


@pytest.mark.parametrize(
    "prices", [PRICES, pytest.param(ENV.Params(progress=0.5, coin=0.75, goal=5.0, death=-2.0), marks=pytest.mark.slow)]
)
def test_coin_is_collected_once(prices):
    level = made()
    level.coins = {6: 1}
    game = Played(level, prices=prices)
    game.step(RIGHT, 12)
    game.step(rules.LEFT, 12)
    assert (
        sum(game.rewards) == pytest.approx(prices.coin + prices.progress * (game[rules.BEST] - 2.5), abs=1e-5)
        and int(game.world.lanes.int_state[6, 0]) == 1
    )
    assert float(game.world.lanes.running[1 + rules.COINS, 0]) == 1.0


def test_only_new_progress_pays():
    game = Played(made())
    game.step(RIGHT, 12)
    game.step(rules.LEFT, 12)
    paid, furthest = sum(game.rewards), game[rules.BEST]
    assert (
        paid == pytest.approx(PRICES.progress * (furthest - 2.5), abs=1e-5)
        and furthest > 6
        and game[rules.X] < furthest - 2
    )
    game.step(RIGHT, 5)
    assert sum(game.rewards) == paid
    game.step(RIGHT, 10)
    assert sum(game.rewards) > paid


@pytest.mark.parametrize(
    "prices", [PRICES, pytest.param(PRICES._replace(progress=0.5, goal=5.0, death=-2.0), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("way", ["goal", "spiked", "fell", "too_late"])
def test_episodes_end(way, prices):
    level, body, steps = made(), at(30.0, 1.0), 1
    if way == "goal":
        body = at(61.4, 1.0, vx=72)
    elif way == "spiked":
        level.spikes, body = {30}, at(30.5, 1.5, vy=-36, stands=False)
    elif way == "fell":
        level.ground[30], body = 0, at(30.5, -0.5, vy=-144, stands=False)
    else:
        steps = 256
    game = Played(level, body, prices)
    assert not game.step(STAY, steps - 1) if steps > 1 else True
    assert game.step(RIGHT if way == "goal" else STAY)
    paid = prices.goal + prices.progress * 72 / 256 if way == "goal" else prices.death
    assert game.rewards[-1] == pytest.approx(paid, rel=1e-6)
    sums = game.world.episode_sums(game.slot).numpy()[TALLIES:]
    assert sums[[rules.WON, rules.SPIKED, rules.FELL, rules.TOO_LATE]].tolist() == [
        float(way == end) for end in ("goal", "spiked", "fell", "too_late")
    ]


def test_progress_is_a_fraction_of_the_distance():
    trial = Harness(ENV, 8, 1, every_final=False)
    trial.reset()
    ways = [plain.solve(Level.of_key(Key(1, lane, 0, RESET))) for lane in range(8)]
    sums = np.zeros(TALLIES + len(ENV.tally))
    for t in range(max(len(way) for way in ways if way)):
        trial.step(torch.tensor([[way[t] if way and t < len(way) else STAY for way in ways]], dtype=torch.int32))
        sums += trial.world.episode_sums(trial.slot).numpy()
    # Past the flag by less than a frame's way.
    assert sums[EPISODES] == 8 and 8 <= sums[TALLIES + rules.PROGRESS] < 8 * (1 + 0.3 / 59)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.lists(st.integers(0, 5), min_size=8, max_size=8), min_size=1, max_size=40),
    st.integers(1, 6),
)
def test_invariants_of_every_game(seed, actions, times):
    trial = Harness(ENV, 8, seed, every_final=False)
    trial.reset()
    lanes = trial.world.lanes
    state, coins_before, best_before = (
        lanes.state.numpy(),
        (lanes.int_state.numpy() >> 10 > 0).sum(axis=0),
        np.full(8, 2.5, np.float32),
    )
    for row in actions:
        for _ in range(times):
            trial.step(torch.tensor([row], dtype=torch.int32))
            cells, ended = lanes.int_state.numpy(), trial.slot.terminated.numpy().astype(bool)
            coins = (cells >> 10 > 0).sum(axis=0)
            for lane in np.nonzero(~ended)[0]:
                x, y, vx, vy, stands, best, clock = state[:, lane].tolist()
                level = level_of_words(cells[:, lane].tolist())
                body = at(x, y, int(vx * 256), int(vy * 256), stands > 0)
                columns, rows = plain.tiles_of(body)
                inside = {level.tile(column, k) for column in columns for k in rows}
                assert plain.SOLID not in inside, "it is never inside what is solid"
                assert 0.375 <= x <= 61.5 and best >= x and best >= best_before[lane] and clock <= 256
                assert not any(level.coins.get(column, 99) in rows for column in columns), "coins where it is are taken"
                if stands:
                    below = {level.tile(column, int(y) - 1) for column in columns}
                    assert y == int(y) and below & {plain.SOLID, plain.PLANK}
                # A coin pays once, when it disappears; nothing else pays its reward.
                gained = float(trial.slot.reward[lane]) - 0.1 * (best - best_before[lane])
                assert gained == pytest.approx(0.2 * (coins_before[lane] - coins[lane]), abs=1e-5)
            coins_before, best_before = coins, state[rules.BEST].copy()


def level_of_words(words: list[int]) -> Level:
    """Level described by column words."""
    level = Level(len(words))
    level.ground = [word % 16 for word in words]
    for column, word in enumerate(words):
        over, coin = word >> 4 & 15, word >> 10
        if over:
            (level.blocks if word >> 8 & 1 else level.planks)[column] = over
        if word >> 9 & 1:
            level.spikes.add(column)
        if coin:
            level.coins[column] = coin
    return level


@pytest.mark.parametrize("size", [(9, 64), (16, 64), (12, 23), (12, 1025), (12.0, 64)])
def test_unsupported_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"{size[0]} x"):
        rules.platformer(*size)


def test_other_sizes_equal_the_reference():
    env, lanes = rules.platformer(15, 40), 64
    world = DeviceWorld(env, lanes, seed=SEED)
    world.reset(world.bind(world.slot()))
    for lane in range(lanes):
        level = Level.of_key(Key(SEED, lane, 0, RESET), 15, 40)
        assert world.lanes.int_state[:, lane].tolist() == level.words()
        assert lane > 8 or plain.solve(level) is not None


def test_picture_shows_all_tiles_player_and_bar():
    level = made()
    level.ground[7] = level.ground[8] = 0
    level.planks, level.blocks, level.spikes, level.coins = {5: 3}, {6: 4}, {6}, {9: 2}
    state, p = np.array([4.0, 1.0, 0.0, 0.0, 1.0, 4.0, 128.0], np.float32), device_params(ENV.Params())
    cells = np.array(level.words(), np.int16)

    def seen(x: float, y: float, left: float = 0.0) -> str:
        """Colour at a position of the world."""
        colour = ENV.pixel_shader.py_func(state, cells, p, np.float32((x - left) / 12.8), np.float32((12.8 - y) / 12.8))
        names = {"player": picture.WHITE, "earth": picture.EARTH, "sky": picture.SKY}
        names |= {"grass": GREEN, "plank": ORANGE, "block": GREY, "spikes": RED, "coin": YELLOW}
        names |= {"bar": BLUE, "dark": GROUND}
        return next(
            (name for name, other in names.items() if colour == other),
            str(tuple(round(float(part), 3) for part in colour)),
        )

    assert seen(3.9, 1.2) == "player" and seen(4.14, 1.6) == "dark" and seen(4.5, 1.5) == "sky"
    assert seen(3.0, 0.9) == "grass" and seen(3.0, 0.4) == "earth" and seen(7.5, 0.5) == "sky"
    assert seen(5.5, 3.8) == "plank" and seen(5.5, 3.3) == "sky" and seen(6.5, 4.5) == "block"
    assert seen(6.5, 1.3) == "spikes" and seen(9.5, 2.5) == "coin"
    assert seen(0.4, 12.4) == seen(1.4, 12.4) == "(0.5, 0.5, 0.5)" and seen(0.9, 12.4) == "dark"
    # Half of the time is left.
    assert seen(3.0, 12.4) == "bar" and seen(7.0, 12.4) == "bar" and seen(8.0, 12.4) == "dark"
    state[rules.VX], state[rules.VY] = 72 / 256, -144 / 256
    assert seen(0.4, 12.4) == "(1.0, 1.0, 1.0)" and seen(1.4, 12.4) == "(0.0, 0.0, 0.0)"
    # At the end the camera stands still; there are the flag and its pole.
    state[rules.X] = 60.0
    assert seen(60.0, 1.2, 51.2) == "player" and seen(61.5, 3.0, 51.2) == "block" and seen(60.5, 5.0, 51.2) == "bar"
    state[rules.X] = 30.0
    assert seen(29.8, 1.2, 26.0) == "player"


@pytest.mark.soak
def test_goal_rate_improves_with_the_recipe():
    """60 iterations are 3.8 M steps."""
    first, *_, last = learnt("platformer", [], 60)
    progress, won = TALLIES + rules.PROGRESS, TALLIES + rules.WON
    assert (
        first[progress] / first[EPISODES] < 0.3
        and last[progress] / last[EPISODES] > 0.7
        and last[won] / last[EPISODES] > 0.5
    )

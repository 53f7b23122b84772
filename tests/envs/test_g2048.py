"""2048 against an independent reference in plain Python that draws Philox's words; invariants of every game."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from learning import learnt
from numba import njit
from plain_philox import RESET, STEP, Key

from operant import envs
from operant.compute.device import device_params
from operant.envs import g2048 as rules
from operant.worlds.base import EPISODES, TALLIES
from operant.worlds.device_world import DeviceWorld
from operant.worlds.painting import Painter

SEED = 7
UP, RIGHT, DOWN, LEFT = range(4)
PATIENCE = 100
# Cells of the four lines of each action, starting at the side that the tiles slide to; cells in row order.
LINES = {
    UP: [[column + 4 * k for k in range(4)] for column in range(4)],
    DOWN: [[column + 12 - 4 * k for k in range(4)] for column in range(4)],
    LEFT: [[4 * row + k for k in range(4)] for row in range(4)],
    RIGHT: [[4 * row + 3 - k for k in range(4)] for row in range(4)],
}

# THE REFERENCE


@functools.cache
def slid(line: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Line after its tiles slid to its front, and the exponents of merged tiles. Cached, since games repeat lines."""
    tiles, after, made = [tile for tile in line if tile], [], []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tiles.pop(0)
            tile += 1
            made.append(tile)
        after.append(tile)
    return tuple(after + [0] * (len(line) - len(after))), tuple(made)


def move(board: list[int], action: int) -> tuple[list[int], list[int]]:
    """Board after a move without a new tile, and the exponents of the merged tiles."""
    after, made = board.copy(), []
    for cells in LINES[action]:
        line, new = slid((board[cells[0]], board[cells[1]], board[cells[2]], board[cells[3]]))
        after[cells[0]], after[cells[1]], after[cells[2]], after[cells[3]] = line
        made += new
    return after, made


def can_move(board: list[int], action: int) -> bool:
    return move(board, action)[0] != board


def worth(exponent: int) -> int:
    """Reward of a merged tile, in ten-thousandths."""
    return 500 + 3 * round(100 * (exponent - 6) ** 1.5) if exponent > 6 else 500


def add_tile(board: list[int], cell_word: int, kind_word: int) -> None:
    empty = [cell for cell in range(16) if not board[cell]]
    board[empty[cell_word * len(empty) >> 32]] = 1 if (kind_word >> 8) / 2**24 < np.float32(0.9) else 2


class Game:
    """Reference game."""

    def __init__(self, key: Key) -> None:
        self.board = [0] * 16
        words = key.block(0)
        add_tile(self.board, words[0], words[1])
        add_tile(self.board, words[2], words[3])
        self.score = self.invalid = self.stuck = 0

    def step(self, action: int, words: np.ndarray) -> tuple[int, bool]:
        """Reward in ten-thousandths, and whether the game is over. `words` is the step's random block."""
        after, made = move(self.board, action)
        if after == self.board:
            self.invalid += 1
            self.stuck += 1
            return (-10500, True) if self.stuck == PATIENCE else (-500, False)
        self.board, self.stuck = after, 0
        self.score += sum(2**exponent for exponent in made)
        add_tile(self.board, int(words[0]), int(words[1]))
        over = 0 not in self.board and not any(can_move(self.board, action) for action in range(4))
        return sum(worth(exponent) for exponent in made) - 10000 * over, over


def step_words(lanes: int, ticks: range) -> np.ndarray:
    """Random blocks of steps, (T, N, 4): Philox as in `plain_philox`, vectorized."""
    tick, lane = np.meshgrid(
        np.arange(ticks.start, ticks.stop, dtype=np.uint64), np.arange(lanes, dtype=np.uint64), indexing="ij"
    )
    low, thirty_two = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = lane, tick, np.zeros_like(tick), np.full_like(tick, STEP << 16)
    k0, k1 = SEED, 0
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (right >> thirty_two) ^ c1 ^ np.uint64(k0),
            right & low,
            (left >> thirty_two) ^ c3 ^ np.uint64(k1),
            left & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def test_vectorized_philox_equals_plain_philox():
    words = step_words(5, range(3, 9))
    assert all(
        words[t - 3, lane].tolist() == list(Key(SEED, lane, t, STEP).block(0)) for t in range(3, 9) for lane in range(5)
    )


# THE WORLD


def packed(boards: np.ndarray) -> torch.Tensor:
    """Boards (N, 16) as the state of N lanes, (4, N)."""
    rows = (boards.reshape(-1, 4, 4) << (5 * np.arange(4))).sum(axis=2)
    return torch.from_numpy(rows.T.astype(np.float32))


@njit
def _masks(state, masks, p):
    for lane in range(state.shape[1]):
        LEGAL(state[:, lane], masks[:, lane], p)


LEGAL = rules.ENV.legal


class Table:
    """Lanes in play, with the outcome of each step."""

    def __init__(self, lanes: int, seed: int = SEED, params: rules.Params | None = None) -> None:
        self.world = DeviceWorld(envs.find("g2048"), lanes, seed=seed, params=params)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)
        self.state, self.seen = self.world.lanes.state.numpy(), self.slot.observation.numpy()
        self.reward, self.terminated = self.slot.reward.numpy(), self.slot.terminated.numpy()
        self.action = self.slot.action.numpy()
        self.world.reset(self._bound)

    def put(self, boards: np.ndarray) -> None:
        """Set boards (N, 16) in lanes."""
        self.world.lanes.state.copy_(packed(boards))
        self.seen[:] = boards.T

    def step(self, actions: np.ndarray) -> None:
        self.action[0] = actions
        self.world.step(self._bound)
        self.world.advance(1)

    def ten_thousandths(self) -> np.ndarray:
        """Rewards as integers, in ten-thousandths: (N)."""
        whole = np.rint(self.reward * 10000.0)
        assert np.allclose(self.reward, whole / 10000.0, rtol=1e-6, atol=0)
        return whole.astype(np.int64)

    def masks(self) -> np.ndarray:
        """Output of `legal` for the current boards: (4, N)."""
        masks = np.full((4, self.state.shape[1]), 9, np.uint8)
        _masks(self.state, masks, device_params(rules.Params()))
        return masks


# EVERY LINE

BY_HAND = {
    (0, 0, 0, 0): (0, 0, 0, 0),
    (0, 0, 0, 3): (3, 0, 0, 0),
    (1, 1, 0, 0): (2, 0, 0, 0),
    (1, 0, 0, 1): (2, 0, 0, 0),
    (1, 1, 1, 0): (2, 1, 0, 0),  # the front pair merges
    (1, 1, 1, 1): (2, 2, 0, 0),  # two pairs; merged tiles do not merge again
    (1, 1, 2, 0): (2, 2, 0, 0),  # nor with an existing tile
    (2, 1, 1, 0): (2, 2, 0, 0),
    (2, 1, 1, 2): (2, 2, 2, 0),
    (3, 1, 1, 1): (3, 2, 1, 0),
    (1, 2, 0, 2): (1, 3, 0, 0),
    (0, 4, 0, 4): (5, 0, 0, 0),
    (1, 2, 1, 2): (1, 2, 1, 2),
    (5, 5, 5, 2): (6, 5, 2, 0),
    (2, 5, 5, 5): (2, 6, 5, 0),
}


def test_reference_slides_worked_examples():
    assert {line: slid(line)[0] for line in BY_HAND} == BY_HAND


@pytest.mark.parametrize("action", [UP, RIGHT, DOWN, LEFT])
def test_every_line_slides_and_merges(action):
    """All 1,296 lines of exponents 0 to 5 in each of the four positions, alone on a board: result, reward, legality."""
    lines = list(itertools.product(range(6), repeat=4))
    places = [(line, cells) for cells in LINES[action] for line in lines]
    boards, expected = np.zeros((len(places), 16), np.int64), np.zeros((len(places), 16), np.int64)
    for lane, (line, cells) in enumerate(places):
        boards[lane, cells], expected[lane, cells] = line, BY_HAND.get(line, slid(line)[0])
    table = Table(len(places))
    table.put(boards)
    masks = table.masks()
    table.step(np.full(len(places), action))
    legal = (boards != expected).any(axis=1)
    assert np.array_equal(masks[action], legal)
    new = table.seen.T.astype(np.int64) - expected
    assert not new[~legal].any()
    assert ((new[legal] != 0).sum(axis=1) == 1).all() and set(new[legal].sum(axis=1)) == {1, 2}, (
        "one new tile, a 2 or a 4"
    )
    assert not expected[legal][new[legal] != 0].any(), "on an empty cell"
    made = [500 * len(slid(line)[1]) if changed else -500 for (line, _), changed in zip(places, legal, strict=True)]
    assert table.ten_thousandths().tolist() == made and not table.terminated.any()


# WHOLE GAMES


def late_board(generator: np.random.Generator) -> list[int]:
    """Board late in a good game: large tiles in a snake order, then small ones and some empty cells."""
    tiles = sorted(
        generator.choice(np.arange(4, 17), size=generator.integers(5, 10), replace=False).tolist(), reverse=True
    )
    tiles += generator.integers(1, 4, 12 - len(tiles)).tolist() + [0] * 4
    return [tiles[4 * row + (column if row % 2 == 0 else 3 - column)] for row in range(4) for column in range(4)]


def chosen(games: list[Game], generator: np.random.Generator, t: int) -> np.ndarray:
    """Action for each lane, (N), by lane modulo 8. 0 to 3: random. 4 to 6: towards a corner if legal. 7: random and
    illegal in turn.
    """
    actions = generator.integers(0, 4, len(games))
    for lane in range(4, len(games)):
        if lane % 8 in (4, 5, 6):
            board = games[lane].board
            preferred = (LEFT, UP) if t % 2 else (UP, LEFT)
            actions[lane] = next((action for action in (*preferred, RIGHT, DOWN) if can_move(board, action)), UP)
        elif lane % 8 == 7 and t % 1000 > 600:
            actions[lane] = next(
                (action for action in range(4) if not can_move(games[lane].board, action)), actions[lane]
            )
    return actions


def compare(lanes: int, steps: int, late: int) -> dict[str, float]:
    """Play in a world and in the reference: compare boards, rewards, ends, tallies at the end, and legal moves every 16
    steps.

    In every fourth lane a game restarts from a late board every `late` steps. Returns the tallies, and the number
    of games that ended by patience.
    """
    table, words, generator = Table(lanes), step_words(lanes, range(1, steps + 1)), np.random.default_rng(5)
    games = [Game(Key(SEED, lane, 0, RESET)) for lane in range(lanes)]
    ended = dict.fromkeys(("games", *table.world.spec.tally, "given_up"), 0)
    for t in range(1, steps + 1):
        if t % late == 1:
            for lane in range(1, lanes, 4):
                games[lane].board, games[lane].stuck = late_board(generator), 0
            table.put(np.array([game.board for game in games]))
            for game in games:
                game.stuck = 0
        actions = chosen(games, generator, t)
        table.step(actions)
        outcomes = [
            game.step(action, block) for game, action, block in zip(games, actions.tolist(), words[t - 1], strict=True)
        ]
        assert np.array_equal(table.ten_thousandths(), [gained for gained, _ in outcomes]), t
        assert np.array_equal(table.terminated, [over for _, over in outcomes]), t
        for lane in np.flatnonzero(table.terminated):
            game, best = games[lane], max(games[lane].board)
            for name, value in zip(
                ended, (1, game.score, best, best >= 11, game.invalid, game.stuck == PATIENCE), strict=True
            ):
                ended[name] += value
            games[lane] = Game(Key(SEED, int(lane), t, RESET))
        assert np.array_equal(table.seen.T, [game.board for game in games]), t
        if t % 16 == 0:
            assert np.array_equal(
                table.slot.legal.numpy().T, [[can_move(game.board, action) for action in range(4)] for game in games]
            ), t
    assert not table.slot.truncated.any()
    assert table.world.lanes.finished.double().sum(dim=1).tolist() == [ended[name] for name in table.world.spec.tally]
    return ended


@pytest.mark.slow
def test_steps_equal_the_reference():
    ended = compare(lanes=64, steps=10_000, late=250)
    assert ended["games"] > 1000 and ended["given_up"] > 50 and ended["reached_2048"] > 100, ended


@pytest.mark.soak
def test_many_steps_equal_the_reference():
    ended = compare(lanes=256, steps=40_000, late=400)
    assert ended["games"] > 10_000 and ended["given_up"] > 500 and ended["reached_2048"] > 1000, ended


OTHERS = rules.Params(two=0.0, merge=1.0, growth=0.0, invalid=-0.25, game_over=-0.5, patience=255)


@pytest.mark.slow
def test_rewards_new_tiles_and_patience_are_parameters():
    """Calls the rules directly: a world would compile again for these parameters."""
    p, state, tally, ticks = device_params(OTHERS), np.zeros(4, np.float32), np.zeros(4, np.float32), itertools.count()

    def key(purpose: int) -> tuple[np.uint32, ...]:
        return tuple(map(np.uint32, (SEED, 0, 0, next(ticks), 0, purpose)))

    def step(action: int) -> tuple[float, bool]:
        reward, over = rules.ENV.step.py_func(state, action, p, key(STEP), tally)
        return float(reward), bool(over)

    def exponents() -> set[int]:
        return {int(row) >> 5 * k & 31 for row in state for k in range(4)}

    rules.ENV.reset.py_func(state, p, key(RESET))
    assert exponents() == {0, 2}, "fours alone"
    state[:] = packed(np.array([[9, 1, 0, 0, 9, 1, *[0] * 10]]))[:, 0]
    assert step(DOWN) == (2.0, False) and exponents() == {0, 2, 10}
    for legal_one in (200, None):
        state[:] = 5, 0, 0, 0
        for k in range(254):
            assert step(RIGHT if k == legal_one else UP) == ((0.0 if k == legal_one else -0.25), False), k
            if k == legal_one:
                state[:] = 5, 0, 0, 0
        assert step(LEFT) == ((-0.25, False) if legal_one else (-0.75, True)), "255 illegal moves in a row"


@pytest.mark.slow
def test_largest_patience_fits_into_the_state():
    """The counter of illegal moves has eight bits; a ninth would overwrite the second row."""
    p, state, tally = (
        device_params(OTHERS._replace(patience=rules.ENV.ranges["patience"][1])),
        np.array([5, 0, 0, 0], np.float32),
        np.zeros(4, np.float32),
    )
    key = tuple(map(np.uint32, (SEED, 0, 0, 0, 0, STEP)))
    overs = [bool(rules.ENV.step.py_func(state, UP, p, key, tally)[1]) for _ in range(255)]
    assert overs == [False] * 254 + [True] and [int(row) & 0xFFFFF for row in state] == [5, 0, 0, 0]


def test_largest_tile_is_merged_and_rewarded():
    table = Table(1)
    board = np.zeros((1, 16), np.int64)
    board[0, :8] = [16, 16, 15, 15, 10, 10, 6, 6]
    table.put(board)
    table.step(np.array([LEFT]))
    assert table.seen[[0, 1, 4, 5], 0].tolist() == [17, 16, 11, 7]
    # PufferLib's table: 36.48, 31.62, 11.18 and 1 times 0.03.
    assert table.ten_thousandths().tolist() == [4 * 500 + 10944 + 9486 + 3354 + 300]
    assert table.world.lanes.running[1:, 0].tolist() == [131072 + 65536 + 2048 + 128, 0, 0, 0]


def test_new_tiles_are_uniform_over_empty_cells_and_a_2_in_nine_of_ten(serial_worlds):
    lanes = 40_000
    table = Table(lanes)
    # At a reset two of sixteen cells, then, with an illegal move never and any other always, one of the empty ones.
    first = table.seen.astype(np.int64)
    assert ((first > 0).sum(axis=0) == 2).all()
    expected = 2 * lanes / 16
    # Two cells of a lane differ, so the statistic is below that of 15 degrees of freedom (mean 15, deviation 5.5) by a
    # factor of 14/15.
    assert (((first > 0).sum(axis=1) - expected) ** 2 / expected).sum() * 15 / 14 < 15 + 5 * 5.5
    assert abs((first == 2).sum() / (2 * lanes) - 0.1) < 5 * 0.3 / (2 * lanes) ** 0.5
    board = np.zeros((lanes, 16), np.int64)
    board[:, [3, 7, 11, 15]] = [1, 2, 3, 4]
    table.put(board)
    table.step(np.full(lanes, LEFT))
    new = table.seen.copy()
    new[[0, 4, 8, 12]] = 0
    assert ((new > 0).sum(axis=0) == 1).all() and ((new == 1) | (new == 2) | (new == 0)).all()
    found = (new > 0).sum(axis=1)[[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]]
    assert ((found - lanes / 12) ** 2 / (lanes / 12)).sum() < 11 + 5 * 4.7
    assert abs((new == 2).sum() / lanes - 0.1) < 5 * 0.3 / lanes**0.5


BOARDS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 15)), min_size=16, max_size=16)


def total(boards: np.ndarray) -> np.ndarray:
    """Sum of the tiles of boards (16, N)."""
    return np.where(boards > 0, 1 << boards, 0).sum(axis=0)


def made_of_twos(boards: np.ndarray) -> np.ndarray:
    """Score of boards (16, N) made of twos only: a tile 2^e takes e - 1 rounds of merges, each worth 2^e in all."""
    return np.where(boards > 0, (boards - 1) << boards, 0).sum(axis=0)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(BOARDS, st.integers(0, 2**63 - 1), st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), max_size=30))
def test_invariants_of_every_game(board, seed, more):
    table = Table(4, seed=seed)
    table.put(np.array([board] * 4))
    legal = table.masks()
    assume(legal.any())
    # The first step tries all four moves on the board.
    for actions in np.array([[UP, RIGHT, DOWN, LEFT], *more]):
        before, score = table.seen.astype(np.int64), table.world.lanes.running[1].numpy().copy()
        may = legal[actions, np.arange(4)].astype(bool)
        table.step(actions)
        on = ~table.terminated.astype(bool)
        after, gained = table.seen.astype(np.int64), table.world.lanes.running[1].numpy() - score
        assert np.array_equal(table.slot.legal.numpy(), table.masks())
        new, penalty = total(after) - total(before), table.ten_thousandths() == -500
        assert np.isin(new[on & may], (2, 4)).all(), "the tiles' sum grows by the new tile"
        assert not gained[on & ~may].any() and np.array_equal(after[:, on & ~may], before[:, on & ~may]), (
            "an illegal move changes nothing"
        )
        assert np.array_equal((after != before).any(axis=0)[on], may[on]), "a legal one does"
        assert np.array_equal(penalty[on], ~may[on])
        assert (gained[on] >= 0).all()
        assert np.array_equal(gained[on], (made_of_twos(after) - made_of_twos(before) - 4 * (new == 4))[on]), (
            "the score is what the joins made"
        )
        legal = table.masks()
        assert legal.max() == 1 and legal.any(axis=0).all(), "some move is always left"


# THE PICTURE


def picture(board: list[int]) -> np.ndarray:
    """Picture of a board, (64, 64, 3)."""
    table = Table(1)
    table.put(np.array([board]))
    painter, pixels = Painter(table.world), torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    painter(painter.bind(pixels))
    return pixels[0].numpy()


def inked(tile: np.ndarray) -> list[str]:
    """Dots of a tile (16, 16, 3) whose colour differs from its corner, without the gap."""
    return ["".join("#" if (dot != tile[0, 0]).any() else "." for dot in line) for line in tile[:15, :15]]


def test_picture_shows_the_numbers():
    pixels = picture([0, 1, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 15])
    assert inked(pixels[:16, :16]) == ["." * 15] * 15, "an empty cell"
    two = ("....######.....", "........##.....", "....######.....", "....##.........", "....######.....")
    assert inked(pixels[:16, 16:32])[2:12] == [line for line in two for _ in range(2)], (
        "short numbers are twice as large"
    )
    assert inked(pixels[16:32, 32:48])[5:10] == [
        "###.###.#.#.###",
        "..#.#.#.#.#.#.#",
        "###.#.#.###.###",
        "#...#.#...#.#.#",
        "###.###...#.###",
    ]
    assert inked(pixels[48:, 48:])[5:10] == [
        "..###.###.#.#..",
        "....#...#.#.#..",
        "..###.###.##...",
        "....#.#...#.#..",
        "..###.###.#.#..",
    ]
    grounds = {tuple(picture([exponent] + [0] * 15)[0, 0]) for exponent in range(16)}
    assert len(grounds) == 16, "each tile has its own colour"


# LEARNING


def mean_scores(iterations: int) -> list[float]:
    """Mean scores of the games that ended in each quarter of a training with the shipped recipe, with network and lanes
    for two CPU cores.
    """
    quarters = learnt(
        "g2048", ["env.lanes=480", "net.hidden=[64,64]", "algo.learning_rate=2e-3", "algo.minibatches=4"], iterations
    )
    assert all(sums[TALLIES + rules.INVALID] == 0 for sums in quarters), "the policy takes legal moves alone"
    return [sums[TALLIES + rules.SCORE] / sums[EPISODES] for sums in quarters]


@pytest.mark.slow
def test_score_improves_early_with_the_recipe():
    """24 iterations are 370,000 steps. Random play scores 1,100."""
    scores = mean_scores(24)
    assert scores[0] < 1600 and scores[-1] > 1.5 * scores[0], scores


@pytest.mark.soak
def test_score_improves_with_the_recipe():
    """100 iterations are 1.5 M steps."""
    assert mean_scores(100)[-1] > 4000

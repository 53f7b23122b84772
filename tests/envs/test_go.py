"""Go against an independent reference in plain Python on sets of stones, recomputed for each move; worked positions."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_philox import STEP, Key

from operant import envs
from operant.compute.device import device_params
from operant.config import load as config
from operant.config import recipes
from operant.envs import go as rules
from operant.envs.drawing import GROUND, RED
from operant.worlds.device_world import DeviceWorld

SEED = 21
BLACK, WHITE = "X", "O"
OTHER = {BLACK: WHITE, WHITE: BLACK}
SIGN = {BLACK: 1, WHITE: -1}

Point = tuple[int, int]
Stones = dict[str, frozenset[Point]]


@functools.cache
def neighbours(size: int) -> dict[Point, list[Point]]:
    """Neighbours of each point."""
    points = set(itertools.product(range(size), range(size)))
    return {
        (row, column): sorted({(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)} & points)
        for row, column in points
    }


class Game:
    """Reference game. Points are (row, column)."""

    def __init__(self, size: int, komi: float = 7.5) -> None:
        self.size, self.komi = size, komi
        self.points, self.around = list(itertools.product(range(size), range(size))), neighbours(size)
        self.stones: Stones = {BLACK: frozenset(), WHITE: frozenset()}
        self.before: Stones | None = None  # the position before the last ply
        self.plies, self.last, self.passed, self.skipped = 0, None, False, 0

    @staticmethod
    def drawn(diagram: str, komi: float = 7.5) -> Game:
        """Position from a drawing: X black, O white, . empty."""
        rows = [line.split() for line in diagram.strip().splitlines()]
        game = Game(len(rows), komi)
        game.stones = {
            colour: frozenset(point for point in game.points if rows[point[0]][point[1]] == colour)
            for colour in (BLACK, WHITE)
        }
        return game

    def drawing(self) -> str:
        marks = {point: colour for colour in (BLACK, WHITE) for point in self.stones[colour]}
        return "\n".join(
            " ".join(marks.get((row, column), ".") for column in range(self.size)) for row in range(self.size)
        )

    def spread(self, start: Point, within: frozenset[Point] | set[Point]) -> tuple[set[Point], set[Point]]:
        """Connected component of a set that contains a point, and its neighbours outside of the set."""
        found, beside, ahead = {start}, set(), [start]
        while ahead:
            for point in self.around[ahead.pop()]:
                if point not in within:
                    beside.add(point)
                elif point not in found:
                    found.add(point)
                    ahead.append(point)
        return found, beside

    def liberties(self, stones: Stones, colour: str, point: Point) -> tuple[set[Point], set[Point]]:
        """Chain of a stone, and its liberties."""
        chain, beside = self.spread(point, stones[colour])
        return chain, beside - stones[OTHER[colour]]

    def chains(self, colour: str) -> list[tuple[set[Point], set[Point]]]:
        """Chains of a colour with their liberties."""
        left, found = set(self.stones[colour]), []
        while left:
            chain, free = self.liberties(self.stones, colour, min(left))
            found.append((chain, free))
            left -= chain
        return found

    def after(self, colour: str, point: Point, ko: bool = True) -> Stones | None:
        """Position after a move, None if it is illegal."""
        if point in self.stones[BLACK] or point in self.stones[WHITE]:
            return None
        stones = {colour: self.stones[colour] | {point}, OTHER[colour]: self.stones[OTHER[colour]]}
        for beside in self.around[point]:
            if beside in stones[OTHER[colour]]:
                chain, free = self.liberties(stones, OTHER[colour], beside)
                if not free:
                    stones[OTHER[colour]] -= chain
        if not self.liberties(stones, colour, point)[1] or (ko and stones == self.before):
            return None
        return stones

    def legal(self, colour: str) -> list[Point]:
        """Legal moves, by trying every point."""
        return [point for point in self.points if self.after(colour, point) is not None]

    def forbidden_by_ko(self, colour: str) -> Point | None:
        found = [
            point
            for point in self.points
            if self.after(colour, point) is None and self.after(colour, point, ko=False) is not None
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def ply(self, colour: str, point: Point | None) -> int:
        """Play a legal move or a pass; returns the number of captured stones."""
        after = self.stones if point is None else self.after(colour, point)
        assert after is not None
        taken = len(self.stones[OTHER[colour]]) - len(after[OTHER[colour]])
        self.before, self.stones = self.stones, after
        self.plies += 1
        return taken

    def margin(self) -> float:
        """Black's area minus white's and komi."""
        areas = {colour: len(self.stones[colour]) for colour in (BLACK, WHITE)}
        empty = set(self.points) - self.stones[BLACK] - self.stones[WHITE]
        while empty:
            region, beside = self.spread(min(empty), empty)
            empty -= region
            for colour in (BLACK, WHITE):
                if beside and beside <= self.stones[colour]:
                    areas[colour] += len(region)
        return areas[BLACK] - areas[WHITE] - self.komi

    def kinds(self, colour: str) -> Iterator[set[Point]]:
        """Categories of points for a greedy player of a colour, most urgent first."""
        theirs = self.chains(OTHER[colour])
        for own, few in ((False, 1), (True, 1), (False, 2), (False, 3), (False, 4)):
            chains = self.chains(colour) if own else theirs
            yield set().union(*(free for _, free in chains if len(free) == few))
        yield set(self.points)

    def greedy(self, colour: str, avoided: frozenset[Point] = frozenset()) -> list[Point]:
        """Points among which a greedy player of a colour draws."""
        for kind in self.kinds(colour):
            if legal := [point for point in sorted(kind - avoided) if self.after(colour, point) is not None]:
                return legal
        return []

    def lead(self) -> int:
        return len(self.stones[BLACK]) - len(self.stones[WHITE])

    def step(
        self, action: int, key: Key, stone: float = 0.02, passing: float = 0.02
    ) -> tuple[float, bool, tuple[int, int, int]]:
        """Reward, whether the game ended, and tallies: captures, losses, passes."""
        limit, before = 3 * self.size**2, self.lead()
        point = divmod(action, self.size) if 0 <= action < self.size**2 else None
        if point is not None and self.after(BLACK, point) is None:
            point = None
        taken, lost = self.ply(BLACK, point), 0
        ended = self.plies == limit or (point is None and self.passed)
        if not ended:
            found = self.greedy(WHITE)
            self.last = found[key.integer(0, len(found))] if found else None
            lost = self.ply(WHITE, self.last)
            self.passed = self.last is None
            ended = self.plies == limit or (point is None and self.passed)
        else:
            self.last, self.passed = None, True
        self.skipped += point is None
        reward = stone * ((0 if ended else self.lead()) - before) - passing * (point is None)
        if ended:
            reward += self.outcome() + (passing * self.skipped if self.margin() > 0 else 0.0)
        return reward, ended, (taken, lost, int(point is None))

    def outcome(self) -> float:
        """1 for a win; from -1 for the smallest loss to -2 for a loss of the whole board and komi."""
        margin = self.margin()
        return 1.0 if margin > 0 else -1 + margin / (self.size**2 + self.komi) if margin < 0 else 0.0

    def observation(self) -> np.ndarray:
        """Bytes (size size 5)."""
        seen = np.zeros((self.size, self.size, 5), np.uint8)
        for plane, colour in enumerate((BLACK, WHITE)):
            for chain, free in self.chains(colour):
                for point in chain:
                    seen[(*point, plane)] = 255
                    seen[(*point, 2)] = int(255 / 2 ** (len(free) - 1))
        if self.last is not None:
            seen[(*self.last, 3)] = 255
        # Ko applies only to a single stone captured by white.
        if (
            self.before is not None
            and len(self.before[BLACK] - self.stones[BLACK]) == 1
            and (point := self.forbidden_by_ko(BLACK)) is not None
        ):
            seen[(*point, 3)] = 128
        seen[..., 4] = self.plies * 255 // (3 * self.size**2)
        return seen.reshape(-1)

    def cells(self) -> np.ndarray:
        """The environment's int state, (2 size size): signed liberties and chain ids."""
        liberties, names = np.zeros((self.size, self.size), int), np.full((self.size, self.size), -1)
        for colour in (BLACK, WHITE):
            for chain, free in self.chains(colour):
                for point in chain:
                    liberties[point], names[point] = SIGN[colour] * len(free), max(chain)[0] * self.size + max(chain)[1]
        return np.concatenate([liberties.reshape(-1), names.reshape(-1)])

    def mask(self) -> np.ndarray:
        """Legal actions of black, (size size + 1)."""
        legal = set(self.legal(BLACK))
        return np.array([point in legal for point in self.points] + [True], np.uint8)


# POSITIONS WORKED BY HAND


class Board:
    """Position for the compiled rules."""

    def __init__(self, diagram: str) -> None:
        game = Game.drawn(diagram)
        self.size = game.size
        self.cells = game.cells().astype(np.int8)
        self.workspace = np.full(game.size**2, 12345, np.int32)

    def play(self, colour: str, row: int, column: int) -> tuple[int, tuple[int, int] | None]:
        """Number of captured stones, and the ko point."""
        assert self.legal(colour, row, column)
        taken, ko = rules.play(self.cells, self.workspace, self.size, row * self.size + column, SIGN[colour])
        return taken, None if ko < 0 else divmod(ko, self.size)

    def legal(self, colour: str, row: int, column: int, ko: tuple[int, int] | None = None) -> bool:
        forbidden = -1 if ko is None else ko[0] * self.size + ko[1]
        return bool(rules.may_play(self.cells, self.size, row * self.size + column, SIGN[colour], forbidden))

    def area(self) -> int:
        return int(rules.area_lead(self.cells, self.workspace, self.size))

    def drawing(self) -> str:
        marks = np.array([".", BLACK, WHITE])[np.sign(self.cells[: self.size**2])].reshape(self.size, self.size)
        return "\n".join(" ".join(row) for row in marks)

    def liberties(self, row: int, column: int) -> int:
        return int(self.cells[row * self.size + column])


def same(board: Board, diagram: str) -> bool:
    return board.drawing() == "\n".join(line.strip() for line in diagram.strip().splitlines())


KO = """
    . X O . .
    X O . O .
    . X O . .
    . . . . .
    . . . . ."""


@pytest.mark.slow
def test_ko_cannot_be_recaptured_at_once():
    board = Board(KO)
    assert board.liberties(1, 1) == -1
    assert board.play(BLACK, 1, 2) == (1, (1, 1))
    assert same(
        board,
        """
        . X O . .
        X . X O .
        . X O . .
        . . . . .
        . . . . .""",
    )
    assert board.liberties(1, 2) == 1
    assert not board.legal(WHITE, 1, 1, ko=(1, 1)) and board.legal(WHITE, 3, 3, ko=(1, 1))
    assert board.legal(WHITE, 1, 1), "later it may be"
    assert board.play(WHITE, 1, 1) == (1, (1, 2))
    assert same(board, KO) and not board.legal(BLACK, 1, 2, ko=(1, 2))


def test_capture_of_one_stone_without_ko():
    with_a_friend = Board("""
        . O X . .
        O X . X .
        O X O X .
        . O X . .
        . . . . .""")
    # Black at (1, 2) joins its own stones.
    assert with_a_friend.liberties(2, 2) == -1
    assert with_a_friend.play(BLACK, 1, 2) == (1, None), "its chain has five stones now"
    with_room = Board("""
        . X . . .
        X O . . .
        . X . . .
        . . . . .
        . . . . .""")
    assert with_room.play(BLACK, 1, 2) == (1, None) and with_room.liberties(1, 2) == 4


def test_snapback_recaptures_several_stones():
    board = Board("""
        . . O . .
        X X O . .
        O O . . .
        . . . . .
        . . . . .""")
    assert board.liberties(1, 0) == 2
    assert board.play(WHITE, 0, 0) == (0, None) and board.liberties(0, 0) == -1
    assert board.play(BLACK, 0, 1) == (1, None), "three stones with one liberty: no ko"
    assert board.liberties(0, 1) == 1
    assert board.play(WHITE, 0, 0) == (3, None)
    assert same(
        board,
        """
        O . O . .
        . . O . .
        O O . . .
        . . . . .
        . . . . .""",
    )
    assert board.liberties(0, 0) == -2


def test_suicide_of_one_stone_is_forbidden():
    board = Board("""
        . X . . .
        X . X . .
        . X . . .
        . . . . .
        . . . . .""")
    assert not board.legal(WHITE, 0, 0) and not board.legal(WHITE, 1, 1)
    assert board.legal(BLACK, 0, 0) and board.legal(BLACK, 1, 1)
    assert not board.legal(BLACK, 0, 1) and not board.legal(WHITE, 0, 1), "there is a stone"


def test_suicide_of_many_stones_is_forbidden():
    board = Board("""
        O O . X .
        X X X . .
        . . . . .
        . . . . .
        . . . . .""")
    assert board.liberties(0, 0) == -1
    assert not board.legal(WHITE, 0, 2)
    assert board.play(BLACK, 0, 2) == (2, None)
    assert same(
        board,
        """
        . . X X .
        X X X . .
        . . . . .
        . . . . .
        . . . . .""",
    )
    assert board.liberties(0, 3) == board.liberties(1, 0) == 7


def test_capturing_move_is_not_suicide():
    board = Board("""
        . X O . .
        X O . . .
        O . . . .
        . . . . .
        . . . . .""")
    assert not board.legal(BLACK, 0, 0), "three stones without a liberty"
    assert board.play(WHITE, 0, 0) == (2, None), "two chains of one stone each"
    assert same(
        board,
        """
        O . O . .
        . O . . .
        O . . . .
        . . . . .
        . . . . .""",
    )


def test_captures_in_the_corner_and_at_the_edge():
    board = Board("""
        X . . . .
        O . . . O
        . . . O X
        . . . O X
        . . . . .""")
    assert board.play(WHITE, 0, 1) == (1, None) and board.liberties(0, 1) == -3, "the corner, (0, 2) and (1, 1)"
    assert board.play(WHITE, 4, 4) == (2, None) and board.liberties(4, 4) == -2
    assert same(
        board,
        """
        . O . . .
        O . . . O
        . . . O .
        . . . O .
        . . . . O""",
    )


@pytest.mark.slow
def test_one_move_captures_four_chains():
    four = Board("""
        . . O . .
        . O X O .
        O X . X O
        . O X O .
        . . O . .""")
    assert four.play(WHITE, 2, 2) == (4, None)
    assert same(
        four,
        """
        . . O . .
        . O . O .
        O . O . O
        . O . O .
        . . O . .""",
    )
    assert four.liberties(2, 2) == -4 and four.liberties(1, 1) == -4
    one = Board("""
        X X X O .
        X . X O .
        X X X O .
        O O O . .
        . . . . .""")
    assert one.liberties(0, 0) == 1 and one.play(WHITE, 1, 1) == (8, None)
    assert one.area() == -25


def test_joined_chains_count_shared_liberties_once():
    board = Board("""
        . X . X .
        . . . . .
        . X . X .
        . . . . .
        . . . . .""")
    assert board.play(BLACK, 1, 1) == (0, None) and board.liberties(0, 1) == 7
    assert board.play(BLACK, 1, 3) == (0, None) and board.liberties(2, 3) == 7
    # Three in each of the rows 0 and 2, two in each of the rows 1 and 3.
    assert board.play(BLACK, 1, 2) == (0, None) and {
        board.liberties(row, column) for row in (0, 1, 2) for column in (1, 3)
    } == {10}


SEKI = """
    X O . X O O .
    X O O X O O O
    X X O X O O .
    . X O X O O O
    X X O X O O O
    . X O X X O O
    X X O . X O O"""


def test_shared_points_of_a_seki_are_neutral():
    board = Board(SEKI)
    # The inner chains share both liberties, (0, 2) and (6, 3): whoever fills one is captured.
    assert board.liberties(0, 1) == -2 and board.liberties(0, 3) == 2
    # Black: 10 and 8 stones and 2 eyes; white: 8 and 17 stones and 2 eyes.
    assert board.area() == 20 - 27
    first = Board(SEKI)
    assert first.play(WHITE, 0, 2) == (0, None) and first.play(BLACK, 6, 3) == (9, None)
    second = Board(SEKI)
    assert second.play(BLACK, 0, 2) == (0, None) and second.play(WHITE, 6, 3) == (9, None)


def test_dead_stones_stay_on_the_board():
    alive = """
        . . X . .
        . . X . .
        . . X . .
        . . X . .
        . . X . ."""
    assert Board(alive).area() == 25
    board = Board(alive)
    board.play(WHITE, 2, 0)
    assert board.area() == 5 + 10 - 1, "a stone that could not live makes ten points nobody's"


def test_areas_of_simple_boards():
    empty = "\n".join([". . . . ."] * 5)
    assert Board(empty).area() == 0
    board = Board(empty)
    board.play(WHITE, 4, 0)
    assert board.area() == -25
    board.play(BLACK, 0, 4)
    assert board.area() == 0
    # Regions that connect only along a long path are one.
    assert (
        Board("""
        . X . X .
        . X . X .
        . X . X .
        . X . X .
        . . . . O""").area()
        == 8 - 1
    )


# GAMES


class Play:
    """A few lanes of a world."""

    def __init__(self, env: envs.Env, lanes: int = 1, seed: int = SEED, finals: bool = False, **params: float) -> None:
        self.size = env.observation.shape[0]
        self.world = DeviceWorld(env, lanes, seed=seed, params=env.Params(**params), every_final=finals)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)
        self.world.reset(self._bound)
        self.state, self.cells = self.world.lanes.state.numpy(), self.world.lanes.int_state.numpy()

    def load(self, lane: int, game: Game) -> None:
        """Set the position of a game in a lane."""
        ko = game.forbidden_by_ko(BLACK)
        place = {
            name: -1 if point is None else point[0] * self.size + point[1]
            for name, point in (("ko", ko), ("last", game.last))
        }
        self.cells[:, lane] = game.cells()
        self.state[:, lane] = game.plies, place["ko"], place["last"], game.passed, game.lead(), game.skipped

    def step(self, *actions: int) -> None:
        self.slot.action.copy_(torch.tensor(actions, dtype=torch.int32)[None])
        self.world.step(self._bound)
        self.world.advance(1)

    @property
    def mask(self) -> np.ndarray:
        """(actions N)"""
        return self.slot.legal.numpy()


FIVE = rules.go(5)
PASS = 25

FULL = """
    . X X X X
    X X X X X
    X X . X X
    X X X X X
    X X X X X"""


def test_pass_is_answered_and_counted():
    play = Play(FIVE)
    play.load(0, Game.drawn("\n".join(["X . . . ."] + [". . . . ."] * 4)))
    play.step(PASS)
    assert not play.slot.terminated.item() and play.state[rules.LAST, 0] in (1, 5), "a liberty of the chain of two"
    assert play.slot.reward.item() == pytest.approx(-0.02 - 0.02), "white is a stone nearer, and a pass has its price"
    assert play.world.lanes.running[:, 0].tolist() == pytest.approx([-0.04, 0, 0, 0, 0, 0, 1])


def test_side_without_a_move_passes_and_two_passes_end_the_game():
    play = Play(FIVE)
    game = Game.drawn(FULL)
    play.load(0, game)
    play.step(PASS)
    assert play.slot.terminated.item() == 1 and play.slot.reward.item() == pytest.approx(1 - 0.02 * 23)
    assert play.world.episode_sums(play.slot).tolist()[3:] == [1, 25 - 7.5, 0, 0, 2, 1]
    # White has passed: a pass by black is the second.
    game.passed, game.plies = True, 10
    play.load(0, game)
    play.step(PASS)
    assert play.slot.terminated.item() == 1 and play.world.episode_sums(play.slot).tolist()[3:] == [
        1,
        25 - 7.5,
        0,
        0,
        11,
        1,
    ]
    # Black fills one of three eyes: white still has no move and passes, but that is not yet two.
    play.load(0, Game.drawn(FULL[:-1] + "."))
    play.step(0)
    assert not play.slot.terminated.item() and play.state[rules.PASSED, 0] == 1 and play.state[rules.LAST, 0] == -1
    assert play.mask[:, 0].nonzero()[0].tolist() == [12, 24, PASS]
    play.step(12)
    assert not play.slot.terminated.item() and (play.cells[:25, 0] < 0).sum() == 1, "with one eye left black is taken"


def test_white_captures_if_possible():
    play = Play(FIVE)
    play.load(
        0,
        Game.drawn("""
        X X X X X
        X X X X X
        X X . X X
        X X X X X
        X X X X X"""),
    )
    play.step(PASS)
    assert not play.slot.terminated.item() and play.state[rules.LAST, 0] == 12
    assert (
        play.slot.reward.item() == pytest.approx(-0.02 * 26)
        and play.cells[:25, 0].tolist() == [0] * 12 + [-4] + [0] * 12
    )
    assert play.world.episode_sums(play.slot).tolist()[3:] == [0] * 6, "nothing is told before the end"
    assert play.world.lanes.running[:, 0].tolist() == pytest.approx([-0.52, 0, 0, 0, 24, 0, 1])


@pytest.mark.parametrize("left, plies", [(1, 75), (2, 75), (3, 75)])
def test_limit_of_plies_ends_the_game(left, plies):
    play = Play(FIVE)
    game = Game.drawn("\n".join(["X . . . ."] + [". . . . ."] * 4))
    game.plies = plies - left
    play.load(0, game)
    play.step(24)
    assert bool(play.slot.terminated.item()) == (left < 3)
    if left < 3:
        # Without white stones black owns the whole board; with one, all empty points are neutral.
        margin = (25 if left == 1 else 2 - 1) - 7.5
        assert play.world.episode_sums(play.slot).tolist()[3:] == [left == 1, margin, 0, 0, plies, 0]
        assert play.slot.reward.item() == pytest.approx((1 if left == 1 else -1 - 6.5 / 32.5) - 0.02)
    else:
        assert play.slot.observation[4, 0] == 74 * 255 // 75


@pytest.mark.parametrize("action", [0, 12, -1, 26, 1000])
def test_an_illegal_action_is_a_pass(action):
    play = Play(FIVE)
    play.load(
        0,
        Game.drawn("""
        . O . . .
        O . . . .
        . . X . .
        . . . . .
        . . . . ."""),
    )
    assert play.cells[12, 0] == 4
    play.step(action)
    assert not play.slot.terminated.item() and play.world.lanes.running[6, 0] == 1.0, "counted as a pass"
    assert (
        play.state[rules.PLIES, 0] == 2 and (play.cells[:25, 0] > 0).sum() == 1 and (play.cells[:25, 0] < 0).sum() == 3
    )


@pytest.mark.slow
def test_komi_and_rewards_are_parameters():
    play = Play(FIVE, stone=0.5, komi=0.0, passing=0.25, rout=0.0)
    game = Game.drawn("\n".join(["X . X . ."] + [". . . . ."] * 3 + [". O . . O"]))
    game.plies = 73
    play.load(0, game)
    play.step(4)
    assert play.slot.reward.item() == 0.0 and play.slot.terminated.item() == 1, "without komi nobody has won"
    assert play.world.episode_sums(play.slot).tolist()[3:] == [0, 0, 0, 0, 75, 0]
    game.stones[BLACK] |= {(0, 1), (1, 1)}
    game.plies = 70
    play.load(0, game)
    rewards = []
    for action in (3, -1, 4):
        play.step(action)
        rewards.append(play.slot.reward.item())
    assert rewards == [0.0, -0.5 - 0.25, 1.0 - 0.5 * (2 - 1) + 0.25], (
        "what the stones brought is taken back, and what the pass cost given"
    )
    game = Game.drawn("\n".join(["O . . . ."] + [". . . . ."] * 4))
    game.plies = 74
    play.load(0, game)
    play.step(PASS)
    assert play.slot.reward.item() == -1.0 + 0.5 - 0.25, (
        "the whole board is lost, which here is no worse than by a hair"
    )


def test_larger_losses_cost_more():
    play = Play(FIVE)
    game = Game.drawn("\n".join(["O . . . ."] + [". . . . ."] * 4))
    game.plies = 74
    play.load(0, game)
    play.step(PASS)
    assert play.slot.reward.item() == pytest.approx(-1 - (25 + 7.5) / (25 + 7.5) + 0.02 - 0.02)


# AGAINST THE REFERENCE


def late_games(size: int, count: int) -> list[Game]:
    """Games in progress with black to move, some long, some near the limit of plies; on small boards a quarter of them
    with a ko against black.
    """
    generator, found = np.random.default_rng(size), []
    while len(found) < count:
        game, wanted = Game(size), size < 10 and len(found) % 4 == 0
        for t in range(2 * int(generator.integers(size, min(size**2, 120) // 2))):
            # Both sides play greedily one time in three: random play rarely captures.
            colour = (BLACK, WHITE)[t % 2]
            points = game.greedy(colour) if generator.random() < 0.33 else game.legal(colour)
            taken = game.ply(colour, points[generator.integers(len(points))] if points else None)
            if wanted and t % 2 == 1 and taken == 1 and game.forbidden_by_ko(BLACK):
                break
        if wanted and not game.forbidden_by_ko(BLACK):
            continue
        if len(found) % 3 == 0:
            game.plies = 3 * size**2 - int(generator.integers(1, 12))
        found.append(game)
    return found


def keeping_eyes(game: Game) -> int:
    """Better player: greedy, but never on a point surrounded by its own stones; passes if nothing else is left."""
    eyes = frozenset(
        point for point in game.points if all(beside in game.stones[BLACK] for beside in game.around[point])
    )
    points = game.greedy(BLACK, eyes)
    return points[0][0] * game.size + points[0][1] if points else game.size**2


def chosen(games: list[Game], masks: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Action for each lane, (1, N), by lane modulo 4: any action; the better player; a random legal move (in new and in
    late games).
    """
    count = games[0].size ** 2
    actions = generator.integers(-1, count + 2, len(games))
    for lane, game in enumerate(games):
        if lane % 4 == 1:
            actions[lane] = keeping_eyes(game)
        elif lane % 4 >= 2:
            legal = np.flatnonzero(masks[:count, lane])
            actions[lane] = generator.choice(legal) if len(legal) and generator.random() < 0.98 else count
    return actions.astype(np.int32)


def compare(env: envs.Env, lanes: int, steps: int, every: int, finals: bool = False) -> dict[str, int]:
    """Play in a world and in the reference.

    Compares rewards, ends, last moves and stones in each step, observations and legal moves in every `every`-th
    lane in rotation, and with `finals` final observations, by a kernel that only this needs. Returns counts of
    events.
    """
    size = env.observation.shape[0]
    count = size**2
    play, generator = Play(env, lanes, finals=finals), np.random.default_rng(7)
    late, games = itertools.cycle(late_games(size, 16 if size < 10 else 2)), [Game(size) for _ in range(lanes)]
    slot, seen, final = play.slot, play.slot.observation.numpy(), play.slot.final_observation.numpy()
    happened = dict.fromkeys(
        ("ended", "at the limit", "by a pass alone", "won", "kos", "took", "lost", "passes of white"), 0
    )
    sums = np.zeros(len(env.tally))

    def place_late() -> None:
        for lane in range(3, lanes, 4):
            if games[lane].plies == 0:
                games[lane] = copy.copy(next(late))
                play.load(lane, games[lane])
                play.mask[:, lane] = games[lane].mask()

    place_late()
    assert all(np.array_equal(play.mask[:, lane], games[lane].mask()) for lane in range(min(lanes, 3)))
    returns, outcomes = np.array([0.02 * game.lead() for game in games]), []
    for t in range(1, steps + 1):
        actions = chosen(games, play.mask, generator)
        slot.action.copy_(torch.from_numpy(actions)[None])
        play.step(*actions)
        results = [
            game.step(int(action), Key(SEED, lane, t, STEP))
            for lane, (game, action) in enumerate(zip(games, actions, strict=True))
        ]
        rewards, ended = np.array([reward for reward, _, _ in results]), np.array([end for _, end, _ in results])
        assert np.allclose(slot.reward.numpy(), rewards, atol=1e-5), t
        assert np.array_equal(slot.terminated.numpy(), ended), t
        returns += rewards
        for lane, (_, _, (taken, lost, _)) in enumerate(results):
            game = games[lane]
            happened["took"] += taken
            happened["lost"] += lost
            happened["passes of white"] += not ended[lane] and game.passed
            if ended[lane]:
                margin = game.margin()
                happened["ended"] += 1
                happened["at the limit"] += game.plies == 3 * count
                happened["by a pass alone"] += game.plies % 2 == 1 and game.plies < 3 * count
                happened["won"] += margin > 0
                sums[[rules.WON, rules.MARGIN, rules.PLIES_AT_END]] += margin > 0, margin, game.plies
                outcomes.append((returns[lane], game.outcome() - (0.02 * game.skipped if margin <= 0 else 0.0)))
                assert not finals or np.array_equal(final[:, lane], game.observation()), (t, lane)
                games[lane], returns[lane] = Game(size), 0.0
        stones = np.sign(play.cells[:count])
        assert all(
            set(np.flatnonzero(stones[:, lane] == SIGN[colour]))
            == {row * size + column for row, column in game.stones[colour]}
            for lane, game in enumerate(games)
            for colour in (BLACK, WHITE)
        ), t
        for lane in range(t % every, lanes, every):
            assert np.array_equal(seen[:, lane], games[lane].observation()), (t, lane)
            assert np.array_equal(play.mask[:, lane], games[lane].mask()), (t, lane)
            assert np.array_equal(play.cells[:count, lane], games[lane].cells()[:count]), (t, lane)
            happened["kos"] += play.state[rules.KO, lane] >= 0
        place_late()
        late_lanes = np.array([lane % 4 == 3 and ended[lane] for lane in range(lanes)])
        returns[late_lanes] = [0.02 * games[lane].lead() for lane in np.flatnonzero(late_lanes)]
        total = play.world.episode_sums(slot).numpy()[3:]
        sums[[rules.WON, rules.MARGIN, rules.PLIES_AT_END]] -= total[[rules.WON, rules.MARGIN, rules.PLIES_AT_END]]
    assert np.array_equal(sums, np.zeros(len(env.tally)))
    assert outcomes and all(total == pytest.approx(outcome) for total, outcome in outcomes), (
        "a game's return is its outcome"
    )
    return happened


@pytest.mark.slow
def test_steps_equal_the_reference():
    happened = compare(envs.find("go"), lanes=64, steps=260, every=16)
    assert min(happened.values()) >= 8, happened


@pytest.mark.soak
def test_many_steps_equal_the_reference():
    happened = compare(envs.find("go"), lanes=64, steps=10_000, every=4, finals=True)
    assert min(happened.values()) > 30, happened


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, pytest.param(13, marks=pytest.mark.soak), 19])
def test_other_sizes_equal_the_reference(size):
    env = FIVE if size == 5 else rules.go(size)
    assert env.int_state is not None and env.int_state.dtype == ("int8" if size == 5 else "int16")
    happened = compare(env, lanes=32 if size == 5 else 8, steps=120 if size == 5 else 40, every=4)
    assert min(happened[what] for what in (happened if size == 5 else ("ended", "lost"))) > 0, happened


# WHAT HOLDS IN EVERY POSITION


@settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.sampled_from([0.0, 0.5, 1.0]))
def test_invariants_of_every_position(choices, greed):
    game, board, mirrored = Game(5), Board("\n".join([". . . . ."] * 5)), Board("\n".join([". . . . ."] * 5))
    ko = -1
    for t, choice in enumerate(choices):
        colour = (BLACK, WHITE)[t % 2]
        legal = game.legal(colour)
        for one, sign in ((board, SIGN[colour]), (mirrored, -SIGN[colour])):
            allowed = [divmod(point, 5) for point in range(25) if rules.may_play(one.cells, 5, point, sign, ko)]
            assert allowed == legal, "what is legal is what can be tried"
        points = game.greedy(colour) if choice < 1000 * greed else legal
        point = None if not points or choice % 40 == 39 else points[choice % len(points)]
        taken, expected = game.ply(colour, point), (0, -1)
        ko = -1
        if point is not None:
            place = point[0] * 5 + point[1]
            expected = rules.play(board.cells, board.workspace, 5, place, SIGN[colour])
            assert rules.play(mirrored.cells, mirrored.workspace, 5, place, -SIGN[colour]) == expected
            ko = expected[1]
        assert expected[0] == taken
        forbidden = game.forbidden_by_ko(OTHER[colour])
        assert ko == (-1 if forbidden is None else forbidden[0] * 5 + forbidden[1]), (
            "a stone that may be taken back at once, and nothing else"
        )
        liberties, names = board.cells[:25], board.cells[25:]
        assert np.array_equal(liberties, game.cells()[:25])
        assert np.array_equal(names >= 0, liberties != 0) and np.array_equal(
            names[names[names >= 0]], names[names >= 0]
        ), "a chain's name is one of its points"
        assert all(free for colour in (BLACK, WHITE) for _, free in game.chains(colour)), (
            "no chain without liberties is left"
        )
        assert board.area() == game.margin() + 7.5 == -mirrored.area(), "the same score for both sides"


@pytest.mark.parametrize("size", [4, 20, 0, 100, 9.0])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"5 to 19, not {size}"):
        rules.go(size)


def test_picture_shows_board_stones_last_move_and_ko():
    env = rules.go(5)
    s, p = np.zeros(rules.FIELDS, np.float32), device_params(env.Params())
    cells = Board(KO).cells
    s[rules.KO], s[rules.LAST] = 7, 6

    def at(row: float, column: float) -> tuple[float, ...]:
        return env.pixel_shader.py_func(s, cells, p, np.float32((column + 1) / 6), np.float32((row + 1) / 6))

    assert at(0, 1) == rules.BLACK_STONE and at(0, 2) == at(1, 1.3) == rules.WHITE_STONE
    assert at(1, 1) == RED, "white's last stone"
    assert at(1, 2) == RED and at(1.4, 2.4) == rules.WOOD, "where ko forbids to play"
    assert at(3, 3) == at(3.5, 3) == at(0, 0) == rules.LINE and at(3.5, 3.5) == at(4.5, 2) == rules.WOOD
    assert at(-0.9, 2) == at(2, 4.9) == GROUND


def test_recipe_loads():
    recipe = config.load(recipes.find_source("go"))
    assert recipe.environment.name == "go" and recipe.run.target == 0.9

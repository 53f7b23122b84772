"""Breakout against an independent reference in plain Python; walls and scores of whole games; pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from learning import learnt
from plain_philox import RESET, STEP, Key

from operant.compute.device import device_params
from operant.envs import breakout, find
from operant.envs.breakout import (
    BALL_VX,
    BALL_VY,
    BALL_X,
    BALL_Y,
    BALLS,
    HITS,
    LEFT,
    PADDLE_WIDTH,
    PADDLE_X,
    RIGHT,
    SCORE,
    SPEED,
    STAY,
    Params,
)
from operant.envs.drawing import BLUE, GREEN, GREY, GROUND, ORANGE, RED, YELLOW
from operant.tools.rollouts import Harness
from operant.worlds.base import EPISODES, RETURN, TALLIES
from operant.worlds.bounds import rollout_actions
from operant.worlds.device_world import DeviceWorld

ENV = find("breakout")
SEED, LANES = 5, 64
SCRIPTED, LATE = slice(32, 64), slice(48, 64)
"""Lanes with the skilled player, and those among them that restart late in a game."""

FIELD_WIDTH, FIELD_HEIGHT, BALL, PADDLE_Y = 576, 330, 32, 312
TOLERANCE = 1e-3
"""Tolerance in pixels between float32 and Python's floats after one step."""

NUDGE = 1e-4
"""Tolerance in pixels for nearly simultaneous contacts: float32 may see either first, so the reference may start from a
slightly shifted state.
"""


def points(brick: int) -> int:
    return (7, 7, 4, 4, 1, 1)[brick // 18]


class Contact(NamedTuple):
    """Contact of the ball, `t` frames from now; smaller contacts come first."""

    t: float
    narrowness: float  # the overlap, negative
    order: int
    what: str
    x: float
    y: float


class Game:
    """Reference game."""

    def __init__(self, key: Key | None = None) -> None:
        self.gone = 0  # bit k: brick k
        self.score, self.balls = 0, 5
        self.new_ball()

    def new_ball(self) -> None:
        self.paddle_width, self.paddle_x = 62.0, 257.0
        self.x, self.y, self.vx, self.vy = 272.0, 135.0, 0.0, 0.0
        self.speed, self.hits = 256.0, 0

    @classmethod
    def of(cls, column: list[float], words: list[int]) -> Game:
        """Game described by a column of the state and the bricks' bits."""
        game = cls()
        game.paddle_x, game.paddle_width, game.x, game.y, game.vx, game.vy, game.speed = column[:7]
        game.hits, game.score, game.balls = int(column[HITS]), int(column[SCORE]), int(column[BALLS])
        game.gone = sum(word << 32 * k for k, word in enumerate(words))
        return game

    def step(self, action: int, key: Key) -> tuple[float, bool]:
        """Play at most four frames: reward, and whether the game is over."""
        before = self.score
        for frame in range(4):
            self.frame(action, frame, key)
            if self.over():
                break
        return self.score - before, self.over()

    def over(self) -> bool:
        return self.balls < 0 or self.score == 864

    def frame(self, action: int, frame: int, key: Key) -> None:
        if self.vx == self.vy == 0:
            side = 1 if key.integer(frame, 2) else -1
            self.vx, self.vy = (
                side * self.speed / 60 * math.sin(math.pi / 3.25),
                self.speed / 60 * math.cos(math.pi / 3.25),
            )
        else:
            way = {STAY: 0, LEFT: -1, RIGHT: 1}[action]
            self.paddle_x = sorted((0.0, self.paddle_x + way * 620 / 60, FIELD_WIDTH - self.paddle_width))[1]
        # Outside of the field after starting towards a side that it touches: moved back by 1.1 frames at the top speed.
        back = 1.1 * 448 / 60
        self.x += back * ((self.x < 0) - (self.x > FIELD_WIDTH))
        self.y += back * (self.y < 0)
        first = min(self.contacts(), default=None)
        if first is None:
            self.x, self.y = self.x + self.vx, self.y + self.vy
        elif first.what == "paddle":
            self.send_off()
        else:
            self.x, self.y = first.x, first.y
            if first.what in ("left", "right"):
                self.vx = -self.vx
            else:
                self.vy = -self.vy
            if first.order < 2 * 108:
                self.hit_brick(first.order // 2)
            elif first.what == "above":
                self.paddle_width = 31.0
        if self.y >= PADDLE_Y + 8:
            self.balls -= 1
            self.new_ball()

    def contacts(self) -> list[Contact]:
        """All contacts of the ball within a frame, each considered alone."""
        found = []
        if min(self.y, self.y + self.vy) < 130:
            for brick in range(108):
                left, above = 32 * (brick % 18), 50 + 12 * (brick // 18)
                if abs(left - self.x) < 60 and not self.gone >> brick & 1:
                    found += self.beside(left if self.vx > 0 else left + 32, above, above + 12, 2 * brick)
                    found += self.upon(above if self.vy > 0 else above + 12, left, left + 32, 2 * brick + 1)
        found += self.beside(FIELD_WIDTH if self.vx > 0 else 0, 0, FIELD_HEIGHT, 1000)
        if self.vy < 0:
            found += self.upon(0, 0, FIELD_WIDTH, 1001)
        else:
            found += [
                contact._replace(what="paddle")
                for contact in self.upon(PADDLE_Y, self.paddle_x, self.paddle_x + self.paddle_width, 1002)
            ]
        return found

    def beside(self, edge: float, low: float, high: float, order: int) -> list[Contact]:
        """Contact with a vertical edge."""
        corner = edge - BALL if self.vx > 0 else edge
        if self.vx == 0 or not 0 < (t := (corner - self.x) / self.vx) <= 1:
            return []
        y = self.y + t * self.vy
        overlap = min(y + BALL, high) - max(y, low)
        return [Contact(t, -overlap, order, "right" if self.vx > 0 else "left", corner, y)] if overlap > 0 else []

    def upon(self, edge: float, low: float, high: float, order: int) -> list[Contact]:
        """Contact with a horizontal edge."""
        corner = edge - BALL if self.vy > 0 else edge
        if not 0 < (t := (corner - self.y) / self.vy) <= 1:
            return []
        x = self.x + t * self.vx
        overlap = min(x + BALL, high) - max(x, low)
        return [Contact(t, -overlap, order, "below" if self.vy > 0 else "above", x, corner)] if overlap > 0 else []

    def send_off(self) -> None:
        place = (self.x + BALL / 2 - self.paddle_x) / self.paddle_width
        angle = math.radians(90 * place - 45)
        self.vx, self.vy = self.speed / 60 * math.sin(angle), -self.speed / 60 * math.cos(angle)
        self.hits = (self.hits + 1) % 4
        if self.hits == 0 and self.speed < 448:
            self.speed += 64
        if self.score == 432:
            self.gone = 0

    def hit_brick(self, brick: int) -> None:
        self.gone |= 1 << brick
        self.score += points(brick)
        if brick < 3 * 18:
            self.speed = 448.0

    def floats(self) -> list[float]:
        return [self.paddle_x, self.paddle_width, self.x, self.y, self.vx, self.vy, self.speed]

    def whole(self) -> tuple[int, int, int, int]:
        return self.hits, self.score, self.balls, self.gone

    def observation(self) -> list[float]:
        seen = [
            self.paddle_x / 576,
            312 / 330,
            self.x / 576,
            self.y / 330,
            self.vx / 512,
            self.vy / 512,
            0.2 if self.vx or self.vy else 0.0,
        ]
        seen += [self.score / 864, self.balls / 5, self.paddle_width / 62]
        return seen + [float(self.gone >> brick & 1) for brick in range(108)]


class Aim:
    """Skilled player: meets the ball with varying parts of the paddle."""

    def __init__(self, lanes: int) -> None:
        self._generator = np.random.default_rng(9)
        self._aim = np.zeros(lanes)

    def __call__(self, state: np.ndarray) -> np.ndarray:
        """Actions (N)."""
        again = (state[BALL_VY] < 0) & (self._generator.random(len(self._aim)) < 0.2)
        self._aim = np.where(again, self._generator.uniform(-0.45, 0.45, len(self._aim)), self._aim)
        beside = state[BALL_X] + BALL / 2 - state[PADDLE_WIDTH] * (0.5 + self._aim) - state[PADDLE_X]
        return np.where(beside > 21, RIGHT, np.where(beside < -21, LEFT, STAY)).astype(np.int32)


def bits(bricks: Iterable[int]) -> int:
    return sum(1 << brick for brick in bricks)


def set_bricks(world: DeviceWorld, lane: int, gone: int) -> None:
    world.lanes.int_state[:, lane] = torch.from_numpy(np.frombuffer(gone.to_bytes(16, "little"), np.int32).copy())


def start_late(world: DeviceWorld, lanes: list[int], generator: np.random.Generator) -> None:
    """Put lanes in mid-flight before a wall with holes, its last bricks, or the very last brick."""
    for lane in lanes:
        standing = set(generator.choice(108, generator.choice((0, 1, 1, 1, 2, 40)), replace=False).tolist())
        second = bool(standing) and generator.random() < 0.7
        speed, angle = generator.choice((256, 320, 384, 448)) / 60, generator.uniform(-2.5, 2.5)
        narrow = generator.random() < 0.4
        set_bricks(world, lane, bits(set(range(108)) - standing))
        world.lanes.state[:, lane] = torch.tensor(
            [
                *(
                    generator.uniform(0, 500),
                    31 if narrow else 62,
                    generator.uniform(0, 544),
                    generator.uniform(125, 250),
                ),
                *(
                    speed * math.sin(angle),
                    -speed * math.cos(angle),
                    generator.choice((256, 320, 384, 448)),
                    generator.integers(0, 4),
                ),
                *(432 * (1 + second) - sum(points(brick) for brick in standing), generator.integers(0, 6)),
            ],
            dtype=torch.float32,
        )


def words_of(world: DeviceWorld) -> list[list[int]]:
    """Brick bits of each lane, unsigned."""
    found: list[list[int]] = world.lanes.int_state.numpy().view(np.uint32).T.tolist()
    return found


def same(ours: tuple[Game, float, bool], theirs: tuple[Game, float, bool]) -> bool:
    """Whether two outcomes of a step are equal up to rounding. Speed and hits of a finished game are unknown."""
    over = ours[2]
    floats, whole = (6, 1) if over else (7, 0)
    error = np.abs(np.subtract(ours[0].floats()[:floats], theirs[0].floats()[:floats])).max()
    # The flatter the ball's path, the more rounding shifts the time and position at which it crosses an edge.
    slow, fast = sorted((abs(theirs[0].vx), abs(theirs[0].vy)))
    close = error < TOLERANCE * (1 + 0.02 * fast / max(slow, 1e-3))
    return bool(close) and ours[0].whole()[whole:] == theirs[0].whole()[whole:] and ours[1:] == theirs[1:]


def beside(column: list[float]) -> list[list[float]]:
    """State with its ball or paddle moved slightly."""
    moved = []
    for row in (BALL_X, BALL_Y, PADDLE_X):
        for nudge in (-NUDGE, NUDGE):
            moved.append([number + nudge * (k == row) for k, number in enumerate(column)])
    return moved


def check_rules(steps: int) -> Counter[str]:
    trial, generator, aim = Harness(ENV, LANES, SEED), np.random.default_rng(3), Aim(LANES)
    trial.reset()
    state, slot = trial.world.lanes.state.numpy(), trial.slot
    seen: Counter[str] = Counter()
    start_late(trial.world, list(range(LANES)[LATE]), generator)
    for tick in range(1, steps + 1):
        before, bricks = state.T.tolist(), words_of(trial.world)
        action = rollout_actions(ENV, generator, tick, LANES)
        action[0, SCRIPTED] = torch.from_numpy(aim(state)[SCRIPTED])
        trial.step(action)
        after, words = state.T.tolist(), words_of(trial.world)
        reward, terminated = slot.reward.tolist(), slot.terminated.bool()
        over = terminated.tolist()
        shown = torch.where(terminated, slot.final_observation, slot.observation).T.numpy()
        for lane in range(LANES):
            key, chosen = Key(SEED, lane, tick, STEP), int(action[0, lane])
            ours = reached(after[lane], words[lane], shown[lane], over[lane]), reward[lane], over[lane]
            game = Game.of(before[lane], bricks[lane])
            if not same(ours, (game, *game.step(chosen, key))):
                games = [Game.of(start, bricks[lane]) for start in beside(before[lane])]
                alike = [game for game in games if same(ours, (game, *game.step(chosen, key)))]
                assert alike, (tick, lane, before[lane], after[lane])
                game = alike[0]
                seen["on an edge"] += 1
            seen["out of the field"] += before[lane][BALL_X] < 0
            seen["won"] += over[lane] and game.score == 864
            seen["lost"] += over[lane] and game.score < 864
            seen["ball lost"] += game.balls < before[lane][BALLS]
            seen["narrow"] += game.paddle_width < before[lane][PADDLE_WIDTH]
            seen["faster"] += game.speed > before[lane][SPEED]
            seen["wall again"] += sum(bricks[lane]) > 0 and not game.gone and not over[lane]
            assert np.abs(shown[lane] - game.observation()).max() < 1e-5, (tick, lane)
            if over[lane]:
                assert same(
                    (Game.of(after[lane], words[lane]), 0, False), (Game(Key(SEED, lane, tick, RESET)), 0, False)
                )
        assert not slot.truncated.any()
        trial.world.lanes.age.zero_()  # the world applies the time limit
        start_late(trial.world, [lane for lane in range(LANES)[LATE] if over[lane]], generator)
    seen["lane-steps"] = LANES * steps
    return seen


def reached(column: list[float], words: list[int], shown: np.ndarray, over: bool) -> Game:
    """Game in the state that the kernel reached; of a finished game only the observation is known."""
    if not over:
        return Game.of(column, words)
    game = Game()
    game.paddle_x, game.x, game.y = (float(shown[k] * size) for k, size in ((0, 576), (2, 576), (3, 330)))
    game.vx, game.vy, game.paddle_width = float(shown[4] * 512), float(shown[5] * 512), float(shown[9] * 62)
    game.score, game.balls = round(float(shown[7] * 864)), round(float(shown[8] * 5))
    game.gone = bits(np.nonzero(shown[10:])[0].tolist())
    return game


def check_seen(seen: Counter[str], least: int) -> None:
    assert all(seen[what] >= least for what in ("won", "lost", "ball lost", "narrow", "faster", "wall again")), seen
    assert seen["on an edge"] <= 1e-4 * seen["lane-steps"], seen


def test_steps_equal_the_reference():
    check_seen(check_rules(400), 1)


@pytest.mark.soak
def test_many_steps_equal_the_reference():
    check_seen(check_rules(10_000), 50)


@pytest.mark.slow
def test_whole_games_clear_both_walls():
    """Lanes with unlimited balls play both walls to their last brick."""
    lanes = 32
    trial, aim = Harness(ENV, lanes, 2), Aim(lanes)
    trial.reset()
    state, slot = trial.world.lanes.state.numpy(), trial.slot
    worth = np.array([points(brick) for brick in range(108)])[:, None]
    gone, score, sums, won = np.zeros((108, lanes), bool), np.zeros(lanes), np.zeros(TALLIES + 3), np.zeros(lanes, int)
    assert worth.sum() == 432
    for _ in range(5000):
        state[BALLS] = 5
        trial.step(torch.from_numpy(aim(state)[None]))
        sums += trial.world.episode_sums(slot).numpy()
        shown, reward, over = slot.observation.numpy(), slot.reward.numpy(), slot.terminated.numpy().astype(bool)
        gone_now = shown[10:] == 1
        score_then, score = score + reward, np.round(shown[7] * 864)
        assert (
            np.all(reward >= 0)
            and np.array_equal(score, np.where(over, 0, score_then))
            and np.array_equal(score, state[SCORE])
        )
        assert np.array_equal(over, score_then == 864) and score_then.max() <= 864
        # What stands and what was scored are one; bricks come back all at once, with the score half way, and never
        # else.
        assert np.array_equal((gone_now * worth).sum(axis=0) % 432, score % 432)
        back = (gone & ~gone_now).any(axis=0)
        assert (
            np.all(~gone_now[:, back].any(axis=0))
            and np.all(gone[:, back & ~over].all(axis=0))
            and np.all(score[back & ~over] == 432)
        )
        gone = gone_now
        won += over
    assert won.sum() >= lanes // 4, won
    tallies = sums[TALLIES:]
    assert tallies[breakout.WON] == won.sum() and tallies[breakout.SCORED] == 864 * won.sum()
    assert tallies[breakout.RETURNS] > 108 * won.sum() / 4


class Played(NamedTuple):
    """Lane after a step."""

    state: list[float]
    gone: int
    reward: float
    over: bool


@pytest.fixture(scope="module")
def play():
    """Fixture: take one step from a state given by the ball's position and velocity, and other named fields."""
    trial = Harness(ENV, 1, 1)

    def step(x, y, vx, vy, *, gone=(), action=STAY, **rows):
        trial.reset()
        state = trial.world.lanes.state
        for row, value in (
            (BALL_X, x),
            (BALL_Y, y),
            (BALL_VX, vx),
            (BALL_VY, vy),
            *((getattr(breakout, name), value) for name, value in rows.items()),
        ):
            state[row, 0] = value
        set_bricks(trial.world, 0, bits(gone))
        trial.step(torch.full((1, 1), action, dtype=torch.int32))
        game = Game.of(state[:, 0].tolist(), words_of(trial.world)[0])
        return Played(state[:, 0].tolist(), game.gone, float(trial.slot.reward), bool(trial.slot.terminated))

    return step


@pytest.mark.parametrize(
    ("x", "brick"), [(37.0, 91), (60.0, 92), (32.0, 91), (48.0, 91), (1.0, 90), (16.0, 90), (543.0, 107)]
)
def test_ball_hits_the_brick_with_the_largest_overlap(play, x, brick):
    after = play(x, 125.0, 0.0, -5.0)
    assert after.gone == 1 << brick and after.reward == 1.0
    # It hit the lower side of the lowest row, at 122, in the first frame, and came down for three frames.
    assert after.state[BALL_X] == x and after.state[BALL_Y] == 122.0 + 3 * 5.0 and after.state[BALL_VY] == 5.0


@pytest.mark.parametrize(
    ("brick", "reward", "speed"), [(0, 7, 448), (35, 7, 448), (53, 4, 448), (54, 4, 256), (72, 1, 256), (107, 1, 256)]
)
def test_reward_and_speed_after_a_brick(play, brick, reward, speed):
    column, row = brick % 18, brick // 18
    below = range(18 * (row + 1), 108)
    after = play(32.0 * column, 50.0 + 12 * (row + 1) + 3, 0.0, -5.0, gone=below)
    assert after.gone == bits(below) | 1 << brick and after.reward == reward and after.state[SPEED] == speed


def test_ceiling_halves_the_paddle_until_a_ball_is_lost(play):
    after = play(100.0, 3.0, 0.0, -5.0, gone=range(108))
    assert after.state[PADDLE_WIDTH] == 31.0 and after.state[BALL_VY] == 5.0
    after = play(100.0, 319.0, 0.0, 5.0, PADDLE_WIDTH=31.0, SPEED=448.0, HITS=3.0)
    assert (after.state[PADDLE_WIDTH], after.state[SPEED], after.state[HITS], after.state[BALLS]) == (
        62.0,
        256.0,
        0.0,
        4.0,
    )
    # Launched in the second frame, then three frames of flight.
    assert after.state[BALL_Y] == pytest.approx(135 + 3 * 256 / 60 * math.cos(math.pi / 3.25), abs=1e-4)


@pytest.mark.parametrize(("place", "degrees"), [(0.5, 0.0), (0.0, -45.0), (1.0, 45.0), (0.75, 22.5)])
def test_return_angle_depends_on_the_point_of_contact(play, place, degrees):
    after = play(257.0 + 62 * place - 16, 277.0, 0.0, 5.0, SPEED=320.0, HITS=2.0)
    angle = math.radians(degrees)
    assert after.state[BALL_VX : BALL_VY + 1] == pytest.approx(
        [320 / 60 * math.sin(angle), -320 / 60 * math.cos(angle)], abs=1e-5
    )
    assert (after.state[HITS], after.state[SPEED]) == (3.0, 320.0)
    assert play(257.0 + 62 * place - 16, 277.0, 0.0, 5.0, SPEED=320.0, HITS=3.0).state[SPEED] == 384.0


def test_ball_that_leaves_the_field_is_put_back(play):
    # Out to -5, back by 1.1 frames at 448 pixels/s to 3.2, stopped at the side, then two frames away from it.
    after = play(0.0, 200.0, -5.0, 1.0)
    assert after.state[BALL_X] == 10.0 and after.state[BALL_VX] == 5.0
    assert after.state[BALL_Y] == pytest.approx(201 + (1.1 * 448 / 60 - 5) / 5 + 2, abs=1e-4)


def test_second_wall_appears_at_a_return_at_432_points(play):
    assert play(272.0, 277.0, 0.0, 5.0, gone=range(108), SCORE=432.0).gone == 0
    assert play(272.0, 200.0, 0.0, 5.0, gone=range(108), SCORE=432.0).gone == bits(range(108))
    assert play(272.0, 277.0, 0.0, 5.0, gone=range(107), SCORE=431.0).gone == bits(range(107))


def test_games_end_with_the_last_ball_or_the_last_brick(play):
    assert not play(100.0, 319.0, 0.0, 5.0, BALLS=1.0).over
    after = play(100.0, 319.0, 0.0, 5.0, BALLS=0.0)
    assert after.over and after.reward == 0.0
    after = play(544.0, 125.0, 0.0, -5.0, gone=range(107), SCORE=863.0)
    assert after.over and after.reward == 1.0
    assert not play(544.0, 125.0, 0.0, -5.0, gone=range(107), SCORE=431.0).over


def test_the_picture_shows_bricks_score_and_balls():
    pixel_shader, p = ENV.pixel_shader.py_func, device_params(Params())
    state = np.array([257, 62, 272, 135, 0, 0, 256, 0, 432, 3], np.float32)
    cells = np.array([1, 0, 0, 0], np.int32)

    def seen(x: float, y: float) -> str:
        colour = pixel_shader(state, cells, p, np.float32(x / 576), np.float32(y / 330))
        names = {
            "blue": BLUE,
            "green": GREEN,
            "grey": GREY,
            "ground": GROUND,
            "orange": ORANGE,
            "red": RED,
            "yellow": YELLOW,
        }
        names |= {
            f"dark {name}": tuple(part * np.float32(0.75) for part in names[name])
            for name in ("red", "orange", "green")
        }
        return next(name for name, other in names.items() if colour == other)

    assert [seen(48, 50 + 12 * row + 6) for row in range(6)] == [
        "dark red",
        "red",
        "dark orange",
        "orange",
        "dark green",
        "green",
    ]
    assert [seen(16, 50 + 12 * row + 6) for row in range(2)] == ["ground", "dark red"]  # the first brick is gone
    assert seen(288, 151) == "yellow" and seen(288, 316) == "blue" and seen(200, 316) == "ground"
    assert seen(200, 4) == "blue" and seen(300, 4) == "ground"
    assert [seen(576 * (ball + 0.6) / 15, 25) for ball in range(5)] == ["grey"] * 3 + ["ground"] * 2


# LEARNING


def mean_scores(iterations: int) -> list[float]:
    """Mean scores of the games that ended in each quarter of a training with the shipped recipe, with lanes for two CPU
    cores.
    """
    return [sums[RETURN] / sums[EPISODES] for sums in learnt("breakout", ["env.lanes=480"], iterations)]


@pytest.mark.slow
def test_score_improves_early_with_the_recipe():
    scores = mean_scores(20)
    assert scores[-1] > 4.0 * scores[0] and scores[-1] > 3.0, scores


@pytest.mark.soak
def test_score_improves_with_the_recipe():
    """320 iterations are 5 M steps, one or two minutes on two CPU cores."""
    scores = mean_scores(320)
    assert scores[-1] > 30.0, scores

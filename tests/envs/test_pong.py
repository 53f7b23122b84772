"""Pong against an independent reference in plain Python; whole games; pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_philox import RESET, STEP, Key

from operant.compute.device import device_params
from operant.envs import find
from operant.envs.drawing import BLUE, GROUND, ORANGE, YELLOW
from operant.envs.pong import (
    AGENT,
    AGENT_SCORE,
    BALL_VX,
    BALL_VY,
    BALL_X,
    BALL_Y,
    CONCEDED,
    DOWN,
    OPPONENT_SCORE,
    RETURNS,
    SCORED,
    STAY,
    UP,
    WON,
    Params,
)
from operant.tools.rollouts import Harness
from operant.worlds.base import TALLIES
from operant.worlds.bounds import rollout_actions

ENV = find("pong")
SEED, LANES = 5, 64
RANDOM, SCRIPTED, LATE = slice(0, 32), slice(32, 64), slice(48, 64)
"""Lanes by player, and those that restart late in a game."""


class Game:
    """Reference game. All positions are multiples of 0.5, which Python floats represent exactly."""

    def __init__(self, key: Key) -> None:
        self.score = {"agent": 0, "opponent": 0}
        self.serve(key)

    @classmethod
    def of(cls, column: list[float]) -> Game:
        """Game described by a column of the state."""
        game = cls.__new__(cls)
        game.opponent, game.agent, game.x, game.y, game.vx, game.vy = column[:6]
        game.score = {"opponent": int(column[OPPONENT_SCORE]), "agent": int(column[AGENT_SCORE])}
        return game

    def serve(self, key: Key) -> None:
        self.opponent = self.agent = 640 / 2 - 70 / 2
        self.x, self.y = 100.0, 304.0
        self.vx, self.vy = 10.0, float(-key.integer(0, 2))

    def step(self, action: int, key: Key) -> tuple[float, bool]:
        """Play at most eight frames: reward, and whether the game is over."""
        for _ in range(8):
            winner = self.frame({UP: 8, DOWN: -8, STAY: 0}[action])
            if winner:
                self.score[winner] += 1
                over = self.score[winner] == 21
                if not over:
                    self.serve(key)
                return (1.0 if winner == "agent" else -1.0), over
        return 0.0, False

    def frame(self, move: int) -> str | None:
        """Winner of the round in this frame, if any."""
        self.agent = sorted((-35, self.agent + move, 605))[1]
        middle = self.opponent + 35
        self.opponent = sorted((-35, self.opponent + sorted((-8, self.y - middle, 8))[1], 605))[1]
        self.x, self.y = self.x + self.vx, self.y + self.vy
        if not 0 <= self.y <= 640 - 32:
            self.vy = -self.vy
        if self.x < 0:
            if not self.touches(self.opponent):
                return "agent"
            self.vx = -self.vx
        if self.x > 500 - 32:
            if not self.touches(self.agent):
                return "opponent"
            self.vx = -self.vx
            self.vy = sorted((-13, self.vy + 3 * np.sign(move), 13))[1]
            if self.vy == 0:
                self.vy = 3.0
            self.x, self.y = sorted((0.0, self.x, 468.0))[1], sorted((0.0, self.y, 608.0))[1]
        return None

    def touches(self, paddle: float) -> bool:
        return paddle - 32 < self.y < paddle + 70

    def state(self) -> list[float]:
        return [
            self.opponent,
            self.agent,
            self.x,
            self.y,
            self.vx,
            self.vy,
            self.score["opponent"],
            self.score["agent"],
        ]

    def observation(self) -> list[float]:
        return [
            *(
                (self.opponent + 35) / 640,
                (self.agent + 35) / 640,
                self.x / 500,
                self.y / 640,
                (self.vx + 10) / 20,
                (self.vy + 13) / 26,
            ),
            *(self.score["opponent"] / 21, self.score["agent"] / 21),
        ]


def follow(state: np.ndarray) -> np.ndarray:
    """Skilled player: moves to where the ball will arrive, and keeps moving to give it a spin. Actions (N)."""
    x, y, vx, vy = state[BALL_X : BALL_VY + 1]
    frames = np.ceil(np.where(vx > 0, 468 - x, x + 468) / 10)
    there = 608 - np.abs(608 - (y + vy * frames) % 1216)  # walls reflect
    above = there + 16 - (state[AGENT] + 35)
    way = np.where(vy > 0, 1, -1)
    meets = (vx > 0) & (frames <= 8) & (np.abs(above - 8 * way * frames) < 45)
    return np.where(
        meets, np.where(way > 0, UP, DOWN), np.where(above > 32, UP, np.where(above < -32, DOWN, STAY))
    ).astype(np.int32)


def start_late(state: np.ndarray, lanes: np.ndarray, generator: np.random.Generator) -> None:
    """Put lanes into a rally near the end of the game."""
    for i in lanes:
        state[:, i] = [
            *(
                generator.integers(-35, 606),
                generator.integers(-35, 606),
                generator.integers(0, 469),
                generator.integers(0, 609),
            ),
            *(
                generator.choice((-10, 10)),
                generator.integers(-13, 14),
                generator.integers(15, 21),
                generator.integers(15, 21),
            ),
        ]


def check_rules(steps: int) -> dict[str, int]:
    trial, generator = Harness(ENV, LANES, SEED), np.random.default_rng(3)
    trial.reset()
    state, slot = trial.world.lanes.state.numpy(), trial.slot
    seen = dict.fromkeys(("over", "won", "scored", "conceded"), 0)
    assert state.T.tolist() == [Game(Key(SEED, lane, 0, RESET)).state() for lane in range(LANES)]
    start_late(state, np.arange(LANES)[LATE], generator)
    for tick in range(1, steps + 1):
        before = state.T.tolist()
        action = rollout_actions(ENV, generator, tick, LANES)
        action[0, SCRIPTED] = torch.from_numpy(follow(state)[SCRIPTED])
        trial.step(action)
        after, reward, over = state.T.tolist(), slot.reward.tolist(), slot.terminated.tolist()
        shown = torch.where(slot.terminated.bool(), slot.final_observation, slot.observation).T.numpy()
        expected = np.empty_like(shown)
        for lane in range(LANES):
            game = Game.of(before[lane])
            outcome = game.step(int(action[0, lane]), Key(SEED, lane, tick, STEP))
            assert (reward[lane], bool(over[lane])) == outcome, (tick, lane)
            expected[lane] = game.observation()
            seen["over"] += outcome[1]
            seen["won"] += outcome[1] and outcome[0] > 0
            seen["scored"] += outcome[0] > 0
            seen["conceded"] += outcome[0] < 0
            if outcome[1]:
                game = Game(Key(SEED, lane, tick, RESET))
            assert after[lane] == game.state(), (tick, lane)
        assert np.abs(shown - expected).max() < 1e-6, tick
        assert not slot.truncated.any()
        trial.world.lanes.age.zero_()  # the world applies the time limit
        start_late(state, [lane for lane in range(LANES)[LATE] if over[lane]], generator)
    return seen


def test_steps_equal_the_reference():
    seen = check_rules(400)
    assert all(count > 20 for count in seen.values()), seen


@pytest.mark.soak
def test_many_steps_equal_the_reference():
    seen = check_rules(10_000)
    assert all(count > 200 for count in seen.values()), seen


def test_games_end_at_21_points_with_tallies():
    lanes = 128
    trial, generator = Harness(ENV, lanes, 2), np.random.default_rng(1)
    trial.reset()
    state, slot = trial.world.lanes.state.numpy(), trial.slot
    sums, highest = np.zeros(TALLIES + 4), 0
    for t in range(1500):
        before = state.copy()
        action = rollout_actions(ENV, generator, t, lanes)
        action[0, ::2] = torch.from_numpy(follow(state)[::2])
        trial.step(action)
        sums += trial.world.episode_sums(slot).numpy()
        gained = np.maximum(slot.reward.numpy(), 0), np.maximum(-slot.reward.numpy(), 0)
        over = slot.terminated.numpy().astype(bool)
        agent, opponent = before[AGENT_SCORE] + gained[0], before[OPPONENT_SCORE] + gained[1]
        assert np.array_equal(over, np.maximum(agent, opponent) == 21) and np.all(np.minimum(agent, opponent) < 21)
        assert np.array_equal(state[AGENT_SCORE], np.where(over, 0, agent)) and np.array_equal(
            state[OPPONENT_SCORE], np.where(over, 0, opponent)
        )
        highest = max(highest, agent.max(), opponent.max())
    episodes, _, earned, *tallies = sums
    assert highest == 21 and episodes > 100
    assert tallies[SCORED] - tallies[CONCEDED] == earned
    # The winner has 21 points, the loser fewer; truncated games have no winner.
    assert 0 < tallies[WON] < episodes and tallies[SCORED] >= 21 * tallies[WON]
    assert tallies[RETURNS] > tallies[SCORED]


def test_ball_at_the_edge_of_the_paddle_is_missed():
    """Level balls that arrive one pixel to either side of a miss; the opponent moves 8 pixels towards each."""
    agent, opponent = (252, 253, 254, 354, 355, 356), (244, 245, 246, 362, 363, 364)
    trial = Harness(ENV, 12, 1)
    trial.reset()
    for lane, y in enumerate(agent + opponent):
        way = 1 if lane < 6 else -1
        trial.world.lanes.state[:, lane] = torch.tensor(
            [285, 285, 460 if way > 0 else 8, y, 10 * way, 0, 0, 0], dtype=torch.float32
        )
    trial.step(torch.full((1, 12), STAY, dtype=torch.int32))
    assert trial.slot.reward.tolist() == [-1, -1, 0, 0, -1, -1, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("pay", [0.0, 0.25])
def test_returns_pay_with_return_reward(pay):
    state, tally = np.array([285, 285, 460, 304, 10, 1, 0, 0], np.float32), np.zeros(4, np.float32)
    reward, over = ENV.step.py_func(state, UP, device_params(Params(return_reward=pay)), None, tally)
    assert (float(reward), over) == (pay, False) and tally.tolist() == [0, 0, 1, 0]
    # The rising paddle hit the ball in the first frame and gave it a spin; then seven frames back.
    assert state[BALL_VX : BALL_VY + 1].tolist() == [-10, 4]
    assert state[BALL_X : BALL_Y + 1].tolist() == [468 - 70, 305 + 28]


def colour(state: list[float], x: float, y: float) -> tuple[float, ...]:
    pixel_shader = ENV.pixel_shader.py_func
    return tuple(
        round(float(part), 2)
        for part in pixel_shader(np.array(state, np.float32), device_params(Params()), np.float32(x), np.float32(y))
    )


def test_picture_shows_the_scores():
    as_seen = {
        name: tuple(round(float(part), 2) for part in value)
        for name, value in (("b", BLUE), ("g", GROUND), ("o", ORANGE), ("y", YELLOW))
    }
    state = [285.0, 285.0, 234.0, 304.0, 10.0, 0.0, 20.0, 3.0]
    assert colour(state, 0.5, 0.5) == as_seen["y"]
    assert colour(state, 0.06, 0.5) == as_seen["o"] and colour(state, 0.94, 0.5) == as_seen["b"]
    assert colour(state, 0.06, 0.9) == colour(state, 0.94, 0.9) == as_seen["g"]
    # Score bars: 20 of 21 to the left, 3 of 21 to the right.
    assert (
        colour(state, 0.06, 0.04) == as_seen["o"]
        and colour(state, 0.55, 0.04) == as_seen["b"]
        and colour(state, 0.7, 0.04) == as_seen["g"]
    )

"""A policy at play: what `operant eval --render term` shows. Knows no run, no checkpoint and no screen.

It plays at the environment's own pace, and no faster than a person can follow.
"""

from __future__ import annotations

from typing import NamedTuple

from operant import text
from operant.play.film import Pace
from operant.play.keys import Buttons
from operant.play.stage import Player, Stage
from operant.play.view import Shown

USUAL_FPS = 12.0
"""Steps a second, for an environment that does not say how long its step is."""
_HOLD_S = 0.8  # how long an episode's end stays


class Watched(NamedTuple):
    """What was seen."""

    returns: list[float]  # of the episodes that ended
    steps: int


class Viewer:
    """Plays `episodes` episodes, or until q or esc. Space pauses."""

    def __init__(self, stage: Stage, player: Player, *, title: str, episodes: int, pace: Pace) -> None:
        self._stage, self._player, self._title, self._episodes, self._pace = stage, player, title, episodes, pace
        self._buttons = Buttons(stage.env)
        self._returns: list[float] = []
        self._steps = 0
        self._action = "-"  # taken last
        self._paused = False
        self._next_s = 0.0
        self.done = False

    @property
    def seen(self) -> Watched:
        """What was seen so far."""
        return Watched(self._returns, self._steps)

    @property
    def due_s(self) -> float | None:
        """When the next step is due; None while paused."""
        return None if self._paused else self._next_s

    def pause(self) -> None:
        """Wait for space."""
        self._paused = True

    def press(self, key: str, now_s: float) -> None:
        """What a key does."""
        self.done = key in ("q", "esc")
        self._paused ^= key == "space"

    def tick(self, now_s: float) -> None:
        """The steps from one picture to the next."""
        if len(self._returns) >= self._episodes:
            self.done = True
            return
        stage = self._stage
        for _ in range(self._pace.every):
            self._player.step()
            self._steps += 1
            self._action = self._buttons.named(tuple(stage.action[:, 0].tolist()))
            if stage.ended[0]:
                self._returns.append(float(stage.returns[0]))
                break
        # A slow machine, or a slow line, plays more slowly: it does not catch up.
        self._next_s = max((self._next_s or now_s) + 1.0 / self._pace.fps, now_s) + (_HOLD_S if stage.ended[0] else 0.0)

    def shown(self) -> Shown:
        """The episode under way, and the mean of those before."""
        stage, returns = self._stage, self._returns
        number = len(returns) + (0 if stage.ended[0] else 1)
        score = (
            f"episode {number} of {self._episodes}   step {int(stage.ages[0]):,}   return "
            f"{text.number(float(stage.returns[0]))}   action {self._action}"
        )
        mean = f"   mean of {len(returns)}: {text.number(sum(returns) / len(returns))}" if returns else ""
        return Shown(
            score + mean, f"{self._title}   {'paused: space goes on' if self._paused else 'space pauses'}, q leaves"
        )

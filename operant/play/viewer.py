"""Policy viewer of `operant eval --render term`.

Plays at the environment's speed, limited to a watchable frame rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from operant import text
from operant.play.keys import KeyBindings
from operant.play.view import ScreenText, Stage

if TYPE_CHECKING:
    from operant.play.video import Pace

USUAL_FPS = 12.0
"""Steps per second for an environment that declares no step duration."""
_HOLD_S = 0.8  # duration of an episode's last frame


class Player(Protocol):
    """Policy that plays a stage."""

    def step(self) -> None:
        """Let the policy choose and take one action in every lane."""


class Playback(NamedTuple):
    """Result of watching a policy: returns of the episodes that have ended, and the number of steps."""

    returns: list[float]  # of the finished episodes
    steps: int


class Viewer:
    """Game without a player: shows a policy's episodes until `episodes` of them have ended, or until q or esc is
    pressed. Space pauses.
    """

    def __init__(self, stage: Stage, player: Player, *, title: str, episodes: int, pace: Pace) -> None:
        self._stage, self._player, self._title, self._episodes, self._pace = stage, player, title, episodes, pace
        self._buttons = KeyBindings(stage.env)
        self._returns: list[float] = []
        self._steps = 0
        self._action = "-"  # last action
        self._paused = False
        self._next_s = 0.0
        self.done = False

    @property
    def result(self) -> Playback:
        """Returns and steps of the episodes shown so far."""
        return Playback(self._returns, self._steps)

    @property
    def due_s(self) -> float | None:
        """Time of the next frame, by `time.monotonic`; None while paused."""
        return None if self._paused else self._next_s

    def pause(self) -> None:
        """Pause the playback until space is pressed."""
        self._paused = True

    def press(self, key: str, now_s: float) -> None:
        """Handle a key while a policy is shown: q and esc end the viewer, space pauses or resumes."""
        self.done = key in ("q", "esc")
        self._paused ^= key == "space"

    def tick(self, now_s: float) -> None:
        """Take the policy's steps up to the next frame, which is due at `now_s`."""
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
        # A slow machine or connection plays more slowly and does not catch up.
        self._next_s = max((self._next_s or now_s) + 1.0 / self._pace.fps, now_s) + (_HOLD_S if stage.ended[0] else 0.0)

    def shown(self) -> ScreenText:
        """Compose the text of the screen about the current episode and the mean return of the ended ones."""
        stage, returns = self._stage, self._returns
        number = len(returns) + (0 if stage.ended[0] else 1)
        score = (
            f"episode {number} of {self._episodes}   step {int(stage.ages[0]):,}   return "
            f"{text.number(float(stage.returns[0]))}   action {self._action}"
        )
        mean = f"   mean of {len(returns)}: {text.number(sum(returns) / len(returns))}" if returns else ""
        return ScreenText(
            score + mean, f"{self._title}   {'paused: space resumes' if self._paused else 'space pauses'}, q quits"
        )

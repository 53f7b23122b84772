"""View of one lane as rows of cells: its picture in half blocks, as large as fits, and text.

An environment without a picture is shown by its observation, as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from operant.play.halfblocks import Cell, Rows, Style, cells_of

if TYPE_CHECKING:
    from operant.envs import Env

_MOST_SIDE = 240  # pixels; more would only cost bandwidth
_BLANK: Cell = (" ", None, None)

Mark = tuple[float, float, float]
"""Square on a picture: x, y and half the side, relative to the picture's size."""


class Stage(Protocol):
    """Stage as a view and a viewer see it: compiled (operant/play/stage.py) or in plain Python (plain.py). Its first
    lane is shown.
    """

    env: Env
    step_s: float | None  # duration of a step, s
    returns: NDArray[np.float64]  # (N), of the current episodes, and of ended ones until the next step
    ages: NDArray[np.int64]  # (N), steps
    ended: NDArray[np.bool_]  # (N)

    @property
    def observation(self) -> Any:
        """Current observations, (O, N)."""

    @property
    def action(self) -> NDArray[Any]:
        """Last actions, (A, N)."""

    def canvas(self, side: int) -> Any:
        """Allocate a buffer for `picture`, side x side pixels for each lane."""

    def picture(self, canvas: Any) -> NDArray[np.uint8]:
        """Draw the lanes on `canvas` and return it as (N, H, W, 3) bytes, valid until the next call."""


class ScreenText(NamedTuple):
    """Text of a game's screen: score line, prompt line, a box over the picture, and a mark to draw in the picture."""

    score: str
    prompt: str
    box: Sequence[str] = ()  # lines over the picture
    mark: Mark | None = None


class Playable(Protocol):
    """Interface through which the screen runs a game. Times are those of `time.monotonic`. The screen closes when
    `done` is set.
    """

    done: bool  # close the screen

    @property
    def due_s(self) -> float | None:
        """Time of the next `tick`; None while the game waits for a key."""

    def press(self, key: str, now_s: float) -> None:
        """Handle a key pressed at `now_s`: an arrow, space, enter, tab, backspace, esc or a printable ASCII
        character.
        """

    def tick(self, now_s: float) -> None:
        """Advance the game to `now_s`; called at `due_s`."""

    def pause(self) -> None:
        """Pause the game until a key is pressed."""

    def shown(self) -> ScreenText:
        """Return the current text of the game for the screen."""


class View:
    """Renderer of the first lane of a stage as terminal cells. `largest` limits the picture's width and height in
    pixels.
    """

    def __init__(self, stage: Stage, *, largest: int | None = None) -> None:
        self._stage, self._largest = stage, largest or _MOST_SIDE
        self._canvas: Any = None  # (N, side, side, 3) bytes

    def rows(self, width: int, height: int, style: Style, mark: Mark | None = None) -> Rows:
        """Draw the lane as `height` rows of `width` terminal cells. `mark` is a square in the picture to highlight."""
        if not self._stage.env.draws:
            rows, across = self._observation_rows(width, height), width
        else:
            rows, across = self._picture_rows(width, height, style, mark)
        left = (width - across) // 2
        top = (height - len(rows)) // 2 if self._stage.env.draws else 0
        padded = [[_BLANK] * left + row + [_BLANK] * (width - left - len(row)) for row in rows]
        blank = [_BLANK] * width
        return [blank] * top + padded + [blank] * (height - top - len(rows))

    def _picture_rows(self, width: int, height: int, style: Style, mark: Mark | None) -> tuple[Rows, int]:
        """Draw the lane's picture as large as fits; returns its rows of cells and their width."""
        side = max(2, min(width, 2 * height, self._largest)) // 2 * 2
        if self._canvas is None or self._canvas.shape[1] != side:
            self._canvas = self._stage.canvas(side)
        pixels: NDArray[np.uint8] = self._stage.picture(self._canvas)[0]
        if mark is not None:
            pixels = _with_mark(pixels, *mark)
        return cells_of(pixels.tobytes(), side, side, style), side

    def _observation_rows(self, width: int, height: int) -> Rows:
        """Write the lane's observation as rows of numbers, as many as fit."""
        values = [f"{value:9.4g}" for value in self._stage.observation[:, 0].tolist()]
        per_line = max(1, width // 10)
        lines = [" ".join(values[k : k + per_line]) for k in range(0, len(values), per_line)]
        if len(lines) > height:
            lines = [*lines[: height - 1], f"... and {len(values) - (height - 1) * per_line} more values"]
        return [[(character, None, None) for character in line[:width]] for line in lines]


def _with_mark(pixels: NDArray[np.uint8], x: float, y: float, half_side: float) -> NDArray[np.uint8]:
    """Copy a picture and draw the corners of a magenta square around the point (x, y). Coordinates are fractions of the
    picture's side.
    """
    marked = pixels.copy()
    side = len(pixels)
    first = [min(max(math.floor((center - half_side) * side), 0), side - 1) for center in (y, x)]
    last = [min(max(math.ceil((center + half_side) * side) - 1, 0), side - 1) for center in (y, x)]
    for row in (first[0], last[0]):
        for column in (first[1], last[1]):
            marked[row, column] = (255, 0, 255)
    return marked

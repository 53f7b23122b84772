"""A person plays an environment on the terminal: what `operant play` does. Knows no policy and no run.

A game of the clock goes on by itself, with whatever was pressed not long ago; a game of turns waits for a key: see `waits`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from operant import text
from operant.envs import Box, Discrete, Env
from operant.play.console import Console
from operant.play.keys import Action, Board, Buttons, Held, Key
from operant.play.stage import Show
from operant.play.view import View

USUAL_RATE = 6.0
"""Steps a second of a game of the clock that does not tell."""
MOST_RATE = 30.0
"""Steps a second, where nothing else is asked for: what is faster is played in slow motion, which is hard enough."""

_LOOK_S = 0.2  # between two looks at the terminal's size while nothing moves
_SMALLEST_HOLD_STEPS = 1.5  # a key counts for at least one step


class Score(NamedTuple):
    """What was played."""

    returns: list[float]  # of the games that ended
    steps: int


def waits(env: Env) -> bool:
    """Whether an environment is a game of turns, unless somebody says otherwise: it says so, or has no keys."""
    return env.turns or not Buttons(env).keys


def rate_of(step_s: float | None) -> float:
    """Steps a second of a game of the clock whose step is so long: its own pace, or the usual."""
    return USUAL_RATE if step_s is None else min(MOST_RATE, 1.0 / step_s)


class Game:
    """One person at one lane."""

    def __init__(self, show: Show, terminal: Console, buttons: Buttons, *, turns: bool, rate: float, title: str, largest: int | None = None) -> None:
        self._show, self._terminal, self._buttons = show, terminal, buttons
        self._turns, self._rate, self._title = turns, rate, title
        self._view = View(show, terminal, largest=largest)
        self._held = Held(buttons, first_s=max(0.25, _SMALLEST_HOLD_STEPS / rate), again_s=max(0.12, _SMALLEST_HOLD_STEPS / rate))
        self._board = Board.of(show.env)
        self._typed: str | None = "" if self._types() else None  # digits of an action that has no key
        self._last: Action | None = None  # what was done last
        self._word = ""  # what is to be said of it
        self._returns: list[float] = []
        self._steps = 0
        self._waiting = not turns  # for the first key, so that nothing is lost before anybody looks
        self._paused = self._helping = False

    def _types(self) -> bool:
        action = self._show.env.action
        return isinstance(action, Discrete) and self._board is None and not self._buttons.keys

    def play(self) -> Score:
        """Until the person leaves: q, esc or Ctrl-C. What was typed before there was anything to be seen counts for nothing."""
        try:
            self._view.prepare()
            self._terminal.forget()  # before the first picture, not after: whoever sees it may press a key at once
            next_s = time.monotonic()
            while True:
                self._draw()
                still = self._turns or self._waiting or self._paused or self._helping or bool(self._show.ended[0])
                key = self._terminal.key(_LOOK_S if still else max(0.0, next_s - time.monotonic()))
                if key is not None:
                    if key in ("q", "esc") and not self._helping:
                        return Score(self._returns, self._steps)
                    self._press(key)
                    if still:
                        next_s = time.monotonic() + 1.0 / self._rate
                elif not still:
                    self._step(self._by_clock())
                    next_s = max(next_s + 1.0 / self._rate, time.monotonic())
        except KeyboardInterrupt:
            return Score(self._returns, self._steps)

    # KEYS

    def _press(self, key: str) -> None:
        """What a key does. Help and pauses end with any key, which does nothing else."""
        if self._helping or self._paused:
            self._helping = self._paused = False
        elif key == "?":
            self._helping = True
        elif key == "p" and not self._show.ended[0]:
            self._paused = True
        elif key == "r" or self._show.ended[0]:
            if key in ("r", "enter"):  # whoever plays may still be holding the others
                self._restart()
        elif self._turns:
            self._turn(key)
        else:
            self._waiting = not (self._held.press(key, time.monotonic()) or key in ("space", "enter")) and self._waiting

    def _turn(self, key: str) -> None:
        """A key in a game of turns."""
        if (word := self._buttons.keys.get(key)) is not None:
            self._step(self._buttons.action([word]))
        elif self._board is not None:
            if not self._board.press(key) and (action := self._board.action(key)) is not None:
                self._step(action)
        elif self._typed is not None:
            self._type(key)
        elif key in ("space", "enter") and (action := self._buttons.action([])) is not None:
            self._step(action)

    def _type(self, key: str) -> None:
        """A digit of an action's number, or its end."""
        action = self._show.env.action
        assert self._typed is not None and isinstance(action, Discrete)
        if key.isdecimal():
            self._typed = (self._typed + key)[-6:]
        elif key == "backspace":
            self._typed = self._typed[:-1]
        elif key == "enter" and self._typed:
            number, self._typed = int(self._typed), ""
            if number < action.n:
                self._step((number,))
            else:
                self._word = f"{number} is no action: 0 to {action.n - 1}"

    def _by_clock(self) -> Action | None:
        """What is done now in a game of the clock: what is pressed, else rest, else what was done last."""
        found = self._buttons.action(self._held.words(time.monotonic()))
        return self._last if found is None else found

    # STEPS

    def _restart(self) -> None:
        self._show.restart()
        self._held.release()
        self._last, self._word, self._waiting = None, "", not self._turns

    def _step(self, action: Action | None) -> None:
        """Take an action, if it may be taken. None is the first that may: nobody has said anything yet, and there is no rest."""
        show = self._show
        legal = self._legal(action) if action is not None else False
        if not legal:
            if action is not None:
                self._word = f"{self._buttons.named(action)} is not legal now"
            if self._turns:
                return
            action = self._any_legal()
        assert action is not None
        kind = torch.float32 if isinstance(show.env.action, Box) else torch.int32
        show.step(torch.tensor(action, dtype=kind, device=show.device)[:, None])
        self._steps += 1
        self._last = action
        if legal:
            self._word = ""
        if show.ended[0]:
            self._returns.append(float(show.returns[0]))

    def _blocks(self) -> list[list[int]]:
        """Which values may be taken now, for each choice."""
        mask, action = self._show.legal, self._show.env.action
        if mask is None or isinstance(action, Box):
            return []
        sizes = [action.n] if isinstance(action, Discrete) else list(action.n)
        return [torch.nonzero(block).flatten().tolist() for block in mask[:, 0].cpu().split(sizes)]

    def _legal(self, action: Action) -> bool:
        return all(int(value) in block for value, block in zip(action, self._blocks(), strict=False))

    def _any_legal(self) -> Action:
        """Rest if that is legal, else what was done last, else the first that is legal: a game of the clock waits for nobody."""
        for action in (self._buttons.action([]), self._last):
            if action is not None and self._legal(action):
                return action
        blocks = self._blocks()
        return tuple(block[0] for block in blocks) if blocks else (0,) * self._show.env.action_size

    # WORDS

    def _draw(self) -> None:
        show = self._show
        tallies = "".join(f"   {name} {text.number(value)}" for name, value in show.tallies.items() if value)
        did = f"   {self._buttons.named(self._last)}" if self._last is not None else ""
        score = f"return {text.number(float(show.returns[0]))}   step {int(show.ages[0]):,}{did}{tallies}"
        over: Sequence[str] = ()
        mark = None
        if self._helping:
            over = self._help()
        elif show.ended[0]:
            how = "the end" if show.terminated[0] else "time is up"
            over = (f"{how}: return {text.number(float(show.returns[0]))} in {int(show.ages[0]):,} steps", "r again   q leave")
        elif self._paused:
            over = ("paused: any key goes on",)
        elif self._waiting:
            over = (f"{self._title}", "an arrow or space starts it   ? keys   q leave")
        if self._board is not None and self._turns and not over:
            # A board whose points are where lines cross has half a square around it; see `Board`.
            cell = 1.0 / (self._board.side + 1)
            mark = ((self._board.column + 1) * cell, (self._board.row + 1) * cell, 0.5 * cell)
        self._view.draw([score, self._word or self._prompt()], over=over, mark=mark)

    def _prompt(self) -> str:
        """The line at the bottom, where there is nothing else to say."""
        if self._board is not None and self._turns:
            passes = ", x passes" if len(self._board.help()) > 2 else ""
            return f"{self._title}   {self._buttons.named(self._board.point)}   arrows move, space plays{passes}, ? keys, q leaves"
        if self._typed is not None and self._turns:
            return f"{self._title}   action {self._typed}_   a number and enter, ? keys, q leaves"
        return f"{self._title}   ? keys, p pause, r restart, q leaves"

    def _help(self) -> list[str]:
        """What the keys do, a line each."""
        env = self._show.env
        if self._board is not None and self._turns:
            lines = [*self._board.help(), *self._buttons.help()]  # on a board all keys are a person's own
        elif self._typed is not None and self._turns:
            lines = [Key(("0-9", "enter"), "an action by its number")]
        else:
            lines = self._buttons.help()
            if isinstance(env.action, Discrete) and env.action.n <= 10:
                lines.append(Key((f"0-{env.action.n - 1}",), "an action by its number"))
        lines += [Key(("p",), "pause"), Key(("r",), "a new game"), Key(("q", "esc"), "leave")]
        left = [" ".join(line.keys) for line in lines]
        return [f"{keys.ljust(max(map(len, left)))}  {line.meaning}" for keys, line in zip(left, lines, strict=True)]

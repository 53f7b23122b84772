"""A person plays an environment, one lane of it: the game as `operant play` shows it. Knows no policy, no run and no
screen.

Against the clock the game moves on at its rate, with the keys that were pressed last; in turns it waits for a key at
each step: see `takes_turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from operant import text
from operant.envs import Box, Discrete, Env
from operant.play.keys import Action, Board, Buttons, Held, Key
from operant.play.stage import Stage
from operant.play.view import Shown

USUAL_RATE = 6.0
"""Steps a second against the clock, for an environment that does not say how long its step is."""
MOST_RATE = 30.0
"""Steps a second at most, unless asked for: a faster environment is played in slow motion, which is hard enough."""

_SMALLEST_HOLD_STEPS = 1.5  # a key counts for at least one step


class Score(NamedTuple):
    """What was played."""

    returns: list[float]  # of the games that ended
    steps: int


def takes_turns(env: Env) -> bool:
    """Whether an environment is played in turns by default: it says so, or its actions have no keys."""
    return env.turns or not Buttons(env).keys


def rate_of(step_s: float | None) -> float:
    """Steps a second against the clock for a step of `step_s` seconds (None: not known)."""
    return USUAL_RATE if step_s is None else min(MOST_RATE, 1.0 / step_s)


class Game:
    """One person at one lane."""

    def __init__(self, stage: Stage, buttons: Buttons, *, turns: bool, rate: float, title: str) -> None:
        self._stage, self._buttons, self._turns, self._rate, self._title = stage, buttons, turns, rate, title
        self._held = Held(
            buttons, first_s=max(0.25, _SMALLEST_HOLD_STEPS / rate), again_s=max(0.12, _SMALLEST_HOLD_STEPS / rate)
        )
        self._board = Board.of(stage.env)
        self._typed: str | None = "" if self._types() else None  # digits of an action that has no key
        self._last: Action | None = None  # the action taken last
        self._message = ""
        self._returns: list[float] = []
        self._steps = 0
        self._waiting = not turns  # for the first key, so that nothing is lost before the player is ready
        self._paused = self._helping = False
        self._next_s = 0.0
        self.done = False

    def _types(self) -> bool:
        action = self._stage.env.action
        return isinstance(action, Discrete) and self._board is None and not self._buttons.keys

    @property
    def score(self) -> Score:
        """What was played so far."""
        return Score(self._returns, self._steps)

    @property
    def _still(self) -> bool:
        return self._turns or self._waiting or self._paused or self._helping or bool(self._stage.ended[0])

    @property
    def due_s(self) -> float | None:
        """When the clock's next step is due; None while the game waits for a key."""
        return None if self._still else self._next_s

    def pause(self) -> None:
        """Stop the clock until a key."""
        self._paused = not (self._turns or self._waiting or bool(self._stage.ended[0]))

    def tick(self, now_s: float) -> None:
        """The clock's next step."""
        found = self._buttons.action(self._held.words(now_s))
        self._step(self._last if found is None else found)  # the keys held, else rest, else the last action
        self._next_s = max(self._next_s + 1.0 / self._rate, now_s)

    # KEYS

    def press(self, key: str, now_s: float) -> None:
        """What a key does. Help and pauses end with any key, which does nothing else."""
        if key in ("q", "esc") and not self._helping:
            self.done = True
            return
        if self._still:
            self._next_s = now_s + 1.0 / self._rate
        if self._helping or self._paused:
            self._helping = self._paused = False
        elif key == "?":
            self._helping = True
        elif key == "p" and not self._stage.ended[0]:
            self._paused = True
        elif key == "r" or self._stage.ended[0]:
            if key in ("r", "enter"):  # the player may still be holding the others
                self._restart()
        elif self._turns:
            self._turn(key)
        else:
            self._waiting = not (self._held.press(key, now_s) or key in ("space", "enter")) and self._waiting

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
        action = self._stage.env.action
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
                self._message = f"{number} is not an action: 0 to {action.n - 1}"

    # STEPS

    def _restart(self) -> None:
        self._stage.restart()
        self._held.release()
        self._last, self._message, self._waiting = None, "", not self._turns

    def _step(self, action: Action | None) -> None:
        """Take an action if it is legal. None, before the first key where no action means rest, is the first that is
        legal.
        """
        stage = self._stage
        legal = self._legal(action) if action is not None else False
        if not legal:
            if action is not None:
                self._message = f"{self._buttons.named(action)} is not legal now"
            if self._turns:
                return
            action = self._any_legal()
        assert action is not None
        kind = torch.float32 if isinstance(stage.env.action, Box) else torch.int32
        stage.step(torch.tensor(action, dtype=kind, device=stage.device)[:, None])
        self._steps += 1
        self._last = action
        if legal:
            self._message = ""
        if stage.ended[0]:
            self._returns.append(float(stage.returns[0]))

    def _blocks(self) -> list[list[int]]:
        """Which values may be taken now, for each choice."""
        mask, action = self._stage.legal, self._stage.env.action
        if mask is None or isinstance(action, Box):
            return []
        sizes = [action.n] if isinstance(action, Discrete) else list(action.n)
        return [torch.nonzero(block).flatten().tolist() for block in mask[:, 0].cpu().split(sizes)]

    def _legal(self, action: Action) -> bool:
        return all(int(value) in block for value, block in zip(action, self._blocks(), strict=False))

    def _any_legal(self) -> Action:
        """Rest if that is legal, else the last action, else the first that is legal: the clock does not wait."""
        for action in (self._buttons.action([]), self._last):
            if action is not None and self._legal(action):
                return action
        blocks = self._blocks()
        return tuple(block[0] for block in blocks) if blocks else (0,) * self._stage.env.action_size

    # SCREEN

    def shown(self) -> Shown:
        """The score, a line about what to do next, and a box where there is more to say."""
        stage = self._stage
        tallies = "".join(f"   {name} {text.number(value)}" for name, value in stage.tallies.items() if value)
        did = f"   {self._buttons.named(self._last)}" if self._last is not None else ""
        score = f"return {text.number(float(stage.returns[0]))}   step {int(stage.ages[0]):,}{did}{tallies}"
        box: Sequence[str] = ()
        mark = None
        if self._helping:
            box = self._help()
        elif stage.ended[0]:
            how = "the end" if stage.terminated[0] else "time is up"
            box = (
                f"{how}: return {text.number(float(stage.returns[0]))} in {int(stage.ages[0]):,} steps",
                "r again   q leave",
            )
        elif self._paused:
            box = ("paused: any key goes on",)
        elif self._waiting:
            box = (self._title, "an arrow or space starts it   ? keys   q leave")
        if self._board is not None and self._turns and not box:
            # A board whose points are where lines cross has half a square around it; see `Board`.
            cell = 1.0 / (self._board.side + 1)
            mark = ((self._board.column + 1) * cell, (self._board.row + 1) * cell, 0.5 * cell)
        return Shown(score, self._message or self._prompt(), box, mark)

    def _prompt(self) -> str:
        """The line at the bottom, where there is nothing else to say."""
        if self._board is not None and self._turns:
            passes = ", x passes" if len(self._board.help()) > 2 else ""
            return (
                f"{self._title}   {self._buttons.named(self._board.point)}   arrows move, space plays{passes}, ? "
                "keys, q leaves"
            )
        if self._typed is not None and self._turns:
            return f"{self._title}   action {self._typed}_   a number and enter, ? keys, q leaves"
        return f"{self._title}   ? keys, p pause, r restart, q leaves"

    def _help(self) -> list[str]:
        """What the keys do, a line each."""
        env = self._stage.env
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

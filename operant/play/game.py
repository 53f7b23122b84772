"""Interactive game: a person plays one lane of an environment (`operant play`).

In real time the game advances at a fixed rate with the keys pressed last; turn-based, each step waits for a key (see
`takes_turns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from operant import text
from operant.envs import Box, Discrete, Env
from operant.play.keys import Action, BoardCursor, HeldKeys, Key, KeyBindings
from operant.play.stage import Stage
from operant.play.view import ScreenText

USUAL_RATE = 6.0
"""Real-time steps per second for an environment that declares no step duration."""
MOST_RATE = 30.0
"""Maximum default of steps per second; a faster environment is played in slow motion."""

_SMALLEST_HOLD_STEPS = 1.5  # a key counts for at least one step


class Score(NamedTuple):
    """Result of a game session: returns of the episodes that have ended, and the number of steps."""

    returns: list[float]  # of the finished games
    steps: int


def takes_turns(env: Env) -> bool:
    """Whether a game of this environment waits for a key at each step by default: the environment declares `turns`, or
    its actions have no keys.
    """
    return env.turns or not KeyBindings(env).keys


def rate_of(step_s: float | None) -> float:
    """Steps per second of a game in real time, given the duration of a step in seconds (None: unknown)."""
    return USUAL_RATE if step_s is None else min(MOST_RATE, 1.0 / step_s)


class Game:
    """Game of one person on one lane. It takes keys, steps the stage in real time or (`turns`) once for each key, and
    describes the screen, until `done` is set.
    """

    def __init__(self, stage: Stage, buttons: KeyBindings, *, turns: bool, rate: float, title: str) -> None:
        self._stage, self._buttons, self._turns, self._rate, self._title = stage, buttons, turns, rate, title
        self._held = HeldKeys(
            buttons, first_s=max(0.25, _SMALLEST_HOLD_STEPS / rate), again_s=max(0.12, _SMALLEST_HOLD_STEPS / rate)
        )
        self._board = BoardCursor.of(stage.env)
        self._typed: str | None = "" if self._types_numbers() else None  # digits of an action that has no key
        self._last: Action | None = None  # last action
        self._message = ""
        self._returns: list[float] = []
        self._steps = 0
        self._waiting = not turns  # in real time the game starts with the first key
        self._paused = self._helping = False
        self._next_s = 0.0
        self.done = False

    def _types_numbers(self) -> bool:
        """Whether the player must type numbers of actions, because no key selects them."""
        action = self._stage.env.action
        return isinstance(action, Discrete) and self._board is None and not self._buttons.keys

    @property
    def score(self) -> Score:
        """Result of the game session so far: returns and number of steps."""
        return Score(self._returns, self._steps)

    @property
    def _is_waiting(self) -> bool:
        """Whether the game is not advancing by itself, because it waits for a key."""
        return self._turns or self._waiting or self._paused or self._helping or bool(self._stage.ended[0])

    @property
    def due_s(self) -> float | None:
        """Time of the next step in real time, by `time.monotonic`; None while the game waits for a key."""
        return None if self._is_waiting else self._next_s

    def pause(self) -> None:
        """Pause a real-time game until a key is pressed. Does nothing if the game waits for a key anyway."""
        self._paused = not (self._turns or self._waiting or bool(self._stage.ended[0]))

    def tick(self, now_s: float) -> None:
        """Take the step that is due in real time, with the keys held at `now_s`."""
        action = self._buttons.action(self._held.words(now_s))
        self._step(self._last if action is None else action)  # action of the held keys, else rest, else the last action
        self._next_s = max(self._next_s + 1.0 / self._rate, now_s)

    # KEYS

    def press(self, key: str, now_s: float) -> None:
        """Handle a pressed key of the game. While help or a pause is shown, any key only closes it."""
        if key in ("q", "esc") and not self._helping:
            self.done = True
            return
        if self._is_waiting:
            self._next_s = now_s + 1.0 / self._rate
        if self._helping or self._paused:
            self._helping = self._paused = False
        elif key == "?":
            self._helping = True
        elif key == "p" and not self._stage.ended[0]:
            self._paused = True
        elif key == "r" or self._stage.ended[0]:
            if key in ("r", "enter"):  # other keys may still be held
                self._restart()
        elif self._turns:
            self._take_turn(key)
        else:
            self._waiting = not (self._held.press(key, now_s) or key in ("space", "enter")) and self._waiting

    def _take_turn(self, key: str) -> None:
        """Handle a key in a turn-based game: an action's key, the board's cursor, or digits of an action's number."""
        if (word := self._buttons.keys.get(key)) is not None:
            self._step(self._buttons.action([word]))
        elif self._board is not None:
            if not self._board.press(key) and (action := self._board.action(key)) is not None:
                self._step(action)
        elif self._typed is not None:
            self._type_number(key)
        elif key in ("space", "enter") and (action := self._buttons.action([])) is not None:
            self._step(action)

    def _type_number(self, key: str) -> None:
        """Handle a key while the player types an action's number: digits, backspace, enter."""
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
        """Start a new episode of the game and release all keys."""
        self._stage.restart()
        self._held.release()
        self._last, self._message, self._waiting = None, "", not self._turns

    def _step(self, action: Action | None) -> None:
        """Take an action in the game if it is legal. If it is None (no key pressed so far, and no action means rest),
        take a legal one.
        """
        stage = self._stage
        legal = self._is_legal(action) if action is not None else False
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

    def _legal_values(self) -> list[list[int]]:
        """Legal values of each component of an action in the game's current state; [] if all are legal."""
        mask, action = self._stage.legal, self._stage.env.action
        if mask is None or isinstance(action, Box):
            return []
        sizes = [action.n] if isinstance(action, Discrete) else list(action.n)
        return [torch.nonzero(legal).flatten().tolist() for legal in mask[:, 0].cpu().split(sizes)]

    def _is_legal(self, action: Action) -> bool:
        """Whether an action is legal in the game's current state."""
        return all(int(value) in legal for value, legal in zip(action, self._legal_values(), strict=False))

    def _any_legal(self) -> Action:
        """Choose a legal action: rest, else the last action, else the first legal one."""
        for action in (self._buttons.action([]), self._last):
            if action is not None and self._is_legal(action):
                return action
        values = self._legal_values()
        return tuple(legal[0] for legal in values) if values else (0,) * self._stage.env.action_size

    # SCREEN

    def shown(self) -> ScreenText:
        """Compose the text of the screen: the score, a line about what to do next, and a box for longer messages."""
        stage = self._stage
        tallies = "".join(f"   {name} {text.number(value)}" for name, value in stage.tallies.items() if value)
        did = f"   {self._buttons.named(self._last)}" if self._last is not None else ""
        score = f"return {text.number(float(stage.returns[0]))}   step {int(stage.ages[0]):,}{did}{tallies}"
        box: Sequence[str] = ()
        mark = None
        if self._helping:
            box = self._help_lines()
        elif stage.ended[0]:
            how = "game over" if stage.terminated[0] else "time limit"
            box = (
                f"{how}: return {text.number(float(stage.returns[0]))} in {int(stage.ages[0]):,} steps",
                "r restart   q quit",
            )
        elif self._paused:
            box = ("paused: press any key",)
        elif self._waiting:
            box = (self._title, "press an arrow or space to start   ? keys   q quit")
        if self._board is not None and self._turns and not box:
            # Points are intersections of lines, with a margin of half a square; see `BoardCursor`.
            cell = 1.0 / (self._board.side + 1)
            mark = ((self._board.column + 1) * cell, (self._board.row + 1) * cell, 0.5 * cell)
        return ScreenText(score, self._message or self._bottom_line(), box, mark)

    def _bottom_line(self) -> str:
        """Compose the bottom line of the screen, shown unless there is a message."""
        if self._helping:
            return f"{self._title}   any key closes the list of keys"
        if self._board is not None and self._turns:
            passes = ", x passes" if len(self._board.help()) > 2 else ""
            return (
                f"{self._title}   {self._buttons.named(self._board.point)}   arrows move, space plays{passes}, ? "
                "keys, q quits"
            )
        if self._typed is not None and self._turns:
            return f"{self._title}   action {self._typed}_   type a number and press enter, ? keys, q quits"
        return f"{self._title}   ? keys, p pause, r restart, q quit"

    def _help_lines(self) -> list[str]:
        """Compose the lines of the help: keys and their meaning."""
        env = self._stage.env
        if self._board is not None and self._turns:
            lines = [*self._board.help(), *self._buttons.help()]  # board games have only user-defined bindings
        elif self._typed is not None and self._turns:
            lines = [Key(("0-9", "enter"), "action by number")]
        else:
            lines = self._buttons.help()
            if isinstance(env.action, Discrete) and env.action.n <= 10:
                lines.append(Key((f"0-{env.action.n - 1}",), "action by number"))
        lines += [Key(("p",), "pause"), Key(("r",), "restart"), Key(("q", "esc"), "quit")]
        left = [", ".join(line.keys) for line in lines]
        return [f"{keys.ljust(max(map(len, left)))}  {line.meaning}" for keys, line in zip(left, lines, strict=True)]

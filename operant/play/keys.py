"""Key bindings: map keys to actions, and track which keys are held.

A key maps to a word ("left", "jump") and an action to a set of words, so that two keys held together can select a third
action. A terminal reports key presses and repeats but no releases; a word therefore expires some time after its key.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from operant.envs import Box, Discrete, Env
from operant.errors import UsageError
from operant.text import safe

Action = tuple[float, ...]
"""Values of an action, integers unless the space is a Box."""

RESERVED: Final = ("q", "esc", "p", "r", "?")
"""Keys of the screen, the same in every game."""

ARROWS: Final[Mapping[str, str]] = {
    "left": "left",
    "a": "left",
    "right": "right",
    "d": "right",
    "up": "up",
    "w": "up",
    "down": "down",
    "s": "down",
}
_NAMED_KEYS = {*ARROWS, "space", "enter", "tab", "backspace"}
_REST = frozenset(("", "stay", "wait", "none", "noop", "nothing", "coast", "rest"))  # names of the rest action
# keys for words that are not directions, in order
_FREE = "space", "enter", "x", "z", "c", "v", "b", "n", "e", "f", "g", "t"
_MOST_KEYED = 10  # maximum number of actions with a digit each
_MOST_NAMED = 20  # maximum number of names in a message


def action_names(env: Env) -> tuple[str, ...]:
    """Names of an environment's actions in order, as it declares them, else their numbers; () unless the action space
    is Discrete.
    """
    if not isinstance(env.action, Discrete):
        return ()
    return env.actions if len(env.actions) == env.action.n else tuple(map(str, range(env.action.n)))


class Key(NamedTuple):
    """Line of the help about keys: the keys, and what they do."""

    keys: tuple[str, ...]
    meaning: str


class KeyBindings:
    """Key bindings for the actions of a Discrete, MultiDiscrete or Box space: `keys` maps each key to a word such as
    "left", and the words held together select the action.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        self.keys: dict[str, str] = {}  # key -> word
        self._sets: list[frozenset[str]] = []  # words of each action of a Discrete
        if isinstance(env.action, Discrete):
            self._name_actions(action_names(env))
        elif isinstance(env.action, Box):
            for k, (low, high) in zip(
                range(env.action.size), (("left", "right"), ("down", "up"), ("z", "x"), ("c", "v")), strict=False
            ):
                self._bind_arrow(low, f"-{k}")
                self._bind_arrow(high, f"+{k}")
        else:
            for k, (low, high) in zip(
                range(len(env.action.n)), (("left", "right"), ("down", "up"), ("z", "x"), ("c", "v")), strict=False
            ):
                self._bind_arrow(low, f"{k}:0")
                self._bind_arrow(high, f"{k}:{env.action.n[k] - 1}")

    def _bind_arrow(self, key: str, word: str) -> None:
        """Bind a key to a word (such as "left" or "jump"); an arrow key also binds its letter (w, a, s or d)."""
        for name in (key, *(other for other, arrow in ARROWS.items() if arrow == key and other != key)):
            self.keys[name] = word

    def _name_actions(self, names: Sequence[str]) -> None:
        """Bind keys to the words in the names of a Discrete's actions, and digits to the first ten actions."""
        self._sets = [frozenset(words) - _REST for words in (name.lower().split("+") for name in names)]
        words = list(
            dict.fromkeys(
                word for name in names for word in name.lower().split("+") if word not in _REST and not word.isdecimal()
            )
        )
        if len(words) > len(_FREE):  # a board: too many actions for keys
            return
        free = iter(_FREE)
        for word in words:
            if word in ARROWS.values():
                self._bind_arrow(word, word)
            elif (key := next(free, None)) is not None:
                self.keys[key] = word
        # Unused arrows: up jumps; with only two directions, either pair of arrows works.
        directions = [word for word in words if word in ARROWS.values()]
        if "up" not in words and "jump" in words:
            self._bind_arrow("up", "jump")
        if len(directions) == len(words) == 2:
            for arrow, direction in (
                ("up", directions[0]),
                ("left", directions[0]),
                ("down", directions[1]),
                ("right", directions[1]),
            ):
                if arrow not in words and arrow not in self.keys:
                    self._bind_arrow(arrow, direction)
        if len(names) <= _MOST_KEYED:
            for k in range(len(names)):
                self.keys[str(k)] = f"#{k}"

    def bind(self, text: str) -> None:
        """Change key bindings by the value of the option `--keys`, `KEY=ACTION,...`. Raises UsageError.

        An action is its number or its name; for a Box `-0` or `+0` sets component 0 to its lower or upper bound; for a
        MultiDiscrete `0:2` sets component 0 to 2.
        """
        for pair in filter(None, (part.strip() for part in text.split(","))):
            key, equals, meaning = pair.partition("=")
            key, meaning = key.strip(), meaning.strip().lower()
            if not equals or not meaning:
                raise UsageError(f"--keys: {safe(pair, 40)!r} is not KEY=ACTION, such as left=1")
            if key in RESERVED:
                raise UsageError(f"--keys: {key!r} is reserved; {', '.join(RESERVED)} have a fixed meaning")
            if key not in _NAMED_KEYS and not (len(key) == 1 and "!" <= key <= "~"):
                named = ", ".join(sorted(name for name in _NAMED_KEYS if len(name) > 1))
                raise UsageError(f"--keys: {safe(key, 40)!r} is not a key; use a character or one of {named}")
            self.keys[key] = self._parse_action(meaning)

    def _parse_action(self, meaning: str) -> str:
        """Convert an action as written in `--keys` to the word that selects it. Raises UsageError."""
        action = self.env.action
        if isinstance(action, Discrete):
            names = [name.lower() for name in action_names(self.env)]
            if meaning.isdecimal() and int(meaning) < action.n:
                return f"#{int(meaning)}"
            if meaning in names:
                return f"#{names.index(meaning)}"
            known = (
                f", or {', '.join(names[:_MOST_NAMED])}{', ...' if len(names) > _MOST_NAMED else ''}"
                if self.env.actions
                else ""
            )
            raise UsageError(f"--keys: {safe(meaning, 40)!r} is not an action; use 0 to {action.n - 1}{known}")
        if isinstance(action, Box):
            match = re.fullmatch(r"([-+])(\d{1,6})", meaning)
            if match and int(match[2]) < action.size:
                return f"{match[1]}{int(match[2])}"
            more = f" to -{action.size - 1} and +{action.size - 1}" if action.size > 1 else ""
            raise UsageError(f"--keys: {safe(meaning, 40)!r} is not an action; use -0 or +0{more}")
        match = re.fullmatch(r"(\d{1,6}):(\d{1,6})", meaning)
        if match and int(match[1]) < len(action.n) and int(match[2]) < action.n[int(match[1])]:
            return f"{int(match[1])}:{int(match[2])}"
        raise UsageError(f"--keys: {safe(meaning, 40)!r} is not an action; write 0:2 for value 2 of component 0")

    def excludes(self, one: str, other: str) -> bool:
        """Whether two words (such as "left" and "right") cannot be held together, so that the newer one replaces the
        older one.
        """
        if isinstance(self.env.action, Discrete):
            return not any({one, other} <= words for words in self._sets)
        return one.lstrip("-+").partition(":")[0] == other.lstrip("-+").partition(":")[0]

    def action(self, words: Sequence[str]) -> Action | None:
        """Choose the action that the held words select, newest last; without words the rest action. None if no action
        matches.
        """
        space = self.env.action
        if isinstance(space, Discrete):
            direct = [int(word[1:]) for word in words if word.startswith("#")]
            if direct:
                return (direct[-1],)
            for count in range(len(words), -1, -1):
                # The largest set of held words that is an action; among equals the newest.
                for some in itertools.combinations(reversed(words), count):
                    if frozenset(some) in self._sets:
                        return (self._sets.index(frozenset(some)),)
            return None
        if isinstance(space, Box):
            lows, highs = (
                [bound if math.isfinite(bound) else sign for bound in bounds]
                for bounds, sign in zip(space.bounds(), (-1.0, 1.0), strict=True)
            )
            pushed = [min(max(0.0, low), high) for low, high in zip(lows, highs, strict=True)]
            for word in words:
                pushed[int(word[1:])] = (lows if word[0] == "-" else highs)[int(word[1:])]
            return tuple(pushed)
        chosen = [0] * len(space.n)
        for word in words:
            component, _, value = word.partition(":")
            chosen[int(component)] = int(value)
        return tuple(chosen)

    def named(self, action: Action) -> str:
        """Name an action for a person: by its declared name, or by its values."""
        names = action_names(self.env)
        if names:
            return names[int(action[0])] or "stay"
        return " ".join(f"{number:.3g}" for number in action)

    def help(self) -> list[Key]:
        """List the lines of the help, one for each word. Digits that select their own number are left out."""
        by_word: dict[str, list[str]] = {}
        for key, word in self.keys.items():
            if word != f"#{key}":
                by_word.setdefault(word, []).append(key)
        return [Key(tuple(keys), self._action_text(word)) for word, keys in by_word.items()]

    def _action_text(self, word: str) -> str:
        """Describe the action that a word selects."""
        if word.startswith("#"):
            return self.named((int(word[1:]),))
        if isinstance(self.env.action, Box):
            low, high = self.env.action.bounds()
            bound = (low if word[0] == "-" else high)[int(word[1:])]
            return f"{bound:g}" + (f" for component {word[1:]}" if self.env.action.size > 1 else "")
        return word if ":" not in word else f"{word.partition(':')[2]} for component {word.partition(':')[0]}"


class HeldKeys:
    """Tracker of the keys that count as held. Terminals report no release, so a key counts for `first_s` seconds after
    a press and `again_s` after each repeat.
    """

    def __init__(self, buttons: KeyBindings, *, first_s: float = 0.25, again_s: float = 0.12) -> None:
        self._buttons, self._first_s, self._again_s = buttons, first_s, again_s
        self._until_s: dict[str, float] = {}  # the newest last

    def press(self, key: str, now_s: float) -> bool:
        """Register the press or repeat of a key at time `now_s`. Returns whether the key is bound."""
        word = self._buttons.keys.get(key)
        if word is None:
            return False
        again = self._until_s.pop(word, -math.inf) > now_s
        for other in [other for other in self._until_s if self._buttons.excludes(word, other)]:
            del self._until_s[other]
        self._until_s[word] = now_s + (self._again_s if again else self._first_s)
        return True

    def words(self, now_s: float) -> list[str]:
        """Words of the keys that count as held at time `now_s`, newest last."""
        return [word for word, until_s in self._until_s.items() if until_s > now_s]

    def release(self) -> None:
        """Treat all held keys as released."""
        self._until_s.clear()


class BoardCursor:
    """Cursor on a square board, for an environment whose actions are its points, row by row from the top left, and
    possibly a pass at the end.
    """

    def __init__(self, side: int, count: int) -> None:
        self.side, self._count = side, count
        self.row = self.column = side // 2

    @classmethod
    def of(cls, env: Env) -> BoardCursor | None:
        """Make the cursor for an environment whose actions form a square board; None for any other environment."""
        count = env.action.n if isinstance(env.action, Discrete) else 0
        side = math.isqrt(count)
        return (
            cls(side, count)
            if count > _MOST_KEYED and count - side * side in (0, 1) and not KeyBindings(env).keys
            else None
        )

    def press(self, key: str) -> bool:
        """Move the cursor if `key` is an arrow or its letter. Returns whether it is."""
        direction = ARROWS.get(key)
        down, right = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}.get(direction or "", (0, 0))
        self.row, self.column = (self.row + down) % self.side, (self.column + right) % self.side
        return direction is not None

    def action(self, key: str) -> Action | None:
        """Action that a key selects: to play at the cursor (space, enter) or to pass (x); None for any other key."""
        if key in ("space", "enter"):
            return self.point
        return (self._count - 1,) if key == "x" and self._count > self.side * self.side else None

    @property
    def point(self) -> Action:
        """Action that plays at the cursor."""
        return (self.row * self.side + self.column,)

    def help(self) -> list[Key]:
        """List the lines of the help about the cursor's keys."""
        passing = [Key(("x",), "pass")] if self._count > self.side * self.side else []
        return [Key(("arrows", "wasd"), "move the cursor"), Key(("space", "enter"), "play there"), *passing]

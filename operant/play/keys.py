"""What the keys of a person mean to an environment: which key is which action, and for how long. Knows no terminal and
no lane.

A key stands for a word ("left", "jump"), and an action for a set of words: so two keys that are held together can be an
action of their own. A terminal tells when a key goes down, and repeats it, but not when it comes up: a word counts for
a while after its key, then it is forgotten.
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
"""The numbers of an action, whole ones where the environment's are."""

RESERVED: Final = ("q", "esc", "p", "r", "?")
"""Keys of the screen, in every game."""

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
_REST = frozenset(("", "stay", "wait", "none", "noop", "nothing", "coast", "rest"))  # names of doing nothing
# keys for words that are no directions, in turn
_FREE = "space", "enter", "x", "z", "c", "v", "b", "n", "e", "f", "g", "t"
_MOST_KEYED = 10  # actions that have a digit each
_MOST_NAMED = 20  # in a sentence


def action_names(env: Env) -> tuple[str, ...]:
    """What an environment's actions are called, one for each: its own names, or numbers. Empty where actions are not
    one of so many.
    """
    if not isinstance(env.action, Discrete):
        return ()
    return env.actions if len(env.actions) == env.action.n else tuple(map(str, range(env.action.n)))


class Key(NamedTuple):
    """One line of what the keys mean."""

    keys: tuple[str, ...]
    meaning: str


class Buttons:
    """Keys for words, and words for actions: of a Discrete, a MultiDiscrete or a Box."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.keys: dict[str, str] = {}  # key -> word
        self._sets: list[frozenset[str]] = []  # of a Discrete: the words of each action
        if isinstance(env.action, Discrete):
            self._name_actions(action_names(env))
        elif isinstance(env.action, Box):
            for k, (low, high) in zip(
                range(env.action.size), (("left", "right"), ("down", "up"), ("z", "x"), ("c", "v")), strict=False
            ):
                self._give(low, f"-{k}")
                self._give(high, f"+{k}")
        else:
            for k, (low, high) in zip(
                range(len(env.action.n)), (("left", "right"), ("down", "up"), ("z", "x"), ("c", "v")), strict=False
            ):
                self._give(low, f"{k}:0")
                self._give(high, f"{k}:{env.action.n[k] - 1}")

    def _give(self, key: str, word: str) -> None:
        """A word's key; an arrow brings the letter beside it."""
        for name in (key, *(other for other, arrow in ARROWS.items() if arrow == key and other != key)):
            self.keys[name] = word

    def _name_actions(self, names: Sequence[str]) -> None:
        self._sets = [frozenset(words) - _REST for words in (name.lower().split("+") for name in names)]
        words = list(
            dict.fromkeys(
                word for name in names for word in name.lower().split("+") if word not in _REST and not word.isdecimal()
            )
        )
        if len(words) > len(_FREE):  # points of a board: too many to know by heart
            return
        free = iter(_FREE)
        for word in words:
            if word in ARROWS.values():
                self._give(word, word)
            elif (key := next(free, None)) is not None:
                self.keys[key] = word
        # Arrows that are left over help: up jumps, and where there are but two ways, either pair of arrows will do.
        ways = [word for word in words if word in ARROWS.values()]
        if "up" not in words and "jump" in words:
            self._give("up", "jump")
        if len(ways) == len(words) == 2:
            for arrow, way in (("up", ways[0]), ("left", ways[0]), ("down", ways[1]), ("right", ways[1])):
                if arrow not in words and arrow not in self.keys:
                    self._give(arrow, way)
        if len(names) <= _MOST_KEYED:
            for k in range(len(names)):
                self.keys[str(k)] = f"#{k}"

    def bind(self, text: str) -> None:
        """Change keys as `--keys` says: `KEY=ACTION,...`. Raises UsageError.

        An action is its number or its name; of a Box `-0` or `+0` pushes number 0 to its lower or upper bound; of a
        MultiDiscrete `0:2` takes 2 for choice 0.
        """
        for pair in filter(None, (part.strip() for part in text.split(","))):
            key, equals, meaning = pair.partition("=")
            key, meaning = key.strip(), meaning.strip().lower()
            if not equals or not meaning:
                raise UsageError(f"--keys: {safe(pair, 40)!r} is not KEY=ACTION, such as left=1")
            if key in RESERVED:
                raise UsageError(f"--keys: {key!r} is taken: {', '.join(RESERVED)} mean the same in every game")
            if key not in _NAMED_KEYS and not (len(key) == 1 and "!" <= key <= "~"):
                named = ", ".join(sorted(name for name in _NAMED_KEYS if len(name) > 1))
                raise UsageError(f"--keys: {safe(key, 40)!r} is not a key: a character, or one of {named}")
            self.keys[key] = self._word(meaning)

    def _word(self, meaning: str) -> str:
        """The word of an action as a person writes it."""
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
            raise UsageError(f"--keys: {safe(meaning, 40)!r} is not an action; they are 0 to {action.n - 1}{known}")
        if isinstance(action, Box):
            found = re.fullmatch(r"([-+])(\d{1,6})", meaning)
            if found and int(found[2]) < action.size:
                return f"{found[1]}{int(found[2])}"
            more = f" to -{action.size - 1} and +{action.size - 1}" if action.size > 1 else ""
            raise UsageError(f"--keys: {safe(meaning, 40)!r} is not a push; they are -0 and +0{more}")
        found = re.fullmatch(r"(\d{1,6}):(\d{1,6})", meaning)
        if found and int(found[1]) < len(action.n) and int(found[2]) < action.n[int(found[1])]:
            return f"{int(found[1])}:{int(found[2])}"
        raise UsageError(f"--keys: {safe(meaning, 40)!r} is not a choice; write 0:2 for value 2 of choice 0")

    def excludes(self, one: str, other: str) -> bool:
        """Whether two words cannot count at once: then the newer one does."""
        if isinstance(self.env.action, Discrete):
            return not any({one, other} <= words for words in self._sets)
        return one.lstrip("-+").partition(":")[0] == other.lstrip("-+").partition(":")[0]

    def action(self, words: Sequence[str]) -> Action | None:
        """The action of words, the newest last; without any that of rest. None where no action means that."""
        space = self.env.action
        if isinstance(space, Discrete):
            direct = [int(word[1:]) for word in words if word.startswith("#")]
            if direct:
                return (direct[-1],)
            for count in range(len(words), -1, -1):
                # The largest set of words that is an action; of those as large, the one with the newest.
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
            place, _, value = word.partition(":")
            chosen[int(place)] = int(value)
        return tuple(chosen)

    def named(self, action: Action) -> str:
        """An action for a person: its name, or its numbers."""
        names = action_names(self.env)
        if names:
            return names[int(action[0])] or "stay"
        return " ".join(f"{number:.3g}" for number in action)

    def help(self) -> list[Key]:
        """What the keys mean, a line for each word, those that are digits for their own number left out."""
        by_word: dict[str, list[str]] = {}
        for key, word in self.keys.items():
            if word != f"#{key}":
                by_word.setdefault(word, []).append(key)
        return [Key(tuple(keys), self._meaning(word)) for word, keys in by_word.items()]

    def _meaning(self, word: str) -> str:
        if word.startswith("#"):
            return self.named((int(word[1:]),))
        if isinstance(self.env.action, Box):
            low, high = self.env.action.bounds()
            bound = (low if word[0] == "-" else high)[int(word[1:])]
            return f"{bound:g}" + (f" for number {word[1:]}" if self.env.action.size > 1 else "")
        return word if ":" not in word else f"{word.partition(':')[2]} for choice {word.partition(':')[0]}"


class Held:
    """The words that count at a time: those whose keys went down not long ago."""

    def __init__(self, buttons: Buttons, *, first_s: float = 0.25, again_s: float = 0.12) -> None:
        self._buttons, self._first_s, self._again_s = buttons, first_s, again_s
        self._until_s: dict[str, float] = {}  # the newest last

    def press(self, key: str, now_s: float) -> bool:
        """A key went down, or is repeated: whether it means anything."""
        word = self._buttons.keys.get(key)
        if word is None:
            return False
        again = self._until_s.pop(word, -math.inf) > now_s
        for other in [other for other in self._until_s if self._buttons.excludes(word, other)]:
            del self._until_s[other]
        self._until_s[word] = now_s + (self._again_s if again else self._first_s)
        return True

    def words(self, now_s: float) -> list[str]:
        """What counts now, the newest last."""
        return [word for word, until_s in self._until_s.items() if until_s > now_s]

    def release(self) -> None:
        """Let go of everything."""
        self._until_s.clear()


class Board:
    """A cursor on a board, for an environment whose actions are its points, along the rows from the top left, and
    perhaps a pass after them.
    """

    def __init__(self, side: int, count: int) -> None:
        self.side, self._count = side, count
        self.row = self.column = side // 2

    @classmethod
    def of(cls, env: Env) -> Board | None:
        """The board that an environment's actions look like; None where they do not."""
        count = env.action.n if isinstance(env.action, Discrete) else 0
        side = math.isqrt(count)
        return (
            cls(side, count)
            if count > _MOST_KEYED and count - side * side in (0, 1) and not Buttons(env).keys
            else None
        )

    def press(self, key: str) -> bool:
        """Move the cursor; whether the key does."""
        way = ARROWS.get(key)
        down, right = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}.get(way or "", (0, 0))
        self.row, self.column = (self.row + down) % self.side, (self.column + right) % self.side
        return way is not None

    def action(self, key: str) -> Action | None:
        """What a key does that does not move: a point for space and enter, the pass for x."""
        if key in ("space", "enter"):
            return self.point
        return (self._count - 1,) if key == "x" and self._count > self.side * self.side else None

    @property
    def point(self) -> Action:
        """The action that plays where the cursor is."""
        return (self.row * self.side + self.column,)

    def help(self) -> list[Key]:
        """What the keys mean."""
        passing = [Key(("x",), "pass")] if self._count > self.side * self.side else []
        return [Key(("arrows", "wasd"), "move the cursor"), Key(("space", "enter"), "play there"), *passing]

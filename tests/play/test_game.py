"""Games in the terminal: half blocks, keys, what keys mean, a person's game, a policy that is watched; and that the terminal is always put back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy import float32
from toys import COUNT, PICK, PUSH

from operant import cli
from operant.envs import Box, Discrete, Env, device, find, names
from operant.errors import UsageError
from operant.nn import mlp
from operant.nn.policy import Policy
from operant.play import console, viewer
from operant.play import game as play
from operant.play.console import keys_in
from operant.play.game import Game, rate_of, waits
from operant.play.halfblocks import Drawing, Style, cells_of, ground_of, indexed, style_of
from operant.play.keys import RESERVED, Board, Buttons, Held, action_names
from operant.play.stage import Performer, Show

BENCHES = Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))
from terminal import Terminal  # noqa: E402

pyte = pytest.importorskip("pyte")
pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals as Linux has them"), pytest.mark.usefixtures("one_thread")]

PATIENCE_S = 90.0
TRUE, FEW, PLAIN, ASCII = Style("true", True), Style("256", True), Style("none", True), Style("none", False)
RED, BLUE, BLACK = b"\xff\0\0", b"\0\0\xff", b"\0\0\0"


# HALF BLOCKS


@pytest.mark.parametrize(
    ("variables", "encoding", "wanted"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "utf-8", TRUE), ({"TERM": "xterm-direct"}, "UTF8", TRUE),
        ({"TERM": "xterm-256color"}, "utf-8", FEW), ({"TERM": "tmux-256color", "COLORTERM": "24bit"}, "utf-8", TRUE),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, "utf-8", PLAIN), ({"TERM": "linux"}, "utf-8", PLAIN),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, "ascii", Style("256", False)), ({"TERM": "vt100"}, None, ASCII), ({}, "iso8859-1", ASCII),
    ],
)  # fmt: skip
def test_what_a_terminal_can_show(variables, encoding, wanted):
    assert style_of(variables, encoding) == wanted


def xterm_colours():
    """The 240 fixed colours, by number, as xterm's own 256colres.pl makes them."""
    levels = [0, *range(95, 256, 40)]
    cube = [(levels[k // 36], levels[k // 6 % 6], levels[k % 6]) for k in range(216)]
    return dict(enumerate([*cube, *((8 + 10 * k,) * 3 for k in range(24))], 16))


def test_the_nearest_of_256_colours():
    known = xterm_colours()
    draw = np.random.default_rng(1)
    for colour in [(0, 0, 0), (255, 255, 255), (128, 128, 128), (95, 135, 175), *map(tuple, draw.integers(0, 256, (500, 3)).tolist())]:
        apart = {number: sum((a - b) ** 2 for a, b in zip(colour, other, strict=True)) for number, other in known.items()}
        assert apart[indexed(*colour)] == min(apart.values()), colour
    assert all(known[indexed(*colour)] == colour for colour in known.values())


def test_two_pixels_are_a_cell():
    pixels = RED + BLUE + BLUE + BLUE  # 2 x 2
    assert cells_of(pixels, 2, 2, TRUE) == [[("▀", "38;2;255;0;0;48;2;0;0;255"), (" ", "48;2;0;0;255")]]
    assert cells_of(pixels, 2, 2, FEW) == [[("▀", "38;5;196;48;5;21"), (" ", "48;5;21")]]


def test_without_half_blocks_a_cell_is_what_is_no_ground():
    pixels = (BLACK + BLACK + BLACK) + (BLACK + RED + BLACK)
    assert cells_of(pixels, 3, 2, Style("true", False)) == [[(" ", "48;2;0;0;0"), (" ", "48;2;255;0;0"), (" ", "48;2;0;0;0")]]


def test_without_colours_shapes_stay():
    ground = [[BLACK] * 6 for _ in range(4)]
    ground[1][2], ground[2][3], ground[1][4], ground[2][4] = RED, RED, b"\xff\xff\xff", b"\xff\xff\xff"
    pixels = b"".join(b"".join(row) for row in ground)
    assert ["".join(character for character, _ in row) for row in cells_of(pixels, 6, 4, PLAIN)] == ["  ▄ ▄ ", "   ▀▀ "]
    assert ["".join(character for character, _ in row) for row in cells_of(pixels, 6, 4, ASCII)] == ["  . . ", "   '' "]
    full = BLACK * 4 + BLACK + b"\x30\x30\x30" + b"\xff\xff\xff" + BLACK + BLACK + b"\x30\x30\x30" + b"\xff\xff\xff" + BLACK + BLACK * 4
    (_, both), (_, lower) = cells_of(full, 4, 4, PLAIN)[0][1:3], cells_of(full, 4, 4, PLAIN)[1][1:3]
    assert both[0] == "▄" and lower[0] == "▀"
    pairs = [(BLACK, BLACK), (b"\x30\x30\x30", b"\x30\x30\x30"), (b"\xff\xff\xff", b"\xff\xff\xff"), (BLACK, BLACK)]
    tall = BLACK * 8 + b"".join(upper for upper, _ in pairs) + b"".join(lower for _, lower in pairs) + BLACK * 4
    assert [character for character, _ in cells_of(tall, 4, 5, ASCII)[1]] == [" ", ":", "#", " "]
    assert [character for character, _ in cells_of(tall, 4, 5, PLAIN)[1]] == [" ", "░", "█", " "]


def test_the_ground_is_what_the_border_mostly_is():
    assert ground_of(RED * 3 + RED + BLUE + RED + BLUE * 3, 3, 3) == RED
    assert ground_of(BLUE, 1, 1) == BLUE


@pytest.mark.parametrize(("pixels", "width", "height"), [(b"", 0, 0), (b"abc", 2, 1), (b"abcabc", 1, 1)])
def test_bytes_that_are_no_picture(pixels, width, height):
    with pytest.raises(ValueError, match=r"has .* bytes"):
        cells_of(pixels, width, height, TRUE)


def colours_on(screen, width, height, top, left):
    """What stands on pyte's screen, as pixels (2 * height, width) of `rrggbb`."""
    rows = []
    for y in range(height):
        cells = [screen.buffer[top - 1 + y][left - 1 + x] for x in range(width)]
        assert all(cell.data in "▀ " for cell in cells)
        rows += [[cell.fg if cell.data == "▀" else cell.bg for cell in cells], [cell.bg for cell in cells]]
    return rows


def test_what_is_drawn_is_the_picture_and_only_changes_are_sent():
    draw = np.random.default_rng(3)
    screen = pyte.Screen(30, 12)
    stream = pyte.Stream(screen)
    drawing = Drawing()
    picture = draw.choice(np.array([[255, 0, 0], [0, 255, 0], [9, 9, 9]], np.uint8), (14, 20))
    for turn in range(30):
        text = drawing.show(cells_of(picture.tobytes(), 20, 14, TRUE), 3, 5)
        stream.feed(text)
        wanted = [["".join(f"{part:02x}" for part in pixel) for pixel in row] for row in picture.tolist()]
        assert colours_on(screen, 20, 7, 3, 5) == wanted
        assert turn == 0 or text.count("H") <= 2
        assert drawing.show(cells_of(picture.tobytes(), 20, 14, TRUE), 3, 5) == ""
        picture = picture.copy()
        picture[draw.integers(14), draw.integers(20)] = (1, 2, turn)
    drawing.forget()
    assert drawing.show(cells_of(picture.tobytes(), 20, 14, TRUE), 3, 5).count("\x1b[") > 7
    # At another place, and in another size, all of it is sent.
    moved = drawing.show(cells_of(picture.tobytes(), 20, 14, TRUE), 1, 1)
    assert "\x1b[1;1H" in moved and "\x1b[7;1H" in moved
    assert "\x1b[6;1H" in drawing.show(cells_of(picture[:12].tobytes(), 20, 12, TRUE), 1, 1)


# KEYS


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"\x1b[A\x1b[B\x1b[C\x1b[D", ["up", "down", "right", "left"]), (b"\x1bOA\x1bOD", ["up", "left"]),
        (b"wasd q?", ["w", "a", "s", "d", "space", "q", "?"]),
        (b"\r\n\t\x7f\x08", ["enter", "enter", "tab", "backspace", "backspace"]), (b"ABCD09", ["A", "B", "C", "D", "0", "9"]),
        (b"\x1b", ["esc"]), (b"\x1b\x1b", ["esc", "esc"]), (b"\x1b\x1b[A", ["esc", "up"]), (b"\x1b[", ["esc"]),
        (b"\x1bx\x1b[15~\x1b[1;5Cy\x1b[?62;c", ["y"]), ("é€\U0001f600x".encode(), ["x"]), (b"\x03\x1a\0", []), (b"", []),
    ],
)  # fmt: skip
def test_what_a_terminal_sends_is_keys(data, keys):
    assert keys_in(data) == (keys, b"")


def test_keys_that_come_in_pieces():
    for data in (b"\x1b[A", b"\x1bOC", b"\x1b[15~", b"\x1b[1;5Cq"):
        for cut in range(1, len(data)):
            first, left = keys_in(data[:cut], complete=False)
            second, rest = keys_in(left + data[cut:], complete=False)
            assert (first + second, rest) == (keys_in(data)[0], b"")


def test_any_bytes_are_survived():
    draw = np.random.default_rng(5)
    for _ in range(3000):
        data = bytes(draw.choice(np.frombuffer(b"\x1b\x1b[[OA;~1x\xc3\x00", np.uint8), draw.integers(0, 9)))
        keys, left = keys_in(data)
        assert left == b"" and all(isinstance(key, str) and key for key in keys)
        begun, left = keys_in(data, complete=False)
        assert keys_in(left)[1] == b"" and begun == keys[: len(begun)]


# WHAT KEYS MEAN


def test_every_environment_can_be_played():
    for name in names():
        env = find(name)
        buttons, board = Buttons(env), Board.of(env)
        reached = set()
        for count in (1, 2):
            for first in buttons.keys.values():
                reached.add(buttons.action([first]))
                reached |= {buttons.action([first, second]) for second in buttons.keys.values() if count == 2 and not buttons.excludes(first, second)}
        reached.add(buttons.action([]))
        if isinstance(env.action, Discrete) and env.action.n <= 10:
            assert reached - {None} == {(k,) for k in range(env.action.n)}, name
            assert env.actions == action_names(env) and len(env.actions) == env.action.n, name
        elif isinstance(env.action, Box):
            low, high = env.action.bounds()
            assert {action[0] for action in reached} >= {low[0], high[0]}
        else:
            assert board is not None, name
        assert not set(RESERVED) & set(buttons.keys), name


def words(env, *keys):
    buttons = Buttons(env)
    return buttons.action([buttons.keys[key] for key in keys])


def test_arrows_letters_and_digits():
    snake, breakout, cartpole, car = find("snake"), find("breakout"), find("cartpole"), find("mountaincar")
    assert [words(snake, key) for key in ("up", "right", "down", "left", "w", "d", "s", "a", "3")] == [(0,), (1,), (2,), (3,), (0,), (1,), (2,), (3,), (3,)]
    assert [words(breakout, *keys) for keys in ((), ("left",), ("right",), ("0",), ("a", "d"))] == [(0,), (1,), (2,), (0,), (2,)]
    assert [words(cartpole, *keys) for keys in ((), ("left",), ("right",))] == [None, (0,), (1,)]
    assert [words(car, *keys) for keys in ((), ("left",), ("right",))] == [(1,), (0,), (2,)], "as Gymnasium numbers them"
    assert [words(find("pong"), *keys) for keys in ((), ("up",), ("down",), ("s",))] == [(0,), (1,), (2,), (2,)]


SIX = replace(COUNT, action=Discrete(6), actions=("left", "stay", "right", "left+jump", "jump", "right+jump"))


def test_two_keys_together_are_an_action_of_their_own():
    assert [words(SIX, *keys) for keys in ((), ("left",), ("space",), ("left", "space"), ("space", "left"), ("up", "right"), ("left", "right", "space"))] == [
        (1,), (0,), (4,), (3,), (3,), (5,), (5,),
    ]  # fmt: skip
    buttons = Buttons(SIX)
    assert buttons.excludes("left", "right") and not buttons.excludes("left", "jump")
    assert buttons.named((3,)) == "left+jump"


def test_an_environment_may_name_its_actions():
    env = replace(COUNT, action=Discrete(3), actions=("wait", "fire", "north"))
    buttons = Buttons(env)
    assert action_names(env) == ("wait", "fire", "north")
    assert [words(env, *keys) for keys in ((), ("space",), ("enter",), ("2",))] == [(0,), (1,), (2,), (2,)]
    assert ("space",) in [key.keys for key in buttons.help()] and buttons.named((2,)) == "north"


def test_actions_without_names_are_numbers():
    assert [words(COUNT, *keys) for keys in ((), ("0",), ("1",))] == [None, (0,), (1,)]
    assert Buttons(COUNT).named((1,)) == "1" and Buttons(COUNT).help() == []
    with pytest.raises(UsageError, match=r"'left' is no action; they are 0 to 1$"):
        Buttons(COUNT).bind("left=left")


def test_names_that_share_words_are_keys_however_many_they_are():
    names = tuple("+".join(filter(None, (way, up, fire))) or "stay" for way in ("", "left", "right") for up in ("", "up", "down") for fire in ("", "fire"))
    env = replace(COUNT, action=Discrete(18), actions=names)
    assert words(env, "left", "up", "space") == (names.index("left+up+fire"),) and words(env) == (0,)
    square = replace(env, action=Discrete(16), actions=names[:16])
    assert Board.of(square) is None and Board.of(replace(square, actions=())) is not None and not waits(square)


def test_pushes_go_to_the_bounds():
    assert [words(PUSH, *keys) for keys in ((), ("left",), ("right",), ("up",), ("right", "up"), ("left", "down"))] == [
        (0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-1.0, 0.0),
    ]  # fmt: skip
    unbounded = replace(COUNT, action=Box(1))
    assert words(unbounded, "left") == (-1.0,) and words(unbounded, "right") == (1.0,)
    assert words(replace(COUNT, action=Box(1, low=2.0, high=5.0))) == (2.0,), "rest lies within the bounds"
    assert Buttons(PUSH).excludes("-0", "+0") and not Buttons(PUSH).excludes("-0", "+1")


def test_several_choices():
    assert [words(PICK, *keys) for keys in ((), ("right",), ("up",), ("right", "up"), ("left",))] == [(0, 0), (2, 0), (0, 1), (2, 1), (0, 0)]


@pytest.mark.parametrize(
    ("env", "text", "key", "action"),
    [
        (SIX, "k=3", "k", (3,)), (SIX, " left = jump , x=left+jump", "left", (4,)), (SIX, "space=5,", "space", (5,)), (SIX, "", "left", (0,)),
        (PUSH, "k=+1", "k", (0.0, 1.0)), (PICK, "k=0:1", "k", (1, 0)),
    ],
)  # fmt: skip
def test_keys_can_be_changed(env, text, key, action):
    buttons = Buttons(env)
    buttons.bind(text)
    assert buttons.action([buttons.keys[key]]) == action


@pytest.mark.parametrize(
    ("env", "text", "said"),
    [
        (SIX, "left", "'left' is not KEY=ACTION"), (SIX, "left=", "is not KEY=ACTION"), (SIX, "left=6", "'6' is no action; they are 0 to 5, or left, stay"),
        (SIX, "left=-1", "is no action"), (SIX, "q=1", "'q' is taken"), (SIX, "esc=1", "'esc' is taken"), (SIX, "F1=1", "'F1' is no key"),
        (SIX, "\x1b[2J=1", "is no key"), (PUSH, "left=1", "is no push; they are -0 and +0 to -1 and +1"), (PUSH, "left=+2", "is no push"),
        (PICK, "left=1", "is no choice"), (PICK, "left=1:2", "is no choice"),
    ],
)  # fmt: skip
def test_keys_that_are_wrong_have_a_sentence(env, text, said):
    with pytest.raises(UsageError) as raised:
        Buttons(env).bind(text)
    assert said in str(raised.value) and "\x1b" not in str(raised.value)


def test_a_key_counts_for_a_while():
    held = Held(Buttons(SIX), first_s=0.25, again_s=0.1)
    assert held.press("left", 0.0) and held.words(0.2) == ["left"] and held.words(0.25) == []
    assert held.press("left", 1.0) and held.press("left", 1.2) and held.words(1.29) == ["left"] and held.words(1.31) == []
    held.press("left", 2.0)
    held.press("space", 2.1)
    assert held.words(2.2) == ["left", "jump"]
    held.press("right", 2.2)
    assert held.words(2.2) == ["jump", "right"], "right lets go of left"
    held.release()
    assert held.words(2.2) == [] and not held.press("F", 2.2)


def test_a_board_has_a_cursor():
    go = find("go")
    board, named = Board.of(go), Buttons(go).named
    assert (board.side, board.row, board.column, named(board.point)) == (9, 4, 4, "e5")
    assert all(board.press(key) for key in ("up", "up", "a")) and named(board.point) == "d7"
    assert board.action("space") == (2 * 9 + 3,) == board.action("enter") and board.action("x") == (81,) and board.action("y") is None
    for _ in range(4):
        board.press("left")
    assert named(board.point) == "j7", "beyond the edge is the other one; there is no column i"
    assert (named((0,)), named((80,)), named((81,))) == ("a9", "j1", "pass")
    assert Board.of(replace(COUNT, action=Discrete(16))).action("x") is None
    assert Board.of(replace(COUNT, action=Discrete(9))) is None and Board.of(replace(COUNT, action=Discrete(23))) is None and Board.of(PUSH) is None


# A PERSON'S GAME


class Scripted:
    """A terminal of 60 x 20 and a clock of its own: keys at their times, then q. What is written goes to pyte's screen."""

    encoding = "utf-8"

    def __init__(self, *script, columns=60, lines=20):
        self.now, self._script, self.size = 100.0, [], (columns, lines)
        at = self.now
        for item in script:
            if isinstance(item, (int, float)):
                at += item
            else:
                self._script.append((at, item))
        self._end = at
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self._screen)
        self.written, self.seen = [], []

    def monotonic(self):
        return self.now

    def write(self, text):
        self.written.append(text)
        self._stream.feed(text.replace("\x1b[?2026h", "").replace("\x1b[?2026l", ""))

    def key(self, timeout_s):
        self.seen.append(list(self._screen.display))
        end = self.now + timeout_s
        if self._script and self._script[0][0] <= end:
            at, key = self._script.pop(0)
            self.now = max(self.now, at)
            if key == "^C":
                raise KeyboardInterrupt
            return key
        if not self._script and self._end <= end:
            self.now = max(self.now, self._end)
            return "q"
        self.now = end
        return None

    def forget(self):
        assert not self.written, "what is typed before the first picture is typed blindly, and only that"
        self._script = [(at, key) for at, key in self._script if at >= self.now]

    def showed(self, words):
        return any(words in line for display in self.seen for line in display)

    def shows(self, words):
        return any(words in line for line in self._screen.display)


@pytest.fixture
def scripted(monkeypatch):
    def make(*script, **how):
        terminal = Scripted(*script, **how)
        for module in (play, viewer):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=terminal.monotonic))
        monkeypatch.setattr(console, "size", lambda: terminal.size)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLORTERM", "truecolor")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return terminal

    return make


class Walk(NamedTuple):
    """A line of five places; the last pays."""

    end: float = 5.0


@device
def _walk_reset(s, p, key):
    s[0] = float32(0.0)


@device
def _walk_step(s, action, p, key, tally):
    s[0] += float32(1.0) if action == 2 else float32(-1.0) if action == 1 else float32(0.0)
    tally[0] += float32(action)
    return s[0], s[0] >= p.end


@device
def _walk_observe(s, obs, p):
    obs[0] = s[0]


@device
def _walk_legal(s, mask, p):
    mask[0] = 1
    mask[1] = 1 if s[0] > float32(0.5) else 0
    mask[2] = 1


@device
def _walk_shade(s, p, x, y):
    on = int(x * p.end) == int(s[0])
    return (float32(1.0), float32(0.0), float32(0.0)) if on else (float32(0.0), float32(0.0), float32(1.0))


WALK = Env(
    Walk, 1, observation=Box(1), action=Discrete(3), time_limit=40, reset=_walk_reset, step=_walk_step, observe=_walk_observe, shade=_walk_shade,
    legal=_walk_legal, tally=("sum",), actions=("stay", "left", "right"), name="walk",
)  # fmt: skip


def a_game(terminal, env=WALK, *, turns, rate=10.0, keys=""):
    buttons = Buttons(env)
    buttons.bind(keys)
    show = Show(env, env.Params(), seed=1)
    score = Game(show, terminal, buttons, turns=turns, rate=rate, title=env.name or "toy").play()
    return score, show


def test_a_game_of_turns_waits_for_keys(scripted):
    terminal = scripted(5, "right", 3, "d", "2", "right")
    score, show = a_game(terminal, turns=True)
    assert (score.returns, score.steps) == ([], 4) and show.observation.tolist() == [[4.0]] and show.ages.tolist() == [4]
    assert terminal.shows("return 10.0   step 4   right   sum 8") and terminal.shows("walk   ? keys, p pause, r restart, q leaves")


@pytest.mark.parametrize("turns", [True, False])
def test_what_is_typed_before_the_first_picture_is_no_move(scripted, turns):
    terminal = scripted(-3.0, "right", "space", "r", "?", 1.0, "q", 2.0)
    assert a_game(terminal, turns=turns)[0] == ([], 0)
    assert terminal.now == 100.0, "and q did not end it, which the script's end did"
    assert terminal.showed("keys, ") and not terminal.showed("a new game")
    later = scripted(-3.0, "q", 3.5, "right", 0.1, "q")
    assert a_game(later, turns=True)[0].steps == 1


def test_a_game_of_turns_ends_and_begins_again(scripted):
    terminal = scripted(*["right"] * 5, "right", "left", "r", "right")
    score, show = a_game(terminal, turns=True)
    assert score.returns == [15.0] and score.steps == 6 and show.observation.tolist() == [[1.0]]
    assert terminal.showed("the end: return 15.0 in 5 steps") and terminal.showed("r again   q leave")
    assert not terminal.shows("the end")


def test_what_is_illegal_is_refused_with_a_line(scripted):
    terminal = scripted("left", "1", "right", "left")
    score, show = a_game(terminal, turns=True)
    assert score.steps == 2 and show.observation.tolist() == [[0.0]] and terminal.showed("left is not legal now") and not terminal.shows("not legal")


def test_a_game_of_the_clock_goes_on_by_itself(scripted):
    terminal = scripted(2, "space", 1.0)
    score, show = a_game(terminal, turns=False)
    assert terminal.showed("an arrow or space starts it") and score.steps == pytest.approx(10, abs=1) and show.observation.tolist() == [[0.0]]


def test_a_key_is_held_for_a_few_steps_and_then_let_go(scripted):
    terminal = scripted("right", 2.0)
    score, show = a_game(terminal, turns=False)
    assert show.observation.item() in (2.0, 3.0) and score.steps == pytest.approx(20, abs=1)
    slow = scripted("right", 3.0)
    assert a_game(slow, turns=False, rate=2.0)[1].observation.item() in (1.0, 2.0), "however slow, a key is a step"


def test_an_illegal_key_does_not_stop_the_clock(scripted):
    terminal = scripted("left", 2.0)
    score, show = a_game(terminal, turns=False)
    assert terminal.showed("left is not legal now") and score.steps == pytest.approx(20, abs=1) and show.observation.item() == 0.0


def test_pause_and_help_stop_the_clock(scripted):
    terminal = scripted("space", 0.55, "p", 5, "x", 0.5, "?", 5, "q", 0.5)
    score, _ = a_game(terminal, turns=False)
    assert terminal.showed("paused: any key goes on") and score.steps == pytest.approx(15, abs=2)
    assert terminal.showed("right d down s  right") and terminal.showed("left a up w     left")
    assert terminal.showed("0-2             an action by its number") and terminal.showed("q esc           leave")
    assert not terminal.shows("paused") and not terminal.shows("an action by its number")


def test_r_begins_again_at_once_and_esc_leaves(scripted):
    terminal = scripted("right", "right", "r", "right", "esc", "right", "right")
    score, show = a_game(terminal, turns=True)
    assert score.steps == 3 and show.ages.tolist() == [1]


def test_ctrl_c_leaves_with_the_score(scripted):
    assert a_game(scripted("right", "^C", "right"), turns=True)[0] == ([], 1)
    assert a_game(scripted("right", 0.35, "^C", 5), turns=False)[0].steps in (3, 4)


def test_time_is_up(scripted):
    terminal = scripted("space", 6.0)
    score, show = a_game(terminal, turns=False)
    assert score.returns == [0.0] and show.ages.tolist() == [40] and terminal.shows("time is up: return 0 in 40 steps")


def test_without_rest_the_last_action_stays(scripted):
    snake = find("snake")
    terminal = scripted("up", 0.45)
    score, show = a_game(terminal, snake, turns=False)
    assert show._world.lanes.state[:2, 0].tolist() == [5 - score.steps, 5] and score.steps >= 3
    assert terminal.shows("up")


def test_pushes(scripted):
    score, show = a_game(scripted("left", 0.35), PUSH, turns=False)
    assert score.steps == 3 and show.action[:, 0].tolist() in ([-1.0, 0.0], [0.0, 0.0])
    score, show = a_game(scripted("right", "up", 0.15), PUSH, turns=False)
    assert show.action[:, 0].tolist() == [1.0, 1.0]


def test_a_board_is_played_with_a_cursor(scripted):
    points = tuple(f"{column}{row}" for row in range(5, 0, -1) for column in "abcde")
    env = replace(WALK, action=Discrete(26), legal=None, actions=(*points, "pass"))
    terminal = scripted("up", "left", "space", "x")
    score, show = a_game(terminal, env, turns=True)
    assert score.steps == 2 and terminal.showed("b4   arrows move, space plays, x passes") and terminal.shows("pass") and show.action.tolist() == [[25]]
    assert waits(env)


def test_keys_of_ones_own_play_on_a_board(scripted):
    points = tuple(f"{column}{row}" for row in range(5, 0, -1) for column in "abcde")
    env = replace(WALK, action=Discrete(25), legal=None, actions=points)
    terminal = scripted("up", "z", "right", "?", "q")
    score, show = a_game(terminal, env, turns=True, keys="z=b5,right=e1")
    assert score.steps == 2 and show.action.tolist() == [[24]] and terminal.showed("c4   arrows move") and terminal.showed("   b5") and terminal.showed("   e1")
    assert terminal.showed("z".ljust(13) + "b5")


def test_actions_without_keys_are_typed(scripted):
    env = replace(WALK, action=Discrete(23), legal=None, actions=())
    terminal = scripted("1", "x", "2", "3", "backspace", "enter", "enter", "9", "9", "enter")
    score, show = a_game(terminal, env, turns=True)
    assert score.steps == 1 and show.action.tolist() == [[12]] and terminal.shows("99 is no action: 0 to 22")
    assert terminal.showed("action 123_")


def test_without_a_picture_there_are_numbers(scripted):
    terminal = scripted("right", "right")
    a_game(terminal, replace(WALK, shade=None), turns=True)
    assert terminal.showed("        0") and terminal._screen.display[0].strip() == "2"
    long = scripted("up", columns=40, lines=10)
    a_game(long, replace(find("snake"), shade=None), turns=True)
    assert long.shows("more numbers")


def test_the_picture_is_what_the_environment_draws_and_fits(scripted):
    terminal = scripted("right", "right", columns=60, lines=20)
    a_game(terminal, turns=True)
    # 18 lines of two pixels: a square of 36, in the middle.
    pixels = colours_on(terminal._screen, 36, 18, 1, 13)
    assert pixels == [["ff0000" if int((x + 0.5) / 36 * 5) == 2 else "0000ff" for x in range(36)]] * 36
    assert all(terminal._screen.buffer[3][x].bg == "default" for x in (0, 11, 48, 59))


def test_another_size_is_drawn_anew(scripted, monkeypatch):
    terminal = scripted(1.0, "right", 1.0)
    original = terminal.key

    def key(timeout_s):
        if terminal.now > 100.5 and terminal.size == (60, 20):
            terminal.size = (30, 10)
            terminal._screen.resize(10, 30)
        return original(timeout_s)

    terminal.key = key
    a_game(terminal, turns=True)
    assert len(colours_on(terminal._screen, 16, 8, 1, 8)) == 16 and "\x1b[2J" in "".join(terminal.written[1:])


def test_nothing_is_sent_while_nothing_changes(scripted):
    terminal = scripted(60)
    a_game(terminal, turns=True)
    assert len(terminal.written) == 1
    paused = scripted("space", 0.5, "p", 60)
    a_game(paused, turns=False)
    assert len(paused.written) < 12


def test_which_games_wait():
    assert [name for name in names() if waits(find(name))] == ["g2048", "go"]
    assert not waits(WALK) and waits(replace(WALK, turns=True)) and not waits(COUNT)
    assert waits(replace(COUNT, action=Discrete(23))) and waits(replace(COUNT, action=Discrete(82)))
    assert rate_of(None) == play.USUAL_RATE and rate_of(4 / 60) == pytest.approx(15) and rate_of(0.001) == play.MOST_RATE


# A POLICY THAT IS WATCHED


def watched(terminal, env, *, episodes=3, fps=20.0, greedy=True):
    show = Show(env, env.Params(), seed=1)
    policy = Policy(env, mlp.Config(hidden=(8,)), seed=2, device=torch.device("cpu"), normalize=False)
    return viewer.spectate(show, Performer(show, policy, greedy=greedy), terminal, title="a run", episodes=episodes, fps=fps)


def test_watching_ends_after_so_many_episodes(scripted):
    terminal = scripted(600, columns=100)
    seen = watched(terminal, find("cartpole"))
    assert len(seen.returns) == 3 and seen.steps == sum(seen.returns) and 100 < terminal.now < 690
    assert terminal.showed("episode 1 of 3   step 0   return 0   action -") and terminal.showed("episode 3 of 3") and terminal.showed("mean of 2: ")
    assert terminal.shows("a run   space waits, q leaves")
    assert any(f"step {int(seen.returns[0])}   return {seen.returns[0]:.3g}" in line for display in terminal.seen for line in display), "the end is seen"


@pytest.mark.parametrize("key", ["q", "esc", "^C"])
def test_watching_ends_when_somebody_has_seen_enough(scripted, key):
    seen = watched(scripted(0.26, key, 600), find("cartpole"))
    assert seen.returns == [] and seen.steps == pytest.approx(5, abs=1)


def test_watching_waits(scripted):
    terminal = scripted(0.26, "space", 30, "space", 0.26, "q")
    seen = watched(terminal, find("cartpole"))
    assert terminal.showed("waiting: space goes on") and seen.steps == pytest.approx(12, abs=2)


def test_watching_keeps_the_environments_pace(scripted):
    seen = watched(scripted(1.01, "q"), find("pendulum"), fps=None)  # 0.05 s a step
    assert seen.steps == pytest.approx(20, abs=1)
    fast = scripted(1.01, "q")
    assert watched(fast, find("swingup"), fps=None).steps == pytest.approx(60, abs=4) and len(fast.seen) < 40, "two steps a picture"


# THE TERMINAL IS PUT BACK

PROGRAM = """
import sys, time, os
sys.path.insert(0, {home!r})
from operant.play.console import Console, TerminalGoneError
try:
    with Console() as terminal:
        terminal.write("READY")
        while (key := terminal.key(None)) != "q":
            terminal.write(f"<{{key}}>")
            if key == "x":
                raise RuntimeError("broken")
except KeyboardInterrupt:
    sys.exit(9)
except TerminalGoneError:
    sys.exit(129)
"""


def program():
    return [sys.executable, "-S", "-c", PROGRAM.format(home=str(BENCHES.parent))]


def modes(terminal):
    """Whether lines are collected, shown as they are typed, and Ctrl-Z suspends."""
    found = termios.tcgetattr(terminal.descriptor)
    return bool(found[3] & termios.ICANON), bool(found[3] & termios.ECHO), found[6][termios.VSUSP]


@pytest.mark.parametrize(
    ("end", "code"),
    [("q", 0), ("x", 1), ("\x03", 9), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)  # fmt: skip
def test_the_terminal_is_put_back(tmp_path, end, code):
    with Terminal(program(), tmp_path, columns=60, rows=20) as terminal:
        before = modes(terminal)
        assert terminal.read(PATIENCE_S, until=lambda: b"READY" in terminal.output)
        assert modes(terminal)[:2] == (False, False) and modes(terminal)[2] == b"\0"
        assert b"\x1b[?1049h\x1b[?25l" in terminal.output
        terminal.press("\x1b[A w")
        assert terminal.read(PATIENCE_S, until=lambda: b"<up><space><w>" in terminal.output)
        terminal.press("\x1b")
        assert terminal.read(PATIENCE_S, until=lambda: b"<esc>" in terminal.output)
        if isinstance(end, str):
            terminal.press(end)
        else:
            os.kill(terminal.pid, end)
        assert terminal.read(PATIENCE_S, until=lambda: b"\x1b[?1049l" in terminal.output)
        assert terminal.wait(PATIENCE_S) == code
        assert modes(terminal) == before == (True, True, b"\x1a")
        assert bytes(terminal.output).endswith(b"\x1b[0m\x1b[?25h\x1b[?1049l") == (end != "x"), "an error's words come after"


FORGETTING = """
import fcntl, struct, sys, termios, time
sys.path.insert(0, {home!r})
from operant.play.console import Console
with Console() as terminal:
    terminal.write("READY")
    terminal.write(f"<{{terminal.key(None)}}>")
    terminal.forget()
    terminal.write("AGAIN")
    while struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, bytes(4)))[0] < 2:
        time.sleep(0.01)
    terminal.forget()
    terminal.write("LAST")
    while (key := terminal.key(None)) != "q":
        terminal.write(f"<{{key}}>")
"""


def test_keys_are_forgotten_whether_they_were_read_or_not(tmp_path):
    with Terminal([sys.executable, "-S", "-c", FORGETTING.format(home=str(BENCHES.parent))], tmp_path) as terminal:
        for wait, keys in (("READY", "abq"), ("AGAIN", "cq"), ("LAST", "dq")):
            assert terminal.read(PATIENCE_S, until=lambda wait=wait: wait.encode() in terminal.output), wait
            terminal.press(keys)
        assert terminal.wait(PATIENCE_S) == 0
        assert b"<a>AGAINLAST<d>" in terminal.output


def test_a_terminal_that_goes_away_ends_the_program(tmp_path):
    with Terminal(program(), tmp_path) as terminal:
        assert terminal.read(PATIENCE_S, until=lambda: b"READY" in terminal.output)
        terminal.vanish()
        assert terminal.wait(PATIENCE_S) == 129


def test_a_terminal_that_is_none(tmp_path):
    done = subprocess.run(program(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1 and b"\x1b[?1049h" not in done.stdout


# THE COMMANDS


def operant(place, *words, **how):
    return Terminal([sys.executable, "-m", "operant.cli", *map(str, words)], place, environment={"XDG_STATE_HOME": str(place / "state")}, **how)


def test_play_in_a_terminal(tmp_path):
    with operant(tmp_path, "play", "CartPole-v1", "--seed", "1", "--param", "gravity=3.7", columns=70, rows=24) as terminal:
        before = modes(terminal)
        assert terminal.read(PATIENCE_S, until=lambda: terminal.shows("starts it")), "\n".join(terminal.screen())
        terminal.press("?")
        assert terminal.read(PATIENCE_S, until=lambda: terminal.shows("a new game")), "\n".join(terminal.screen())
        terminal.press("?")
        terminal.press("\x1b[C")
        assert terminal.read(PATIENCE_S, until=lambda: terminal.shows("the end: return ")), "\n".join(terminal.screen())
        terminal.press("r")
        assert terminal.read(PATIENCE_S, until=lambda: terminal.shows("starts it"))
        terminal.press("q")
        assert terminal.wait(PATIENCE_S) == 0 and modes(terminal) == before
        last = terminal.text().decode().rstrip().splitlines()[-1]
        assert "cartpole  1 episode  return " in last
        assert b"Traceback" not in terminal.output


@pytest.mark.soak
def test_a_file_can_be_played_and_sigterm_puts_the_terminal_back(tmp_path):
    (tmp_path / "mine.py").write_text((Path(find("pendulum").step.py_func.__code__.co_filename)).read_text())
    with operant(tmp_path, "play", "mine.py", columns=60, rows=20) as terminal:
        assert terminal.read(PATIENCE_S, until=lambda: terminal.shows("starts it")), "\n".join(terminal.screen())
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait(PATIENCE_S) == 143 and modes(terminal)[:2] == (True, True)
        assert b"\x1b[?1049l" in terminal.output and b"Traceback" not in terminal.output


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """`operant WORDS` in this process, in a folder of its own; where `terminal` is set, it seems to have one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OPERANT_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*words, terminal=True):
        if terminal:
            monkeypatch.setattr(console, "require", lambda what: None)
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["operant", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return SimpleNamespace(code=ended.value.code or 0, out=out, err=err)

    return call


def test_eval_shows_a_run_in_the_terminal(here, tmp_path):
    small = ("run.threads=1", "env.lanes=32", "algo.horizon=16", "run.steps=512", "eval.episodes=4")
    assert here("train", "cartpole", "--inline", "--name", "small", "--device", "cpu", *small).code == 0
    with operant(tmp_path, "eval", "small", "--render", "term", "--episodes", "2", "--fps", "50", columns=70, rows=24) as terminal:
        assert terminal.read(PATIENCE_S, until=lambda: terminal.shows("episode 1 of 2")), "\n".join(terminal.screen())
        assert terminal.shows("small  cartpole  checkpoint 512  greedy")
        assert terminal.wait(PATIENCE_S) == 0 and modes(terminal)[:2] == (True, True)
        watched = terminal.text().decode().rstrip().splitlines()[-1]
        assert b"Traceback" not in terminal.output
    played = json.loads(here("eval", "small", "--episodes", "1", "--greedy", "--json").out)
    assert f"2 episodes  return {played['mean']:g}, " in watched, "the very episodes of eval"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("play nosuch", 2, "unknown environment 'nosuch'"),
        ("play nosuch.py", 3, "there is no environment file 'nosuch.py'"),
        ("play ~nobodyatall/my_env.py", 3, "there is no environment file '~nobodyatall/my_env.py'"),
        (f"play {'x' * 300}.py", 3, "there is no environment file 'xxx"),
        ("play gravity=3", 2, "constants are given as --param gravity=3"),
        ("play cartpole --param gravity", 2, "it must be KEY=VALUE"),
        ("play cartpole --param gravty=3", 2, "did you mean 'env.params.gravity'?"),
        ("play cartpole --param gravity=heavy", 2, "env.params.gravity"),
        ("play cartpole --param mass_cart=0", 2, "env.params.mass_cart: input should be from 0.001 to 1_000 (got 0)"),
        ("play cartpole --fps 0", 2, "--fps is 0; it must be between 0.1 and 120"),
        ("play cartpole --size 1", 2, "--size is 1"),
        ("play cartpole --keys left=7", 2, "'7' is no action"),
        ("play go --clock", 2, "go has more actions than keys"),
        ("play", 2, "Missing argument 'ENV'"),
        ("eval nosuch --render term", 3, "no run is called 'nosuch'"),
        ("eval nosuch --render gif", 2, "--render is 'gif'; it must be none or term. For a file: operant render nosuch --out agent.gif"),
        ("eval nosuch --render term --json", 2, "leave --json out"),
        ("eval nosuch --render term --greedy --sampled", 2, "shows one policy"),
        ("eval nosuch --render term --episodes 0", 2, "--episodes is 0"),
        ("eval nosuch --fps 10", 2, "--fps is of --render term"),
    ],
)
def test_what_a_user_gets_wrong_has_a_sentence_and_a_code(here, line, code, said):
    done = here(*line.split())
    assert (done.code, done.out) == (code, "") and said in done.err, done.err


@pytest.mark.parametrize("line", ["play cartpole", "eval x --render term"])
def test_without_a_terminal_a_sentence(here, line):
    done = here(*line.split(), terminal=False)
    assert done.code == 2 and "needs a terminal, as input and output" in done.err


def test_a_terminal_that_is_too_small(monkeypatch):
    monkeypatch.setattr(console, "size", lambda: (20, 5))
    monkeypatch.setenv("TERM", "xterm")
    tty = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(sys, "__stdin__", tty)
    monkeypatch.setattr(sys, "__stdout__", tty)
    with pytest.raises(UsageError, match=r"terminal is 20×5; operant play needs 24×8"):
        console.require("operant play")
    monkeypatch.setattr(console, "size", lambda: (24, 8))
    console.require("operant play")
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(UsageError, match="needs a terminal"):
        console.require("operant play")

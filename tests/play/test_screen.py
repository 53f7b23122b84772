"""The game screen: keys and pictures through Textual's Pilot; the commands in a pseudo-terminal, which is always
restored.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import termios
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.color import Color
from waiting import DEADLINE_S
from walk import WALK

from operant.envs import find
from operant.errors import UsageError
from operant.play import screen
from operant.play.game import Game
from operant.play.keys import KeyBindings
from operant.play.screen import GameScreen, Picture
from operant.play.stage import Stage
from operant.play.view import View

BENCHES = Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))
from terminal import Terminal  # noqa: E402

pytest.importorskip("pyte")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals as Linux has them"),
    pytest.mark.usefixtures("one_thread"),
]


# THE APP


def walk_screen(*, turns=True, env=WALK):
    stage = Stage(env, env.Params(), seed=1)
    game = Game(stage, KeyBindings(env), turns=turns, rate=20.0, title="walk")
    return GameScreen(game, View(stage)), game, stage


def piloted(app, script, size=(60, 20)):
    """Run a script of `await pilot...` on an app."""

    async def run():
        async with app.run_test(size=size) as pilot:
            await pilot.pause(0.1)
            await script(pilot)

    asyncio.run(run())


def line(app, name):
    return str(app.query_one(name).render())


def backgrounds(app, y):
    """Background colours of the cells of a line of the picture."""
    return [segment.style.bgcolor for segment in app.query_one(Picture).render_line(y) for _ in segment.text]


def test_keys_move_and_the_picture_follows():
    app, game, stage = walk_screen()
    red, blue = Color.from_rgb(255, 0, 0), Color.from_rgb(0, 0, 255)

    async def script(pilot):
        assert backgrounds(app, 0)[11:14] == [None, red, red] and backgrounds(app, 17)[46:49] == [blue, blue, None]
        await pilot.press("right", "d", "2")
        await pilot.pause()
        assert line(app, "#score").startswith("return 6   step 3   right") and stage.observation.item() == 3.0
        assert backgrounds(app, 0)[12:48].count(red) == 7 and backgrounds(app, 0)[12] == blue
        await pilot.press("question_mark")
        await pilot.pause()
        assert "restart" in line(app, "#box") and app.query_one("#box").display
        await pilot.press("x")
        assert not app.query_one("#box").display
        await pilot.press("tab", "f1", "é", "space", "escape")

    piloted(app, script)
    assert game.score == ([], 4) and app.return_code == 0, "space is rest; what is not a key of a game does nothing"


def test_ctrl_c_leaves_with_the_score():
    app, game, _ = walk_screen()
    piloted(app, lambda pilot: pilot.press("right", "ctrl+c", "right"))
    assert game.score == ([], 1) and not app.is_running


def test_against_the_clock_it_goes_on_by_itself():
    app, game, _ = walk_screen(turns=False)

    async def script(pilot):
        await pilot.pause(0.2)
        assert game.score.steps == 0 and "to start" in line(app, "#box")
        await pilot.press("space")
        for _ in range(200):
            await pilot.pause(0.05)
            if game.score.steps > 3:
                break
        await pilot.press("p")
        steps = game.score.steps
        assert steps > 3 and "paused" in line(app, "#box")
        await pilot.pause(0.2)
        assert game.score.steps == steps

    piloted(app, script)


def test_another_size_is_drawn_anew():
    app, game, _ = walk_screen()

    async def script(pilot):
        await pilot.resize_terminal(30, 10)
        await pilot.pause(0.1)
        assert [colour is not None for colour in backgrounds(app, 0)] == [False] * 7 + [True] * 16 + [False] * 7
        await pilot.resize_terminal(4, 3)
        await pilot.pause(0.1)
        await pilot.press("right")

    piloted(app, script)
    assert game.score.steps == 1, "however small, it goes on"


@pytest.mark.parametrize("env", [WALK, replace(WALK, pixel_shader=None)])
def test_without_colours_there_are_none(monkeypatch, env):
    monkeypatch.setenv("NO_COLOR", "1")
    app, _, _ = walk_screen(env=env)

    async def script(pilot):
        styles = {
            segment.style for y in range(18) for segment in app.query_one(Picture).render_line(y) if segment.style
        }
        assert all(style.color is None and style.bgcolor is None for style in styles)

    piloted(app, script)


@pytest.fixture
def terminal_of(monkeypatch):
    """Fake stdin, stdout and stderr of a terminal with a size."""

    def make(columns, lines, term="xterm"):
        stream = SimpleNamespace(isatty=lambda: True, closed=False, fileno=lambda: 1)
        for name in ("__stdin__", "__stdout__", "__stderr__"):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((columns, lines)))
        monkeypatch.setenv("TERM", term)

    return make


def test_a_terminal_that_is_too_small(terminal_of):
    terminal_of(20, 5)
    with pytest.raises(UsageError, match=r"terminal is 20×5; operant play needs 24×8"):
        screen.require("operant play")
    terminal_of(24, 8)
    screen.require("operant play")
    terminal_of(24, 8, term="dumb")
    with pytest.raises(UsageError, match="needs a terminal"):
        screen.require("operant play")


# IN A TERMINAL


def modes(terminal):
    """Whether canonical mode, echo and signals are on."""
    flags = termios.tcgetattr(terminal.descriptor)[3]
    return bool(flags & termios.ICANON), bool(flags & termios.ECHO), bool(flags & termios.ISIG)


def operant(place, *words, **how):
    return Terminal(
        [sys.executable, "-m", "operant.cli", *map(str, words)],
        place,
        environment={"XDG_STATE_HOME": str(place / "state")},
        **how,
    )


def see(terminal, words):
    assert terminal.read(DEADLINE_S, until=lambda: terminal.shows(words)), "\n".join(terminal.screen())


@pytest.mark.slow
def test_play_in_a_terminal(tmp_path):
    with operant(
        tmp_path, "play", "CartPole-v1", "--seed", "1", "--param", "gravity=3.7", columns=70, rows=24
    ) as terminal:
        before = modes(terminal)
        terminal.press("qq")  # typed blindly: dropped
        see(terminal, "to start")
        assert modes(terminal) == (False, False, False) and b"\x1b[?1049h" in terminal.output
        terminal.press("?")
        see(terminal, "restart")
        terminal.press("?")
        terminal.press("\x1b[C")
        see(terminal, "game over: return ")
        terminal.press("r")
        see(terminal, "to start")
        terminal.press("q")
        assert terminal.wait(DEADLINE_S) == 0 and modes(terminal) == before == (True, True, True)
        last = terminal.text().decode().rstrip().splitlines()[-1]
        assert "cartpole  1 episode  return " in last
        assert (
            b"\x1b[?1049l" in terminal.output
            and b"\x1b[?25h" in terminal.output
            and b"Traceback" not in terminal.output
        )


@pytest.mark.slow
def test_a_game_is_suspended_and_goes_on_paused(tmp_path):
    with operant(tmp_path, "play", "cartpole", "--fps", "2", columns=60, rows=20) as terminal:
        see(terminal, "to start")
        terminal.press(" ")
        see(terminal, "step 1 ")
        terminal.press("\x1a")
        process = psutil.Process(terminal.pid)
        assert terminal.read(DEADLINE_S, until=lambda: process.status() == psutil.STATUS_STOPPED)
        assert modes(terminal) == (True, True, True) and b"\x1b[?1049l" in terminal.output
        terminal.resize(60, 20)  # forgets what was written
        process.resume()
        see(terminal, "paused: press any key")
        assert b"\x1b[?1049h" in terminal.output
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait(DEADLINE_S) == 143 and modes(terminal) == (True, True, True)
        assert b"\x1b[?1049l" in terminal.output and b"Traceback" not in terminal.output


@pytest.mark.slow
def test_a_terminal_that_goes_away_ends_the_program(tmp_path):
    with operant(tmp_path, "play", "cartpole", columns=60, rows=20) as terminal:
        see(terminal, "to start")
        terminal.vanish()
        assert terminal.wait(DEADLINE_S) == 129


@pytest.mark.soak
def test_a_file_can_be_played_without_colours(tmp_path):
    (tmp_path / "mine.py").write_text((Path(find("pendulum").step.py_func.__code__.co_filename)).read_text())
    how = {"XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}
    with Terminal(
        [sys.executable, "-m", "operant.cli", "play", "mine.py"], tmp_path, columns=60, rows=20, environment=how
    ) as terminal:
        see(terminal, "to start")
        assert terminal.output.index(b"loading mine.py") < terminal.output.index(b"compiling mine")
        assert b"38;2;" not in terminal.output and b"48;2;" not in terminal.output
        os.kill(terminal.pid, signal.SIGHUP)
        assert terminal.wait(DEADLINE_S) == 129 and modes(terminal) == (True, True, True)


@pytest.mark.slow
def test_eval_shows_a_run_in_the_terminal(here, tmp_path):
    small = ("run.threads=1", "env.lanes=32", "algo.horizon=16", "run.steps=512", "eval.episodes=4")
    assert here("train", "cartpole", "--inline", "--name", "small", "--device", "cpu", *small).code == 0
    with operant(
        tmp_path, "eval", "small", "--render", "term", "--episodes", "2", "--fps", "50", columns=70, rows=24
    ) as terminal:
        see(terminal, "episode 1 of 2")
        assert terminal.shows("small  cartpole  checkpoint 512  greedy")
        assert terminal.wait(DEADLINE_S) == 0 and modes(terminal) == (True, True, True)
        watched = terminal.text().decode().rstrip().splitlines()[-1]
        assert terminal.output.index(b"loading small") < terminal.output.index(b"compiling cartpole")
        assert b"Traceback" not in terminal.output
    played = json.loads(here("eval", "small", "--episodes", "1", "--greedy", "--json").out)
    assert f"2 episodes  return {played['mean']:g}, " in watched, "the very episodes of eval"


@pytest.mark.slow
def test_eval_shows_a_policy_of_the_zoo_in_the_episode_that_it_evaluates(here, tmp_path):
    name = "zoo:mountaincar_continuous"
    words = ("eval", name, "--render", "term", "--episodes", "1", "--fps", "120")
    with operant(tmp_path, *words, columns=70, rows=24) as terminal:
        see(terminal, "episode 1 of 1")
        assert terminal.wait(DEADLINE_S) == 0 and b"Traceback" not in terminal.output
        watched = terminal.text().decode().rstrip().splitlines()[-1]
    played = json.loads(here("eval", name, "--episodes", "1", "--greedy", "--json").out)
    assert float(watched.split("return ")[1].split()[0]) == pytest.approx(played["mean"], abs=0.1)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("play nosuch", 2, "unknown environment 'nosuch'"),
        ("play nosuch.py", 3, "there is no environment file 'nosuch.py'"),
        ("play ~nobodyatall/my_env.py", 3, "there is no environment file '~nobodyatall/my_env.py'"),
        (f"play {'x' * 300}.py", 3, "there is no environment file 'xxx"),
        ("play gravity=3", 2, "give parameters as --param gravity=3"),
        ("play cartpole --param gravity", 2, "it must be KEY=VALUE"),
        ("play cartpole --param gravty=3", 2, "did you mean 'env.params.gravity'?"),
        ("play cartpole --param gravity=heavy", 2, "env.params.gravity"),
        ("play cartpole --param mass_cart=0", 2, "env.params.mass_cart: input should be from 0.001 to 1_000 (got 0)"),
        ("play cartpole --fps 0", 2, "--fps is 0; it must be between 0.1 and 120"),
        ("play cartpole --size 1", 2, "--size is 1"),
        ("play cartpole --keys left=7", 2, "'7' is not an action"),
        ("play go --clock", 2, "go has more actions than keys"),
        ("play", 2, "Missing argument 'ENV'"),
        ("eval nosuch --render term", 3, "no run named 'nosuch'"),
        (
            "eval nosuch --render gif",
            2,
            "--render is 'gif'; it must be none or term. For a file: operant render nosuch --out agent.gif",
        ),
        ("eval nosuch --render term --json", 2, "remove --json"),
        ("eval nosuch --render term --greedy --sampled", 2, "shows one policy"),
        ("eval nosuch --render term --episodes 0", 2, "--episodes is 0"),
        ("eval nosuch --fps 10", 2, "--fps needs --render term"),
    ],
)
def test_what_a_user_gets_wrong_has_a_sentence_and_a_code(here, monkeypatch, line, code, said):
    monkeypatch.setattr(screen, "require", lambda what: None)  # as in a terminal
    done = here(*line.split())
    assert (done.code, done.out) == (code, "") and said in done.err, done.err


@pytest.mark.parametrize("line", ["play cartpole", "eval x --render term"])
def test_without_a_terminal_a_sentence(here, line):
    done = here(*line.split())
    assert done.code == 2 and "needs a terminal as input and output" in done.err

"""Hostile text wherever a run can carry text: no control byte of it reaches a terminal, and nothing crashes.

The corpus, the runs that carry it and the grammar of what may be sent are in tests/hostile.py. Plain runs put all of the corpus into one run of each ending;
under soak every string stands alone, first where there is little room.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from hostile import CORPUS, offences, raw

from operant import runs
from operant.metricsfile import Reader
from operant.text import cells, safe

BENCHES = Path(__file__).resolve().parent.parent / "benches"
sys.path.insert(0, str(BENCHES))

PATIENCE_S = 30.0
OPERANT = [sys.executable, "-m", "operant.cli"]
CODES = {0, 1, 3, 5, 7, 130, 137}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Environment variables of a machine whose only runs are hostile ones, and those runs."""
    folder = tmp_path_factory.mktemp("hostile")
    variables = {"XDG_STATE_HOME": str(folder / "state"), "OPERANT_RUNS": str(folder / "runs"), "PYTHONUTF8": "1"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    yield folder, hostile.dead_runs(folder / "runs", CORPUS, hosts=CORPUS[:3])
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def said(*words: str | bytes, codes: set[int] = CODES) -> bytes:
    """All that a command prints, which must be harmless."""
    done = subprocess.run([*OPERANT, *words], capture_output=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    output = done.stdout + done.stderr
    assert offences(output, moves=False) == [], words
    assert done.returncode in codes and b"Traceback" not in output, (words, done.returncode, output[-2000:])
    return output


# THE CORPUS AND THE GRAMMAR


def test_the_corpus_is_large_and_every_kind_of_harm_is_in_it():
    assert len(CORPUS) >= 200
    together = b"\n".join(map(raw, CORPUS))
    for harm in (
        b"\x1b[",
        b"\x1b]52;",
        b"\x1b]0;",
        b"\x1bP",
        b"\x1b_",
        b"\xc2\x9b",
        b"\x9b",
        b"[/foo]",
        b"[@click=",
        b"[link=",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
    ):
        assert harm in together
    for harm in "\u202e\u2066\u200b\u0301\ufe0f":
        assert raw(harm) in together
    assert max(map(len, CORPUS)) >= 10_000


@pytest.mark.parametrize(
    "output",
    [b"\x1b]0;x\x07", b"\x1b]52;c;aGk=\x07", b"\x1bP0q\x1b\\", b"\x1b_x\x1b\\", b"\xc2\x9b31m", b"\x9b31m", b"\x07", b"a\x00b", b"\x1b[5n", b"\x1b[?1003h",
     b"\x1bc", "\u202e".encode(), "\u200b".encode(), "\ufe0f".encode(), ("a" + "\u0301" * 9).encode(), b"\x1b[", b"\x08", b"\x1b[38:2::1:1:1m"],
)  # fmt: skip
def test_the_grammar_refuses(output):
    assert offences(b"before " + output + b" after")


def test_the_grammar_lets_a_screen_pass():
    assert not offences("\x1b[?1049h\x1b[H\x1b[1;31m● RUNNING\x1b[0m\x1b[12;40H⣀⡠ 訓練 é e\u0301\x1b[?2026$p".encode())
    assert offences(b"\x1b[31mred\x1b[0m", moves=False)


# THE FILTER


@pytest.mark.parametrize("limit", [1, 2, 20, 400])
def test_safe_leaves_nothing_hostile(limit):
    for text in (*CORPUS, *(f"{one}{other}" for one, other in itertools.pairwise(CORPUS))):
        for made in (safe(text, limit), safe(raw(text), limit), safe(text, limit, lines=True)):
            assert offences(made.encode(), moves=False) == [], repr(text)[:80]
            assert all(sum(map(cells, line)) <= limit for line in made.split("\n"))


# WITHOUT A SCREEN


def test_every_run_has_the_state_it_was_left_in(place):
    """So that what follows is about runs that are read, not about files that are refused."""
    words = [runs.state(runs.load(run.path)).word for run in place[1]]
    assert words == ["finished", "stopped", "failed", "diverged", "gpu_fault", "oom", *["crashed"] * 3, *["remote"] * 3, "crashed", "unreadable"]
    with Reader(place[1][0].metrics_path) as reader:
        assert len(reader.metrics) == len(CORPUS) + 5
        assert len(reader.events(0)) == len(CORPUS)


def test_lists_of_runs(place):
    assert said("runs").count(b"\n") >= len(place[1])
    listed = json.loads(said("runs", "--json"))
    assert len(listed) == len(place[1])


@pytest.mark.parametrize("command", ["show", "logs", "stop", "pause", "unpause", "checkpoint", "wait", "monitor --once", "monitor --once --ascii", "monitor"])
def test_commands_on_hostile_runs(place, command):
    for index, run in enumerate(place[1]):
        if command in ("show", "logs") or index in (0, 2, 6, 12, 13):  # the others differ by their words alone
            said(*command.split(), str(run.path))


def test_json_of_hostile_runs_has_every_field(place):
    for run in place[1][:3]:
        assert json.loads(said("show", run.id, "--json"))["id"] == run.id


def test_names_of_runs_that_do_not_exist(place):
    for text in (*CORPUS[:400:80], "\x1b]0;x\x07", "[/foo]", "\u202e", "\x1b[31m" * 200):
        name = raw(text).replace(b"\0", b"")
        if name and not name.startswith(b"-"):
            said("show", name, codes={0, 2, 3})
            said("monitor", name, codes={2, 3})

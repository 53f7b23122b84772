"""Hostile text wherever a run can carry text: no control byte of it reaches a terminal, and nothing crashes.

The corpus, the runs that carry it and the grammar of what may be sent are in tests/hostile.py. Plain runs put all of
the corpus into one run of each ending; under soak every string stands alone, first where there is little room.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import hostile
import pytest
from hostile import CORPUS, offences, raw
from waiting import DEADLINE_S

from operant import cli, runs
from operant.runs.metrics import Reader
from operant.text import cells, safe

PACKAGE_PARENT = Path(runs.__file__).resolve().parents[2]
sys.path.insert(0, str(PACKAGE_PARENT / "benches"))
from terminal import Terminal  # noqa: E402

OPERANT = [sys.executable, "-m", "operant.cli"]
CODES = {0, 1, 3, 5, 7, 130, 137}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder whose only runs are hostile ones, on a machine that knows no others; and those runs."""
    folder = tmp_path_factory.mktemp("hostile")
    variables = {
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "OPERANT_RUNS": str(folder / "runs"),
    }
    variables |= {"PYTHONUTF8": "1", "PYTHONPATH": str(PACKAGE_PARENT)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    yield folder, hostile.dead_runs(folder / "runs", CORPUS, hosts=CORPUS[:3])
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def harmless(output: bytes, code: int, words: Iterable[object], codes: set[int]) -> bytes:
    assert offences(output) == [], words
    assert code in codes and b"Traceback" not in output, (words, code, output[-2000:])
    return output


@pytest.fixture
def say(monkeypatch, capsys):
    """All that a command prints, run in this process; it must be harmless."""

    def call(*words: object, codes: set[int] = CODES) -> bytes:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["operant", *map(os.fsdecode, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return harmless(
            "".join(capsys.readouterr()).encode("utf-8", "surrogatepass"), ended.value.code or 0, words, codes
        )

    return call


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
    [
        b"\x1b]0;x\x07",
        b"\x1b]52;c;aGk=\x07",
        b"\x1bP0q\x1b\\",
        b"\x1b_x\x1b\\",
        b"\xc2\x9b31m",
        b"\x9b31m",
        b"\x07",
        b"a\x00b",
        b"\x1b[5n",
        b"\x1b[?1003h",
        b"\x1bc",
        "\u202e".encode(),
        "\u200b".encode(),
        "\ufe0f".encode(),
        ("a" + "\u0301" * 9).encode(),
        b"\x1b[",
        b"\x08",
        b"\x1b[38:2::1:1:1m",
        b"\x1b[31m",
        b"\x1b[8m",
        b"\x1b[1;31;5m",
        b"\x1b[49;1H",
        b"\x1b[1;161H",
        b"\x1b[160C",
        b"\x1b[3A",
        b"\x1b[2J",
        b"\x1b[K",
        b"\r",
        b"\n",
        b"a\r\nb",
        b"\x1b[?25l",
        b"\x1b[?1049l",
        b"\x1b]22;wait\x07",
    ],
)
def test_the_grammar_refuses(output):
    screen = b"\x1b[?1049h\x1b[1;1Hbefore " + output + b" after\x1b[2;1H\x1b[?1049l"
    assert offences(screen, size=(160, 48)) and not offences(screen.replace(output, b""), size=(160, 48))
    assert offences(b"before " + output + b" after") or output in (b"\n",)


def test_the_grammar_lets_a_screen_pass():
    screen = (
        "\x1b[?1049h\x1b[?2026$p\x1b[1;1H\x1b[1;38;2;1;2;3m● RUNNING\x1b[0m\r\n\x1b[12;40H⣀⡠ 訓練 é "
        "e\u0301\x1b[4C·\x1b[1;1H\x1b[?1049lDetached.\r\n"
    )
    assert not offences(screen.encode(), size=(160, 48))
    assert offences(screen.encode()) and offences(b"\x1b[0mred")


# THE FILTER


@pytest.mark.parametrize("limit", [1, 2, 20, 400])
def test_safe_leaves_nothing_hostile(limit):
    for text in (*CORPUS, *(f"{one}{other}" for one, other in itertools.pairwise(CORPUS))):
        for made in (safe(text, limit), safe(raw(text), limit), safe(text, limit, lines=True)):
            assert offences(made.encode()) == [], repr(text)[:80]
            assert all(sum(map(cells, line)) <= limit for line in made.split("\n"))


# WITHOUT A SCREEN


def test_every_run_has_the_state_it_was_left_in(place):
    """Check that the runs of the corpus are read, not refused."""
    words = [runs.state(runs.load(run.path)).word for run in place[1]]
    assert words == [
        "finished",
        "stopped",
        "failed",
        "diverged",
        "gpu_fault",
        "oom",
        *["crashed"] * 3,
        *["remote"] * 3,
        "crashed",
        "unreadable",
    ]
    with Reader(place[1][0].metrics_path) as reader:
        assert len(reader.metrics) == len(CORPUS) + 5
        assert len(reader.events(0)) == len(CORPUS)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("show",), ("monitor", "--once"), ("logs",)])
def test_a_process_of_its_own(place, words):
    """All that follows runs in this process: the same, but for how Python opens its standard streams."""
    done = subprocess.run(
        [*OPERANT, *words, str(place[1][2].path)], capture_output=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL
    )
    assert harmless(done.stdout + done.stderr, done.returncode, words, CODES)


def test_lists_of_runs(place, say):
    assert say("runs").count(b"\n") >= len(place[1])
    listed = json.loads(say("runs", "--json"))
    assert len(listed) == len(place[1])


@pytest.mark.parametrize(
    "command",
    [
        "show",
        "logs",
        "stop",
        "pause",
        "unpause",
        "checkpoint",
        "wait",
        "monitor --once",
        "monitor --once --ascii",
        "monitor",
    ],
)
def test_commands_on_hostile_runs(place, say, command):
    few = {"monitor --once": (2, 13), "monitor --once --ascii": (2,), "wait": (0, 6), "show": range(14)}.get(
        command, (0, 2, 6, 13)
    )
    for index in few:  # the others differ by their words alone
        say(*command.split(), place[1][index].path)


def test_json_of_hostile_runs_has_every_field(place, say):
    for run in place[1][:3]:
        assert json.loads(say("show", run.id, "--json"))["id"] == run.id


def test_names_of_runs_that_do_not_exist(place, say):
    for text in (*CORPUS[:400:40], "\x1b]0;x\x07", "[/foo]", "\u202e", "\x1b[31m" * 200):
        name = raw(text).replace(b"\0", b"")
        if name and not name.startswith(b"-"):
            say("show", name, codes={0, 2, 3})
            say("monitor", name, codes={2, 3})


@pytest.mark.soak
def test_every_name_that_a_folder_can_have(place, say, tmp_path):
    folders = hostile.named_folders(tmp_path / "named", CORPUS)
    assert len(folders) > 300
    for folder in folders:
        for words in (("show",), ("logs",), ("monitor", "--once")):
            say(*words, os.fsencode(folder), codes={0, 1, 2, 3, 137})


# IN A TERMINAL

linux = pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals as Linux has them")
ESCAPE = "\x1b[27u"  # as a terminal with kitty's keyboard says it: no other key can be taken for a part of it
PASTED = "\x1b[200~" + "x\x9b2J\u202e\u200b\ufe0f[red]" + "\x1b[201~"
# which Textual takes for keys, one by one
PASTED_ESCAPES = "\x1b[200~" + "x\x1b]0;y\x07\x1b[31m\x9b2J\u202e\u200b[b]" + "\x1b[201~"
TOUR = (
    ("2", ""),
    ("\x1b[6~", ""),
    ("3", ""),
    ("4", ""),
    ("5", ""),
    ("\x1b[H", ""),
    ("\x1b[F", ""),
    ("6", ""),
    ("\x1b[6~", ""),
    ("?", "esc closes"),
    (ESCAPE, "!esc closes"),
    ("d", "esc closes"),
    (ESCAPE, "!esc closes"),
    ("1", ""),
    ("\t", ""),
    ("i", ""),
    ("\x1b[D", ""),
    (ESCAPE, ""),
    ("\r", ""),
    (ESCAPE, ""),
    (ESCAPE, ""),
    (ESCAPE, ""),
    ("/", "words separated by spaces"),
    (PASTED, "[red]"),
    (ESCAPE, "q Detach"),
    ("/", "words separated by spaces"),
    (PASTED_ESCAPES, "[b]"),
    (ESCAPE, "q Detach"),
    ("/", "words separated by spaces"),
    ("1?/*", ""),
    ("\r", "q Detach"),
    (" ", "FROZEN"),
    (" ", "!FROZEN"),
    ("t", ""),
    ("x", ""),
    ("s", ""),
    ("y", ""),
    ("r", "esc closes"),
    (ESCAPE, "!esc closes"),
    ("o", "esc closes"),
    ("\r\r\r", "!esc closes"),
    (ESCAPE, ""),
    ("o", ""),
    (":", "Search for commands"),
    (ESCAPE, "!Search for commands"),
)
"""Keys, and what is on the screen after them ("!": what is there no more; "": whatever they change). Dialogs are waited
for at any size.
"""
SHOWN = {
    "2": "0/",
    "3": "─ Agent ──────",
    "4": "GPU and process",
    "5": "─ Log " + "─" * 60,
    "6": "─ config.toml ─",
    "1": "─ Log ─",
    "i": "move the cursor",
}
"""Text on a large enough screen after a key."""


def wait_for(terminal: Terminal, words: str, *, there: bool = True) -> None:
    """Wait until the screen has these words, or no longer has them. It is read only when no output is pending: reading
    takes long.
    """

    def holds() -> bool:
        return not select.select([terminal.descriptor], [], [], 0)[0] and terminal.shows(words) is there

    assert terminal.read(DEADLINE_S, until=holds), (words, there, terminal.screen())


def walk(terminal: Terminal, steps: Iterable[tuple[str, str]]) -> None:
    """Press keys, and see that each did what it is there for."""
    for keys, words in steps:
        before = len(terminal.output)
        terminal.press(keys)
        if words:
            wait_for(terminal, words.removeprefix("!"), there=not words.startswith("!"))
        else:
            terminal.read(0.3, until=lambda before=before: len(terminal.output) > before)
            terminal.read(0.03)


def opened(run: runs.Run, folder: Path, columns: int, rows: int, *more: str) -> Terminal:
    terminal = Terminal([*OPERANT, "monitor", str(run.path), *more], folder, columns, rows)
    wait_for(terminal, run.id)
    terminal.press("\x1b[?2026;2$y")  # a terminal that can show a picture at once
    return terminal


def leave(terminal: Terminal, run: runs.Run) -> bytes:
    """Copy the run's id, go, and see that nothing hostile was sent but what copying is."""
    terminal.press("Y")
    wait_for(terminal, f"copied {run.id}")
    terminal.press("q")
    assert terminal.wait(DEADLINE_S) == 0, terminal.screen()
    output, copied = bytes(terminal.output), b"\x1b]52;c;" + base64.b64encode(run.id.encode()) + b"\x07"
    assert output.count(copied) == 1
    assert offences(output.replace(copied, b""), size=(terminal.columns, terminal.rows)) == []
    return output


@pytest.mark.slow
@linux
def test_every_page_and_dialog_of_a_run_that_failed(place):
    folder, made = place
    run = made[2]
    with opened(run, folder, 100, 30) as terminal:
        walk(terminal, [(keys, words or SHOWN.get(keys, "")) for keys, words in TOUR])
        leave(terminal, run)


@pytest.fixture
def living(place):
    """A trainer whose every word is hostile."""
    run = runs.create(place[0] / "living", "living-0001", "x", {})
    trainer = subprocess.Popen([sys.executable, hostile.__file__, str(run.path)])
    try:
        end = time.monotonic() + DEADLINE_S
        while runs.state(runs.load(run.path)).word != "running":
            assert trainer.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        yield run
        assert trainer.poll() is None, "the trainer has ended by itself"
    finally:
        trainer.kill()
        trainer.wait()


def answered(run: runs.Run) -> int:
    return len(list((run.path / "ctl" / "done").iterdir()))


@pytest.mark.slow
@linux
def test_a_living_trainer_that_answers(place, living):
    with opened(living, place[0], 80, 24) as terminal:
        for key, yes in (("P", "\r"), ("C", "y"), ("S", "y")):
            before = answered(living)
            walk(terminal, [(key, "─ Confirm ─"), (yes * 3, "!─ Confirm ─")])
            assert terminal.read(DEADLINE_S, until=lambda before=before: answered(living) > before)
        walk(
            terminal,
            [("1", living.id), ("5", "─ Log ──────"), ("\x1b[H", ""), ("\x1b[F", ""), ("6", "─ config.toml ─")],
        )
        walk(terminal, [("d", "esc closes"), (ESCAPE, "!esc closes"), ("3", "")])
        leave(terminal, living)


@linux
@pytest.mark.soak
@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
def test_every_name_of_a_metric_is_read_on_some_page(place, size):
    """Check that the corpus is on the visible screen."""
    folder, made = place
    seen: set[str] = set()
    with opened(made[0], folder, *size) as terminal:
        key, before = "2", []
        while before != (before := terminal.screen()):
            seen.update(index for line in before for index in re.findall(r"[╭┏][─━] (\d+)/", line))
            terminal.press(key)
            key, drawn = "\x1b[6~", -1
            while drawn != (drawn := len(terminal.output)):
                terminal.read(0.7)
        leave(terminal, made[0])
    assert seen == {str(index) for index in range(len(CORPUS))}


@linux
@pytest.mark.soak
@pytest.mark.parametrize("how", [(160, 48), (100, 30, "--theme", "light"), (80, 24, "--ascii"), (40, 12)], ids=str)
def test_every_page_of_every_run(place, living, how):
    folder, made = place
    for run in (*made, living):
        with opened(run, folder, *how) as terminal:
            walk(terminal, TOUR[:-2] if "--ascii" in how else TOUR)  # in ASCII there is no palette of Textual's
            leave(terminal, run)


@linux
@pytest.mark.soak
@pytest.mark.parametrize("kinds", [("remote",), ("crashed", "failed")], ids=" or ".join)
def test_every_string_alone(tmp_path, monkeypatch, kinds):
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_PARENT))
    made = [
        hostile.alone(tmp_path / "runs", f"alone-{index:04d}", text, kinds[index % len(kinds)])
        for index, text in enumerate(CORPUS)
    ]
    with opened(made[0], tmp_path, 80, 24, "--runs", str(tmp_path / "runs")) as terminal:
        for run in made:
            walk(
                terminal,
                [
                    ("r", "─ Runs ─"),
                    (run.id, f"/ {run.id}"),
                    ("\r", "!─ Runs ─"),
                    ("2", run.id),
                    ("4", ""),
                    ("5", ""),
                    ("6", ""),
                ],
            )
            walk(terminal, [("d", "esc closes"), (ESCAPE, "!esc closes"), ("1", "")])
        leave(terminal, made[-1])


@linux
@pytest.mark.soak
def test_every_string_is_pasted(place):
    folder, made = place
    with opened(made[2], folder, 100, 30) as terminal:
        for text in CORPUS:
            if b"\x1b[201~" not in raw(text):
                # of more escapes Textual's parser takes a minute
                pasted = "\x1b[200~" + raw(text[:500]).decode("utf-8", "replace") + "\x1b[201~"
                walk(terminal, [("/", "words separated by spaces"), (pasted, ""), (ESCAPE, "q Detach")])
        leave(terminal, made[2])


# WHAT IS PLAYED AND RESUMED

NAME = "\x1b]0;owned\x07a\x9b31m\u202e\x1b[31m訓"
WALK = '''
"""A line to walk on."""
from typing import NamedTuple
from numpy import float32
from operant.envs import Box, Discrete, Env, device

class Params(NamedTuple):
    pass

@device
def reset(s, p, key):
    s[0] = float32(0.0)

@device
def step(s, action, p, key, tally):
    s[0] += float32(1.0)
    return float32(1.0), False

@device
def observe(s, obs, p):
    obs[0] = s[0] * float32(0.01)

ENV = Env(Params, 1, observation=Box(1), action=Discrete(2), time_limit=9, reset=reset, step=step, observe=observe)
'''


def resign(checkpoint: Path, name: str, content: bytes) -> None:
    """A checkpoint with another file, and a manifest that vouches for it."""
    from operant.runs import atomic

    with atomic.opened(checkpoint.parent) as root:
        fields, files = atomic.read(root, checkpoint.name)
        files[name] = content
        del fields["files"]
        atomic.commit(root, checkpoint.name, files, fields)


def misplaced(tensor: str) -> bytes:
    """A file of tensors with one that lies nowhere."""
    header = json.dumps({tensor: {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.fixture(scope="module")
def inline(place):
    """A training of an environment whose file has a hostile name, and what it printed."""
    folder, _ = place
    source = folder / f"{NAME}.py"
    source.write_text(WALK)
    words = (
        "env.lanes=4",
        "algo.horizon=8",
        "algo.minibatches=1",
        "run.threads=1",
        "checkpoint.every=2",
        "eval.every=2",
        "eval.episodes=4",
    )
    words = (
        "train",
        str(source),
        *words,
        "--inline",
        "--device",
        "cpu",
        "--steps",
        "256",
        "--name",
        "trained",
        "--runs",
        str(folder / "own"),
    )
    done = subprocess.run([*OPERANT, *words], capture_output=True, timeout=10 * DEADLINE_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return runs.load(folder / "own" / "trained"), done.stdout + done.stderr


@pytest.mark.slow
def test_a_training_in_the_terminal(inline):
    assert safe(NAME) in harmless(inline[1], 0, ("train", "--inline"), {0}).decode()


@pytest.fixture(scope="module")
def trained(inline):
    """Its run, after all its files were given hostile words: the last checkpoint holds a tensor of a hostile name."""
    run = inline[0]
    resign(last(run), "tensors.safetensors", misplaced(NAME))
    runs.write_json(
        run.path / "run.json",
        {**hostile.document_of(CORPUS), **run.document, "env": NAME, "version": NAME, "device_name": NAME},
    )
    (run.path / "exit.json").write_text(json.dumps({"exit": 1, "signal": NAME, "cause": NAME, "text": NAME}))
    with open(run.path / "eval" / "evaluations.jsonl", "a") as file:
        file.write(json.dumps({"step": NAME, NAME: NAME}) + "\n" + NAME + "\n")
    (run.path / "log.txt").write_text(f"{NAME}\nerror: {NAME}\n")
    return run


@pytest.fixture(scope="module")
def misconfigured(trained):
    """A copy with a key and values that are refused in its config.toml, and in those of its checkpoints."""
    path = trained.path.with_name("misconfigured")
    shutil.copytree(trained.path, path)
    text = (
        (path / "config.toml")
        .read_text()
        .replace('name = "trained"', f"name = {json.dumps(NAME)}\n{json.dumps(NAME)} = {json.dumps(NAME)}", 1)
    )
    (path / "config.toml").write_text(text)
    for checkpoint in (path / "checkpoints").glob("step-*"):
        resign(checkpoint, "config.toml", text.encode())
    return runs.load(path)


def last(run: runs.Run) -> Path:
    return max((run.path / "checkpoints").glob("step-*"))


PLAYED = (
    "eval {run} --episodes 4",
    "eval {run} --episodes 4 --checkpoint last",
    "eval {run} --episodes 4 --json",
    "eval {last}",
    "render {run} --out {run}/agent.png",
    "config show --config {run}/config.toml",
    "config check {run}/config.toml",
    "profile --config {run}/config.toml --updates 1 --trace {run}/trace",
    "train --dry-run --config {run}/config.toml",
    "resume {run}",
    "resume {run} --from best",
    "logs {run}",
    "wait {run}",
)
OTHERS = (
    "show {run}",
    "show {run} --json",
    "logs {run} --json",
    "runs --runs {run}/..",
    "stop {run}",
    "pause {run}",
    "unpause {run}",
    "checkpoint {run}",
    "monitor {run}",
    "monitor {run} --once",
    "check {broken}",
    "config show --env {source}",
    "play {source}",
    "eval {source}",
    "logs {run} {source}",
    "runs --runs {source}",
)
SKIPPED, NO_SOUND = "checkpoint step-000000000256 skipped: ", "is not a valid checkpoint: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "command"),
    [*itertools.product(("trained", "misconfigured"), PLAYED), *(("trained", command) for command in OTHERS)],
    ids=str,
)
def test_every_command_on_a_run_that_can_be_played(request, say, which, command):
    run = request.getfixturevalue(which)
    if which == "trained":  # where tests come in another order, a resume has made it anew
        resign(last(run), "tensors.safetensors", misplaced(NAME))
    places = {
        "run": run.path,
        "last": last(run),
        "source": run.path.parent.parent / f"{NAME}.py",
        "broken": run.path.parent / f"{NAME}.py",
    }
    places["broken"].write_text(f"raise ValueError({NAME!r})")
    copied = which == "misconfigured" and command in PLAYED[:9]  # whose code runs only where it is asked for
    output = say(
        *(word.format(**places) for word in command.split()), *["--trust"] * copied, codes={*range(6), 130, 137}
    ).decode()
    refused = {
        **dict.fromkeys(PLAYED[:9], " problem"),
        PLAYED[3]: "error: ",
    }  # the last one's tensors may be what is wrong with it first
    words = {PLAYED[0]: "  step ", PLAYED[1]: SKIPPED, PLAYED[3]: NO_SOUND} if which == "trained" else refused
    assert words.get(command, "") in output
    if command in words and which == "trained":
        assert safe(NAME) in output, "what is left of the name is shown"

"""`operant monitor`: run selection, text output without a terminal, one screen as text, and a terminal
that is closed.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_snapshots import FakeSource, ended, running, states
from waiting import DEADLINE_S

from monitor import command, text_output
from operant import runs
from operant.errors import NotFoundError, UsageError
from operant.runs.metrics import Metric, Writer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches"))
from terminal import Terminal


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OPERANT_RUNS", str(tmp_path / "runs"))
    for name in ("OPERANT_FPS", "NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def make(tmp_path: Path, name: str, state: str = "finished", code: int = 0) -> runs.Run:
    """Create an ended run with forty records."""
    run = runs.create(tmp_path / "runs", name, name, {"config": None, "overrides": [], "directory": str(tmp_path)})
    document = runs.update_document(
        run.path, **runs.identity(), env="cartpole", algo="ppo", steps=40_000, lanes=8, seed=1, device="cpu"
    )
    writer = Writer(
        run.metrics_path,
        [Metric("return", higher_better=True), Metric("sps"), Metric("iterations")],
        run_uuid=run.uuid,
        version="test",
    )
    for k in range(1, 41):
        writer.publish(k * 1000, [12.5 * k, 1e6, 1.0])
    writer.set_state(state, exit_code=code)
    writer.close()
    return run._replace(document=document)


# ARGUMENTS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fps", "0"], "integer from 1 to 20"),
        (["--fps", "21"], "1 to 20"),
        (["--fps", "x"], "'x'"),
        (["--fps", "9" * 500], "1 to 20"),
        (["--frobnicate"], "--frobnicate"),
        (["a", "b"], "b"),
        (["a", "--latest"], "not both"),
        (["--theme", "pink"], "pink"),
        (["--read"], "--read"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said(arguments, words):
    with pytest.raises(UsageError, match=words):
        command.main(arguments)


def test_fps_default_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPERANT_FPS", "40")
    with pytest.raises(UsageError, match=r"\$OPERANT_FPS is '40'"):
        command.main([])
    monkeypatch.setenv("OPERANT_FPS", "9")
    for usable in ([], ["--fps", "3"]):
        with pytest.raises(NotFoundError):  # the runs are what is missing now
            command.main(usable)
    monkeypatch.setenv("OPERANT_FPS", "40")
    with pytest.raises(NotFoundError):
        command.main(["--fps", "3"])


def test_help_exits_with_zero(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--help"])
    assert left.value.code == 0 and "--readonly" in capsys.readouterr().out


# WHICH RUN


def test_no_runs_is_an_error_with_a_hint(tmp_path):
    for arguments in ([], ["--latest"], ["--once"]):
        with pytest.raises(NotFoundError, match=r"no runs yet in runs\. Start one: operant train"):
            command.main(arguments)


def test_default_run_is_the_live_one_or_a_choice_or_the_newest(tmp_path, capsys):
    def chosen(*words: str) -> str:
        assert command.main([*words, "--once"]) == 0
        return capsys.readouterr().out.split()[2]

    old, new = make(tmp_path, "old-0001"), make(tmp_path, "new-0002")
    assert chosen() == chosen("latest") == "new-0002" and chosen("old") == "old-0001"
    lock = runs.acquire(old.path)
    try:
        assert chosen() == "old-0001"
        other = runs.acquire(new.path)
        try:
            with pytest.raises(NotFoundError, match="matches 2 runs"):
                command.main([])
        finally:
            other.release()
    finally:
        lock.release()
    with pytest.raises(NotFoundError, match="Closest"):
        command.main(["nwe-0002"])


def test_run_folders_list_and_open_runs(tmp_path):
    make(tmp_path, "one-0001")
    library = command.RunFolders(runs.Scope(tmp_path / "runs"), readonly=True)
    (row,) = library.rows()
    assert (row.id, row.state) == ("one-0001", "finished")
    feed = library.open(row.path)
    assert feed.readonly and feed.snapshot().run.id == "one-0001"
    feed.close()
    shutil.rmtree(row.path)
    with pytest.raises(NotFoundError, match="no longer contains a run"):
        library.open(row.path)


# WITHOUT A TERMINAL


@pytest.mark.parametrize(
    ("state", "code"), [("finished", 0), ("stopped", 130), ("failed", 1), ("diverged", 5), ("oom", 7)]
)
def test_without_a_terminal_it_ends_with_the_runs_code(tmp_path, capsys, state, code):
    make(tmp_path, "run-0001", state, code)
    assert command.main(["run-0001"]) == code
    out = capsys.readouterr().out.split("\n")
    assert out[0].startswith(f"run-0001  {state}") and "40 k / 40 k steps" in out[0] and "return 500" in out[0]
    assert any(line.startswith("next: operant ") for line in out)


def test_a_line_every_five_seconds_and_one_on_a_change():
    source, stream, clock = FakeSource(running()), io.StringIO(), iter(range(10**6))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        next(clock)
        if 11.0 <= now[0] < 12.0:
            source.now = states()["stalled"]
        if now[0] > 12.4:
            source.now = ended("finished", "all steps done")

    assert text_output.follow(source, stream, sleep=sleep, clock=lambda: now[0])
    lines = stream.getvalue().rstrip().split("\n")
    assert [line.split("   ")[0].split("  ")[1] for line in lines if line.startswith("cartpole")] == [
        "running",
        "running",
        "running",
        "stalled",
        "finished",
    ]
    assert lines[0].split("   ")[1:3] == ["68.2 %", "341 M / 500 M steps"] and "all steps done" in lines


def test_a_closed_output_stream_ends_the_text_output():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert text_output.follow(FakeSource(running()), Gone()) is False


def test_once_prints_one_picture(tmp_path, capsys):
    make(tmp_path, "run-0001")
    assert command.main(["run-0001", "--once"]) == 0
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert len(lines) == 30 and max(map(len, lines)) <= 100
    assert "FINISHED" in lines[0] and "run-0001" in lines[0] and any("return 500" in line for line in lines)
    assert any("╭─ return" in line for line in lines), "the charts are there, with what they show"
    assert command.main(["run-0001", "--once", "--ascii", "--theme", "light"]) == 0
    assert capsys.readouterr().out.isascii()


# WITH A TERMINAL


@pytest.mark.parametrize(("columns", "lines"), [(39, 24), (80, 9), (38, 9)])
def test_a_terminal_that_is_too_small(tmp_path, monkeypatch, columns, lines):
    make(tmp_path, "run-0001")
    monkeypatch.setattr(command, "has_terminal", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((columns, lines)))
    with pytest.raises(
        UsageError, match=f"terminal is {columns}×{lines}; the monitor needs 40×10. `operant runs --watch` works here."
    ):
        command.main([])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            "running",
            "Detached. Still training: reattach `operant monitor 4f2a` · stop `operant stop 4f2a` · log "
            "runs/cartpole-ppo-4f2a/log.txt",
        ),
        ("paused", "Detached. The run is paused: reattach `operant monitor 4f2a`"),
        ("failed", "cartpole-ppo-4f2a: failed  next: operant resume 4f2a"),
        ("finished", "cartpole-ppo-4f2a: finished  next: operant eval 4f2a"),
        ("remote", "cartpole-ppo-4f2a: remote"),
    ],
)
def test_parting_line_matches_the_state(state, words):
    assert command.parting(states()[state]).startswith(words)
    assert "Still training" not in command.parting(states()[state]) or state == "running"


def test_nothing_heavy_is_imported_before_a_screen_is_opened():
    program = (
        "import sys; from monitor import command; print(sorted({'textual', 'rich', 'asyncio', 'torch', 'numba', "
        "'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(command.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
    program = (
        "import sys, monitor.screen.app; print(sorted({'torch', 'numba', 'numpy', 'pydantic', 'typer', "
        "'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(command.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr


linux = pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals and /proc as Linux has them")


def opened(tmp_path: Path, *prefix: str, options: tuple[str, ...] = (), **variables: str) -> Terminal:
    program = [sys.executable, "-m", "operant.cli", "monitor", "--latest", *options]
    variables = {"PYTHONPATH": str(Path(command.__file__).parent.parent), **variables}
    terminal = Terminal([*prefix, *program], tmp_path, columns=100, rows=30, environment=variables)
    assert terminal.read(DEADLINE_S, until=lambda: b"FINISHED" in terminal.text() and b"return" in terminal.text()), (
        terminal.text()
    )
    return terminal


def theme_of(terminal: Terminal) -> str:
    """Theme whose background the terminal was last told to draw; "" without colours."""
    grounds = {b"48;2;16;18;22": "dark", b"48;2;251;251;248": "light"}
    last = {name: terminal.output.rfind(ground) for ground, name in grounds.items()}
    return max(last, key=last.__getitem__) if max(last.values()) >= 0 else ""


def quit_monitor(terminal: Terminal) -> None:
    terminal.press("q")
    assert terminal.wait(DEADLINE_S) == 0
    assert b"Traceback" not in terminal.output


@pytest.mark.slow
@linux
def test_the_chosen_theme_is_kept_for_the_next_start(tmp_path):
    make(tmp_path, "run-0001")
    kept = tmp_path / "state" / "operant" / "theme"
    with opened(tmp_path) as terminal:
        assert theme_of(terminal) == "dark"
        quit_monitor(terminal)
    assert not kept.exists(), "nothing was chosen"
    with opened(tmp_path) as terminal:
        terminal.press("t")
        assert terminal.read(DEADLINE_S, until=lambda: theme_of(terminal) == "light")
        quit_monitor(terminal)
    assert kept.read_text() == "light\n" and os.listdir(kept.parent) == ["theme"] + (
        ["runs"] if (kept.parent / "runs").exists() else []
    )
    with opened(tmp_path) as terminal:
        assert theme_of(terminal) == "light"
        quit_monitor(terminal)
    with opened(tmp_path, options=("--theme", "dark")) as terminal:
        assert theme_of(terminal) == "dark", "the option is stronger"
        quit_monitor(terminal)
    assert kept.read_text() == "light\n", "an option is for one start"
    with opened(tmp_path, NO_COLOR="1") as terminal:
        assert theme_of(terminal) == ""
        terminal.press("t")
        assert terminal.read(DEADLINE_S, until=lambda: terminal.shows("NO_COLOR is set"))
        quit_monitor(terminal)
    assert kept.read_text() == "light\n"


@pytest.mark.slow
@linux
def test_a_theme_that_cannot_be_kept_is_no_problem(tmp_path):
    make(tmp_path, "run-0001")
    (tmp_path / "occupied").write_text("a file where the folder should be")
    with opened(tmp_path, XDG_STATE_HOME=str(tmp_path / "occupied")) as terminal:
        assert theme_of(terminal) == "dark"
        terminal.press("t")
        assert terminal.read(DEADLINE_S, until=lambda: theme_of(terminal) == "light"), "it changes all the same"
        quit_monitor(terminal)


@linux
@pytest.mark.parametrize("prefix", [(), ("nohup",)], ids=["plain", "SIGHUP ignored"])
def test_it_ends_with_its_terminal(tmp_path, prefix):
    make(tmp_path, "run-0001")
    with (
        opened(tmp_path, *prefix)
        if not prefix
        else opened(tmp_path, "sh", "-c", 'trap "" HUP; exec "$@"', "sh") as terminal
    ):
        terminal.vanish()
        assert terminal.wait(DEADLINE_S) is not None, "it lives on without a terminal"


@pytest.mark.slow
@linux
def test_a_signal_leaves_the_terminal_as_it_was(tmp_path):
    make(tmp_path, "run-0001")
    with opened(tmp_path) as terminal:
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert b"\x1b[?1049l" in terminal.output and b"\x1b[?25h" in terminal.output


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
@linux
@pytest.mark.parametrize("how", ["ctrl+z", "SIGSTOP"])
def test_suspended_and_back(tmp_path, how):
    make(tmp_path, "run-0001")
    with opened(tmp_path) as terminal:
        terminal.read(1.0)
        before = terminal.screen()
        if how == "ctrl+z":
            terminal.press("\x1a")
        else:
            os.kill(terminal.pid, signal.SIGSTOP)
        assert terminal.read(DEADLINE_S, until=lambda: stopped(terminal.pid))
        terminal.output += b"\x1b[2J\x1b[H$ fg\r\n"  # what a shell does with its terminal
        assert "FINISHED" not in "".join(terminal.screen())
        os.kill(terminal.pid, signal.SIGCONT)
        assert terminal.read(DEADLINE_S, until=lambda: terminal.screen() == before), "\n".join(terminal.screen())
        terminal.press("q")
        assert terminal.wait(DEADLINE_S) == 0


@pytest.mark.slow
@linux
@pytest.mark.skipif(shutil.which("bash") is None, reason="a shell with job control")
def test_ctrl_z_stops_the_whole_job_and_fg_brings_it_back(tmp_path):
    """The parent waits for it, as `uv run` does; in the background it stays stopped."""
    make(tmp_path, "run-0001")
    program = f"sh -c '{sys.executable} -m operant.cli monitor --latest; true'"
    variables = {"PYTHONPATH": str(Path(command.__file__).parent.parent), "PS1": "ready> "}
    with Terminal(
        ["bash", "--norc", "--noprofile", "-i"], tmp_path, columns=100, rows=30, environment=variables
    ) as terminal:
        terminal.press(f"{program}\n")
        assert terminal.read(DEADLINE_S, until=lambda: terminal.shows("FINISHED") and terminal.shows("q Detach"))
        terminal.read(1.0)
        before = terminal.screen()
        for between in ("clear", "clear; bg; clear"):
            first = len(terminal.output)
            terminal.press("\x1a")
            assert terminal.read(DEADLINE_S, until=lambda at=first: b"Stopped" in terminal.text(at)), (
                "the shell did not get its terminal back"
            )
            terminal.press(f"{between}; echo gone\n")
            assert terminal.read(DEADLINE_S, until=lambda: terminal.shows("gone") and not terminal.shows("FINISHED"))
            terminal.press("fg\n")
            assert terminal.read(DEADLINE_S, until=lambda: terminal.screen() == before), "\n".join(terminal.screen())
        terminal.press("q")
        assert terminal.read(DEADLINE_S, until=lambda: terminal.shows("run-0001: finished"))

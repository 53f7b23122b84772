"""The commands that steer and watch runs, over workers that learn nothing (fake_worker.py): in this process where they
can be. No torch.

Everything here waits for a condition, never for a time: the deadlines are for a machine that does not work.
"""

import errno
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import heavy_imports
from waiting import DEADLINE_S, records, state, wait_until

from operant import runs
from operant.cli import listing, steering
from operant.errors import BusyError, NotFoundError
from operant.runs import control, launch, states
from operant.runs.metrics import Reader

PACKAGE_PARENT = str(Path(runs.__file__).parents[2])


pytestmark = pytest.mark.usefixtures("here")  # a folder of its own


def command(*words):
    return [sys.executable, "-m", "operant.cli", *map(str, words)]


def variables():
    return os.environ | {"PYTHONPATH": PACKAGE_PARENT, "TERM": "xterm"}


def training(run):
    """Once it has a few records."""
    wait_until(lambda: state(run).word == "running")
    return run


# ----------------------------------------------------------------------------------------------------------------------
# stop


def test_stop_asks_first_and_says_who_asked(started, here):
    run = training(started("forever"))
    done = here("stop", "4f2a")
    assert done.code == 0 and re.search(
        r"^cartpole-ppo-4f2a: stopped, checkpoint at step [\d,]+\.  next: operant resume 4f2a$", done.err, re.M
    )
    assert state(run).word == "stopped"
    log = run.log_path.read_text()
    assert f"stop asked for by {control.own_name()}" in log
    with Reader(run.metrics_path) as reader:
        assert reader.status().reason == 0, "no signal was needed"
        assert (reader.status().control_sequence, control.RESULTS[reader.status().control_result]) == (1, "done")
    again = here("stop", "4f2a")
    assert again.code == 0 and "cartpole-ppo-4f2a is not training: stopped" in again.err


def test_a_run_whose_lock_was_deleted_trains_refuses_a_second_trainer_and_stops(started, here):
    run = training(started("forever"))
    run.lock_path.unlink()
    assert state(run).word == "running"
    done = here("resume", "4f2a")
    assert done.code == 6 and "cartpole-ppo-4f2a is still training (pid " in done.err
    with pytest.raises(BusyError):
        launch.start(run, ["false"])
    done = here("stop", "4f2a")
    assert done.code == 0 and "cartpole-ppo-4f2a: stopped, checkpoint at step" in done.err


@pytest.mark.slow
def test_stop_signals_a_trainer_that_does_not_answer_and_takes_its_request_back(started, here):
    run = training(started("mute"))
    assert here("stop", run.id).code == 0
    assert state(run) == ("stopped", "by SIGTERM") and os.listdir(run.path / "ctl") == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_on_a_full_or_read_only_disk_stop_is_a_signal_and_the_others_say_what_to_do(started, here, monkeypatch, number):
    run = training(started("forever"))
    real = os.open

    def full(path, flags, *mode, dir_fd=None):
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", full)
    for verb in ("pause", "checkpoint", "unpause"):
        done = here(verb, "4f2a")
        assert (
            done.code == 4 and f" to {verb}: " in done.err and f"({os.strerror(number)}). Free disk space" in done.err
        )
        assert "without it only `operant stop 4f2a` works, by a signal" in done.err and state(run).word == "running"
    done = here("stop", "4f2a")
    assert (
        done.code == 0
        and f"({os.strerror(number)}). SIGTERM was sent instead" in done.err
        and "cartpole-ppo-4f2a: stopped" in done.err
    )
    assert state(run) == ("stopped", "by SIGTERM") and done.err.count("SIGTERM") == 1


@pytest.mark.slow
def test_stop_now_kills_what_does_not_end(started, here, monkeypatch):
    monkeypatch.setattr(steering, "_KILL_S", 1.5)
    run = training(started("deaf"))
    done = here("stop", run.id, "--now")
    assert done.code == 0 and "crashed, no checkpoint" in done.err and "resume" not in done.err
    wait_until(lambda: state(run) == ("crashed", "killed by SIGKILL"))


@pytest.mark.slow
def test_a_stop_that_does_not_come_about_is_an_error_with_a_way_out(started, here, monkeypatch):
    monkeypatch.setattr(steering, "_STOP_S", 2.0)
    deaf, other = training(started("deaf", "deaf")), training(started("forever", "other"))
    done = here("stop", "deaf", "other", "deaf")
    assert (
        done.code == 1
        and "error: deaf was asked to stop and has not ended after 2 s: running. Without a checkpoint: operant stop "
        "deaf --now"
        in done.err
    )
    assert state(deaf).word == "running" and state(other).word == "stopped" and done.err.count("other: stopped") == 1


@pytest.mark.slow
def test_a_stop_that_takes_long_is_waited_for_and_said(started, here, monkeypatch):
    monkeypatch.setattr(steering, "_STOP_S", 1.0)
    monkeypatch.setattr(steering, "_PATIENCE_S", 0.5)
    run = training(started("slow"))
    done = here("stop", "4f2a")
    assert done.code == 0 and "cartpole-ppo-4f2a: stopped, checkpoint at step" in done.err
    assert "it ends after this iteration and saves a checkpoint" in done.err and "operant stop 4f2a --now" in done.err
    assert state(run).word == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "behaviour", "code"), [("2>&-", "finish", 0), ("<&- >&- 2>&-", "raise", 1)])
def test_a_command_with_closed_streams_returns_the_runs_code(started, closed, behaviour, code):
    started(behaviour)
    words = ["bash", "-c", f'exec "$@" {closed}', "bash", *command("wait", "4f2a")]
    assert subprocess.run(words, env=variables(), check=False).returncode == code


@pytest.mark.slow
def test_stop_returns_with_the_ways_out_if_an_iteration_does_not_end(started, here, monkeypatch):
    monkeypatch.setattr(steering, "_ENDING_S", 1.0)
    run = training(started("hang"))
    done = here("stop", run.id)
    assert done.code == 1 and "was asked to stop and has not ended after 1 s: stopping" in done.err
    assert "To wait longer: operant wait 4f2a. To end it now without a checkpoint: operant stop 4f2a --now" in done.err
    assert state(run).word == "stopping"


@pytest.mark.slow
def test_a_refused_stop_says_why_at_once_and_is_a_signal_where_one_can_be_sent(started, here, monkeypatch):
    monkeypatch.setattr(steering, "_ACKNOWLEDGE_S", DEADLINE_S)
    run, other = training(started("forever", "damaged")), training(started("forever", "older"))
    runs.update_document(run.path, uuid="0" * 32)
    done = here("stop", "damaged")
    assert (
        done.code == 0
        and "damaged refuses to stop: addressed to another run. SIGTERM was sent instead" in done.err
        and "damaged: stopped" in done.err
    )
    runs.update_document(other.path, pid_start_ticks=1)
    done = here("stop", "older")
    assert (
        done.code == 1
        and "error: older refuses to stop: addressed to an earlier trainer of this run. Without a checkpoint: "
        "operant stop"
        in done.err
    )


def test_stop_all_stops_what_lives(started, fresh, here):
    first, second = training(started("forever", "a")), training(started("forever", "b"))
    runs.update_document(fresh("c").path, created_realtime_ns=1)
    done = here("stop", "--all")
    assert (
        done.code == 0
        and {state(first).word, state(second).word} == {"stopped"}
        and "a: stopped" in done.err
        and "b: stopped" in done.err
    )
    assert "no run is training now" in here("stop", "--all").err


@pytest.mark.parametrize("words", [("stop",), ("stop", "x", "--all")])
def test_stop_without_a_run_is_a_usage_error(here, words):
    done = here(*words)
    assert done.code == 2 and "name the runs to stop, or give --all" in done.err


def test_stop_of_a_run_elsewhere_is_a_sentence(started, here):
    run = training(started("forever"))
    document = runs.read_json(run.path / "run.json")
    runs.update_document(run.path, host="gpu03", boot_id="another")
    done = here("stop", run.id)
    runs.update_document(run.path, **document)
    assert (
        done.code == 4
        and "trains on gpu03: ask it to stop on that machine" in done.err
        and state(run).word == "running"
    )


# -------------------------------------------------------------------------------------------------------------- pause,
# unpause, checkpoint


def test_pause_checkpoint_and_unpause(started, here):
    run = training(started("forever"))
    done = here("pause", "4f2a")
    assert (done.code, done.out) == (0, "") and done.err == "cartpole-ppo-4f2a: paused.  next: operant unpause 4f2a\n"
    assert state(run).word == "paused"
    seen = records(run)
    assert here("pause", "4f2a").code == 0, "twice means the same"
    assert state(run).word == "paused" and records(run) == seen
    saved = here("checkpoint", "4f2a")
    assert (
        saved.code == 0 and Path(saved.out.strip()).is_dir() and Path(saved.out.strip()).parent == run.checkpoints_path
    )
    done = here("unpause", "4f2a")
    assert (done.code, done.err) == (0, "cartpole-ppo-4f2a: training resumed\n")
    wait_until(lambda: records(run) > seen + 5)
    assert here("unpause", "4f2a").err == "cartpole-ppo-4f2a: the run was not paused\n"


def test_stop_and_sigterm_end_a_paused_run(started, here):
    for name, end in (
        ("a", lambda run: here("stop", run.id)),
        ("b", lambda run: launch.signal_worker(run, signal.SIGTERM)),
    ):
        run = training(started("forever", name))
        assert here("pause", name).code == 0
        end(run)
        wait_until(lambda run=run: state(run).word == "stopped")


def test_concurrent_requests_are_both_answered(started):
    run = training(started("forever"))
    tickets = [control.send(run, "pause") for _ in range(2)]
    assert [control.answer(run, ticket, DEADLINE_S, final=True).result for ticket in tickets] == ["done", "done"]
    with Reader(run.metrics_path) as reader:
        wait_until(lambda: reader.status().control_sequence == 2)
        assert sum("pause asked for by" in event.text for event in reader.events()) == 2


@pytest.mark.parametrize(
    "verb", ["pause", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("unpause", "checkpoint"))]
)
def test_a_run_that_cannot_do_it_is_a_sentence(started, here, verb, monkeypatch):
    run = started("finish")
    wait_until(lambda: state(run).word == "finished")
    wait_until(lambda: not runs.probe(run.path))
    done = here(verb, run.id)
    assert done.code == 3 and f"{run.id} is not training: finished" in done.err
    monkeypatch.setattr(steering, "_ANSWER_S", 0.5)
    mute = training(started("mute", "mute"))
    done = here(verb, "mute")
    assert (
        done.code == 1
        and "mute: no answer yet, it is running" in done.err
        and f"mute did not {verb} within 0 s: running. See: operant logs" in done.err
    )
    assert state(mute).word == "running"


def test_a_request_to_a_run_that_starts_waits_for_it(fresh, here):
    run = fresh()
    launch.start(run, [sys.executable, str(Path(__file__).parents[1] / "fake_worker.py"), str(run.path), "forever"])
    assert here("pause", run.id).code == 0 and state(run).word == "paused"


# ----------------------------------------------------------------------------------------------------------------------
# wait


@pytest.mark.parametrize(("behaviour", "code"), [("finish", 0), ("raise", 1), ("die", 137)])
def test_wait_ends_with_the_runs_code(started, here, behaviour, code):
    run = started(behaviour)
    done = here("wait", run.id)
    assert done.code == code and f"{run.id}   " in done.err and done.out == ""
    assert here("wait", run.id).code == code, "a run that has ended is not waited for"
    told = here("wait", run.id, "--json")
    document = json.loads(told.out)
    assert (
        told.code == code
        and document["state"] in states.ENDED
        and document.keys() == json.loads(here("show", run.id, "--json").out).keys()
    )


def test_a_run_whose_metrics_file_is_damaged_has_not_ended_well_for_a_script(here, tmp_path):
    run = runs.create(tmp_path / "runs", "damaged", "x", {})
    runs.write_json(run.exit_path, {"exit": 0, "signal": None})
    run.metrics_path.write_bytes(b"OPERANT" * 14)
    for words in (("wait", "damaged"), ("monitor", "damaged")):
        done = here(*words)
        assert done.code == 3 and "unreadable" in done.out + done.err, (words, done)
    shown = json.loads(here("show", "damaged", "--json").out)
    assert (shown["state"], shown["exit"]) == ("unreadable", 0)
    assert not runs.discard_unstarted(run, 3) and run.path.is_dir()


@pytest.mark.slow
def test_wait_gives_up_in_time_and_ctrl_c_leaves_the_run(started, here):
    run = training(started("forever"))
    done = here("wait", run.id, "--timeout", "0.3")
    assert done.code == 124 and "has not ended within 0.3 s: running" in done.err
    waiter = subprocess.Popen(command("wait", run.id), env=variables(), stderr=subprocess.PIPE, text=True)
    assert "steps" in waiter.stderr.readline()
    waiter.send_signal(signal.SIGINT)
    assert "Traceback" not in waiter.communicate(timeout=DEADLINE_S)[1] and waiter.returncode == 130
    assert state(run).word == "running"


# ----------------------------------------------------------------------------------------------------------------------
# runs --watch


class Tty(io.StringIO):
    """A terminal of 80x24 as `listing.draw` knows it."""

    def fileno(self):
        raise OSError


def shown(raw, rows=60):
    """Text on a terminal after `raw`, which holds nothing but text, line ends, erasing to the end of a line, and
    moving up.
    """
    screen, row, column = [""] * rows, 0, 0
    for piece in re.findall(r"\x1b\[\d*[AK]|\n|[^\x1b\n]+", raw):
        if piece == "\n":
            row, column = row + 1, 0
        elif piece.endswith("A") and piece.startswith("\x1b"):
            row -= int(piece[2:-1])
        elif piece == "\x1b[K":
            screen[row] = screen[row][:column]
        else:
            screen[row] = screen[row][:column] + piece + screen[row][column + len(piece) :]
            column += len(piece)
    assert "".join(re.findall(r"\x1b\[\d*[AK]|\n|[^\x1b\n]+", raw)) == raw
    return screen, row


def test_only_lines_that_changed_are_drawn_again():
    tables = [
        ["head", "one 1", "two 2"],
        ["head", "one 1", "two 3"],
        ["head", "one 1", "two 3"],
        ["head", "x"],
        ["none"],
        ["a", "b", "longer", "d"],
    ]
    stream, drawn = Tty(), []
    for lines in tables:
        before = stream.tell()
        drawn = listing.redraw(stream, drawn, lines)
        written = stream.getvalue()[before:]
        screen, row = shown(stream.getvalue())
        assert [line for line in screen if line] == lines and row == len(lines)
        if lines is tables[1]:
            assert "one" not in written and "head" not in written and "two 3" in written
        if lines is tables[2]:
            assert written == ""


def test_a_list_longer_than_the_terminal_is_cut_and_says_so():
    stream = Tty()
    drawn = listing.redraw(stream, [], [f"line {k} " + "x" * 200 for k in range(100)])
    assert len(drawn) == 23 and drawn[-1] == "... and 78 more" and all(len(line) <= 79 for line in drawn)


def test_a_run_that_has_ended_is_described_once_until_it_goes_on(started, monkeypatch):
    run = started("finish")
    wait_until(lambda: state(run).word == "finished" and not runs.probe(run.path) and runs.worker(run.path) is None)
    seen = listing.Listing(runs.Scope(run.path.parent), ())
    (first,) = seen.rows()
    described = []
    original = runs.describe
    monkeypatch.setattr(runs, "describe", lambda one: described.append(one.id) or original(one))
    (second,) = seen.rows()
    assert described == [] and first["state"] == "finished" and second["age_s"] >= first["age_s"]
    lock = runs.acquire(run.path)
    assert seen.rows()[0]["state"] == "finished" and described == [run.id], "a resumed worker is looked at again"
    lock.release()
    assert listing.Listing(runs.Scope(run.path.parent), {"running"}).rows() == []


@pytest.mark.slow
def test_runs_watch_draws_in_place_until_ctrl_c(started):
    run = training(started("forever"))
    master, slave = pty.openpty()
    watcher = subprocess.Popen(
        command("runs", "--watch"), env=variables(), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    raw = b""

    def read_until(wanted):
        nonlocal raw
        end = time.monotonic() + DEADLINE_S
        while wanted not in raw:
            assert time.monotonic() < end, raw
            if select.select([master], [], [], 0.1)[0]:
                raw += os.read(master, 65536)

    read_until(b"running")
    launch.signal_worker(run, signal.SIGTERM)
    read_until(b"stopped")
    assert b"\x1b[2A" in raw, "in place"
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(DEADLINE_S) == 0
    os.close(master)


@pytest.mark.slow
def test_runs_watch_ends_with_its_terminal(started):
    training(started("forever"))
    master, slave = pty.openpty()
    watcher = subprocess.Popen(
        command("runs", "--watch"), env=variables(), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    assert select.select([master], [], [], DEADLINE_S)[0]
    os.close(master)
    watcher.wait(DEADLINE_S)


@pytest.mark.parametrize("words", [("runs", "--watch"), ("runs", "--watch", "--json")])
def test_runs_watch_needs_a_terminal(here, words):
    done = here(*words)
    assert done.code == 2 and "operant runs --json" in done.err


# ----------------------------------------------------------------------------------------------------------------------
# TAB, monitor


def complete(words, incomplete=""):
    line = " ".join(["operant", *words, incomplete])
    extra = {"_OPERANT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
    program = (
        "import sys; from operant import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numba', 'numpy', 'pydantic', 'rich', 'textual'} & set(sys.modules)\n"
        "sys.exit(f'imports {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables() | extra, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_tab_knows_runs_environments_and_configurations(fresh, tmp_path):
    fresh("cartpole-ppo-4f2a")
    fresh("pendulum-ppo-77b0")
    (tmp_path / "my_env.py").write_text("")
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "runs" / "junk").mkdir()
    assert set(complete(["show"])) == {"cartpole-ppo-4f2a", "pendulum-ppo-77b0", "latest", "live"}
    assert (
        complete(["stop"], "cart") == ["cartpole-ppo-4f2a"]
        and complete(["pause"], "4f") == ["4f2a"]
        and complete(["resume"], "nothing") == []
    )
    assert complete(["monitor"], "pend") == ["pendulum-ppo-77b0"] and "--readonly" in complete(["monitor"], "--r")
    assert complete(["show", "--runs", "elsewhere"], "cart") == [], "a folder that is named is the only one asked"
    assert (
        complete(["train"], "pendulum")[0] == "pendulum"
        and complete(["train"], "pac") == ["pacman"]
        and complete(["check"], "my") == ["my_env.py"]
    )
    assert {"mine.toml", "folder/"} < set(complete(["train", "--config"])) and complete(
        ["train", "--config"], "pendulum"
    )[0] == "pendulum"
    assert complete(["train", "--config"], "ppo/pendulum")[0] == "ppo/pendulum"


LATEST = (
    ("show", "latest", "--json"),
    ("logs", "latest"),
    ("wait", "latest"),
    ("stop", "latest"),
    ("pause", "latest"),
    ("checkpoint", "latest"),
    ("resume", "latest"),
    ("eval", "latest"),
    ("render", "latest", "--out", "a.gif"),
    ("monitor", "--latest", "--once"),
    ("monitor", "latest", "--once"),
)


@pytest.mark.parametrize("words", LATEST, ids=" ".join)
@pytest.mark.parametrize("named", ["--runs", "OPERANT_RUNS", "./runs", "no folder"])
def test_latest_is_the_newest_of_the_folder_in_use(fresh, here, tmp_path, monkeypatch, words, named):
    """Where that has no runs, the newest of all."""
    asked = []

    def found(run):
        asked.append(run.path)
        raise NotFoundError("enough")

    mine = fresh("mine")
    newer = runs.create(tmp_path / "elsewhere", "newer", "cartpole-ppo", {})
    monkeypatch.setattr(runs, "resolve", lambda *words, real=runs.resolve: found(real(*words)))
    if named == "OPERANT_RUNS":
        monkeypatch.setenv(named, str(mine.path.parent))
    if named == "no folder":
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
    done = here(*words, *(("--runs", mine.path.parent) if named == "--runs" else ()))
    assert done.code == 3 and asked == [newer.path if named == "no folder" else mine.path]


def test_lists_hold_the_runs_of_the_folder_that_was_named(fresh, here, tmp_path):
    mine = fresh("mine")
    runs.create(tmp_path / "elsewhere", "newer", "cartpole-ppo", {})

    def listed(*words):
        return [row["id"] for row in json.loads(here("runs", "--json", *words).out)]

    assert listed() == ["newer", "mine"]
    assert listed("--runs", mine.path.parent) == ["mine"] and listed("--runs", tmp_path / "none") == []
    assert [row["id"] for row in listing.Listing(runs.scope(str(mine.path.parent)), ()).rows()] == ["mine"]


def test_ids_are_listed_without_reading_a_document(fresh, tmp_path):
    names = {fresh(name).id for name in ("a", "b")}
    (tmp_path / "runs" / "a" / "run.json").write_bytes(b"[" * 100000)
    (tmp_path / "runs" / "empty").mkdir()
    assert set(runs.list_ids(tmp_path / "runs")) == names and set(runs.list_ids(tmp_path / "elsewhere")) == names


def test_monitor_is_handed_over_before_typer_is_imported(fresh, tmp_path):
    program = (
        "import sys; from operant import cli\n"
        "sys.argv = ['operant', 'monitor', 'nosuch']\n"
        "try: cli.main()\n"
        "except SystemExit as ended: code = ended.code\n"
        "print(code, sorted({'torch', 'numba', 'numpy', 'pydantic', 'textual'} & set(sys.modules)))\n"
    )
    fresh("one")
    done = subprocess.run([sys.executable, "-c", program], env=variables(), capture_output=True, text=True, check=False)
    assert done.stdout == "3 []\n" and "no run named 'nosuch'" in done.stderr


@pytest.mark.parametrize(
    ("words", "handed"),
    [
        ((), []),
        (("x",), ["--", "x"]),
        (("--latest", "--readonly"), ["--latest", "--readonly"]),
        (
            ("--fps", "2", "--ascii", "--theme", "light", "--runs", "r", "--once", "x"),
            ["--once", "--ascii", "--fps=2", "--theme=light", "--runs=r", "--", "x"],
        ),
    ],
)
def test_the_monitor_of_the_list_of_commands_hands_over_what_it_was_given(monkeypatch, words, handed):
    from monitor import command as monitor

    given = []
    monkeypatch.setattr(monitor, "main", lambda arguments: given.append(arguments) or 7)
    monkeypatch.setattr(sys, "argv", ["operant", *words])
    from operant.cli import program

    with pytest.raises(SystemExit) as ended:
        program.app(["monitor", *words], prog_name="operant")
    assert given == [handed] and ended.value.code == 7


@pytest.mark.slow
def test_commands_that_steer_import_nothing_heavy(fresh, tmp_path):
    run = fresh("x")
    runs.update_document(run.path, created_realtime_ns=1)
    commands = [(name, "x") for name in ("wait", "stop", "pause", "unpause", "checkpoint", "logs", "show")]
    heavy = {"torch", "numba", "numpy", "pydantic", "rich", "textual", "safetensors"}
    assert heavy_imports(tmp_path, commands, heavy) == ""
    assert "imports" in heavy_imports(tmp_path, [("config", "show", "cartpole")], heavy), "what imports is noticed"


def test_json_of_a_paused_run_says_who(started, here):
    run = training(started("forever"))
    runs.update_document(run.path, paused_by="alice@gpu03\x1b[2J", paused_boottime_ns=1)
    assert json.loads(here("show", run.id, "--json").out)["paused_by"] is None, "it is not paused"
    assert here("pause", run.id).code == 0
    described = json.loads(here("show", run.id, "--json").out)
    assert described["eta_s"] is None
    assert (described["state"], described["paused_by"]) == ("paused", "alice@gpu03[2J") and described[
        "cause"
    ].startswith("by alice@gpu03[2J, ")


def test_json_of_a_log_is_a_document_a_line(fresh, here):
    run = fresh("cartpole-ppo-4f2a")
    run.log_path.write_bytes(b'operant: session started x\n14:03:11 eval 500.0\n \x1b[2J\xff"\\\n14:03:12 half')
    wanted = [
        {"schema": 1, "clock": None, "text": "operant: session started x"},
        {"schema": 1, "clock": "14:03:11", "text": "eval 500.0"},
        {"schema": 1, "clock": None, "text": ' [2J\ufffd"\\'},
        {"schema": 1, "clock": "14:03:12", "text": "half"},
    ]
    assert [json.loads(line) for line in here("logs", "4f2a", "--json").out.splitlines()] == wanted
    assert [json.loads(line) for line in here("logs", "4f2a", "--json", "--tail", "1").out.splitlines()] == wanted[-1:]


WITH_DATA = {
    "show",
    "runs",
    "logs",
    "wait",
    "eval",
    "zoo",
    "envs",
    "doctor",
    "check",
    "profile",
    "bench",
    "config show",
    "config list",
    "render",
    "sweep",
    "compare",
}
WITH_DATA |= {"export policy", "export metrics", "du", "note", "stop", "archive"}
WITHOUT_DATA = {
    "docs",
    "play",
    "train",
    "resume",
    "pause",
    "unpause",
    "checkpoint",
    "monitor",
    "config",
    "config check",
    "config schema",
}  # or JSON as it is
WITHOUT_DATA |= {"export", "plot", "report", "rm", "restore"}


def test_every_command_with_data_has_json():
    from typer.main import get_command

    from operant.cli import program

    def commands(group, before=""):
        for name, one in group.commands.items():
            yield before + name, {option for parameter in one.params for option in parameter.opts}
            if hasattr(one, "commands"):
                yield from commands(one, f"{name} ")

    found = dict(commands(get_command(program.app)))
    assert {name for name, options in found.items() if "--json" in options} == WITH_DATA
    assert set(found) == WITH_DATA | WITHOUT_DATA, "a new command either has data, or none"


# HELP


@pytest.mark.parametrize(("words", "title"), [((), "Train:"), (("config",), "Commands:")])
def test_the_list_of_commands_cuts_no_summary(here, words, title):
    done = here(*words, "--help")
    commands = done.out.partition(title)[2]
    assert done.code == 0 and len(commands.splitlines()) >= 3 and "..." not in commands
    assert max(map(len, done.out.splitlines())) <= 80

"""The waiter, and the viewer in a pseudo-terminal and in a pipe, with a fake worker (fake_worker.py). Without torch.

All tests wait for conditions, never for times: deadlines are for a broken machine.
"""

import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from waiting import DEADLINE_S, records, state, wait_until

from operant import runs
from operant.cli import follow
from operant.display import progress
from operant.display.progress import Progress
from operant.errors import BusyError, MachineError, UsageError
from operant.runs import control, launch, log

PACKAGE_PARENT = str(Path(runs.__file__).parents[2])
FAKE_WORKER = str(Path(__file__).parents[1] / "fake_worker.py")
VIEWER = """
import os, pathlib, signal, sys
folder, terminal, hangup = sys.argv[1:4]
if terminal != "-":  # the leader of a session without a terminal gets the one it opens
    descriptor = os.open(terminal, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(descriptor, target)
if hangup == "ignore":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
from operant import runs
from operant.cli import follow
sys.exit(follow.follow(runs.load(pathlib.Path(folder))))
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "XDG_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)


def fake(run, behaviour):
    return [sys.executable, FAKE_WORKER, str(run.path), behaviour]


def ending(run):
    """Wait for exit.json and return it."""
    return wait_until(lambda: runs.read_json(run.exit_path))


class Viewer:
    """`launch.follow` in a separate process, in a pseudo-terminal or with stderr in a pipe."""

    def __init__(self, run, *, terminal=True, hangup="default", columns=120):
        environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        name = "-"
        self.raw = b""
        if terminal:
            self._master, slave = pty.openpty()
            name = os.ttyname(slave)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        else:
            self._master, slave = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", VIEWER, str(run.path), name, hangup],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if terminal else slave,
        )
        if terminal:  # kept open until the viewer has opened it too, or the master would read the end at once
            self.wait_for(
                "",
                lambda: (
                    os.path.exists(f"/proc/{self.process.pid}/fd/2")
                    and os.readlink(f"/proc/{self.process.pid}/fd/2") == name
                ),
            )
        os.close(slave)

    @property
    def text(self):
        return self.raw.decode("utf-8", "replace")

    def read(self):
        """Read everything that is available now."""
        while select.select([self._master], [], [], 0.01)[0]:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # EIO: the other side of a pseudo-terminal is closed
                return
            if not piece:
                return
            self.raw += piece

    def wait_for(self, wanted, condition=lambda: True):
        end = time.monotonic() + DEADLINE_S
        while not (wanted in self.text and condition()):
            assert time.monotonic() < end, f"{wanted!r} did not appear in {self.text!r}"
            self.read()

    def press(self, keys):
        os.write(self._master, keys)

    def hang_up(self):
        os.close(self._master)

    def wait(self):
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the viewer did not end: {self.text!r}"
            self.read()
        self.read()
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def view():
    viewers = []

    def open_viewer(run, **options):
        viewers.append(Viewer(run, **options))
        return viewers[-1]

    yield open_viewer
    for viewer in viewers:
        viewer.close()


# ----------------------------------------------------------------------------------------------------------------------
# waiter


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("raise SystemExit(7)", 7, None),
        ("pass", 0, None),
        ("import os; os.kill(os.getpid(), 9)", None, 9),
        ("import os; os.abort()", None, 6),
    ],
)
def test_exit_json_says_how_the_worker_ended(fresh, code, exit_code, number):
    run = fresh()
    launch.start(run, [sys.executable, "-c", code])
    found = ending(run)
    assert (found["exit"], found["signal"], found["last_step"]) == (exit_code, number, None)
    assert (
        found["oom_kill"] in (0, None)
        and found["wall_s"] >= 0
        and abs(found["ended_realtime_ns"] / 1e9 - time.time()) < 3600
    )
    assert (run.exit_path.stat().st_mode & 0o777, run.log_path.stat().st_mode & 0o777) == (0o600, 0o600)


def test_exit_json_has_the_last_step_and_the_cause_of_a_crash(started):
    run = started("die")
    found = ending(run)
    assert (found["signal"], found["exit"], found["last_step"]) == (9, None, 60_000)
    assert state(run) == ("crashed", "killed by SIGKILL")
    described = runs.describe(runs.load(run.path))
    assert (described["exit"], described["step"], described["pid"]) == (137, 60_000, found["pid"])


def test_the_worker_is_detached_from_its_starter(fresh):
    run = fresh()
    code = """
import json, os, pathlib, signal, sys
print("to the log")
print("errors too", file=sys.stderr)
umask = os.umask(0)
try:
    os.open("/dev/tty", os.O_RDWR)
    terminal = True
except OSError:
    terminal = False
facts = {"session": os.getsid(0), "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1"),
         "umask": umask, "terminal": terminal,
         "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "safe": "" not in sys.path}
pathlib.Path(sys.argv[1], "facts").write_text(json.dumps(facts))
"""
    launch.start(run, [sys.executable, "-c", code, str(run.path)])
    ending(run)
    facts = json.loads((run.path / "facts").read_text())
    assert facts.pop("session") != os.getsid(0)
    expected_safe = sys.version_info >= (3, 11)
    assert facts == {
        "stdin": "/dev/null",
        "stdout": str(run.log_path),
        "umask": 0o077,
        "terminal": False,
        "term": True,
        "safe": expected_safe,
    }
    lines = run.log_path.read_text().splitlines()
    assert lines[0].startswith(log.SESSION_MARK) and lines[1:] == ["to the log", "errors too"]


def test_the_waiter_is_not_a_child_of_its_starter(started):
    run = started("quiet")
    worker = runs.read_json(run.path / "run.json")["pid"]
    waiter = parent_of(worker)
    assert waiter != os.getpid() and parent_of(waiter) != os.getpid()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def test_the_waiter_outlives_a_hangup_and_passes_on_a_request_to_end(started):
    run = started("forever")
    waiter = parent_of(runs.read_json(run.path / "run.json")["pid"])
    wait_until(lambda: records(run) > 0)
    os.kill(waiter, signal.SIGHUP)
    os.kill(waiter, signal.SIGTERM)
    assert ending(run)["exit"] == 130
    assert state(run) == ("stopped", "by SIGTERM")


def test_the_worker_outlives_its_waiter(started):
    run = started("forever")
    waiter = parent_of(runs.read_json(run.path / "run.json")["pid"])
    os.kill(waiter, signal.SIGKILL)
    seen = records(run)
    wait_until(lambda: records(run) > seen + 5)
    assert state(run).word in ("running", "starting")
    assert launch.signal_worker(run, signal.SIGKILL)
    wait_until(lambda: runs.probe(run.path) is False)
    assert state(run) == ("crashed", "unknown") and not run.exit_path.exists()
    stream = io.StringIO()
    assert follow.follow(runs.load(run.path), stream=stream) == 137
    assert "crashed  cartpole-ppo-4f2a   unknown" in stream.getvalue()


def test_a_second_trainer_is_refused_and_the_first_is_not_disturbed(started, fresh):
    run = started("forever")
    wait_until(lambda: records(run) > 0)
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(BusyError, match=r"is still training \(pid \d+, step "):
        launch.start(run, fake(run, "finish"))
    # A waiter that lost the race after that check: its worker ends with 6, and it writes nothing.
    second = subprocess.run(
        [sys.executable, "-m", "operant.runs.launch", str(run.path), "--", sys.executable, "-c", "raise SystemExit(6)"],
        env=os.environ | {"PYTHONPATH": PACKAGE_PARENT},
        capture_output=True,
        check=True,
    )
    wait_until(lambda: launch._is_gone(int(second.stdout)))
    assert not run.exit_path.exists() and (run.path / "run.json").read_bytes() == before and state(run).live


def test_a_worker_that_cannot_be_started_is_an_error_in_the_log(fresh):
    run = fresh()
    launch.start(run, ["/nonexistent/python", "-m", "x"])
    assert ending(run)["exit"] == MachineError.exit_code
    assert log.log_end(run).startswith("error: cannot start the trainer: /nonexistent/python (No such file")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_log_that_is_not_a_regular_file_raises_with_a_message(fresh, here, make):
    run = fresh()
    make(run.log_path)
    with pytest.raises(
        MachineError, match=r"log.txt is not a regular file, and the trainer writes its log there: move it away"
    ):
        launch.start(run, fake(run, "finish"))
    done = here("logs", run.id)
    assert done.code == 3 and "(log.txt is not a regular file)" in done.err


def test_the_waiter_prints_its_usage_for_wrong_arguments():
    environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT}
    found = subprocess.run(
        [sys.executable, "-m", "operant.runs.launch", "x"], env=environment, capture_output=True, text=True, check=False
    )
    assert (
        (found.returncode, found.stdout) == (2, "")
        and found.stderr.startswith("error: usage:")
        and "Traceback" not in found.stderr
    )


def test_nothing_is_imported_from_the_working_directory(fresh, tmp_path, monkeypatch):
    """Python 3.10 has no `-P`; files that end the process shadow modules of waiter and worker."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("json", "pwd", "runpy", "signal", "subprocess"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('a file of the working directory was imported')")
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    run = fresh()
    launch.start(run, launch.module_command("operant.runs.launch"))  # as a worker: it says how it wants to be called
    assert ending(run)["exit"] == 2
    assert "working directory" not in run.log_path.read_text() and "error: usage" in run.log_path.read_text()


def test_oom_kills_reads_the_cgroup(tmp_path):
    cgroup = tmp_path / "cgroup"
    cgroup.write_text("4:memory:/other\n0::/user.slice/run\n")
    folder = tmp_path / "second" / "user.slice" / "run"
    folder.mkdir(parents=True)
    mounts = (tmp_path / "first", tmp_path / "second")
    assert launch.oom_kills(cgroup, mounts) is None
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert launch.oom_kills(cgroup, mounts) == 2
    cgroup.write_text("4:memory:/other\n")
    assert launch.oom_kills(cgroup, mounts) is None and launch.oom_kills(tmp_path / "absent", mounts) is None


@pytest.mark.parametrize("folder", ["memory/docker/4f2a", "memory"])
def test_oom_kills_reads_a_cgroup_of_version_1(tmp_path, folder):
    """A container may see its own cgroup as the root."""
    cgroup = tmp_path / "cgroup"
    cgroup.write_text("11:cpu,cpuacct:/docker/4f2a\n4:memory:/docker/4f2a\n1:name=systemd:/docker/4f2a\n")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert launch.oom_kills(cgroup, (tmp_path,)) == 3


# ----------------------------------------------------------------------------------------------------------------------
# signalling


def test_only_the_holder_of_the_lock_is_signalled(started, fresh):
    run = started("forever")
    document = runs.read_json(run.path / "run.json")
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        ticks = wait_until(lambda: runs.start_ticks(bystander.pid))
        wrong = [
            {"pid": bystander.pid, "pid_start_ticks": ticks},
            {"pid_start_ticks": document["pid_start_ticks"] + 1},
            {"boot_id": "another"},
            {"pid": 0},
            {"pid": None},
            {"pid": 2**40},
            {"pid": "1"},
            {"boot_id": ""},
            {"pid_start_ticks": None},
        ]
        for fields in wrong:
            runs.update_document(run.path, **document | fields)
            assert not launch.signal_worker(run, signal.SIGKILL), fields
        runs.update_document(run.path, **document)
        other = fresh("other")
        runs.update_document(other.path, pid=bystander.pid, pid_start_ticks=ticks, boot_id=runs.boot_id())
        assert not launch.signal_worker(other, signal.SIGKILL), "a free lock"
        assert bystander.poll() is None and runs.probe(run.path)
        assert launch.signal_worker(run, signal.SIGTERM)
        assert ending(run)["exit"] == 130
        assert not launch.signal_worker(run, signal.SIGTERM), "it has ended"
    finally:
        bystander.kill()
        bystander.communicate()


def test_suspended_and_stalled_runs_are_distinguished(started):
    suspended, stalled = started("forever", "a"), started("hang", "b")
    wait_until(lambda: records(suspended) > 3 and records(stalled) == 3)
    assert launch.signal_worker(suspended, signal.SIGSTOP)
    wait_until(lambda: state(suspended).word == "suspended")
    assert launch.signal_worker(suspended, signal.SIGCONT)
    wait_until(lambda: state(suspended).word == "running")
    wait_until(lambda: state(stalled).word == "stalled")
    assert "no iteration for" in state(stalled).cause


@pytest.mark.slow
@pytest.mark.parametrize("moved_s", [-86400.0, 86400.0])
def test_a_wall_clock_moved_by_a_day_changes_no_state(started, monkeypatch, moved_s):
    living, ended = started("forever", "a"), started("die", "b")
    wait_until(lambda: records(living) > 3)
    ending(ended)
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + moved_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(moved_s) * 10**9)
    assert state(living).word == "running" and state(ended) == ("crashed", "killed by SIGKILL")
    assessment = None
    for _ in range(20):
        assessment = runs.assess(runs.observe(runs.load(living.path)), assessment, time.monotonic())
        assert assessment.state.word == "running"
        time.sleep(0.02)


def test_a_forked_child_with_all_descriptors_does_not_keep_a_dead_run_alive(started):
    run = started("fork")
    wait_until(lambda: records(run) > 3)
    worker = runs.read_json(run.path / "run.json")["pid"]
    (child,) = (int(name) for name in os.listdir("/proc") if name.isdigit() and is_child(int(name), worker))
    try:
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: state(run).word == "crashed")
        assert state(run).cause in ("killed by SIGKILL", "unknown") and Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, signal.SIGKILL)


def is_child(pid, parent):
    try:
        return parent_of(pid) == parent
    except OSError:
        return False


def test_a_worker_in_another_pid_namespace_is_seen_stopped_and_seen_dead(fresh):
    if subprocess.run(["unshare", "-pf", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    first, second = fresh("a"), fresh("b")
    for run in (first, second):
        launch.start(run, ["unshare", "-pf", *fake(run, "forever")])
        wait_until(lambda run=run: records(run) > 3)
        assert state(run).word == "running" and runs.read_json(run.path / "run.json")["pid"] < 10, (
            "the pid is that of its own namespace"
        )
        assert not launch.signal_worker(run, signal.SIGKILL), "there is no telling whose pid it is"
    ticket = control.send(first, "stop")
    assert control.answer(first, ticket, DEADLINE_S).result in ("accepted", "done")
    assert ending(first)["exit"] == 130 and state(first).word == "stopped"
    os.kill(runs.holder(second.path), signal.SIGKILL)
    wait_until(lambda: state(second).word == "crashed")


# ----------------------------------------------------------------------------------------------------------------------
# viewer


def test_a_run_followed_in_a_pipe_prints_plain_lines_to_its_end(started, view):
    run = started("finish")
    viewer = view(run, terminal=False)
    assert viewer.wait() == 0
    lines = viewer.text.splitlines()
    assert "\x1b" not in viewer.text and "\r" not in viewer.text and "━" not in viewer.text
    assert [line for line in lines if line.startswith("100.0 %   1 M / 1 M steps   4.71 M SPS   return 20.5")], lines
    assert "eval 480.0 at 800 k steps  (the best so far)" in lines
    assert re.fullmatch(
        r"✔ finished  cartpole-ppo-4f2a   eval 480\.0 \(target 475 reached\) · 1 M steps in 0:00:\d\d", lines[-3]
    ), lines
    assert lines[-2] == f"  run   {run.path}" and lines[-1] == "  next  operant eval 4f2a   operant show 4f2a"


def test_a_run_followed_in_a_terminal_redraws_its_line_to_its_end(started, view):
    run = started("forever")
    viewer = view(run)
    viewer.wait_for("eval 480.0 at 800 k steps  (the best so far)\r\n")
    viewer.wait_for("━")
    assert launch.signal_worker(run, signal.SIGTERM)
    assert viewer.wait() == 130
    assert "\x1b[K" in viewer.text and "steps   4.71 M SPS   return 20.5" in viewer.text
    summary = viewer.text.rpartition("■ stopped  cartpole-ppo-4f2a   by SIGTERM · eval ")[2]
    assert re.search(
        r"480\.0 \(target 475 reached\) · \S+ [kM] steps in 0:00:\d\d · checkpoint at \S+ [kM] steps\r\n", summary
    )
    assert "  next  operant resume 4f2a   operant show 4f2a\r\n" in summary
    redrawn = [piece for piece in re.split(r"\r", viewer.text) if "\x1b[K" in piece and "━" in piece]
    assert redrawn and all(len(piece.partition("\x1b")[0]) < 120 for piece in redrawn)


def test_phases_while_starting_and_ctrl_c_before_the_first_record(started, view):
    run = started("quiet")
    viewer = view(run)
    viewer.wait_for("starting: importing the fake")
    runs.update_document(run.path, phase="compiling kernels 4/9\x1b[2J")
    viewer.wait_for("starting: compiling kernels 4/9[2J")
    viewer.press(b"\x03")
    viewer.wait_for("Stopping before the first iteration, with nothing to save…")
    assert viewer.wait() == 130
    assert "stopped  cartpole-ppo-4f2a   before its first record" in viewer.text and "operant resume" not in viewer.text


def test_ctrl_c_once_stops_with_a_checkpoint(started, view):
    run = started("forever")
    viewer = view(run)
    viewer.wait_for("return 20.5")
    viewer.press(b"\x03")
    viewer.wait_for(
        "and saving a checkpoint… (Ctrl-C again: stop now without saving. To leave it running next time: --detach)"
    )
    assert re.search(r"Stopping after iteration \d+ and saving", viewer.text)
    assert viewer.wait() == 130
    assert ending(run)["exit"] == 130 and state(run).word == "stopped"
    assert list(run.checkpoints_path.iterdir())


def test_ctrl_c_twice_kills(started, view):
    run = started("deaf")
    viewer = view(run)
    viewer.wait_for("return 20.5")
    viewer.press(b"\x03")
    viewer.wait_for("Ctrl-C again")
    time.sleep(2 * follow._ONE_PRESS_S)  # at least this long after the first: not taken for the same press
    viewer.press(b"\x03")
    viewer.wait_for("Stopping now, without saving.")
    assert viewer.wait() == 137
    assert ending(run)["signal"] == 9 and "✖ crashed  cartpole-ppo-4f2a   killed by SIGKILL" in viewer.text


def test_sigterm_to_the_viewer_stops_the_run(started, view):
    run = started("forever")
    viewer = view(run, terminal=False)
    viewer.wait_for("return 20.5")
    viewer.process.terminate()
    assert viewer.wait() == 130 and state(run).word == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize(("hangup", "code"), [("default", -signal.SIGHUP), ("ignore", follow.VIEWER_GONE_CODE)])
def test_a_terminal_that_vanishes_ends_the_viewer_and_not_the_run(started, view, hangup, code):
    run = started("forever")
    viewer = view(run, hangup=hangup)
    viewer.wait_for("return 20.5")
    viewer.hang_up()
    viewer.process.wait(DEADLINE_S)
    assert viewer.process.returncode == code
    seen = records(run)
    wait_until(lambda: records(run) > seen + 20)
    assert state(run).word == "running"


def test_a_killed_viewer_does_not_disturb_the_run(started, view):
    run = started("forever")
    viewer = view(run, terminal=False)
    viewer.wait_for("return 20.5")
    viewer.process.kill()
    viewer.process.wait(DEADLINE_S)
    seen = records(run)
    wait_until(lambda: records(run) > seen + 20)


@pytest.mark.slow
def test_a_deleted_folder_is_reported_once_its_trainer_has_ended(started, monkeypatch):
    monkeypatch.setattr(follow, "_EXIT_GRACE_S", 0.0)
    run, stream, killed = started("forever"), io.StringIO(), threading.Event()
    wait_until(lambda: state(run).word == "running")
    pid = runs.read_json(run.path / "run.json")["pid"]

    def delete_and_kill():
        wait_until(lambda: "SPS" in stream.getvalue())
        shutil.rmtree(run.path)
        time.sleep(0.5)  # in which a viewer that does not wait for the trainer leaves
        killed.set()
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=delete_and_kill)
    thread.start()
    try:
        code = follow.follow(run, stream=stream)
        assert killed.is_set() and code != 0
    finally:
        thread.join()
    assert not runs.discard_unstarted(run, 4), "there is nothing left to delete"
    assert (
        f"✖ {run.id} has ended: its folder was deleted or moved during training" in stream.getvalue()
        and "operant resume" not in stream.getvalue()
    )


def test_an_error_before_the_first_record_is_shown_from_the_log(started):
    run = started("early")
    stream = io.StringIO()
    assert follow.follow(run, stream=stream) == 2
    assert stream.getvalue().endswith("error: ppo.toml has 1 problem\n  ppo.toml:3: unknown key 'algo.learning_rte'\n")
    assert "noise" not in stream.getvalue() and "show" not in stream.getvalue()
    assert runs.discard_unstarted(run, 2) and not run.path.exists()


def test_a_failure_in_training_shows_the_traceback_and_keeps_the_run(started):
    run = started("raise")
    stream = io.StringIO()
    assert follow.follow(run, stream=stream) == 1
    shown = stream.getvalue()
    assert "Traceback (most recent call last)" in shown and "RuntimeError: the sky fell" in shown
    assert "✖ failed  cartpole-ppo-4f2a   60 k steps in 0:00:" in shown and "operant show 4f2a" in shown
    assert not runs.discard_unstarted(run, 1) and not runs.discard_unstarted(run, 2) and run.path.exists()


def test_a_segmentation_fault_in_a_users_own_environment_names_the_command_that_looks_for_it(started):
    run, stream = started("segfault"), io.StringIO()
    assert follow.follow(run, stream=stream) == 137
    assert (
        "killed by SIGSEGV" in stream.getvalue()
        and f"operant check {runs.display_path(run.path / 'source' / 'cartpole.py')}" in stream.getvalue()
    )
    assert stream.getvalue().count("! cartpole.py: it prints\n") == 1


def test_the_log_of_an_earlier_session_is_not_shown(fresh):
    run = fresh()
    run.log_path.write_text(
        f"{log.SESSION_MARK}1\nerror: of yesterday\n{log.SESSION_MARK}2\n"
        + "".join(f"line {k}\x1b[2J\n" for k in range(30))
    )
    assert log.log_end(run).split("\n") == [f"line {k}[2J" for k in range(10, 30)]
    run.log_path.write_bytes(b"\xff" * 100_000 + b"\nerror: one\nerror: two\n  more\n")
    assert log.log_end(run) == "error: two\n  more"
    run.log_path.unlink()
    assert log.log_end(run) == ""


@pytest.mark.slow
def test_resuming_is_followed_by_the_new_session_only(started):
    """The old metrics file has the state "stopped" until the new worker has made another one."""
    run = started("forever")
    wait_until(lambda: records(run) > 0)
    launch.signal_worker(run, signal.SIGTERM)
    ending(run)
    run = runs.load(run.path)
    launch.start(run, fake(run, "quiet"))
    assert not run.exit_path.exists() and state(run).word == "starting"
    assert wait_until(lambda: launch.signal_worker(run, signal.SIGTERM))
    ending(run)
    launch.start(run, fake(run, "finish"))
    stream = io.StringIO()
    assert follow.follow(runs.load(run.path), stream=stream) == 0
    assert "✔ finished" in stream.getvalue()


def test_detached_runs_continue(fresh):
    run = fresh()
    stream = io.StringIO()
    assert follow.start_and_wait_first_record(run, fake(run, "forever"), stream=stream) == 0
    assert stream.getvalue().endswith(
        f"Detached. Still training: reattach `operant monitor 4f2a` · stop `operant stop 4f2a` · log {run.log_path}\n"
    )
    assert records(run) > 0
    seen = records(run)
    wait_until(lambda: records(run) > seen + 5)


STARTER = """
import os, pathlib, signal, subprocess, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which ignores it
terminal, folder, *command = sys.argv[1:]
descriptor = os.open(terminal, os.O_RDWR)  # the leader of a session without a terminal gets the one it opens
for target in (0, 1, 2):
    os.dup2(descriptor, target)
from operant import runs
from operant.cli import follow
bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
follow.start_and_wait_first_record(runs.load(pathlib.Path(folder)), command)
print("bystander", bystander.pid, flush=True)
bystander.wait()
"""


def test_a_detached_run_outlives_its_terminal_and_its_session(fresh):
    run = fresh()
    master, slave = pty.openpty()
    command = [sys.executable, "-c", STARTER, os.ttyname(slave), str(run.path), *fake(run, "forever")]
    starter = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PACKAGE_PARENT}, start_new_session=True)
    said = b""
    while b"bystander " not in said or not said.endswith(b"\n"):
        assert select.select([master], [], [], DEADLINE_S)[0], said
        said += os.read(master, 65536)
    os.close(slave)
    os.close(master)  # the terminal goes away: the kernel sends SIGHUP to the session's foreground group
    assert starter.wait(DEADLINE_S) == -signal.SIGHUP
    # and a login manager ends what is left of the session
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if os.getsid(pid) == starter.pid:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    seen = records(run)
    wait_until(lambda: records(run) > seen + 20)
    assert state(run).word == "running" and b"Detached. Still training" in said


def test_detaching_reports_the_first_error(fresh):
    run = fresh()
    stream = io.StringIO()
    assert follow.start_and_wait_first_record(run, fake(run, "early"), stream=stream) == 2
    assert "error: ppo.toml has 1 problem" in stream.getvalue() and "Detached" not in stream.getvalue()


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"])
def test_detaching_is_refused_under_a_job_manager(fresh, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    run = fresh()
    with pytest.raises(UsageError, match="--detach does not work under"):
        follow.start_and_wait_first_record(run, fake(run, "forever"), stream=io.StringIO())
    assert not run.log_path.exists()


def test_a_machine_that_kills_at_logout_is_reported(tmp_path, monkeypatch):
    etc, linger = tmp_path / "systemd", tmp_path / "linger"
    (etc / "logind.conf.d").mkdir(parents=True)
    linger.mkdir()
    (etc / "logind.conf").write_text("[Login]\n#KillUserProcesses=yes\nKillUserProcesses = no\n")
    monkeypatch.setenv("XDG_SESSION_ID", "3")
    assert launch.logout_problem(etc, linger) is None
    (etc / "logind.conf.d" / "50.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    user = launch.logout_problem(etc, linger).rpartition("loginctl enable-linger ")[2]
    assert user
    (linger / user).write_text("")
    assert launch.logout_problem(etc, linger) is None
    (linger / user).unlink()
    monkeypatch.delenv("XDG_SESSION_ID")
    assert launch.logout_problem(etc, linger) is None


# ----------------------------------------------------------------------------------------------------------------------
# drawing

FULL = Progress(341_000_000, 500_000_000, 4_710_000.0, 487.26, 72.0)


def test_a_narrow_progress_line_drops_the_least_important_fields():
    assert (
        progress.line(FULL, 120)
        == "━" * 27 + "─" * 13 + "   68.2 %   341 M / 500 M steps   4.71 M SPS   return 487.3   ETA 0:01:12"
    )
    assert progress.plain(FULL) == "68.2 %   341 M / 500 M steps   4.71 M SPS   return 487.3   ETA 0:01:12"
    for columns in range(0, 130):
        assert len(progress.line(FULL, columns)) <= columns
        assert len(progress.line(FULL._replace(note="suspended: no heartbeat for 3 s"), columns)) <= columns
    assert progress.line(FULL, 50) == " 68.2 %   341 M / 500 M steps   return 487.3"
    assert progress.line(FULL, 7) == " 68.2 %"
    assert progress.line(Progress(500), 80) == "500 steps"
    assert progress.line(Progress(700, 500), 80).endswith("100.0 %   700 / 500 steps")


class Ascii(io.StringIO):
    encoding = "ascii"


def test_a_stream_without_unicode_gets_plain_letters():
    stream = Ascii()
    progress.Screen(stream).above("✔ finished · ━━─ 日")
    assert stream.getvalue() == "* finished | ##- ?\n"


def test_a_closed_stream_ends_the_viewer_only(started):
    stream = io.StringIO()
    stream.close()
    assert follow.follow(started("finish"), stream=stream) == follow.VIEWER_GONE_CODE

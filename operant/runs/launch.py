"""Starts a trainer that outlives the command that started it. Standard library only; knows nothing of what is trained.

    operant train ── start ──> waiter: python -m operant.runs.launch RUN_DIR -- ARGV...   (own session, no terminal,
    output to log.txt)
         │                        └── worker: ARGV...                                 the waiter writes exit.json when
         it ends └─ follow: a viewer. It reads the metrics file, turns Ctrl-C into SIGTERM for the worker, and may end
         at any time without harm

The waiter is started twice over, so that it is not a child of the viewer: it belongs to init, and the viewer's terminal
can vanish. If the waiter is killed the worker goes on, and how it ended is then unknown.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from operant import runs, text
from operant.errors import BadFileError, BusyError, MachineError, UsageError
from operant.runs import SESSION_MARK, Reader, Run, log_end, signal_worker

__all__ = [
    "Began",
    "announce",
    "claimed",
    "detach_problem",
    "main",
    "mark_session",
    "oom_kills",
    "open_log",
    "signal_worker",
    "spawn",
    "start",
    "torchrun_line",
]

_WAITER_POLL_S = 0.01
_BUSY_CODE = BusyError.exit_code


# ----------------------------------------------------------------------------------------------------------------------
# starting


def start(run: Run, worker_argv: Sequence[str]) -> None:
    """Start the worker of a run, detached from this process, its terminal and its session; returns when the worker
    holds the run's lock, or has ended.

    Raises BusyError if the run has a living trainer, MachineError if the waiter cannot be started.
    """
    announce(run)
    waiter = _start_waiter(run, worker_argv)
    try:
        _await_worker(run, waiter)
    except KeyboardInterrupt:
        # The lock may not be held yet: then only the waiter can be signalled, which passes it on.
        with contextlib.suppress(OSError):
            os.kill(waiter, signal.SIGTERM)
        _await_worker(run, waiter)


def announce(run: Run) -> None:
    """Say in the run's folder that a worker is about to begin: nothing there may be taken for news of it from here on.

    Raises BusyError if the run has a living trainer.
    """
    if runs.taken(run.path):
        raise BusyError(runs.busy(run.path))
    with contextlib.suppress(OSError):  # a folder that cannot be written is reported by the next line
        run.exit_path.unlink()
    runs.update_document(
        run.path,
        durable=False,
        pid=None,
        pid_start_ticks=None,
        boot_id=runs.boot_id(),
        host=runs.host(),
        phase="starting the trainer",
    )


@contextlib.contextmanager
def claimed(run: Run) -> Iterator[Callable[[], None]]:
    """While this is held no other command starts a trainer of the run: for the time between a look at the run and a
    worker that holds its lock.

    Gives the function that ends it before the block does. Raises BusyError where another command has it.
    """
    held: list[int] = []
    try:
        held.append(os.open(run.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held.pop())
        raise BusyError(
            f"another command is about to resume {text.safe(run.id)}: operant show {text.safe(run.short)}"
        ) from None
    except OSError:  # a filesystem that does not lock folders: the worker's own lock still keeps all but one out
        pass

    def release() -> None:
        while held:
            os.close(held.pop())

    try:
        yield release
    finally:
        release()


def _await_worker(run: Run, waiter: int) -> None:
    while True:
        # Who was there is asked before what it left: a waiter that is gone has written exit.json, if ever.
        gone = _is_gone(waiter)
        if runs.probe(run.path) or os.path.lexists(run.exit_path):
            return
        if gone:
            raise MachineError(
                f"the trainer could not be started; see {runs.shown(run.log_path)}\n{log_end(run)}".rstrip()
            )
        time.sleep(_WAITER_POLL_S)


def _start_waiter(run: Run, worker_argv: Sequence[str]) -> int:
    """The pid of the waiter, whose parent has ended."""
    command = [*module_command("operant.runs.launch"), str(run.path), "--", *worker_argv]
    try:
        log = open_log(run.path)
        try:
            first = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(log)
    except OSError as error:
        raise MachineError(f"the trainer cannot be started in {runs.shown(run.path)} ({error.strerror})") from None
    if first.returncode or not first.stdout.strip().isdigit():
        raise MachineError(f"the trainer could not be started; see {runs.shown(run.log_path)}\n{log_end(run)}".rstrip())
    return int(first.stdout)


def spawn(command: Sequence[str], log: Path, *, mode: str = "ab") -> subprocess.Popen[bytes]:
    """Start a process in a session without a terminal, which outlives this one; `log` takes its output. Raises
    MachineError.
    """
    try:
        with open(log, mode) as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                start_new_session=True,
            )
    except OSError as error:
        raise MachineError(f"cannot start a process in {runs.shown(log.parent)} ({error.strerror})") from None


def module_command(module: str) -> list[str]:
    """What runs a module as `python -m` does, but imports nothing that happens to lie in the working directory (`python
    -P`, which 3.10 does not know).
    """
    program = (
        f"import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module({module!r}, "
        "run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", program]


def environment() -> dict[str, str]:
    """What the waiter, the worker and their children see: this package, no modules of the working directory, and output
    that is not held back.
    """
    seen = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    package_parent = str(Path(__file__).resolve().parents[2])
    if os.path.basename(package_parent) not in ("site-packages", "dist-packages"):  # a checkout
        seen["PYTHONPATH"] = os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH"))))
    return seen


def _is_gone(pid: int) -> bool:
    """Whether a process has ended, even if it has not been reaped."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return state == [b"Z"]


def open_log(folder: Path, name: str = "log.txt") -> int:
    """A descriptor of a folder's log, for appending. Raises OSError, and MachineError for what is no regular file."""
    path = folder / name
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):  # a FIFO would be waited for
        raise MachineError(f"{runs.shown(path)} is no regular file, and a trainer writes its log there: move it away")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def torchrun_line(folder: Path | str, ranks: int, trusted: bool = False) -> str:
    """The command that starts a prepared run on so many ranks of one machine."""
    return f"torchrun --nproc-per-node={ranks} -m operant.training.worker {text.safe(folder)}{' --trust' * trusted}"


def detach_problem() -> str | None:
    """Why a detached run would not outlive this login, as a sentence with the way out; None where nothing is known to
    be in its way.

    Raises UsageError under Slurm and Kubernetes, which kill what is left behind by a job.
    """
    for variable, manager in (("SLURM_JOB_ID", "Slurm"), ("KUBERNETES_SERVICE_HOST", "Kubernetes")):
        if os.environ.get(variable):
            raise UsageError(
                f"--detach does not work under {manager} (${variable} is set): it ends all processes with the job. "
                "Leave --detach out"
            )
    return logout_problem()


def logout_problem(etc: Path = Path("/etc/systemd"), linger: Path = Path("/var/lib/systemd/linger")) -> str | None:
    """The sentence for a machine whose logind kills a user's processes at logout (KillUserProcesses=yes and no
    lingering), or None.
    """
    if not os.environ.get("XDG_SESSION_ID"):
        return None
    kills = False
    for path in [etc / "logind.conf", *sorted((etc / "logind.conf.d").glob("*.conf"))]:
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "KillUserProcesses":
                    kills = value.strip().lower() in ("yes", "true", "1", "on")
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None
    if not kills or (linger / user).exists():
        return None
    return (
        "This machine ends a user's processes at logout, and this run with them. To prevent that: loginctl "
        f"enable-linger {user}"
    )


# ----------------------------------------------------------------------------------------------------------------------
# waiting


def mark_session() -> None:
    """The line of the log before all that one worker prints."""
    _say(f"{SESSION_MARK}{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}")


class Began:
    """When a worker began, and what its supervisor writes when it has ended."""

    def __init__(self) -> None:
        self._killed, self._begin_s = oom_kills(), time.monotonic()

    def write_ending(self, folder: Path, code: int, pid: int | None) -> dict[str, Any]:
        """Write exit.json, and return it: `code` as `subprocess` has it, below 0 for a signal. Raises MachineError."""
        ending: dict[str, Any] = {
            "exit": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "oom_kill": None,
        }
        ending |= {"pid": pid} if pid is not None else {}
        killed = oom_kills()
        if self._killed is not None and killed is not None:
            ending["oom_kill"] = killed - self._killed
        ending |= {
            "last_step": _last_step(folder),
            "wall_s": time.monotonic() - self._begin_s,
            "ended_realtime_ns": time.time_ns(),
        }
        # A worker that found the run taken says nothing about the run, whose own waiter will write the file.
        if code != _BUSY_CODE or not runs.taken(folder):
            runs.write_json(folder / "exit.json", ending)
        return ending


class _Waiter:
    """Starts the worker, waits for it, and writes how it ended."""

    def __init__(self, folder: Path, argv: Sequence[str]) -> None:
        self._folder, self._argv = folder, list(argv)
        self._worker: subprocess.Popen[bytes] | None = None
        self._asked = False

    def run(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        mark_session()
        began = Began()
        try:
            self._worker = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)
        except OSError as error:
            _say(f"error: the trainer cannot be started: {text.safe(self._argv[0])} ({error.strerror})")
            code = MachineError.exit_code
        else:
            if self._asked:
                self._worker.terminate()
            code = self._worker.wait()
        try:
            began.write_ending(self._folder, code, None if self._worker is None else self._worker.pid)
        except MachineError as error:
            _say(f"operant: {error}")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._worker is not None:
            self._worker.terminate()


def oom_kills(
    cgroup: Path = Path("/proc/self/cgroup"),
    mounts: Sequence[Path] = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")),
) -> int | None:
    """How often the kernel has killed a process of this cgroup (version 2) for want of memory; None where it does not
    tell.
    """
    with contextlib.suppress(OSError, ValueError):
        names = [line[3:].strip("/") for line in cgroup.read_text().splitlines() if line.startswith("0::")]
        for mount, name in ((mount, name) for name in names for mount in mounts):
            with contextlib.suppress(OSError, ValueError):
                for line in (mount / name / "memory.events").read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
    return None


def _last_step(folder: Path) -> int | None:
    with contextlib.suppress(BadFileError), Reader(folder / "metrics.mm") as reader:
        record = reader.latest()
        return None if record is None else record.step
    return None


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode("utf-8", "replace"))


def main(arguments: Sequence[str]) -> int:
    """The waiter's program: RUN_DIR -- ARGV... Prints the pid of the waiter proper and ends at once; that one goes on
    in a session without a leader.
    """
    if len(arguments) < 3 or arguments[1] != "--":
        _say("error: usage: python -m operant.runs.launch RUN_DIR -- ARGV...")
        return UsageError.exit_code
    folder = Path(arguments[0])
    os.umask(0o077)
    with contextlib.suppress(OSError):  # already the leader of a session, if `start` began this process
        os.setsid()
    # A fork of a program that has one thread and has imported next to nothing. Without a leader the session can never
    # get a terminal again.
    if waiter := os.fork():
        os.write(1, b"%d\n" % waiter)
        return 0
    code = 1
    try:
        log, nothing = open_log(folder), os.open(os.devnull, os.O_RDWR)
        for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        _Waiter(folder, arguments[2:]).run()
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Start of a trainer that outlives the command that started it. Standard library only.

    operant train ── start ──> waiter: python -m operant.runs.launch RUN_DIR -- ARGV...
         │                     own session, no terminal, output to log.txt; writes exit.json when the worker ends
         │                        └── worker: ARGV...
         └─ follow: a viewer. It reads the metrics file, turns Ctrl-C into SIGTERM for the worker, and may end at any
                    time without harm

The waiter is forked twice, so that it is a child of init and not of the viewer, whose terminal can vanish. If the
waiter is killed the worker continues, and its exit code remains unknown.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
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
    "ExitRecord",
    "announce",
    "claimed",
    "detach_problem",
    "forget_ending",
    "main",
    "mark_session",
    "oom_kills",
    "open_log",
    "session_line",
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
    """Start the worker process of a run, detached from this process and its terminal. Returns once the worker holds the
    lock of the run, or has ended. Raises BusyError if the run has a living trainer, MachineError if it cannot be
    started.
    """
    announce(run)
    waiter = _start_waiter(run, worker_argv)
    try:
        _await_worker(run, waiter)
    except KeyboardInterrupt:
        # Before the lock is held only the waiter can be signalled; it forwards the signal.
        with contextlib.suppress(OSError):
            os.kill(waiter, signal.SIGTERM)
        _await_worker(run, waiter)


def announce(run: Run) -> None:
    """Record in run.json that a worker is about to start, and remove exit.json of the previous one. Raises BusyError if
    the run has a living trainer.
    """
    if runs.has_trainer(run.path):
        raise BusyError(runs.busy_message(run.path))
    forget_ending(run)
    runs.update_document(
        run.path,
        pid=None,
        pid_start_ticks=None,
        boot_id=runs.boot_id(),
        host=runs.host(),
        phase="launching the trainer",
    )


def forget_ending(run: Run) -> None:
    """Remove exit.json of the run's previous worker, after adding its duration to run.json. A second call changes
    nothing.
    """
    if (took_s := runs.observe(run).took_s) is not None:
        runs.update_document(run.path, earlier_s=took_s, pid=None)
    with contextlib.suppress(OSError):
        run.exit_path.unlink()


@contextlib.contextmanager
def claimed(run: Run) -> Iterator[Callable[[], None]]:
    """Context manager that holds a run so that no other command starts a trainer of it. Yields a function that releases
    it early. Raises BusyError if another command holds it.
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
    except OSError:  # no locks on folders here: the lock of the worker still keeps a second one out
        pass

    def release() -> None:
        while held:
            os.close(held.pop())

    try:
        yield release
    finally:
        release()


def _await_worker(run: Run, waiter: int) -> None:
    """Wait until the run's worker holds the lock or has ended. Raises MachineError if its parent process (pid `waiter`)
    ends before.
    """
    while True:
        # The waiter is checked before exit.json, which it writes before its end.
        gone = _is_gone(waiter)
        if runs.probe(run.path) or os.path.lexists(run.exit_path):
            return
        if gone:
            raise MachineError(
                f"the trainer did not start; see {runs.display_path(run.log_path)}\n{log_end(run)}".rstrip()
            )
        time.sleep(_WAITER_POLL_S)


def _start_waiter(run: Run, worker_argv: Sequence[str]) -> int:
    """Start the waiter, the parent process of the worker, and return its pid. The process in between ends at once.
    Raises MachineError.
    """
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
        raise MachineError(f"cannot start the trainer in {runs.display_path(run.path)} ({error.strerror})") from None
    if first.returncode or not first.stdout.strip().isdigit():
        raise MachineError(f"the trainer did not start; see {runs.display_path(run.log_path)}\n{log_end(run)}".rstrip())
    return int(first.stdout)


def spawn(command: Sequence[str], log: Path, *, mode: str = "ab") -> subprocess.Popen[bytes]:
    """Start a process in a session of its own without a terminal, which outlives this one. Its output goes to the file
    `log`, opened with `mode`. Raises MachineError.
    """
    try:
        with open(open_log(log.parent, log.name), mode) as output:
            if mode == "wb":
                output.truncate()
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                start_new_session=True,
            )
    except OSError as error:
        raise MachineError(f"cannot start a process in {runs.display_path(log.parent)} ({error.strerror})") from None


def module_command(module: str) -> list[str]:
    """Return the command line that runs a module like `python -m`, but never imports from the working directory
    (`python -P`, which 3.10 lacks).
    """
    program = (
        f"import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module({module!r}, "
        "run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", program]


def environment() -> dict[str, str]:
    """Return the environment variables for a trainer's processes: this package is found, modules of the working
    directory are not, output is unbuffered.
    """
    variables = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    package_parent = str(Path(__file__).resolve().parents[2])
    if os.path.basename(package_parent) not in ("site-packages", "dist-packages"):  # a checkout
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH"))))
    return variables


def _is_gone(pid: int) -> bool:
    """Whether a process has ended, whether or not its parent has waited for it."""
    try:
        os.kill(pid, 0)
        state = runs.process_fields(pid)[:1]
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return state == [b"Z"]


def open_log(folder: Path, name: str = "log.txt") -> int:
    """Open a log file for appending and return the descriptor. Raises OSError, and MachineError if it is not a regular
    file.
    """
    path = folder / name
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):  # a FIFO would be waited for
        raise MachineError(
            f"{runs.display_path(path)} is not a regular file, and the trainer writes its log there: move it away"
        )
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def torchrun_line(folder: Path | str, ranks: int, trusted: bool = False) -> str:
    """Return the command line that starts a prepared run on `ranks` processes of one machine; `trusted` adds
    --trust.
    """
    return f"torchrun --nproc-per-node={ranks} -m operant.training.worker {text.safe(folder)}{' --trust' * trusted}"


def detach_problem() -> str | None:
    """Return the reason why a detached run would not outlive this login, and the remedy; None if no reason is known.

    Raises UsageError under Slurm and Kubernetes, which kill all processes of a job at its end.
    """
    for variable, manager in (("SLURM_JOB_ID", "Slurm"), ("KUBERNETES_SERVICE_HOST", "Kubernetes")):
        if os.environ.get(variable):
            raise UsageError(
                f"--detach does not work under {manager} (${variable} is set), which ends all processes with the job: "
                "leave --detach out"
            )
    return logout_problem()


def logout_problem(etc: Path = Path("/etc/systemd"), linger: Path = Path("/var/lib/systemd/linger")) -> str | None:
    """Return a message if logind kills this user's processes at logout (KillUserProcesses=yes and no lingering); else
    None. `etc`, `linger`: folders of its configuration and of lingering users.
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
        "this machine ends a user's processes at logout, this run included. To prevent that: loginctl "
        f"enable-linger {user}"
    )


# ----------------------------------------------------------------------------------------------------------------------
# waiting


def mark_session() -> None:
    """Write the line that separates the output of a run's new worker from earlier ones to the log (stderr)."""
    _write_stderr(session_line())


def session_line() -> str:
    """Return the line that begins the log of a session."""
    return f"{SESSION_MARK}{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}"


class ExitRecord:
    """Recorder of how a worker ends: created at its start, it measures time and kills by the kernel for the exit.json
    written at the end.
    """

    def __init__(self) -> None:
        self._killed, self._begin_s = oom_kills(), time.monotonic()

    def write_ending(self, folder: Path, code: int, pid: int | None) -> dict[str, Any]:
        """Write exit.json of the run in `folder` and return its content. `code` is the worker's exit code, negative for
        a signal, as in `subprocess`; `pid` the worker's. Raises MachineError.
        """
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
        # A worker that found the run busy leaves the file to the waiter of the other one.
        if code != _BUSY_CODE or not runs.has_trainer(folder):
            runs.write_json(folder / "exit.json", ending)
        return ending


class _Waiter:
    """Parent process of a worker: starts it, passes signals on, waits for its end, and writes exit.json."""

    def __init__(self, folder: Path, argv: Sequence[str]) -> None:
        self._folder, self._argv = folder, list(argv)
        self._worker: subprocess.Popen[bytes] | None = None
        self._asked = False

    def run(self) -> None:
        """Start the worker, wait for its end and write exit.json."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        mark_session()
        record = ExitRecord()
        try:
            self._worker = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)
        except OSError as error:
            _write_stderr(f"error: cannot start the trainer: {text.safe(self._argv[0])} ({error.strerror})")
            code = MachineError.exit_code
        else:
            if self._asked:
                self._worker.terminate()
            code = self._worker.wait()
        try:
            record.write_ending(self._folder, code, None if self._worker is None else self._worker.pid)
        except MachineError as error:
            _write_stderr(f"operant: {error}")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Terminate the worker, as the handler of SIGTERM and SIGINT; if it has not started yet, at its start."""
        self._asked = True
        if self._worker is not None:
            self._worker.terminate()


def oom_kills(
    cgroup: Path = Path("/proc/self/cgroup"),
    mounts: Sequence[Path] = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")),
) -> int | None:
    """Return how many processes of this process's cgroup the kernel has killed for lack of memory; None if unknown."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in cgroup.read_text().splitlines()]
        for mount, (_, controllers, name) in itertools.product(mounts, lines):
            if not controllers:  # version 2
                counters = [mount / name.strip("/") / "memory.events"]
            elif "memory" in controllers.split(","):  # version 1; a container may see its own cgroup as the root
                folders = (mount / "memory" / name.strip("/"), mount / "memory")
                counters = [folder / "memory.oom_control" for folder in folders]
            else:
                continue
            for counter in counters:
                with contextlib.suppress(OSError, ValueError):
                    for line in counter.read_text().splitlines():
                        if line.startswith("oom_kill "):
                            return int(line.split()[1])
    return None


def _last_step(folder: Path) -> int | None:
    """Return the step of the newest record in a run folder's metrics file; None without one."""
    with contextlib.suppress(BadFileError), Reader(folder / "metrics.mm") as reader:
        record = reader.latest()
        return None if record is None else record.step
    return None


def _write_stderr(line: str) -> None:
    """Write a line to stderr, ignoring errors."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode("utf-8", "replace"))


def main(arguments: Sequence[str]) -> int:
    """Run the waiter, the parent process of a worker. `arguments`: RUN_DIR -- ARGV... Prints the waiter's pid and
    returns at once; it continues in a forked process.
    """
    if len(arguments) < 3 or arguments[1] != "--":
        _write_stderr("error: usage: python -m operant.runs.launch RUN_DIR -- ARGV...")
        return UsageError.exit_code
    folder = Path(arguments[0])
    os.umask(0o077)
    with contextlib.suppress(OSError):  # already the leader of a session, if `start` began this process
        os.setsid()
    # Fork of a small program with one thread. A session without a leader can never get a terminal again.
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

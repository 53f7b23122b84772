"""Signals and request files for a training loop, and the threads that receive and answer them. Standard library only.

A handler or thread only sets fields that the loop reads between two iterations; the loop reports completion.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from operant.errors import StoppedError
from operant.runs.control import RESULTS, Inbox, Request

START_DEADLINE_S = 10.0
"""Seconds until a stop before the first iteration ends the process. Nothing is lost then, and an import or a
compilation may hold the main thread for longer.
"""
KILLED_CODE: Final = 137
HEARTBEAT_S: Final = 0.25
_LOOK_S = 0.2
_LONGEST_WATCH_S = 60.0
_ONE_PRESS_S = 0.3  # interrupts within this time count as one: wrappers often forward the terminal's signal
_LAST_WORD_S = 1.0


class Stop(NamedTuple):
    """Request to end the run: the number of the signal (0: not a signal) and the name of the signal or of the
    person.
    """

    number: int
    by: str


class SignalThread:
    """Thread that receives each signal at once and calls `on_signal` with its number. Python's own handlers wait until
    the main thread leaves C code, possibly for a whole iteration.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        _disable_in_children()
        self._on_signal = on_signal
        self._source, self._sink = os.pipe()
        os.set_blocking(self._sink, False)
        self._before = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread that receives signals, after all received signals are delivered. Called by the main thread
        only.
        """
        signal.set_wakeup_fd(self._before)
        os.close(self._sink)
        self._thread.join()

    def _listen(self) -> None:
        """Call `on_signal` for each signal number that arrives, until the pipe closes."""
        with open(self._source, "rb", buffering=0) as source:
            while numbers := source.read(64):
                for number in numbers:
                    self._on_signal(number)


@functools.cache
def _disable_in_children() -> None:
    """Disable the wakeup descriptor of signals in forked children, which would write to this process's pipe. Registered
    once per process.
    """

    def disable() -> None:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)

    os.register_at_fork(after_in_child=disable)


class Requests:
    """Requests that wait for the training loop, from signals and from request files, and their answers. Handlers and
    threads add them; the loop takes and completes them between two iterations.

    Before training begins a stop interrupts at once, since there is nothing to save; leaving the `with` block raises
    StoppedError. From then on the loop stops after its iteration, however long it takes; a second SIGINT ends the
    process at once.
    """

    def __init__(self, *, embedded: bool = False) -> None:
        """`embedded`: the process is the user's and continues. A second SIGINT then raises KeyboardInterrupt, nothing
        exits the process, and outside its main thread, which alone can have handlers, signals are left alone.
        """
        self._embedded = embedded
        self._main = not embedded or threading.current_thread() is threading.main_thread()
        self.stop: Stop | None = None
        self.checkpoint = False
        self.paused_by: str | None = None  # name of the requester
        self.waiting = False  # whether the loop is paused
        self.reporter: Reporter | None = None  # announces signals from the beginning of training
        self.answered = threading.Event()  # set when answers wait to be written
        self._lock = threading.Lock()
        self._unanswered: dict[str, list[Request]] = {}
        self._answers: deque[tuple[Request, str, str]] = deque()
        self._starting, self._deferred = True, False
        self._before: dict[signal.Signals, Any] = {}
        self._signals: SignalThread | None = None
        self._deadline: threading.Timer | None = None
        self._pressed_s = float("-inf")  # time of the last SIGINT
        self._handled_s = float("-inf")  # time of the last SIGINT that reached the main thread
        self._announced = False  # whether a stop was announced

    # SIGNALS

    def __enter__(self) -> Requests:
        """Install handlers. SIGTERM, SIGINT: stop with a checkpoint. SIGUSR1: checkpoint. SIGUSR2: stacks to the log.
        SIGHUP: ignored.
        """
        if not self._main:
            return self
        handlers: dict[signal.Signals, Any] = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGUSR1: self._on_checkpoint,
            signal.SIGHUP: signal.SIG_IGN,
        }
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # stderr without a file descriptor
            faulthandler.register(signal.SIGUSR2, all_threads=True)
        self._signals = SignalThread(self._on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        # An interrupted import of a C extension may surface as ImportError or worse.
        """Raise StoppedError if a stop interrupted the block before training began, in place of the error that it
        caused.
        """
        if self.stop is not None and error is not None and (self._starting or isinstance(error, SystemExit)):
            raise StoppedError(
                f"stopped by {self.stop.by} before the first iteration, with nothing to save", signal=self.stop.number
            ) from None

    def begin(self) -> None:
        """Mark the beginning of training: from now on a stop waits for the end of an iteration. Raises SystemExit if a
        stop is already pending.
        """
        self._starting = False
        if self.stop is not None:  # the SystemExit was lost in a callback from C
            sys.exit(StoppedError.exit_code)

    @contextlib.contextmanager
    def deferring_stops(self) -> Iterator[None]:
        """Context of an import, during which a stop does not interrupt: an interrupted import leaves partial modules
        behind or aborts the process. Raises SystemExit at its end if a stop is pending.
        """
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self.stop is not None:
            sys.exit(StoppedError.exit_code)

    def restore(self) -> None:
        """Restore the signal handlers that were replaced and release the trainer, in a process that continues after the
        run.
        """
        self.reporter = None
        if self._signals is not None:
            self._signals.close()
        if self._deadline is not None:
            self._deadline.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._main:
            faulthandler.unregister(signal.SIGUSR2)

    def _on_stop(self, number: int, frame: object) -> None:
        """Handle SIGTERM or SIGINT in the main thread: request a stop, and before training begins raise SystemExit."""
        self.ask_stop(Stop(number, signal.Signals(number).name))
        now_s, handled_s = time.monotonic(), self._handled_s
        if self._embedded and number == signal.SIGINT and not self._starting:
            self._handled_s = now_s
            if handled_s > 0 and now_s - handled_s > _ONE_PRESS_S:
                raise KeyboardInterrupt
        if self._starting and not self._deferred:
            sys.exit(StoppedError.exit_code)  # libraries do not catch SystemExit as an error of their own

    def _on_checkpoint(self, number: int, frame: object) -> None:
        """Handle SIGUSR1 in the main thread: request a checkpoint."""
        self.checkpoint = True

    def _on_signal(self, number: int) -> None:
        """Record a signal at once: announce the first stop, and exit the process on a second Ctrl-C. The signal thread
        calls it, possibly long before the main thread's handler runs.
        """
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        now_s, pressed_s = time.monotonic(), self._pressed_s
        if number == signal.SIGINT:
            self._pressed_s = now_s
            if pressed_s > 0 and now_s - pressed_s > _ONE_PRESS_S and not self._embedded:
                self._exit_now(KILLED_CODE)
        name = signal.Signals(number).name
        self.ask_stop(Stop(number, name))
        if self._announced:
            return
        self._announced = True
        if self.reporter is None and self._embedded:
            return
        if self.reporter is None:
            self._deadline = _start_timer(START_DEADLINE_S, self._give_up)
        else:
            self.reporter.announce_stop()
            self.reporter.say(
                f"{name}: stops after this iteration with a checkpoint, however long both take (Ctrl-C again: "
                "exit at once without one)",
                code="stop",
            )

    def _give_up(self) -> None:
        """Exit the process if training has not begun yet: a stop could not interrupt it in time."""
        if self._starting:
            self._exit_now(StoppedError.exit_code)

    # REQUESTING

    @property
    def began(self) -> bool:
        """Whether training has begun, so that a stop waits for the end of an iteration."""
        return not self._starting

    @property
    def pending(self) -> bool:
        """Whether a request of any kind waits for the training loop."""
        return self.checkpoint or self.stop is not None or self.paused_by is not None

    def ask_stop(self, stop: Stop) -> None:
        """Request the end of the run. If a stop is already requested, that one counts. Thread- and signal-safe."""
        if self.stop is None:
            self.stop = stop

    def ask(self, request: Request) -> str:
        """Register a request, which the loop completes later, and return a sentence for the person who made it. The
        request thread calls it.
        """
        with self._lock:
            self._unanswered.setdefault(request.verb, []).append(request)
        if request.verb == "stop":
            self.ask_stop(Stop(0, request.by))
            return "stops after this iteration"
        if request.verb == "checkpoint":
            self.checkpoint = True
            return "a checkpoint follows this iteration"
        if request.verb == "pause":
            self.answer("unpause", "failed", f"paused again by {request.by}")
            paused, self.paused_by = self.paused_by, self.paused_by or request.by
            return "pauses after this iteration" if paused is None else f"already paused by {paused}"
        paused, self.paused_by = self.paused_by, None
        if not self.waiting:
            self.answer("pause", "failed", f"cancelled by {request.by}")
            self.answer("unpause", "done", "the run was not paused" if paused is None else "the run had not paused yet")
        return "resumes"

    def _exit_now(self, code: int) -> None:
        """Exit the process at once with `code`, after announcing it if that takes less than a second."""
        deadline = _start_timer(
            _LAST_WORD_S, lambda: os._exit(code)
        )  # a blocked terminal or disk must not delay the exit
        if self.reporter is not None:
            self.reporter.announce_exit(code)
        deadline.cancel()
        os._exit(code)

    # ANSWERING

    def take(self, verb: str) -> list[Request]:
        """Remove and return all pending requests of the kind `verb` ("checkpoint", "pause", ...). The caller answers
        them with `answer_all`.
        """
        with self._lock:
            return self._unanswered.pop(verb, [])

    def answer_all(self, requests: Iterable[Request], result: str, text: str) -> None:
        """Answer requests, which were removed by `take`, with a `result` of control.RESULTS and the sentence `text`.
        Thread-safe; the request thread writes the answers to disk.
        """
        self._answers.extend((request, result, text) for request in requests)
        self.answered.set()

    def answer(self, verb: str, result: str, text: str) -> None:
        """Answer all pending requests of the kind `verb` ("stop", "pause", ...) with a `result` of control.RESULTS and
        the sentence `text`.
        """
        self.answer_all(self.take(verb), result, text)

    def take_answer(self) -> tuple[Request, str, str] | None:
        """Remove and return the next answer to write to disk (request, result, sentence), None if there is none."""
        with contextlib.suppress(IndexError):
            return self._answers.popleft()
        return None


def _start_timer(seconds: float, act: Callable[[], object]) -> threading.Timer:
    """Start a daemon timer that calls `act` after `seconds`; returns it."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


class Reporter(Protocol):
    """Interface through which the request threads reach the trainer's log, events and state."""

    def say(self, text: str, *, level: str = "info", code: str = "note") -> None:
        """Write a line to the run's log and to its events, with a `level` ("info", "warn" or "error") and a `code` that
        names the kind of event.
        """

    def announce_stop(self) -> None:
        """Announce that the run stops after its current iteration."""

    def announce_exit(self, exit_code: int) -> None:
        """Announce that the process exits immediately with this code, without a checkpoint."""

    def watch(self, mode: str, size: int, until_s: float) -> None:
        """Ask for live frames of the agent until `until_s` (`time.monotonic`), for a viewer: `mode` is "greedy" or
        "sampled", `size` the side in pixels.
        """

    def acknowledge(self, sequence: int, result: int) -> None:
        """Publish the outcome of request number `sequence` in the metrics file; `result` is an index into
        `control.RESULTS`.
        """


class RequestThread:
    """Thread that accepts request files from `inbox` and writes their answers while the loop is busy. The heartbeat has
    another thread, because it must not wait for a disk.
    """

    def __init__(self, inbox: Inbox, requests: Requests, reporter: Reporter) -> None:
        self._inbox, self._requests, self._reporter = inbox, requests, reporter
        self._sequence, self._last = 0, ""
        self._over = False
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    def __enter__(self) -> RequestThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the thread, refuse the remaining requests, and write the last answers."""
        self._over = True
        self._requests.answered.set()
        self._thread.join()
        for request in self._inbox.poll():
            if request.verb != "watch":
                self._inbox.settle(request, "failed", "the run has ended")
        self._write_answers()

    def _run(self) -> None:
        """Accept request files and write answers until the run ends; body of the thread."""
        while not self._over:
            self._requests.answered.wait(_LOOK_S)
            self._requests.answered.clear()
            for request in self._inbox.poll():
                self._accept(request)
            self._write_answers()

    def _accept(self, request: Request) -> None:
        """Accept a request: forward a viewer's request for frames, register any other and acknowledge it."""
        if request.verb == "watch":
            self._reporter.watch(
                request.arguments["mode"],
                request.arguments["size"],
                time.monotonic() + min(request.left_s, _LONGEST_WATCH_S),
            )
            return
        self._sequence, self._last = self._sequence + 1, request.name
        text = self._requests.ask(request)
        if request.verb == "stop":
            self._reporter.announce_stop()
        self._inbox.settle(request, "accepted", text)
        self._reporter.acknowledge(self._sequence, RESULTS.index("accepted"))
        self._reporter.say(f"{request.verb} asked for by {request.by}", code="control")

    def _write_answers(self) -> None:
        """Write the answers given so far to the request files, and acknowledge the newest request."""
        while (answer := self._requests.take_answer()) is not None:
            request, result, text = answer
            self._inbox.settle(request, result, text)
            if request.name == self._last:
                self._reporter.acknowledge(self._sequence, RESULTS.index(result))


class Heartbeat:
    """Thread that calls `beat` four times a second while its context lasts, to record that the process is alive."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat, self._over = beat, threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            self._beat()

"""Viewer of a run in the terminal: draws progress from the metrics file, and sends stop requests on Ctrl-C. Standard
library only.

A viewer holds no resource of the run and may be killed at any time without effect on the trainer.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TextIO

from operant import runs, text
from operant.display import progress
from operant.display.progress import Progress, Rate, Screen, ViewerGoneError
from operant.errors import BadFileError, MachineError
from operant.runs import (
    EVALUATION,
    FLAG_EVAL,
    RETURN,
    TERMINAL,
    Follower,
    Observation,
    Record,
    Run,
    integer_of,
    launch,
    log_end,
    states,
    text_of,
)
from operant.runs import folder as runfolder

TIMEOUT_CODE = 124
VIEWER_GONE_CODE = 129  # 128 + SIGHUP: exit code of a process killed by the end of its terminal
_POLL_S = 0.125
_PLAIN_S = 5.0  # interval of lines if the stream is not a terminal
_SILENT_S = 2.0  # a trainer whose folder was deleted has ended after this time without a heartbeat
_EXIT_GRACE_S = 2.0  # time to wait for exit.json once the lock is free: a killed waiter writes none
_ONE_PRESS_S = 0.3  # closer interrupts count once: wrappers forward signals that the terminal has already sent
_UNREACHABLE_S = 3.0
_GLYPHS = {"finished": "✔", "stopped": "■"}
_LINGER = "(Ctrl-C again: stop now{}. To leave it running next time: --detach)"


def follow(run: Run, *, stream: TextIO | None = None, presses: Presses | None = None) -> int:
    """Watch a run to its end, drawing progress on `stream` (default: stderr), and return the run's exit code. One
    Ctrl-C or SIGTERM asks the trainer to stop and save; a second Ctrl-C kills it. `presses`: counter of a caller that
    started counting before.

    If the stream's terminal or pipe closes, only the viewer ends (129).
    """
    viewer = _Viewer(run, stream or sys.stderr, presses=presses or Presses())
    with viewer.presses.counted():
        return viewer.watch()


def follow_to_first_record(
    run: Run,
    *,
    stream: TextIO | None = None,
    notice: str | None = None,
    presses: Presses | None = None,
    detach: bool = True,
) -> int:
    """Watch a run until its first metrics record and return 0; if it ends before, return its exit code. `notice` is
    printed first. With `detach` the commands to reattach are printed at the end; without, the caller continues to
    watch.
    """
    viewer = _Viewer(run, stream or sys.stderr, presses=presses or Presses())
    with viewer.presses.counted():
        return viewer.watch(notice=notice, until_first_record=True, detach=detach)


def wait(run: Run, timeout_s: float | None, *, stream: TextIO | None = None) -> int:
    """Watch a run to its end without control over it: Ctrl-C ends only the waiting. Returns the run's exit code, or 124
    after `timeout_s` (None: no limit).
    """
    return _Viewer(run, stream or sys.stderr).watch(timeout_s=math.inf if timeout_s is None else timeout_s)


def start_and_wait_first_record(run: Run, worker_argv: Sequence[str], *, stream: TextIO | None = None) -> int:
    """Start a detached worker process for a run and wait for the run's first metrics record. Returns 0 after printing
    the commands to reattach, or the run's exit code if it ends before.

    Raises UsageError if a detached run would be killed with its job (Slurm, Kubernetes), and the errors of
    `launch.start`.
    """
    notice = launch.detach_problem()
    launch.start(run, worker_argv)
    return follow_to_first_record(run, stream=stream, notice=notice)


class Presses:
    """Counter of Ctrl-C and SIGTERM signals. Inside `counted` these signals do not end the process. Works only in the
    main thread.

    A caller that starts a run counts from before the start: a Ctrl-C in between must not leave the run unattended.
    """

    def __init__(self) -> None:
        self.interrupts, self.terminations, self._last_s = 0, 0, float("-inf")
        self._wake: int | None = None  # readable after a signal

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager in which Ctrl-C and SIGTERM are counted and do not end the process. May be nested. Does
        nothing outside the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._count) for number in (signal.SIGINT, signal.SIGTERM)}
        outer, (self._wake, sink) = self._wake, os.pipe()
        for end in (self._wake, sink):
            os.set_blocking(end, False)
        woken = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            for end in (self._wake, sink):
                os.close(end)
            self._wake = outer

    def sleep(self, seconds: float) -> None:
        """Sleep until `seconds` have passed or Ctrl-C or SIGTERM arrives."""
        if self._wake is None:
            time.sleep(seconds)
        elif select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 64)

    def _count(self, number: int, frame: FrameType | None) -> None:
        """Count a signal, as the handler of SIGINT and SIGTERM. Interrupts within 0.3 s count once."""
        now_s = time.monotonic()
        if number == signal.SIGTERM:
            self.terminations += 1
        elif now_s - self._last_s > _ONE_PRESS_S:
            self.interrupts, self._last_s = self.interrupts + 1, now_s

    @property
    def wanted(self) -> int:
        """Action that the counted signals request: 0 none, 1 stop and save, 2 kill."""
        return 2 if self.interrupts >= 2 else min(1, self.interrupts + self.terminations)


class _Viewer:
    """Viewer of one run: draws its progress line and messages on a stream and forwards Ctrl-C to the trainer. `watch`
    updates it until the run ends.
    """

    def __init__(self, run: Run, stream: TextIO, *, presses: Presses | None = None) -> None:
        self._follower, self._screen, self.presses = Follower(run), Screen(stream), presses or Presses()
        self._values: dict[str, float] = {}
        self._record: Record | None = None
        self._rate = Rate()
        self._sent, self._wanted_s, self._unreachable_reported, self._replay_reported = 0, 0.0, False, False
        self._free_s: float | None = None
        self._line_s, self._line_kind, self._line_text = float("-inf"), "", ""
        self._begin_s = time.monotonic()

    def watch(
        self,
        *,
        notice: str | None = None,
        until_first_record: bool = False,
        detach: bool = True,
        timeout_s: float = math.inf,
    ) -> int:
        """Draw the run's progress until its end, and return its exit code, 124 after `timeout_s`, 129 if the stream
        closes, or 137 if the user left a trainer that does not die. `notice` is printed first; `until_first_record`:
        return 0 at the first record, with `detach` after printing the commands to reattach.
        """
        try:
            if notice:
                self._screen.above(notice)
            while True:
                now_s = time.monotonic()
                self._follower.poll(now_s)
                look = self._follower.look
                self._warn()
                self._report_replay()
                self._store_records(self._new_records())
                if self._has_ended(look, now_s):
                    return self._print_outcome(look)
                if until_first_record and self._record is not None:
                    return self._leave(detach)
                self._send_requested_signal(look, now_s)
                if self._sent == 2 and self.presses.interrupts > 2:
                    self._screen.above("Left; the trainer has not ended yet.")
                    return 137
                if look.held is not False:  # between the release of the lock and exit.json the state is unknown
                    self._draw(now_s)
                left_s = self._begin_s + timeout_s - now_s
                if left_s <= 0:
                    self._screen.end()
                    self._screen.above(
                        f"{text.safe(self._follower.run.id)} has not ended within {timeout_s:g} s: "
                        f"{self._follower.state.word}"
                    )
                    return TIMEOUT_CODE
                self.presses.sleep(min(_POLL_S, left_s))
        except ViewerGoneError:
            return VIEWER_GONE_CODE
        except KeyboardInterrupt:  # only if no presses are counted
            with contextlib.suppress(ViewerGoneError):
                self._screen.end()
            raise

    def _new_records(self) -> list[tuple[Record, dict[str, float]]]:
        """Return the metrics records of this training session since the last call, each with its finite values by name;
        [] before the session has begun.
        """
        reader, look = self._follower.reader, self._follower.look
        if reader is None or look.status is None or look.earlier:
            return []
        return [(record, states.values_of(reader, record)) for record in self._follower.new_records()]

    def _warn(self) -> None:
        """Print new warnings of the trainer above the progress line."""
        look = self._follower.look
        for event in self._follower.new_events() if look.status is not None and not look.earlier else ():
            if event.level == "warn":
                self._screen.above(f"! {text.safe(event.text)}")

    def _report_replay(self) -> None:
        """Print the memory use of the run's replay buffer once, as soon as the trainer has determined it."""
        replay = text_of(self._follower.run.document, "replay")
        if replay and not self._replay_reported and not self._follower.look.earlier:
            self._replay_reported = True
            self._screen.above(f"replay: {replay}")

    def _store_records(self, records: list[tuple[Record, dict[str, float]]]) -> None:
        """Store the newest metric values of `records` and print their evaluations above the progress line. At the first
        call only the last evaluation is printed.
        """
        announcements = []
        for record, values in records:
            score = values.get(EVALUATION)
            if score is not None and record.flags & FLAG_EVAL:
                best = values.get("eval/best_return")
                remark = (
                    "" if best is None else "  (the best so far)" if score >= best else f"  (best {text.number(best)})"
                )
                announcements.append(f"eval {text.number(score)} at {text.count(record.step)} steps{remark}")
            self._values |= values
            self._rate.add(record.boottime_ns, record.step)
        for announcement in announcements[-1:] if self._record is None else announcements:
            self._screen.above(announcement)
        if records:
            self._record = records[-1][0]

    def _has_ended(self, look: Observation, now_s: float) -> bool:
        """Whether the run has ended for good: the cause is written, or 2 s have passed since the trainer released the
        run's lock. `now_s`: monotonic clock.
        """
        if look.held:
            self._free_s = None
            return False
        if look.exit is not None:
            return True
        if (
            self._is_deleted()
            and look.status is not None
            and look.status.state not in TERMINAL
            and (look.heartbeat_age_s or 0.0) < _SILENT_S
        ):
            return False  # the trainer continues until it notices
        if look.held is None:
            return self._follower.state.ended
        self._free_s = now_s if self._free_s is None else self._free_s
        return now_s - self._free_s >= _EXIT_GRACE_S

    def _is_deleted(self) -> bool:
        """Whether the run's folder is gone."""
        return not os.path.isdir(self._follower.run.path)

    # ------------------------------------------------------------------------------------------------------------------
    # stopping

    def _send_requested_signal(self, look: Observation, now_s: float) -> None:
        """Send the trainer the signal that Ctrl-C requests: SIGTERM after one, SIGKILL after two. Retried at the next
        call if it cannot be sent; after 3 s of `now_s` (monotonic clock) a message reports that.
        """
        wanted = self.presses.wanted
        if wanted <= self._sent:
            self._wanted_s = now_s
            return
        if runfolder.signal_worker(self._follower.run, signal.SIGKILL if wanted == 2 else signal.SIGTERM):
            self._sent, self._unreachable_reported = wanted, False
            if wanted == 2:
                self._screen.above("Stopping now, without saving.")
            elif self._record is None or look.status is None:
                self._screen.above(f"Stopping before the first iteration, with nothing to save… {_LINGER.format('')}")
            else:
                saving = f"Stopping after iteration {look.status.main_count + 1} and saving a checkpoint…"
                self._screen.above(f"{saving} {_LINGER.format(' without saving')}")
        elif now_s - self._wanted_s > _UNREACHABLE_S and not self._unreachable_reported:
            self._unreachable_reported = True
            self._screen.above(
                "The trainer cannot be signalled from here (another machine, another pid namespace, or it is ending)."
            )

    # ------------------------------------------------------------------------------------------------------------------
    # drawing

    def _draw(self, now_s: float, *, last: bool = False) -> None:
        """Redraw the progress line; if the stream is not a terminal, print it every 5 s, on a change of state and as
        the `last`, unless that has been printed.
        """
        content, kind = self._progress_line(now_s)
        if self._screen.is_terminal:
            self._screen.show(content[: self._screen.columns])
            return
        due = kind != self._line_kind or now_s - self._line_s >= _PLAIN_S
        if content != self._line_text if last else due:
            self._line_s, self._line_kind, self._line_text = now_s, kind, content
            self._screen.show(content)

    def _progress_line(self, now_s: float) -> tuple[str, str]:
        """Return the current text of the progress line, and its kind: a line of a new kind is printed at once."""
        state = self._follower.state
        if self._record is None:
            waited = text.duration(now_s - self._begin_s)
            phase = state.cause if state.word == "starting" and state.cause else state.word
            return (
                (f"starting: {phase}   {waited}", "starting")
                if state.word == "starting"
                else (f"{state.word}: {state.cause or ''}   {waited}", state.word)
            )
        note = state.word if state.word not in ("running", "starting", *states.ENDED) else ""
        left_s = self._left_s() if state.live and state.word != "paused" else None
        shown = Progress(
            self._record.step,
            self._record.step if state.word == "finished" else integer_of(self._follower.run.document, "steps"),
            self._values.get("sps"),
            self._values.get(RETURN),
            left_s,
            f"{note}: {state.cause}" if note and state.cause else note,
        )
        return (
            progress.line(shown, self._screen.columns) if self._screen.is_terminal else progress.plain(shown)
        ), f"running {note}"

    def _left_s(self) -> float | None:
        """Return the seconds to the planned end at the recent rate, which includes evaluations and checkpoints; None
        without a planned end or a rate.
        """
        steps, step = integer_of(self._follower.run.document, "steps"), 0 if self._record is None else self._record.step
        return self._rate.left_s(steps, step, self._values.get("sps"))

    # ------------------------------------------------------------------------------------------------------------------
    # closing

    def _leave(self, detach: bool) -> int:
        """End the viewer while the run continues and return 0; with `detach`, print the commands to reattach."""
        run = self._follower.run
        self._screen.end()
        short = text.safe(run.short)
        if detach:
            log_path = runs.display_path(run.log_path)
            where = f"reattach `operant monitor {short}` · stop `operant stop {short}` · log {log_path}"
            self._screen.above(f"Detached. Still training: {where}")
        return 0

    def _print_outcome(self, look: Observation) -> int:
        """Print the run's outcome and the next commands, and return the run's exit code; for a finished run whose
        metrics file is damaged, that of BadFileError.
        """
        run, state = self._follower.run, self._follower.state
        code = states.exit_code(look) or (BadFileError.exit_code if state.word == "unreadable" else 0)
        if self._record is not None and not self._screen.is_terminal:
            self._draw(time.monotonic(), last=True)
        self._screen.end()
        if self._is_deleted():
            self._screen.above(
                f"✖ {text.safe(run.id)} has ended: its folder was deleted or moved during training: "
                f"{runs.display_path(run.path)} does not exist"
            )
            return code or MachineError.exit_code
        if code not in (0, 130) and self._sent < 2 and (log := log_end(run)):
            self._screen.above(log)
        if code in (2, 3, 4) and self._record is None and state.word != "unreadable":
            return code  # the log shows the problem, and the caller deletes the folder
        short = text.safe(run.short)
        kept = (look.status is not None and look.status.last_checkpoint_step is not None) or any(
            run.checkpoints_path.glob("step-*")
        )
        commands = [f"operant {'eval' if state.word == 'finished' else 'resume'} {short}"] if kept else []
        own = run.source_path / f"{run.document.get('env')}.py"
        # most likely an index out of range in the user's environment
        if integer_of(look.exit or {}, "signal") == signal.SIGSEGV and own.is_file():
            commands.append(f"operant check {runs.display_path(own)}")
        self._screen.above(
            f"{_GLYPHS.get(state.word, '✖')} {state.word}  {text.safe(run.id)}   "
            f"{' · '.join(self._outcome_facts(look))}".rstrip()
        )
        self._screen.above(f"  run   {runs.display_path(run.path)}")
        self._screen.above(f"  next  {'   '.join([*commands, f'operant show {short}'])}")
        return code

    def _outcome_facts(self, look: Observation) -> list[str]:
        """Return the parts of the outcome line: cause, last evaluation and target, steps and time, and the checkpoint
        for a resume.
        """
        state, document = self._follower.state, self._follower.run.document
        facts = [state.cause] if state.cause else []
        score = self._values.get(EVALUATION)
        if score is not None:
            facts.append(f"eval {text.number(score)}{states.target_remark(document, score)}")
        if self._record is not None:
            facts.append(
                f"{text.count(self._record.step)} steps"
                + (f" in {text.duration(look.took_s)}" if look.took_s is not None else "")
            )
        if state.word != "finished" and look.status is not None:
            step = look.status.last_checkpoint_step
            facts.append("no checkpoint" if step is None else f"checkpoint at {text.count(step)} steps")
        return facts

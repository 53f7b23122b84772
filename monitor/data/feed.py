"""Live feed: a thread that reads a run and publishes snapshots for the screen. Standard library only.

The thread polls four times a second (or at the screen's rate) while the run is live, once a second after its end. A
poll without changes publishes no new snapshot. Snapshots share their curves, which keep growing;
`monitor.data.curve_table` describes how threads share them. Each request to the trainer waits for its answer in a
separate thread; another thread samples the machine once a second.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal

from monitor.data import health, summary
from monitor.data.event_log import EventLog, log_line
from monitor.data.run_reader import LoadedHistory, RunReader
from monitor.data.snapshot import Finding, Frame, Level, LogLine, PhaseShare, Series, Snapshot
from monitor.data.summary import RunData
from monitor.data.system import Sampler
from operant import runs, text
from operant.errors import OperantError
from operant.runs import control

_LIVE_S, _ENDED_S, _FASTEST_S = 0.25, 1.0, 0.05
_FIRST_WAIT_S = 0.5  # delay of the second poll, so that it does not slow the first drawing of the screen
_ANSWER_S, _NOTICE_S = 30.0, 10.0
_WATCH_S, _WATCH_EXPIRES_S = 2.0, 5.0
_RELOAD_S = 10.0
_HEALTH_S = 0.95
_NO_PICTURE: Final = "the agent cannot be watched: "  # prefix of the trainer's event
_LEVELS: Final[dict[str, Level]] = {"info": "ok", "warn": "warn", "error": "bad"}
_VERBS: Final = {"stop": "stop", "pause": "pause", "unpause": "resume", "checkpoint": "save a checkpoint"}


class LiveFeed:
    """Source of snapshots for one run folder, live or ended, read by a background thread
    (`monitor.data.snapshot.Source`). The first snapshot is ready when the constructor returns. `readonly`: send no
    requests to the trainer.
    """

    def __init__(self, run: runs.Run, *, readonly: bool = False) -> None:
        self.readonly = readonly
        self._reader = RunReader(run)
        self._event_log = EventLog()
        self._interval_s = _LIVE_S
        self._wanted: tuple[str, int] | None = None
        self._watch_s, self._watch_problem = float("-inf"), ""
        self._unwatchable: tuple[int, str] = (-1, "")  # session of the trainer that reported it, and the reason
        self._frame: Frame | None = None
        self._answers: deque[tuple[str, Level]] = deque()
        self._notice: tuple[str, Level, float] = ("", "ok", 0.0)
        self._health_cache: tuple[float, str, object, tuple[PhaseShare, ...], health.Verdicts] | None = None
        self._seek_step: float | None = None
        self._seek_snapshot: tuple[int, float, Snapshot] | None = None
        self._lock, self._wake, self._shown, self._closed = (
            threading.Lock(),
            threading.Event(),
            threading.Event(),
            False,
        )
        self._version = 0
        self._data: RunData
        self._published: tuple[Snapshot, int] | None = None  # with the version of its curves
        self._sampler = Sampler()
        self._loaded: deque[LoadedHistory | None] = deque()
        self._loading, self._loaded_s = False, float("-inf")
        self._poll()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------------------------
    # the screen

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot of the run, or after `seek` the snapshot at that step; the same object as long as
        nothing changes.
        """
        self._shown.set()
        with self._lock:
            assert self._published is not None
            newest, at = self._published[0], self._seek_step
            if at is None:
                return newest
            if self._seek_snapshot is None or self._seek_snapshot[:2] != (newest.version, at):
                self._version += 1
                self._seek_snapshot = (newest.version, at, self._snapshot_at(newest, at))
            return self._seek_snapshot[2]

    def seek(self, step: float | None) -> None:
        """Make `snapshot` show figures, phases, health and progress at an earlier `step`; None: at the newest record.
        Curves stay complete.
        """
        with self._lock:
            self._seek_step, self._seek_snapshot = step, None

    def request(self, verb: Literal["stop", "pause", "unpause", "checkpoint"]) -> None:
        """Send a request to the trainer without waiting for its answer. The result appears in the log; a refusal also
        as a notice.
        """
        if self.readonly:
            self._report("this monitor is read-only and sends no requests", "warn")
            return
        threading.Thread(target=self._ask, args=(verb,), name=f"ask-{verb}", daemon=True).start()

    def watch(self, wanted: bool, *, mode: Literal["greedy", "sampled"] = "greedy", size: int = 64) -> None:
        """Start (`wanted`) or stop asking the trainer for frames of the agent, pictures of `size` pixels. Call it on a
        change only: the feed renews the request.
        """
        self._wanted = (mode, size) if wanted and not self.readonly else None
        self._watch_s, self._watch_problem = float("-inf"), ""
        self._wake.set()

    def set_poll_interval(self, interval_s: float) -> None:
        """Set the interval in seconds at which the screen takes snapshots; files are not read more often."""
        self._interval_s = min(max(interval_s, _FASTEST_S), _ENDED_S)

    def close(self) -> None:
        """Stop the thread that reads the run. Returns once it has ended, or after one second."""
        self._closed = True
        self._wake.set()
        self._sampler.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    # ------------------------------------------------------------------------------------------------------------------
    # the thread

    def _run(self) -> None:
        """Poll the run until `close`, as the body of the background thread."""
        self._shown.wait(_FIRST_WAIT_S)
        self._wake.wait(0.0)
        while not self._closed:
            self._poll()
            self._wake.wait(self._pause_s())
            self._wake.clear()
        self._reader.close()

    def _pause_s(self) -> float:
        """Return the seconds to wait before the next poll."""
        if self._reader.awaits_exit:
            return _FASTEST_S
        ended = self._reader.state.ended or self._reader.state.word == "unreadable"
        # A killed trainer must show within a second, however slow the screen.
        return _ENDED_S if ended else min(self._interval_s, _LIVE_S)

    def _poll(self) -> None:
        """Read all files of the run once and publish a new snapshot if anything changed."""
        now_s = time.monotonic()
        self._reader.poll(now_s)
        self._poll_history(now_s)
        self._poll_log()
        data = self._reader.collect(now_s)
        self._sampler.follow(self._reader.run, live=data.state.live)
        self._renew_watch(data, now_s)
        while self._answers:
            sentence, level = self._answers.popleft()
            self._notice = (sentence, level, now_s + _NOTICE_S)
            if level != "ok":  # a success is already an event of the trainer
                self._event_log.add(LogLine(time.strftime("%H:%M:%S"), level, sentence))
        if self._notice[0] and now_s > self._notice[2]:
            self._notice = ("", "ok", 0.0)
        self._publish(data, now_s)

    def _poll_history(self, now_s: float) -> None:
        """Start loading the run's history in another thread if records are missing; use the last one loaded."""
        while self._loaded:
            past, self._loading = self._loaded.popleft(), False
            if past is not None:
                self._reader.adopt_history(past)
        if (
            self._reader.wants_history
            and not self._loading
            and self._shown.is_set()
            and now_s - self._loaded_s > _RELOAD_S
        ):
            self._loading, self._loaded_s, self._reader.wants_history = True, now_s, False
            threading.Thread(
                target=self._load, args=(self._reader.history_loader(),), name="history", daemon=True
            ).start()

    def _load(self, load: Callable[[], LoadedHistory | None]) -> None:
        """Call `load` and queue its result (None if it raised) for the next poll. Runs in its own thread."""
        past: LoadedHistory | None = None
        try:
            past = load()
        finally:
            self._loaded.append(past)
            self._wake.set()

    def _poll_log(self) -> None:
        """Add new lines of log.txt and new events to the merged log."""
        events = self._reader.events
        for event in events:
            if event.text.startswith(_NO_PICTURE):
                self._unwatchable = (
                    -1 if self._reader.header is None else self._reader.header.session,
                    event.text.removeprefix(_NO_PICTURE),
                )
        lines = [log_line(line) for line in self._reader.log.poll()]
        self._event_log.add_new(
            lines, [LogLine(_clock(event.realtime_ns), _LEVELS[event.level], event.text, True) for event in events]
        )

    def _check_health(self, data: RunData, now_s: float) -> tuple[tuple[PhaseShare, ...], tuple[Finding, ...]]:
        """Return the phases' shares of time and the health findings. Rules are applied once a second, since they cover
        ten seconds, and at once if the state or the timeline changes; displayed values are always the current ones.
        """
        timeline, state = data.timeline, data.state.word
        if timeline is None:
            return (), ()
        if (
            self._health_cache is None
            or now_s - self._health_cache[0] >= _HEALTH_S
            or self._health_cache[1:3] != (state, timeline)
        ):
            self._health_cache = (
                now_s,
                state,
                timeline,
                summary.phases(timeline),
                health.verdicts(data, self._sampler.latest),
            )
        return self._health_cache[3], health.findings_now(self._health_cache[4], data)

    def _publish(self, data: RunData, now_s: float) -> None:
        """Build a snapshot from the run's data and publish it under a new version if it differs from the last."""
        timeline = data.timeline
        curves: Mapping[str, Series] = timeline.table.curves if timeline is not None else {}
        curves_version = timeline.table.version if timeline is not None else 0
        phases, findings = self._check_health(data, now_s)
        new = Snapshot(
            version=0,
            run=summary.facts(data.run, data.header, data.now_s),
            state=data.state.word,
            cause=summary.cause(data),
            progress=summary.progress(data),
            figures=summary.figures(timeline) if timeline is not None else (),
            series=curves,
            marks=timeline.marks if timeline is not None else (),
            phases=phases,
            health=findings,
            system=self._sampler.latest,
            log=tuple(self._event_log.lines),
            frame=self._frame if self._wanted else None,
            agent_absent="" if self._frame is not None and self._wanted else self._agent_absent(data),
            ending=summary.ending(data),
            config=self._reader.config,
            notice=self._reader.notice or self._notice[0],
            notice_level="warn" if self._reader.notice else self._notice[1],
        )
        with self._lock:
            published = self._published
            if published is None or published[1] != curves_version or published[0]._replace(version=0) != new:
                self._version += 1
                self._data, self._published = data, (new._replace(version=self._version), curves_version)

    def _snapshot_at(self, newest: Snapshot, step: float) -> Snapshot:
        """Return a copy of the newest snapshot with progress, figures, phases and health at an earlier `step`."""
        data = self._data
        timeline = data.timeline
        if timeline is None:
            return newest
        position = timeline.table.position(step)
        moment = step if position is None else position[0]  # position of a record; everything shown belongs to it
        return newest._replace(
            version=self._version,
            progress=summary.progress_at(data, moment),
            figures=summary.figures(timeline, moment),
            phases=summary.phases(timeline, moment),
            health=health.check(data, None, moment),
            at_step=step,
        )

    # ------------------------------------------------------------------------------------------------------------------
    # the trainer

    def _agent_absent(self, data: RunData) -> str:
        """Return the reason why no frame of the agent is shown; "" if there is no reason."""
        if data.state.live and data.header is not None and data.header.session == self._unwatchable[0]:
            return self._unwatchable[1]
        return self._watch_problem or summary.agent_absent(
            data, wanted=self._wanted is not None, readonly=self.readonly
        )

    def _renew_watch(self, data: RunData, now_s: float) -> None:
        """If the screen wants frames of the agent, read the newest one and repeat the request before it expires."""
        if self._wanted is None or not data.state.live:
            self._frame = None
            return
        raw = self._reader.frame(-1 if self._frame is None else self._frame.n)
        if raw is not None and raw.channels == 3:
            self._frame = Frame(raw.n, raw.step, raw.lanes, raw.height, raw.width, raw.pixels, raw.mode)
        if now_s - self._watch_s >= _WATCH_S:
            self._watch_s = now_s
            mode, size = self._wanted
            try:
                control.send(data.run, "watch", {"mode": mode, "size": size}, expires_s=_WATCH_EXPIRES_S)
                self._watch_problem = ""
            except OperantError as error:
                self._watch_problem = text.safe(error, 300)

    def _ask(self, verb: str) -> None:
        """Send the request `verb` to the trainer, wait for the answer and report it. Runs in a separate thread, since
        the answer may take long.
        """
        action = _VERBS[verb]
        try:
            answer = control.ask(self._reader.run, verb, _ANSWER_S)
        except OperantError as error:
            signalled = (
                verb == "stop"
                and isinstance(error, control.UnwritableError)
                and runs.signal_worker(self._reader.run, signal.SIGTERM)
            )
            self._report(
                f"{error}. SIGTERM was sent instead" if signalled else str(error), "warn" if signalled else "bad"
            )
            return
        if answer.result == "accepted":
            self._report(f"not completed after {_ANSWER_S:.0f} s: {answer.text}", "bad")
        elif answer.result == "none":
            self._report(f"no answer from the trainer to the request to {action}", "bad")
        elif answer.result != "done":
            self._report(f"the trainer refused to {action}: {answer.text or answer.result}", "bad")
        elif verb == "checkpoint":  # for other verbs the state shows the result
            self._report(f"saved {answer.text}", "ok")

    def _report(self, sentence: str, level: Level) -> None:
        """Queue a sentence for the log and, unless `level` is "ok", for the notice line."""
        self._answers.append((text.safe(sentence, 300), level))
        self._wake.set()


def _clock(realtime_ns: int) -> str:
    """Format a Unix time in nanoseconds as local hh:mm:ss; "" if it is out of range."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(realtime_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return ""

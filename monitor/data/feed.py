"""The live feed: a thread that reads a run and makes the snapshots a screen shows. Standard library only. Knows no
widget.

The thread looks four times a second (or as often as the screen asks) while a run lives, and once a second after its
end. A look at which nothing has changed makes no new snapshot. Snapshots share their curves, which stay alive:
`monitor.data.series` says how threads share them. Requests to the trainer wait for their answers in threads of their
own; another thread samples the machine once a second.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal

from monitor.data import health, model
from monitor.data.event_log import EventLog, log_line
from monitor.data.model import Known
from monitor.data.reading import Past, Reading
from monitor.data.snapshot import Finding, Frame, Level, LogLine, PhaseShare, Series, Snapshot
from monitor.data.system import Sampler
from operant import runs, text
from operant.errors import OperantError
from operant.runs import control

_LIVE_S, _ENDED_S, _FASTEST_S = 0.25, 1.0, 0.05
_PATIENCE_S = 0.5  # how long reading waits for the first picture, so that it does not slow it
_ANSWER_S, _NOTICE_S = 30.0, 10.0
_WATCH_S, _WATCH_EXPIRES_S = 2.0, 5.0
_RELOAD_S = 10.0
_JUDGE_S = 0.95
_NO_PICTURE: Final = "the agent cannot be watched: "  # how the trainer's event begins
_LEVELS: Final[dict[str, Level]] = {"info": "ok", "warn": "warn", "error": "bad"}
_SAID: Final = {"stop": "stop", "pause": "pause", "unpause": "go on", "checkpoint": "save a checkpoint"}


class LiveFeed:
    """A `monitor.data.snapshot.Source` of a run's folder, whether the run lives or ended long ago. The first snapshot
    is there once this is made.
    """

    def __init__(self, run: runs.Run, *, readonly: bool = False) -> None:
        self.readonly = readonly
        self._reading = Reading(run)
        self._event_log = EventLog()
        self._interval_s = _LIVE_S
        self._wanted: tuple[str, int] | None = None
        self._watch_s, self._watch_problem = float("-inf"), ""
        self._unwatchable: tuple[int, str] = (-1, "")  # the session whose trainer has said so, and why
        self._frame: Frame | None = None
        self._answers: deque[tuple[str, Level]] = deque()
        self._notice: tuple[str, Level, float] = ("", "ok", 0.0)
        self._judgement: tuple[float, str, object, tuple[PhaseShare, ...], health.Verdicts] | None = None
        self._at: float | None = None
        self._at_made: tuple[int, float, Snapshot] | None = None
        self._turn, self._wake, self._shown, self._over = threading.Lock(), threading.Event(), threading.Event(), False
        self._version = 0
        self._known: Known
        self._made: tuple[Snapshot, int] | None = None  # and the version of its curves
        self._sampler = Sampler()
        self._past: deque[Past | None] = deque()
        self._loading, self._loaded_s = False, float("-inf")
        self._look()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------------------------
    # the screen

    def snapshot(self) -> Snapshot:
        """The newest one; the same object while nothing has changed. After `at`, the one of that step."""
        self._shown.set()
        with self._turn:
            assert self._made is not None
            newest, at = self._made[0], self._at
            if at is None:
                return newest
            if self._at_made is None or self._at_made[:2] != (newest.version, at):
                self._version += 1
                self._at_made = (newest.version, at, self._snapshot_at(newest, at))
            return self._at_made[2]

    def at(self, step: float | None) -> None:
        """Show figures, phases, health and progress as they were at a step; None: as they are. Curves stay whole."""
        with self._turn:
            self._at, self._at_made = step, None

    def request(self, verb: Literal["stop", "pause", "unpause", "checkpoint"]) -> None:
        """Ask the trainer; the result appears in the log, and a refusal as the notice too."""
        if self.readonly:
            self._tell("this monitor is read-only: it sends no requests", "warn")
            return
        threading.Thread(target=self._ask, args=(verb,), name=f"ask-{verb}", daemon=True).start()

    def watch(self, wanted: bool, *, mode: Literal["greedy", "sampled"] = "greedy", size: int = 64) -> None:
        """Ask for pictures of the agent, or no longer. Call once on a change: the request is renewed here."""
        self._wanted = (mode, size) if wanted and not self.readonly else None
        self._watch_s, self._watch_problem = float("-inf"), ""
        self._wake.set()

    def hurry(self, interval_s: float) -> None:
        """How often the screen looks: the feed need not read more often."""
        self._interval_s = min(max(interval_s, _FASTEST_S), _ENDED_S)

    def close(self) -> None:
        """Stop reading; returns once that is so, or after a second."""
        self._over = True
        self._wake.set()
        self._sampler.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    # ------------------------------------------------------------------------------------------------------------------
    # the thread

    def _run(self) -> None:
        self._shown.wait(_PATIENCE_S)
        self._wake.wait(0.0)
        while not self._over:
            self._look()
            self._wake.wait(self._pause_s())
            self._wake.clear()
        self._reading.close()

    def _pause_s(self) -> float:
        if self._reading.hurried:
            return _FASTEST_S
        ended = self._reading.state.ended or self._reading.state.word == "unreadable"
        # A trainer that was killed is to be seen within a second, however slow the screen.
        return _ENDED_S if ended else min(self._interval_s, _LIVE_S)

    def _look(self) -> None:
        now_s = time.monotonic()
        self._reading.poll(now_s)
        self._take_history(now_s)
        self._take_words()
        known = self._reading.known(now_s)
        self._sampler.follow(self._reading.run, live=known.state.live)
        self._renew_watch(known, now_s)
        while self._answers:
            sentence, level = self._answers.popleft()
            self._notice = (sentence, level, now_s + _NOTICE_S)
            if level != "ok":  # what was done is an event of the trainer's
                self._event_log.add(LogLine(time.strftime("%H:%M:%S"), level, sentence))
        if self._notice[0] and now_s > self._notice[2]:
            self._notice = ("", "ok", 0.0)
        self._publish(known, now_s)

    def _take_history(self, now_s: float) -> None:
        """Have the history loaded by another thread, where there is more than what is known, and go on from it once it
        is there.
        """
        while self._past:
            past, self._loading = self._past.popleft(), False
            if past is not None:
                self._reading.join(past)
        if (
            self._reading.wants_history
            and not self._loading
            and self._shown.is_set()
            and now_s - self._loaded_s > _RELOAD_S
        ):
            self._loading, self._loaded_s, self._reading.wants_history = True, now_s, False
            threading.Thread(
                target=self._load, args=(self._reading.history_loader(),), name="history", daemon=True
            ).start()

    def _load(self, load: Callable[[], Past | None]) -> None:
        past: Past | None = None
        try:
            past = load()
        finally:
            self._past.append(past)
            self._wake.set()

    def _take_words(self) -> None:
        """New lines of the log, and new events."""
        events = self._reading.events
        for event in events:
            if event.text.startswith(_NO_PICTURE):
                self._unwatchable = (
                    -1 if self._reading.header is None else self._reading.header.session,
                    event.text.removeprefix(_NO_PICTURE),
                )
        lines = [log_line(line) for line in self._reading.log.poll()]
        self._event_log.take(
            lines, [LogLine(_clock(event.realtime_ns), _LEVELS[event.level], event.text, True) for event in events]
        )

    def _judged(self, known: Known, now_s: float) -> tuple[tuple[PhaseShare, ...], tuple[Finding, ...]]:
        """Phases and health: judged once a second, as they look at the last ten, and at once where the state or the
        records have changed as a whole; the figures in it are those of this moment.
        """
        timeline, state = known.timeline, known.state.word
        if timeline is None:
            return (), ()
        if (
            self._judgement is None
            or now_s - self._judgement[0] >= _JUDGE_S
            or self._judgement[1:3] != (state, timeline)
        ):
            self._judgement = (
                now_s,
                state,
                timeline,
                model.phases(timeline),
                health.verdicts(known, self._sampler.latest),
            )
        return self._judgement[3], health.told(self._judgement[4], known)

    def _publish(self, known: Known, now_s: float) -> None:
        timeline = known.timeline
        curves: Mapping[str, Series] = timeline.table.curves if timeline is not None else {}
        filled = timeline.table.version if timeline is not None else 0
        phases, findings = self._judged(known, now_s)
        new = Snapshot(
            version=0,
            run=model.facts(known.run, known.header, known.now_s),
            state=known.state.word,
            cause=model.cause(known),
            progress=model.progress(known),
            figures=model.figures(timeline) if timeline is not None else (),
            series=curves,
            marks=timeline.marks if timeline is not None else (),
            phases=phases,
            health=findings,
            system=self._sampler.latest,
            log=tuple(self._event_log.lines),
            frame=self._frame if self._wanted else None,
            agent_absent="" if self._frame is not None and self._wanted else self._absent(known),
            ending=model.ending(known),
            config=self._reading.config,
            notice=self._reading.notice or self._notice[0],
            notice_level="warn" if self._reading.notice else self._notice[1],
        )
        with self._turn:
            made = self._made
            if made is None or made[1] != filled or made[0]._replace(version=0) != new:
                self._version += 1
                self._known, self._made = known, (new._replace(version=self._version), filled)

    def _snapshot_at(self, newest: Snapshot, step: float) -> Snapshot:
        known = self._known
        timeline = known.timeline
        if timeline is None:
            return newest
        place = timeline.table.place(step)
        moment = step if place is None else place[0]  # that of a record: all that is shown belongs to it
        return newest._replace(
            version=self._version,
            progress=model.progress_at(known, moment),
            figures=model.figures(timeline, moment),
            phases=model.phases(timeline, moment),
            health=health.judge(known, None, moment),
            at_step=step,
        )

    # ------------------------------------------------------------------------------------------------------------------
    # the trainer

    def _absent(self, known: Known) -> str:
        if known.state.live and known.header is not None and known.header.session == self._unwatchable[0]:
            return self._unwatchable[1]
        return self._watch_problem or model.agent_absent(known, wanted=self._wanted is not None, readonly=self.readonly)

    def _renew_watch(self, known: Known, now_s: float) -> None:
        if self._wanted is None or not known.state.live:
            self._frame = None
            return
        raw = self._reading.frame(-1 if self._frame is None else self._frame.n)
        if raw is not None and raw.channels == 3:
            self._frame = Frame(raw.n, raw.step, raw.lanes, raw.height, raw.width, raw.pixels, raw.mode)
        if now_s - self._watch_s >= _WATCH_S:
            self._watch_s = now_s
            mode, size = self._wanted
            try:
                control.send(known.run, "watch", {"mode": mode, "size": size}, expires_s=_WATCH_EXPIRES_S)
                self._watch_problem = ""
            except OperantError as error:
                self._watch_problem = text.safe(error, 300)

    def _ask(self, verb: str) -> None:
        """Send a request and report its result; in a thread of its own, as that may take long."""
        said = _SAID[verb]
        try:
            answer = control.ask(self._reading.run, verb, _ANSWER_S)
        except OperantError as error:
            signalled = (
                verb == "stop"
                and isinstance(error, control.UnwritableError)
                and runs.signal_worker(self._reading.run, signal.SIGTERM)
            )
            self._tell(
                f"{error}. SIGTERM was sent instead" if signalled else str(error), "warn" if signalled else "bad"
            )
            return
        if answer.result == "accepted":
            self._tell(f"after {_ANSWER_S:.0f} s the trainer has not done it yet: {answer.text}", "bad")
        elif answer.result == "none":
            self._tell(f"the trainer has not answered the request to {said}", "bad")
        elif answer.result != "done":
            self._tell(f"the trainer does not {said}: {answer.text or answer.result}", "bad")
        elif verb == "checkpoint":  # of all else the state tells
            self._tell(f"saved {answer.text}", "ok")

    def _tell(self, sentence: str, level: Level) -> None:
        self._answers.append((text.safe(sentence, 300), level))
        self._wake.set()


def _clock(realtime_ns: int) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(realtime_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return ""

"""States of a run: the one table of states. Standard library only.

`observe` looks at a folder once, `assess` (pure) derives the state from looks, `describe` is the summary that `operant
show` and `operant runs` print.

    starting          lock held, no metrics file of this worker yet, or step 0
    running           lock held, heartbeat and iterations moving
    paused, stopping  lock held, by the state in the metrics file
    stalled           lock held, heartbeat moving, iterations still for max(3 s, 5 x the usual iteration), and not in a
                      long phase
    suspended         lock held, heartbeat still for more than 2 s
    finished, stopped, failed, diverged, gpu_fault, oom
                      by the state in the metrics file
    crashed           lock free, no terminal state in the metrics file; or one of several ranks was gone or did not
                      answer
    remote            the lock cannot be probed: another machine
    unreadable        the metrics file is damaged or of an incompatible version

A worker that ended before it had a metrics file has no state in one; its exit code decides (130 stopped, 1 to 7
failed), also for a resumed worker with a metrics file of an earlier session. A worker that refused to start (2, 3, 6)
leaves an earlier terminal state unchanged. No worker ends with 0 that early: without a metrics file, the file was then
removed or not copied with the folder.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from operant import text
from operant.errors import BadFileError, BusyError, NotFoundError, UsageError
from operant.runs import folder as runfolder
from operant.runs import notes
from operant.runs.folder import Run
from operant.runs.metrics import TERMINAL, Header, Reader, Record, Status
from operant.runs.metrics.layout import BOOTTIME

ENDED: Final = TERMINAL | {"crashed"}
LIVE: Final = frozenset(("starting", "running", "paused", "stopping", "stalled", "suspended"))
_LONG_PHASES = ("compile", "checkpoint", "eval")
_SUSPENDED_S, _STALLED_S, _STALLED_ITERATIONS, _GAPS = 2.0, 3.0, 5, 9
_LAUNCH_S = 10.0  # a younger folder without a lock is about to be started
_LOOK_BACK = 32  # records searched for a value that is not in every record (a return)
# exit codes of a worker that refused to start
_UNCHANGED_CODES = 0, UsageError.exit_code, NotFoundError.exit_code, BusyError.exit_code


class State(NamedTuple):
    """State of a run in one word, such as "running" or "crashed", and its cause if known (printable)."""

    word: str
    cause: str | None = None

    @property
    def live(self) -> bool:
        """Whether a trainer process works on a run in this state."""
        return self.word in LIVE

    @property
    def ended(self) -> bool:
        """Whether no trainer will work on a run in this state, unless it is resumed."""
        return self.word in ENDED


class Observation(NamedTuple):
    """Facts from one look at a run folder, from which `assess` derives the state. Ages are by CLOCK_BOOTTIME, not
    affected by the wall clock; None if unknown.
    """

    held: bool | None  # the lock; None: unknown
    broken: str | None = None  # why the metrics file is unreadable
    status: Status | None = None  # None: no metrics file of the present worker
    record: Record | None = None
    columns: tuple[str, ...] = ()  # names of `record.values`
    heartbeat_age_s: float | None = None
    record_age_s: float | None = None
    still_s: float | None = None  # since the session began, without a record
    usual_s: float | None = None  # usual time between records, only if the last one is old
    exit: Mapping[str, Any] | None = None  # exit.json, if the lock is not held
    phase_text: str | None = None
    host: str = ""
    young: bool = False  # new folder without a worker so far
    prepared: bool = False  # folder for a launcher, not started yet
    lost: str | None = None  # the one of several ranks that was gone, and how
    earlier: bool = False  # the metrics file is of a session before the last worker's
    paused_by: str | None = None
    paused_s: float | None = None  # seconds since then
    stopped_by: str | None = None  # the sender of the request, if not a signal
    unsaved_s: float | None = None  # work that a crash would lose now, or that the end has lost; None: nothing
    took_s: float | None = None  # duration of all sessions so far


class Assessment(NamedTuple):
    """Assessed state of a run, and the counters with which the next look is compared. Times are monotonic seconds of
    the viewer.
    """

    state: State
    heartbeat_count: int = -1
    heartbeat_s: float = 0.0  # time of the last change seen
    main_count: int = -1
    main_s: float = 0.0
    usual_s: tuple[float, ...] = ()  # recent durations of an iteration


# ----------------------------------------------------------------------------------------------------------------------
# assessing


def assess(observation: Observation, previous: Assessment | None, now_s: float) -> Assessment:
    """Derive the state of a run from an observation and the previous assessment (None: a first look). `now_s`: any
    monotonic clock of the viewer. Pure.

    Without a previous one, the ages in the observation replace movement that has not been seen yet.
    """
    status = observation.status
    if status is None:
        return Assessment(_table_state(observation, 0.0, 0.0, None))
    if previous is None or previous.main_count < 0:
        heartbeat_s = now_s - max(0.0, observation.heartbeat_age_s or 0.0)
        main_s = now_s - max(0.0, observation.record_age_s or 0.0, observation.still_s or 0.0)
        usual: tuple[float, ...] = () if observation.usual_s is None else (observation.usual_s,)
    else:
        heartbeat_s = now_s if status.heartbeat_count != previous.heartbeat_count else previous.heartbeat_s
        moved, main_s = status.main_count - previous.main_count, previous.main_s
        usual = previous.usual_s or (() if observation.usual_s is None else (observation.usual_s,))
        if moved > 0:
            usual = (*usual, (now_s - main_s) / moved)[-_GAPS:]
        if moved:
            main_s = now_s
    state = _table_state(observation, now_s - heartbeat_s, now_s - main_s, _median(usual) if usual else None)
    if status.phase in _LONG_PHASES or status.state == "paused":
        main_s = now_s  # time in a long phase, or paused, is not part of an iteration
    return Assessment(state, status.heartbeat_count, heartbeat_s, status.main_count, main_s, usual)


def _table_state(
    observation: Observation, heartbeat_still_s: float, main_still_s: float, usual_s: float | None
) -> State:
    """Derive a run's state by the table of states, from top to bottom. `heartbeat_still_s` and `main_still_s`: seconds
    without progress of the heartbeat and of the main loop; `usual_s`: usual seconds between records.
    """
    status, record = observation.status, observation.record
    if observation.broken is not None:
        return State("unreadable", observation.broken)
    if status is not None and status.state in TERMINAL and not _overtaken(observation):
        return State(status.state, _stopped_by(observation, status) if status.state == "stopped" else None)
    if observation.held is None:
        return State(
            "remote", f"{observation.host or 'another machine'} · last record {_ago(observation.record_age_s)}"
        )
    if not observation.held:
        return _ended_state(observation)
    if status is None:
        return State("starting", observation.phase_text)
    if heartbeat_still_s > _SUSPENDED_S:
        return State("suspended", f"no heartbeat for {text.age(heartbeat_still_s)}")
    if status.state == "paused":
        since = "" if observation.paused_s is None else f", {text.age(observation.paused_s)} ago"
        return State("paused", f"by {observation.paused_by}{since}" if observation.paused_by else None)
    if status.state == "stopping":
        doing = (
            "saving"
            if status.phase == "checkpoint"
            else f"an iteration of {text.age(main_still_s)} so far"
            if main_still_s > _STALLED_S
            else None
        )
        return State("stopping", ", ".join(filter(None, (_stopped_by(observation, status), doing))) or None)
    if record is None or record.step == 0:
        return State("starting", observation.phase_text or status.phase)
    if main_still_s > max(_STALLED_S, _STALLED_ITERATIONS * (usual_s or 0.0)) and status.phase not in _LONG_PHASES:
        usual = f" (usual {usual_s:.2g} s)" if usual_s else ""
        return State("stalled", f"no iteration for {text.age(main_still_s)}{usual}")
    return State("running")


def _overtaken(observation: Observation) -> bool:
    """Whether the state in the metrics file is outdated: a later worker died or failed before it had a metrics file. A
    worker that refused to resume does not count.
    """
    if not observation.earlier or observation.exit is None:
        return False
    return bool(runfolder.integer_of(observation.exit, "signal")) or runfolder.integer_of(
        observation.exit, "exit"
    ) not in (None, *_UNCHANGED_CODES)


def _stopped_by(observation: Observation, status: Status) -> str | None:
    """Return "by" and the signal or user that stopped the run; None if unknown."""
    by = _signal_name(status.reason) if status.reason else observation.stopped_by
    return f"by {by}" if by else None


def _ended_state(observation: Observation) -> State:
    """Derive the state of a run whose lock is free and whose metrics file has no terminal state."""
    if observation.earlier:
        observation = observation._replace(status=None, record=None)
    ending = observation.exit
    if observation.prepared:
        return State("starting", "prepared, waits for its launcher")
    if observation.lost is not None:
        return State("crashed", observation.lost)
    if ending is None:
        return (
            State("starting", observation.phase_text)
            if observation.young and observation.status is None
            else State("crashed", "unknown")
        )
    code, number = runfolder.integer_of(ending, "exit"), runfolder.integer_of(ending, "signal")
    if number and number == signal.SIGKILL and runfolder.integer_of(ending, "oom_kill"):
        return State("crashed", "killed by the machine's out-of-memory killer")
    if observation.record is None and (number in (signal.SIGTERM, signal.SIGINT) or code == 130):
        return State("stopped", "before its first record")
    if number:
        return State("crashed", f"killed by {_signal_name(number)}")
    if observation.status is None and code == 0 and not observation.earlier:
        return State("finished", "its metrics file is gone")
    if observation.status is None and code is not None and 1 <= code <= 7:
        return State("failed", f"exit code {code} before its first record")
    return State("crashed", "unknown" if code is None else f"exit code {code} without a final state")


def exit_code(observation: Observation) -> int | None:
    """Return the exit code of a run (130 stopped, 137 killed); None while it trains or if unknown."""
    if observation.held:
        return None
    ending, status = observation.exit or {}, observation.status
    # a signal after the terminal state changes nothing
    said = status is not None and status.state in TERMINAL and not observation.earlier
    if not said and (number := runfolder.integer_of(ending, "signal")):
        return (
            130
            if (observation.record is None or observation.earlier) and number in (signal.SIGTERM, signal.SIGINT)
            else 137
        )
    if (code := runfolder.integer_of(ending, "exit")) is not None:
        return code & 0xFF
    if status is not None and status.state in TERMINAL:
        return status.exit_code & 0xFF
    return 137 if observation.held is False and not observation.young else None


def _median(values: Sequence[float]) -> float:
    """Return the upper median. (The standard library's costs 10 ms of imports at every start.)"""
    return sorted(values)[len(values) // 2]


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _ago(seconds: float | None) -> str:
    """Format an age such as "5 s ago"; "unknown" for None."""
    return "unknown" if seconds is None else f"{text.age(seconds)} ago"


# ----------------------------------------------------------------------------------------------------------------------
# observing


def observe(run: Run, reader: Reader | None = None) -> Observation:
    """Look at a run once and return the facts, through `reader` if one is open on its metrics file. Never raises for
    the content of files.
    """
    document = run.document
    local = runfolder.is_local(document)
    held = runfolder.probe(run.path)
    if not held and not local:
        held = None
    ending = (runfolder.read_json(run.exit_path) or None) if not held else None
    started_s = (runfolder.integer_of(document, "created_realtime_ns") or 0) / 1e9
    young = document.get("pid") is None and abs(time.time() - started_s) < _LAUNCH_S
    look = Observation(
        held,
        exit=ending,
        phase_text=runfolder.text_of(document, "phase"),
        host=runfolder.text_of(document, "host") or "",
        young=young,
        prepared=document.get("prepared") is True and document.get("pid") is None,
        lost=runfolder.text_of(document, "lost"),
        paused_by=runfolder.text_of(document, "paused_by"),
        stopped_by=runfolder.text_of(document, "stopped_by"),
    )
    try:
        if reader is not None:
            return _with_metrics(look, document, reader)
        if not _exists(run.metrics_path):
            return look
        with Reader(run.metrics_path) as own:
            return _with_metrics(look, document, own)
    except BadFileError as error:
        return look._replace(broken=text.safe(error, 400))


def _exists(path: Path) -> bool:
    """Whether there is an entry at a path, also a dangling link."""
    try:
        path.lstat()
    except OSError:
        return False
    return True


def _with_metrics(look: Observation, document: Mapping[str, Any], reader: Reader) -> Observation:
    """Add the facts in the metrics file to an observation. `document`: the run's. Raises BadFileError."""
    header, status = reader.header, reader.status()
    # While a resumed worker imports, the metrics file of the earlier session is still there, with its terminal state.
    # The pid distinguishes them; `launch.start` clears it, so that the old file is never mistaken for the new one.
    pid, ticks = runfolder.integer_of(document, "pid"), runfolder.integer_of(document, "pid_start_ticks")
    another = (header.pid, header.pid_start_ticks) != (pid, ticks or 0)
    if look.held and another:
        return look
    record = reader.latest()
    same_boot = header.boot_id.hex() == runfolder.boot_id().replace("-", "") != ""
    now_ns, wall_ns = time.clock_gettime_ns(BOOTTIME), time.time_ns()
    heartbeat_age_s = record_age_s = still_s = usual_s = paused_s = None
    if same_boot and status.heartbeat_boottime_ns:
        heartbeat_age_s = max(0.0, (now_ns - status.heartbeat_boottime_ns) / 1e9)
    if same_boot and (paused_ns := runfolder.integer_of(document, "paused_boottime_ns")) is not None:
        paused_s = max(0.0, (now_ns - paused_ns) / 1e9)
    if record is None:
        still_s = max(0.0, (status.heartbeat_boottime_ns - header.start_boottime_ns) / 1e9)
    else:
        record_age_s = max(0.0, (now_ns - record.boottime_ns if same_boot else wall_ns - record.realtime_ns) / 1e9)
        if look.held and record_age_s > _STALLED_S:
            times = [one.boottime_ns for one in reader.since(max(0, record.n - 16), _LOOK_BACK)]
            times = times if len(times) > 1 else [header.start_boottime_ns, *times]  # the first iteration
            gaps = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(times)]
            usual_s = _median(gaps) if gaps else None
    look = look._replace(
        status=status,
        record=record,
        columns=tuple(metric.name for metric in reader.metrics),
        heartbeat_age_s=heartbeat_age_s,
        record_age_s=record_age_s,
        still_s=still_s,
        usual_s=usual_s,
        earlier=another and (look.exit is not None if pid is None else ticks is not None),
        paused_s=paused_s,
        unsaved_s=_unsaved_s(header, status, record, document),
    )
    return look._replace(took_s=_took_s(header, look, document))


def _unsaved_s(header: Header, status: Status, record: Record | None, document: Mapping[str, Any]) -> float | None:
    """Return the seconds of work since the last checkpoint, by the trainer's clock; None if all work is saved."""
    if record is None or (status.state in TERMINAL and record.step == status.last_checkpoint_step):
        return None
    until_ns = status.heartbeat_boottime_ns
    if status.state == "paused" and (paused_ns := runfolder.integer_of(document, "paused_boottime_ns")) is not None:
        until_ns = min(until_ns, paused_ns)
    saved_ns = header.start_boottime_ns if status.last_checkpoint_step is None else status.last_checkpoint_boottime_ns
    return max(0.0, (until_ns - saved_ns) / 1e9)


def _took_s(header: Header, look: Observation, document: Mapping[str, Any]) -> float | None:
    """Return the seconds of training in all sessions: in earlier ones by run.json, in the last one by exit.json, else
    by its heartbeat. None if unknown.
    """
    own_s = runfolder.number_of(look.exit or {}, "wall_s")
    if own_s is None and look.status is not None and not look.earlier and document.get("pid") is not None:
        own_s = (look.status.heartbeat_boottime_ns - header.start_boottime_ns) / 1e9
    total_s = max(0.0, runfolder.number_of(document, "earlier_s") or 0.0) + max(0.0, own_s or 0.0)
    return total_s or None


def state(run: Run) -> State:
    """Return the state of a run by a single look. A viewer that looks repeatedly calls `observe` and `assess` with its
    clock.
    """
    return assess(observe(run), None, time.monotonic()).state


# ----------------------------------------------------------------------------------------------------------------------
# describing


def describe(run: Run) -> dict[str, Any]:
    """Return a summary of a run, as `--json` prints it; its keys are an interface. Times are in seconds, `created` in
    ISO 8601 UTC; None for unknown and NaN.

    `return`, `length` and evaluations are the newest ones, all other numbers those of the newest record.
    """
    recent: dict[str, float] = {}
    try:
        if _exists(run.metrics_path):
            with Reader(run.metrics_path) as reader:
                look = observe(run, reader)
                recent = newest(reader, look.record)
        else:
            look = observe(run)
    except BadFileError as error:
        look = observe(run)._replace(broken=text.safe(error, 400))
    word, cause = assess(look, None, time.monotonic()).state
    paused = word == "paused"
    document, record = run.document, look.record
    step, steps = None if record is None else record.step, runfolder.integer_of(document, "steps")
    if step is not None and look.status is not None:  # a record is published one iteration after its checkpoint
        step = max(step, look.status.last_checkpoint_step or 0)
    created_ns = runfolder.integer_of(document, "created_realtime_ns")
    sps = recent.get("sps")
    left_s = (
        (steps - step) / sps if word in LIVE and not paused and steps and step is not None and sps and sps > 0 else None
    )
    return {
        "schema": 1,
        "id": text.safe(run.id),
        "path": str(run.path),
        "state": word,
        "cause": cause,
        **{key: runfolder.text_of(document, key) for key in ("env", "algo", "device", "resume", "host", "version")},
        **{key: runfolder.integer_of(document, key) for key in ("seed", "lanes", "pid")},
        "step": step,
        "steps": steps,
        "progress": 1.0 if word == "finished" else min(1.0, step / steps) if steps and step is not None else None,
        "return": recent.get("return"),
        "length": recent.get("length"),
        "episodes": recent.get("episodes"),
        "sps": sps,
        "eval_return": recent.get("eval/return"),
        "best_return": recent.get("eval/best_return"),
        "target": runfolder.number_of(document, "target"),
        "target_reached": target_reached(document, recent.get("eval/return")),
        "created": _iso(created_ns),
        "age_s": None if created_ns is None else max(0.0, time.time() - created_ns / 1e9),
        "eta_s": None if left_s is None else max(0.0, left_s),
        "last_checkpoint_step": None if look.status is None else look.status.last_checkpoint_step,
        "unsaved_s": look.unsaved_s,
        "took_s": look.took_s,
        "last_record_age_s": look.record_age_s,
        "paused_by": look.paused_by if paused else None,
        "paused_s": look.paused_s if paused else None,
        "exit": exit_code(look),
        **notes.read(run.path),
    }


def target_reached(document: Mapping[str, Any], score: float | None) -> bool | None:
    """Whether a run has reached its target: as its trainer recorded in the document, in an early run by `score`, its
    last evaluation. None without a target.
    """
    target, recorded = runfolder.number_of(document, "target"), document.get("target_reached")
    if target is None:
        return None
    return recorded if isinstance(recorded, bool) else score is not None and score >= target


def target_remark(document: Mapping[str, Any], score: float) -> str:
    """Return the remark after the mean `score` of the last evaluation, such as ` (target 475 reached)`; "" without a
    target.
    """
    target, reached = runfolder.number_of(document, "target"), target_reached(document, score)
    return (
        ""
        if target is None
        else f" (target {text.number(target).removesuffix('.0')} {'reached' if reached else 'not reached'})"
    )


def newest(reader: Reader, record: Record | None) -> dict[str, float]:
    """Return the finite values of `record` by metric name ({} for None). Missing returns, lengths and evaluations come
    from earlier records.
    """
    if record is None:
        return {}
    values = values_of(reader, record)
    missing = {
        metric.name
        for metric in reader.metrics
        if metric.name in ("return", "length") or metric.name.startswith("eval/")
    } - values.keys()
    if missing:
        for earlier in reversed(reader.since(max(0, record.n - _LOOK_BACK), 2 * _LOOK_BACK)):
            earlier_values = values_of(reader, earlier)
            values |= {name: earlier_values[name] for name in missing & earlier_values.keys()}
            missing -= earlier_values.keys()
            if not missing:
                break
    return values


def values_of(reader: Reader, record: Record) -> dict[str, float]:
    """Return the finite values of a record by metric name."""
    return {
        metric.name: value for metric, value in zip(reader.metrics, record.values, strict=True) if math.isfinite(value)
    }


def _iso(realtime_ns: int | None) -> str | None:
    """Format a Unix time in ns as ISO 8601 UTC; None for None or if it is out of range."""
    if realtime_ns is None:
        return None
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(realtime_ns // 10**9))
    return None

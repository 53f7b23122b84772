"""From what is known of a run to what a screen shows of it. Standard library only. Pure: reads no file, knows only the
time it is given.

`monitor.data.feed` collects a document, an observation, a timeline, the log's end; these functions make values and
sentences of them, all printable.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from monitor.data.snapshot import Ending, Figure, PhaseShare, Progress, RunFacts
from monitor.data.timeline import Timeline
from operant import text
from operant.runs import (
    EVALUATION,
    LIVE,
    SECONDS,
    Header,
    MetricSpec,
    Observation,
    Run,
    State,
    display_path,
    integer_of,
    number_of,
    target_reached,
    target_remark,
    text_of,
)

_MOST_FIGURES, _MOST_PHASES = 16, 16
_RECENT, _NEWEST, _LAST = (10.0, 20), (1.0, 9), (0.0, 32)  # seconds, and at least so many records
_PLAIN_LINES = 6  # of a log that ends without an error
_PROCESS_STATES: Final = {
    "D": "in the kernel, waiting for a disk or a driver (D)",
    "T": "stopped by a signal (T): kill -CONT {pid} continues it",
    "t": "held by a debugger (t)",
    "Z": "a zombie: its parent has not reaped it (Z)",
}


class Known(NamedTuple):
    """All that the feed knows of a run at one moment. Times in seconds by monotonic clocks; None for what is
    not known.
    """

    run: Run
    state: State
    look: Observation
    timeline: Timeline | None
    header: Header | None = None
    checkpoint_age_s: float | None = None
    iterations_per_s: float | None = None
    up_s: float | None = None
    phase_age_s: float | None = None  # since run.json told the phase
    state_age_s: float | None = None  # since this viewer first saw the state
    process_state: str | None = None  # the letter of /proc/PID/stat, where the trainer's process can be seen
    has_checkpoint: bool = False
    log_end: Sequence[str] = ()  # the end of the log, printable
    now_s: float = 0.0  # wall clock, only to be displayed


# ----------------------------------------------------------------------------------------------------------------------
# the run


def facts(run: Run, header: Header | None, now_s: float) -> RunFacts:
    """Who the run is. `now_s` is the wall clock's."""
    document = run.document
    created_ns = integer_of(document, "created_realtime_ns")
    return RunFacts(
        id=text.safe(run.id, 80),
        short=text.safe(run.short, 80),
        path=display_path(run.path),
        env=text_of(document, "env"),
        algo=text_of(document, "algo"),
        lanes=integer_of(document, "lanes"),
        seed=integer_of(document, "seed"),
        device=text_of(document, "device_name") or text_of(document, "device"),
        host=text_of(document, "host") or (text.safe(header.host) or None if header is not None else None),
        version=text_of(document, "version"),
        pid=integer_of(document, "pid"),
        steps=integer_of(document, "steps"),
        replay=text_of(document, "replay"),
        target=number_of(document, "target"),
        created=None if created_ns is None else clock(created_ns / 1e9, now_s),
    )


def clock(moment_s: float, now_s: float) -> str | None:
    """Local wall time: hh:mm:ss for the last half day, else the date; None for a time out of range."""
    try:
        return time.strftime(
            "%H:%M:%S" if abs(now_s - moment_s) < 43200 else "%Y-%m-%d %H:%M", time.localtime(moment_s)
        )
    except (OverflowError, ValueError, OSError):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# progress


def progress(known: Known) -> Progress:
    """How far the run is now. Ages are rounded down: to seconds (ten, once the run has ended), from a minute on to
    minutes, from an hour on to hours.
    """
    look, document, timeline = known.look, known.run.document, known.timeline
    live = known.state.word in LIVE
    last = timeline.table.last if timeline is not None else None
    step = int(last[0]) if last is not None else None if look.record is None else look.record.step
    steps = integer_of(document, "steps")
    moving = known.state.word == "running"
    rate = timeline.steps_per_s if timeline is not None and moving else None
    eta_s = float(math.ceil((steps - step) / rate)) if rate and steps and step is not None and steps > step else None
    status = look.status
    return Progress(
        step=step,
        steps=steps,
        iterations=None if status is None else status.main_count,
        iterations_per_s=known.iterations_per_s if moving else None,
        up_s=None if (up_s := _wall(known) if known.state.ended else known.up_s) is None else float(int(up_s)),
        eta_s=eta_s,
        done_at=None if eta_s is None else _moment(known.now_s, eta_s),
        checkpoint_step=None if status is None else status.last_checkpoint_step,
        checkpoint_age_s=_rough(known.checkpoint_age_s, seconds=live),
        record_age_s=_rough(look.record_age_s, seconds=live),
    )


def progress_at(known: Known, step: float) -> Progress:
    """How far the run was at a step."""
    place = known.timeline.table.place(step) if known.timeline is not None else None
    marks = known.timeline.marks if known.timeline is not None else ()
    saved = [mark.step for mark in marks if mark.kind == "checkpoint" and mark.step <= step]
    if place is None:
        return progress(known)
    return Progress(
        int(place[0]),
        integer_of(known.run.document, "steps"),
        int(place[2]),
        up_s=place[1],
        checkpoint_step=int(saved[-1]) if saved else None,
    )


def _rough(age_s: float | None, *, seconds: bool) -> float | None:
    """An age, rounded down, so that a screen on which nothing else changes is not drawn every second."""
    if age_s is None or not math.isfinite(age_s):
        return None
    grain = (1.0 if seconds else 10.0) if age_s < 60 else 60.0 if age_s < 3600 else 3600.0
    return age_s // grain * grain


def _moment(now_s: float, ahead_s: float) -> str | None:
    """A moment to come: the time within a day, the date within a year, then the year."""
    try:
        return time.strftime(
            "%H:%M" if ahead_s < 86400 else "%d %b" if ahead_s < 360 * 86400 else "%Y", time.localtime(now_s + ahead_s)
        )
    except (OverflowError, ValueError, OSError):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# figures


def values_shown(timeline: Timeline, specs: Sequence[MetricSpec], step: float | None = None) -> dict[str, float]:
    """What header, charts and health alike show of some metrics, now or at a step: the newest value, of a rate the
    median of the newest records.
    """
    wanted = [spec.name for spec in specs if step is not None or spec.kind == "rate"]
    window = timeline.table.window(*(_NEWEST if step is None else _LAST), wanted, step=step)
    found = {}
    for spec in specs:
        recent = [value for value in window.values.get(spec.name, ()) if not math.isnan(value)]
        value = timeline.table.curves[spec.name].latest if step is None else recent[-1] if recent else None
        if spec.kind == "rate" and recent:  # a single one of 20 ms says little
            value = sorted(recent)[len(recent) // 2]
        if value is not None:
            found[spec.name] = value
    return found


def evaluations_shown(timeline: Timeline, step: float | None = None) -> tuple[float, float, float] | None:
    """As `Timeline.evaluations`, the newest being the one that the header shows."""
    found = timeline.evaluations(step)
    values = values_shown(timeline, [timeline.specs[EVALUATION]], step) if found is not None else {}
    return found if found is None else (*found[:2], values.get(EVALUATION, found[2]))


def figures(timeline: Timeline, step: float | None = None) -> tuple[Figure, ...]:
    """The key figures that the run's metrics declare, now or at a step."""
    specs = [spec for spec in timeline.specs.values() if spec.figure][:_MOST_FIGURES]
    values = values_shown(timeline, specs, step)
    found = []
    for spec in specs:
        curve = timeline.table.curves[spec.name]
        unit = "" if spec.kind == "rate" or spec.unit == "reward" else spec.unit
        trend, best = (
            (curve.trend_per_min, curve.best)
            if step is None
            else (None, curve.highest(step) if spec.higher_better else None)
        )
        found.append(
            Figure(
                spec.name, spec.figure, values.get(spec.name), unit, trend, best, spec.higher_better or None, spec.kind
            )
        )
    return tuple(found)


def phases(timeline: Timeline, step: float | None = None) -> tuple[PhaseShare, ...]:
    """The phases' shares of the wall time of the last ten seconds of records; () for a run without times."""
    window = timeline.table.window(
        *_RECENT, [name for name in timeline.specs if name.startswith(SECONDS)][:_MOST_PHASES], step=step
    )
    named = [(name.removeprefix(SECONDS), values) for name, values in window.values.items()]
    if not named or not window.walls:
        return ()
    seconds = [
        (name, sum(s * n for s, n in zip(values, window.records, strict=True) if not math.isnan(s)))
        for name, values in named
    ]
    busy_s = sum(spent for _, spent in seconds)
    wall_s = max(window.walls[-1] - window.begin[1], busy_s)
    iterations = window.iterations[-1] - window.begin[2]
    if not (wall_s > 0 and math.isfinite(wall_s)):
        return ()
    seconds.append(("other", wall_s - busy_s))
    per = 1e3 / iterations if iterations > 0 else math.nan
    return tuple(
        PhaseShare(name, round(max(0.0, spent) / wall_s, 3), spent * per if math.isfinite(per) else 0.0)
        for name, spent in seconds
    )


# ----------------------------------------------------------------------------------------------------------------------
# states, in words


def cause(known: Known) -> str | None:
    """What the header says beside the state's word."""
    word, told = known.state
    if word == "starting":
        spent = "" if known.phase_age_s is None else f" {text.age(known.phase_age_s)}"
        return f"{told or 'starting the worker'}{spent}"
    if word == "paused":
        by = text_of(known.run.document, "paused_by")
        waited = "" if known.state_age_s is None else f" for {text.age(known.state_age_s)}"
        return told or f"waits{waited}{f', asked by {by}' if by else ''}"
    if word == "stopping":
        return told or "finishing the iteration and saving a checkpoint"
    if word in ("stalled", "suspended"):
        process = _PROCESS_STATES.get(known.process_state or "", "").replace(
            "{pid}", str(integer_of(known.run.document, "pid") or "")
        )
        return " · ".join(part for part in (told, f"process {process}" if process else "") if part)
    if word in ("failed", "diverged", "gpu_fault", "oom"):
        return told or _error_line(known.log_end)
    return told


def _has_error(log_end: Sequence[str]) -> bool:
    return any(line.startswith(("error: ", "Traceback ")) for line in log_end)


def _error_line(log_end: Sequence[str]) -> str | None:
    """The sentence of an error in the log, or the last line of a traceback."""
    for line in log_end:
        if line.startswith("error: "):
            return text.safe(line.removeprefix("error: "), 300)
    return (
        text.safe(log_end[-1].strip(), 300)
        if log_end and any(line.startswith("Traceback ") for line in log_end)
        else None
    )


_SENTENCES: Final = {
    "failed": "an error ended it",
    "diverged": "training produced numbers that are not finite",
    "gpu_fault": "the GPU failed",
    "oom": "out of memory",
}


def ending(known: Known) -> Ending | None:
    """How the run ended, and the next commands; None while it goes on."""
    word, told = known.state
    if not known.state.ended:
        return None
    said = cause(known)
    if word == "finished":
        sentence = _finished(known)
    elif word == "stopped":
        saved = "with a checkpoint" if known.has_checkpoint else "without a checkpoint"
        by = told or (f"by {who}" if (who := text_of(known.run.document, "stopped_by")) else "")
        sentence = f"stopped {by}, {saved}" if by else f"stopped, {saved}"
    elif word == "crashed":
        sentence = f"{told if told and told != 'unknown' else 'ended without a terminal state'}{_crash_remark(known)}"
    else:
        opening = _SENTENCES.get(word, word)
        sentence = f"{opening}: {said}" if said and not said.startswith(opening.split()[0]) else said or opening
    failed = word not in ("finished", "stopped")
    words = known.log_end if _has_error(known.log_end) else known.log_end[-_PLAIN_LINES:]
    return Ending(sentence, tuple(words) if failed else (), tuple(_ending_facts(known)), tuple(_commands(known)))


def _finished(known: Known) -> str:
    took = _wall(known)
    step, steps = progress(known).step, integer_of(known.run.document, "steps")
    early = step is not None and steps is not None and step < steps
    solved = early and target_reached(known.run.document, _latest(known, EVALUATION))
    done = (
        f"target {text.number(number_of(known.run.document, 'target')).removesuffix('.0')} reached"
        if solved
        else "all steps done"
    )
    return f"{done} in {text.duration(took)}" if took is not None else done


def _crash_remark(known: Known) -> str:
    """The likely cause of a kill from outside."""
    exit_ = known.look.exit or {}
    if integer_of(exit_, "signal") == signal.SIGKILL and not integer_of(exit_, "oom_kill"):
        return " (kill -9, a job manager, or a memory limit)"
    if not exit_:
        return " (killed together with its waiter: a job manager, the machine's end, or kill -9)"
    return ""


def _wall(known: Known) -> float | None:
    """How long an ended run took: as its waiter says, or of a run that was resumed the time of all its sessions that
    has records.
    """
    wall_s = number_of(known.look.exit or {}, "wall_s")
    last = known.timeline.table.last if known.timeline is not None else None
    once = known.header is None or known.header.session <= 1
    return wall_s if wall_s is not None and (once or last is None) else None if last is None else last[1]


def _latest(known: Known, metric: str) -> float | None:
    curve = known.timeline.table.curves.get(metric) if known.timeline is not None else None
    return None if curve is None else curve.latest


def _ending_facts(known: Known) -> list[str]:
    score, found = _latest(known, EVALUATION), []
    if score is not None:
        found.append(f"eval {text.number(score)}{target_remark(known.run.document, score)}")
    now = progress(known)
    if now.step is not None:
        of = f" of {text.count(now.steps)}" if now.steps and now.step < now.steps else ""
        took = _wall(known)
        found.append(f"{text.count(now.step)}{of} steps" + (f" in {text.duration(took)}" if took is not None else ""))
    if (sps := _mean_sps(known)) is not None:
        found.append(f"mean SPS {text.count(sps)}")
    if known.state.word != "finished" and known.look.status is not None:
        saved = now.checkpoint_step
        found.append(
            "no checkpoint"
            if saved is None and not known.has_checkpoint
            else f"checkpoint at {text.count(saved)} steps"
            if saved is not None
            else ""
        )
    return [fact for fact in found if fact]


def _mean_sps(known: Known) -> float | None:
    """Steps over wall time, evaluations and checkpoints included."""
    timeline = known.timeline
    extent = timeline.table.extent() if timeline is not None else None
    if extent is None:
        return None
    (first, first_s, _), (last, last_s, _) = extent
    return (last - first) / (last_s - first_s) if last_s > first_s and last > first else None


def _commands(known: Known) -> list[str]:
    short, word = text.safe(known.run.short), known.state.word
    named = []
    if known.has_checkpoint:
        named.append(f"operant {'eval' if word == 'finished' else 'resume'} {short}")
    if word not in ("finished", "stopped"):
        named.append(f"operant logs {short}")
    return [*named, f"operant show {short}"]


def agent_absent(known: Known, *, wanted: bool, readonly: bool) -> str:
    """Why no picture of the agent is shown. An environment is said to draw none only where the run's document
    says so.
    """
    state, document, header = known.state, known.run.document, known.header
    if state.ended:
        return "the run has ended"
    if state.word == "remote":
        return "the agent can be watched only on the machine that trains it"
    if document.get("draws") is False:
        return f"{text_of(document, 'env') or 'this environment'} draws no picture"
    if readonly:
        return "read only: this screen requests no pictures"
    if not wanted:
        return ""
    if state.word == "starting":
        return "training has not begun"
    if header is not None and not header.frame_bytes:
        return "this trainer sends no pictures"
    if state.word in ("stalled", "suspended", "stopping"):
        return f"the trainer is {state.word}: it draws nothing now"
    return "waiting for the first picture…"

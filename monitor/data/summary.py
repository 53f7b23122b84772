"""Derive a snapshot's parts from a run's data: progress, key figures, phases, cause, ending. Standard library only.
Pure: reads no file and no clock.

`monitor.data.feed` collects the run's document, observation, timeline and log; the functions here turn them into
printable values and sentences.
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
_RECENT, _NEWEST, _LAST = (10.0, 20), (1.0, 9), (0.0, 32)  # (seconds, minimum number of records)
_PLAIN_LINES = 6  # log lines shown if the log has no error
_PROCESS_STATES: Final = {
    "D": "in the kernel, waiting for a disk or a driver (D)",
    "T": "stopped by a signal (T): kill -CONT {pid} continues it",
    "t": "held by a debugger (t)",
    "Z": "a zombie: its parent has not reaped it (Z)",
}


class RunData(NamedTuple):
    """Everything the feed knows about a run at one moment. Ages in seconds; None: unknown."""

    run: Run
    state: State
    look: Observation
    timeline: Timeline | None
    header: Header | None = None
    iterations_per_s: float | None = None
    up_s: float | None = None
    phase_age_s: float | None = None  # since run.json named the startup phase
    state_age_s: float | None = None  # since this viewer first saw the state
    process_state: str | None = None  # state letter in /proc/PID/stat; None if the process is not visible
    has_checkpoint: bool = False
    log_end: Sequence[str] = ()  # end of the log, printable
    now_s: float = 0.0  # wall clock, for display only


# ----------------------------------------------------------------------------------------------------------------------
# the run


def facts(run: Run, header: Header | None, now_s: float) -> RunFacts:
    """Return the identity and configuration of a run for the header. `now_s` is the wall clock."""
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
    """Format a Unix time as local text: hh:mm:ss within half a day of `now_s`, else date and time; None if out of
    range.
    """
    try:
        return time.strftime(
            "%H:%M:%S" if abs(now_s - moment_s) < 43200 else "%Y-%m-%d %H:%M", time.localtime(moment_s)
        )
    except (OverflowError, ValueError, OSError):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# progress


def progress(known: RunData) -> Progress:
    """Return the run's current progress. Ages are rounded down: to 1 s (10 s once the run has ended), from one minute
    on to minutes, from one hour on to hours.
    """
    look, document, timeline = known.look, known.run.document, known.timeline
    live = known.state.word in LIVE
    last = timeline.table.last if timeline is not None else None
    step = int(last[0]) if last is not None else None if look.record is None else look.record.step
    steps = step if known.state.word == "finished" else integer_of(document, "steps")
    moving = known.state.word == "running"
    rate = timeline.steps_per_s if timeline is not None and moving else None
    eta_s = float(math.ceil((steps - step) / rate)) if rate and steps and step is not None and steps > step else None
    status = look.status
    return Progress(
        step=step,
        steps=steps,
        iterations=None if status is None else status.main_count,
        iterations_per_s=known.iterations_per_s if moving else None,
        up_s=None if (up_s := _duration_s(known) if known.state.ended else known.up_s) is None else float(int(up_s)),
        eta_s=eta_s,
        done_at=None if eta_s is None else _finish_time(known.now_s, eta_s),
        checkpoint_step=None if status is None else status.last_checkpoint_step,
        unsaved_s=_rounded_age(look.unsaved_s, seconds=True),
        record_age_s=_rounded_age(look.record_age_s, seconds=live),
    )


def progress_at(known: RunData, step: float) -> Progress:
    """Return the run's progress at an earlier `step`; the current one if there are no records."""
    position = known.timeline.table.position(step) if known.timeline is not None else None
    marks = known.timeline.marks if known.timeline is not None else ()
    saved = [mark.step for mark in marks if mark.kind == "checkpoint" and mark.step <= step]
    if position is None:
        return progress(known)
    return Progress(
        int(position[0]),
        integer_of(known.run.document, "steps"),
        int(position[2]),
        up_s=position[1],
        checkpoint_step=int(saved[-1]) if saved else None,
    )


def _rounded_age(age_s: float | None, *, seconds: bool) -> float | None:
    """Round an age down, to 1 s with `seconds`, else 10 s; from one minute on to minutes, from one hour on to hours.
    Ages alone then do not redraw the screen each second.
    """
    if age_s is None or not math.isfinite(age_s):
        return None
    grain = (1.0 if seconds else 10.0) if age_s < 60 else 60.0 if age_s < 3600 else 3600.0
    return age_s // grain * grain


def _finish_time(now_s: float, ahead_s: float) -> str | None:
    """Format the time `ahead_s` seconds from `now_s` as local text: the time within a day, the date within a year, else
    the year. None if out of range.
    """
    try:
        return time.strftime(
            "%H:%M" if ahead_s < 86400 else "%d %b" if ahead_s < 360 * 86400 else "%Y", time.localtime(now_s + ahead_s)
        )
    except (OverflowError, ValueError, OSError):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# figures


def values_shown(timeline: Timeline, specs: Sequence[MetricSpec], step: float | None = None) -> dict[str, float]:
    """Return the displayed value of each metric at `step` (None: now): the newest value, or for rates the median of the
    newest records. Metrics without a value are left out.

    Header, charts and health all use these values.
    """
    wanted = [spec.name for spec in specs if step is not None or spec.kind == "rate"]
    window = timeline.table.window(*(_NEWEST if step is None else _LAST), wanted, step=step)
    values = {}
    for spec in specs:
        recent = [value for value in window.values.get(spec.name, ()) if not math.isnan(value)]
        value = timeline.table.curves[spec.name].latest if step is None else recent[-1] if recent else None
        if spec.kind == "rate" and recent:  # a single short record is too noisy
            value = sorted(recent)[len(recent) // 2]
        if value is not None:
            values[spec.name] = value
    return values


def evaluations_shown(timeline: Timeline, step: float | None = None) -> tuple[float, float, float] | None:
    """Return (first, best, newest) evaluation up to `step` (None: now), the newest being the value that the header
    shows; None without evaluations.
    """
    evaluations = timeline.evaluations(step)
    values = values_shown(timeline, [timeline.specs[EVALUATION]], step) if evaluations is not None else {}
    return evaluations if evaluations is None else (*evaluations[:2], values.get(EVALUATION, evaluations[2]))


def figures(timeline: Timeline, step: float | None = None) -> tuple[Figure, ...]:
    """Return the header's key figures at `step` (None: now), one for each metric that declares one."""
    specs = [spec for spec in timeline.specs.values() if spec.figure][:_MOST_FIGURES]
    values = values_shown(timeline, specs, step)
    result = []
    for spec in specs:
        curve = timeline.table.curves[spec.name]
        unit = "" if spec.kind == "rate" or spec.unit == "reward" else spec.unit
        trend, best = (
            (curve.trend_per_min, curve.best)
            if step is None
            else (None, curve.maximum(step) if spec.higher_better else None)
        )
        result.append(
            Figure(
                spec.name, spec.figure, values.get(spec.name), unit, trend, best, spec.higher_better or None, spec.kind
            )
        )
    return tuple(result)


def phases(timeline: Timeline, step: float | None = None) -> tuple[PhaseShare, ...]:
    """Return each phase's share of the wall time in the ten seconds before `step` (None: now); () for a run without
    phase times.
    """
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
# states


def cause(known: RunData) -> str | None:
    """Return the text shown after the run's state, such as the reason or a duration; None without one."""
    word, reason = known.state
    if word == "starting":
        spent = "" if known.phase_age_s is None else f" {text.age(known.phase_age_s)}"
        return f"{reason or 'starting the worker'}{spent}"
    if word == "paused":
        by = text_of(known.run.document, "paused_by")
        waited = "" if known.state_age_s is None else f" for {text.age(known.state_age_s)}"
        return reason or f"waiting{waited}{f', requested by {by}' if by else ''}"
    if word == "stopping":
        return reason or "finishing the iteration and saving a checkpoint"
    if word in ("stalled", "suspended"):
        process = _PROCESS_STATES.get(known.process_state or "", "").replace(
            "{pid}", str(integer_of(known.run.document, "pid") or "")
        )
        return " · ".join(part for part in (reason, f"process {process}" if process else "") if part)
    if word in ("failed", "diverged", "gpu_fault", "oom"):
        return reason or _error_line(known.log_end)
    return reason


def _has_error(log_end: Sequence[str]) -> bool:
    """Whether the log's end holds an `error: ` line or a traceback."""
    return any(line.startswith(("error: ", "Traceback ")) for line in log_end)


def _error_line(log_end: Sequence[str]) -> str | None:
    """Return the message of the error at the end of the log: its `error: ` line, or the last line of a traceback. None
    without either.
    """
    for line in log_end:
        if line.startswith("error: "):
            return text.safe(line.removeprefix("error: "), 300)
    return (
        text.safe(log_end[-1].strip(), 300)
        if log_end and any(line.startswith("Traceback ") for line in log_end)
        else None
    )


_SENTENCES: Final = {
    "failed": "ended by an error",
    "diverged": "training produced values that are not finite",
    "gpu_fault": "the GPU failed",
    "oom": "out of memory",
}


def ending(known: RunData) -> Ending | None:
    """Summarize an ended run: its final state, results and the next commands. None while it lives."""
    word, reason = known.state
    if not known.state.ended:
        return None
    detail = cause(known)
    if word == "finished":
        sentence = _finished(known)
    elif word == "stopped":
        saved = "with a checkpoint" if known.has_checkpoint else "without a checkpoint"
        by = reason or (f"by {who}" if (who := text_of(known.run.document, "stopped_by")) else "")
        sentence = f"stopped {by}, {saved}" if by else f"stopped, {saved}"
    elif word == "crashed":
        sentence = (
            f"{reason if reason and reason != 'unknown' else 'ended without a terminal state'}{_crash_remark(known)}"
        )
    else:
        opening = _SENTENCES.get(word, word)
        sentence = f"{opening}: {detail}" if detail and not detail.startswith(opening.split()[0]) else detail or opening
    failed = word not in ("finished", "stopped")
    words = known.log_end if _has_error(known.log_end) else known.log_end[-_PLAIN_LINES:]
    return Ending(sentence, tuple(words) if failed else (), tuple(_ending_facts(known)), tuple(_commands(known)))


def _finished(known: RunData) -> str:
    """Return the sentence for a finished run: target reached or all steps done, and the duration if known."""
    took = _duration_s(known)
    step, steps = progress(known).step, integer_of(known.run.document, "steps")
    early = step is not None and steps is not None and step < steps
    solved = early and target_reached(known.run.document, _latest(known, EVALUATION))
    done = (
        f"target {text.number(number_of(known.run.document, 'target')).removesuffix('.0')} reached"
        if solved
        else "all steps done"
    )
    return f"{done} in {text.duration(took)}" if took is not None else done


def _crash_remark(known: RunData) -> str:
    """Return a remark about the likely cause of a kill from outside; "" if unknown."""
    exit_ = known.look.exit or {}
    if integer_of(exit_, "signal") == signal.SIGKILL and not integer_of(exit_, "oom_kill"):
        return " (kill -9, a job manager, or a memory limit)"
    if not exit_:
        return " (killed together with its waiter: a job manager, a machine shutdown, or kill -9)"
    return ""


def _duration_s(known: RunData) -> float | None:
    """Return the duration of an ended run in seconds over all sessions; None if unknown."""
    last = known.timeline.table.last if known.timeline is not None else None
    known_s = [known.look.took_s, None if last is None else last[1]]
    return max((seconds for seconds in known_s if seconds is not None), default=None)


def _latest(known: RunData, metric: str) -> float | None:
    """Return the newest value of a metric; None without one."""
    curve = known.timeline.table.curves.get(metric) if known.timeline is not None else None
    return None if curve is None else curve.latest


def _ending_facts(known: RunData) -> list[str]:
    """Return an ended run's results as short texts: evaluation, steps, mean speed, last checkpoint."""
    score, facts = _latest(known, EVALUATION), []
    if score is not None:
        facts.append(f"eval {text.number(score)}{target_remark(known.run.document, score)}")
    now = progress(known)
    if now.step is not None:
        steps = integer_of(known.run.document, "steps")
        of = f" of {text.count(steps)}" if steps and now.step < steps else ""
        took = _duration_s(known)
        facts.append(f"{text.count(now.step)}{of} steps" + (f" in {text.duration(took)}" if took is not None else ""))
    if (sps := _mean_sps(known)) is not None:
        facts.append(f"mean SPS {text.count(sps)}")
    if known.state.word != "finished" and known.look.status is not None:
        saved = now.checkpoint_step
        facts.append(
            "no checkpoint"
            if saved is None and not known.has_checkpoint
            else f"checkpoint at {text.count(saved)} steps{_lost_work(now)}"
            if saved is not None
            else ""
        )
    return [fact for fact in facts if fact]


def _lost_work(now: Progress) -> str:
    """Return " (AGE of work lost)" if work since the last checkpoint was lost; else ""."""
    return f" ({text.age(now.unsaved_s)} of work lost)" if now.unsaved_s is not None else ""


def _mean_sps(known: RunData) -> float | None:
    """Return the mean environment steps per second of wall time, including evaluations and checkpoints; None if
    unknown.
    """
    timeline = known.timeline
    extent = timeline.table.extent() if timeline is not None else None
    if extent is None:
        return None
    (first, first_s, _), (last, last_s, _) = extent
    return (last - first) / (last_s - first_s) if last_s > first_s and last > first else None


def _commands(known: RunData) -> list[str]:
    """Return the commands that make sense after the run has ended, such as `operant resume 4f2a`."""
    short, word = text.safe(known.run.short), known.state.word
    commands = []
    if known.has_checkpoint:
        commands.append(f"operant {'eval' if word == 'finished' else 'resume'} {short}")
    if word not in ("finished", "stopped"):
        commands.append(f"operant logs {short}")
    return [*commands, f"operant show {short}"]


def agent_absent(known: RunData, *, wanted: bool, readonly: bool) -> str:
    """Return the reason why no frame of the agent is shown; "" if there is no reason. `wanted`: the screen asks for
    frames; `readonly`: it sends no requests.

    An environment is reported as not drawable only if the run's document says so.
    """
    state, document, header = known.state, known.run.document, known.header
    if state.ended:
        return "the run has ended"
    if state.word == "remote":
        return "frames of the agent are available only on the machine that trains it"
    if document.get("draws") is False:
        return f"{text_of(document, 'env') or 'this environment'} draws no picture"
    if readonly:
        return "read only: this monitor does not request frames"
    if not wanted:
        return ""
    if state.word == "starting":
        return "training has not started"
    if header is not None and not header.frame_bytes:
        return "this trainer does not send frames"
    if state.word in ("stalled", "suspended", "stopping"):
        return f"the trainer is {state.word}: no frames"
    return "waiting for the first frame…"

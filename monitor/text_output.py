"""Text output of a run without a terminal: one line every five seconds until the run ends. Standard library only.

`follow` reads a `Source`. The caller handles signals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from monitor.data.snapshot import Snapshot, Source
from operant.text import count, duration, number, safe

_LINE_S = 5.0
_LOOK_S = 0.25


def follow(
    source: Source,
    stream: TextIO,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Write a line to `stream` on each change of the run's state and every five seconds until the run has ended.
    Returns True, or False if the stream was closed before.
    """
    last_state, line_s = "", float("-inf")
    try:
        while True:
            snapshot, now_s = source.snapshot(), clock()
            ended = snapshot.ended or snapshot.state == "unreadable"
            if snapshot.state != last_state or now_s - line_s >= _LINE_S:
                last_state, line_s = snapshot.state, now_s
                stream.write(line(snapshot) + "\n")
                stream.flush()
            if ended:
                for text in ending(snapshot):
                    stream.write(text + "\n")
                stream.flush()
                return True
            sleep(_LOOK_S)
    except (BrokenPipeError, ValueError):  # ValueError: the stream was closed
        return False


def line(snapshot: Snapshot) -> str:
    """Format a run's state, steps, key figures and remaining time as one line."""
    progress = snapshot.progress
    parts = [f"{snapshot.run.id}  {snapshot.state}"]
    if snapshot.cause:
        parts.append(snapshot.cause)
    if progress.share is not None:
        parts.append(f"{100 * progress.share:.1f} %")
    if progress.step is not None:
        of = f" / {count(progress.steps)}" if progress.steps else ""
        parts.append(f"{count(progress.step)}{of} steps")
    parts += [
        f"{figure.label} {value(figure.kind, figure.value)}{' ' + figure.unit if figure.unit else ''}"
        for figure in snapshot.figures
        if figure.value is not None
    ]
    if progress.eta_s is not None:
        parts.append(f"ETA {duration(progress.eta_s)}")
    return safe("   ".join(parts), 400)


def ending(snapshot: Snapshot) -> list[str]:
    """Return the lines about how the run ended: a sentence ("all steps done in 0:02:41"), the end of the log of a
    failed run, results, the next commands. [] while the run lives.
    """
    if snapshot.ending is None:
        return []
    end = snapshot.ending
    return [
        safe(text, 400)
        for text in (
            end.sentence,
            *end.traceback,
            *end.facts,
            *(f"next: {command}" for command in end.commands),
        )
        if text
    ]


def value(kind: str, measured: float | None) -> str:
    """Format a metric's value: rates and counters as counts (4.7 M), other kinds as numbers."""
    return count(measured) if measured is not None and kind in ("rate", "counter") else number(measured)

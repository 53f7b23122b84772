"""A run as lines, for output that is not a terminal: one every five seconds, until the run has ended. Standard library
only.

Knows neither files nor signals: it asks a Source.
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
    """Write a line on every change of state, and every five seconds one more, until the run has ended: True. False once
    the stream is closed.
    """
    told, line_s = "", float("-inf")
    try:
        while True:
            snapshot, now_s = source.snapshot(), clock()
            ended = snapshot.ended or snapshot.state == "unreadable"
            if snapshot.state != told or now_s - line_s >= _LINE_S:
                told, line_s = snapshot.state, now_s
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
    """State, steps, key figures and the remaining time, in one line."""
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
        f"{one.label} {value(one.kind, one.value)}{' ' + one.unit if one.unit else ''}"
        for one in snapshot.figures
        if one.value is not None
    ]
    if progress.eta_s is not None:
        parts.append(f"ETA {duration(progress.eta_s)}")
    return safe("   ".join(parts), 400)


def ending(snapshot: Snapshot) -> list[str]:
    """How the run ended, a line each: the sentence, the end of the log, facts, the next commands."""
    if snapshot.ending is None:
        return []
    found = snapshot.ending
    return [
        safe(text, 400)
        for text in (
            found.sentence,
            *found.traceback,
            *found.facts,
            *(f"next: {command}" for command in found.commands),
        )
        if text
    ]


def value(kind: str, measured: float | None) -> str:
    """A metric's value in words: rates and counts with a decimal unit, all others as measured."""
    return count(measured) if measured is not None and kind in ("rate", "counter") else number(measured)

"""Live list of runs, redrawn in place. Standard library only. The caller formats the lines.

A run that has ended is described once; afterwards only its lock is probed, so that long lists stay cheap.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TextIO

from operant import runs
from operant.runs import ENDED, integer_of
from operant.text import safe

_PERIOD_S = 1.0
_FALLBACK_SIZE = (80, 24)


class Listing:
    """Reader of the runs in `scope` for a live list. Caches the descriptions of ended runs. `wanted`: states to include
    (empty: all).
    """

    def __init__(self, scope: runs.Scope, wanted: Collection[str]) -> None:
        self._scope, self._wanted = scope, wanted
        self._ended: dict[Path, dict[str, Any]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return the current description of each run in a wanted state, newest first, as `states.describe`
        returns it.
        """
        described = [(run, self._describe(run)) for run in runs.list_runs(*self._scope)]
        self._ended = {run.path: row for run, row in described if row["state"] in ENDED}
        return [row for _, row in described if not self._wanted or row["state"] in self._wanted]

    def _describe(self, run: runs.Run) -> dict[str, Any]:
        """Describe a run; one that had ended and has not been resumed is described from the cache, with its new age."""
        known = self._ended.get(run.path)
        # A new worker takes the lock and writes its pid: without either, the run has not been resumed.
        if known is not None and runs.probe(run.path) is False and known["pid"] == integer_of(run.document, "pid"):
            created_ns = integer_of(run.document, "created_realtime_ns")
            return known | {"age_s": None if created_ns is None else max(0.0, time.time() - created_ns / 1e9)}
        return runs.describe(run)


def draw(make: Callable[[], list[str]], stream: TextIO, *, period_s: float = _PERIOD_S) -> None:
    """Draw the lines that `make` returns on a terminal, again every `period_s` seconds, until Ctrl-C or until the
    terminal closes.
    """
    drawn: list[str] = []
    try:
        while True:
            drawn = redraw(stream, drawn, make())
            time.sleep(period_s)
    except KeyboardInterrupt:
        stream.write("\n" if not drawn else "")
    except (OSError, ValueError):  # ValueError: the stream was closed
        return


def redraw(stream: TextIO, before: list[str], lines: list[str]) -> list[str]:
    """Replace the lines `before`, which end above the terminal's cursor, by `lines`, cut to the terminal's size.
    Returns the drawn lines, to be passed as `before` next time.
    """
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, rows = _FALLBACK_SIZE
    available = max(1, (rows or _FALLBACK_SIZE[1]) - 1)
    if len(lines) > available:
        lines = [*lines[: available - 1], f"... and {len(lines) - available + 1} more"]
    lines = [safe(line, max(1, (columns or _FALLBACK_SIZE[0]) - 1)) for line in lines]
    if lines == before:
        return lines
    pieces = [f"\x1b[{len(before)}A"] if before else []
    for index in range(max(len(lines), len(before))):
        new, old = (lines[index] if index < len(lines) else ""), (before[index] if index < len(before) else None)
        pieces.append("\n" if new == old else f"{new}\x1b[K\n")
    if len(before) > len(lines):
        pieces.append(f"\x1b[{len(before) - len(lines)}A")
    stream.write("".join(pieces))
    stream.flush()
    return lines

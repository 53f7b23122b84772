"""Names, glyphs and sentences of states and levels. Standard library only. The functions are pure."""

from __future__ import annotations

from typing import Final

from monitor.data.snapshot import Snapshot
from operant.text import age, duration

STATES: Final = {
    "starting": ("◌", "focus"),
    "running": ("●", "good"),
    "paused": ("‖", "warn"),
    "stopping": ("◐", "warn"),
    "stalled": ("◔", "warn"),
    "suspended": ("◔", "warn"),
    "finished": ("✔", "good"),
    "stopped": ("■", "bright"),
    "failed": ("✖", "bad"),
    "crashed": ("✖", "bad"),
    "diverged": ("✖", "bad"),
    "gpu_fault": ("✖", "bad"),
    "oom": ("✖", "bad"),
    "remote": ("⌁", "focus"),
    "unreadable": ("?", "bad"),
}
"""Glyph and style of every state; the displayed word has the same meaning."""
LEVELS: Final = {"ok": ("✔", "good"), "warn": ("!", "warn"), "bad": ("✖", "bad")}
PENDING: Final = ("·", "dim")
"""Glyph and style of a finding whose goal is not reached yet."""
_SENTENCES: Final = {
    "paused": "P resumes",
    "stopping": "finishing the iteration and saving a checkpoint",
    "stalled": "no iteration completes",
    "suspended": "no heartbeat",
    "remote": "another machine",
    "starting": "starting",
    "unreadable": "the metrics file cannot be read",
}


def label_of(state: str) -> tuple[str, str, str]:
    """Return glyph, word in capitals, and style token for a state of a run."""
    glyph, style = STATES.get(state, ("?", "bad"))
    return glyph, state.upper().replace("_", " "), style


def state_sentence(snapshot: Snapshot) -> str:
    """Return a sentence about the run's state; "" while it is running."""
    word = snapshot.state
    if word == "running":
        return ""
    if snapshot.ended:
        return snapshot.ending.sentence if snapshot.ending is not None else snapshot.cause or ""
    text = snapshot.cause or _SENTENCES.get(word, "")
    if word == "paused" and snapshot.cause:
        return f"{'requested ' if text.startswith('by ') else ''}{text} · P resumes"
    return text


def remaining(seconds: float | None) -> str:
    """Format a remaining time in at most eight cells: 0:02:41, 5 d 3 h; "-" for None."""
    if seconds is None or not 360_000 <= seconds < 86_400_000:
        return duration(seconds)
    hours = f" {int(seconds % 86400 // 3600)} h" if seconds < 864_000 else ""
    return f"{int(seconds // 86400)} d{hours}" if seconds < 8_640_000 else age(seconds)

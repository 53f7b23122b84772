"""Texts of the help dialog, the run's description and the traceback dialog."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.charts import Line, Piece, padded, wrapped
from monitor.data.snapshot import Snapshot
from monitor.screen.keys import KEYS, shown_keys
from monitor.screen.labels import label_of
from monitor.text_output import value as format_value
from operant.text import age, count, duration, number

_KEY_CELLS, _SIGN_CELLS = 11, 16
_NAME_CELLS = 18
_LEGEND = (
    ("line and band", "mean, and minimum to maximum, of the records in a column"),
    ("▲ ◆ ┊ !", "checkpoint, evaluation, resume, NaN or infinite value"),
    ("dotted line", "overlaid run (o), or a group's mean over seeds with its 95 % band; horizontal: the target"),
)


def help_lines(own: Mapping[str, str], *, readonly: bool = False, width: int = 92) -> list[Line]:
    """Return the lines of the help dialog: keys by group, symbols in charts, and how to redefine keys. `own`: the
    user's keys by command; `readonly` leaves out requests to the trainer; `width` in cells.
    """
    lines: list[Line] = []
    groups = list(dict.fromkeys(key.group for key in KEYS))
    for group in groups:
        listed = [key for key in KEYS if key.group == group and not (key.trains and readonly)]
        if listed:
            lines += [(), _head(group)] if lines else [_head(group)]
        for key in listed:
            first, *more = wrapped(key.words, width - _KEY_CELLS - 1)
            lines.append(
                (Piece(padded(f" {shown_keys(key, own)}", _KEY_CELLS), "focus", bold=True), Piece(first, "text"))
            )
            lines += [(Piece(" " * _KEY_CELLS + rest, "text"),) for rest in more]
    lines += [(), _head("Charts")]
    for sign, text in _LEGEND:
        first, *more = wrapped(text, width - _SIGN_CELLS - 1)
        lines.append((Piece(padded(f" {sign}", _SIGN_CELLS), "focus"), Piece(first, "text")))
        lines += [(Piece(" " * _SIGN_CELLS + rest, "text"),) for rest in more]
    lines.append(())
    for paragraph in (
        'To redefine keys, add lines such as freeze = "f" to ~/.config/operant/keys.toml. Command names:',
        ", ".join(key.id for key in KEYS),
    ):
        lines += [(Piece(text, "dim"),) for text in wrapped(paragraph, width)]
    return lines


def _head(text: str) -> Line:
    """Format `text` as a bold heading line of a dialog."""
    return (Piece(text, "bright", bold=True),)


def traceback(snapshot: Snapshot) -> list[Line]:
    """Return the lines of the traceback dialog: the end of a failed run's log; [] for any other run."""
    return [(Piece(text, "text"),) for text in (() if snapshot.ending is None else snapshot.ending.traceback)]


def description(snapshot: Snapshot) -> list[Line]:
    """Return the lines of the description dialog: one for each fact about the run, then its newest values."""
    run, now = snapshot.run, snapshot.progress
    glyph, word, style = label_of(snapshot.state)
    facts = [
        ("folder", run.path),
        ("environment", run.env),
        ("lanes", f"{run.lanes:,}" if run.lanes else None),
        ("algorithm", run.algo),
        ("seed", str(run.seed) if run.seed is not None else None),
        ("device", run.device),
        ("replay", run.replay),
        ("host", run.host),
        ("trainer PID", str(run.pid) if run.pid else None),
        ("operant", run.version),
        ("created", run.created),
        ("steps", f"{now.step:,}" + (f" of {now.steps:,}" if now.steps else "") if now.step is not None else None),
        ("iterations", f"{now.iterations:,}" if now.iterations is not None else None),
        ("took" if snapshot.ended else "up", duration(now.up_s) if now.up_s is not None else None),
        ("target", number(run.target) if run.target is not None else None),
        ("checkpoint", f"at {count(now.checkpoint_step)} steps" if now.checkpoint_step is not None else None),
        (
            "lost at the end" if snapshot.ended else "a crash loses",
            f"{age(now.unsaved_s)} of work" if now.unsaved_s is not None else None,
        ),
        ("last record", f"{age(now.record_age_s)} ago" if now.record_age_s is not None else None),
    ]
    state = (Piece(f"{glyph} {word.lower()}", style, bold=True), Piece(f"  {snapshot.cause or ''}", "text"))
    lines: list[Line] = [(Piece(padded("state", _NAME_CELLS), "dim"), *state)]
    lines += [(Piece(padded(name, _NAME_CELLS), "dim"), Piece(value, "text")) for name, value in facts if value]
    if snapshot.ending is not None:
        lines += [
            (Piece(padded("next", _NAME_CELLS), "dim"), Piece(command, "focus")) for command in snapshot.ending.commands
        ]
    if snapshot.series:
        lines += [(), _head("Newest values")]
        for series in snapshot.series.values():
            best = (
                f"   best {format_value(series.kind, series.best)}"
                if series.higher_better and series.best is not None
                else ""
            )
            broken = f"   not finite: {series.not_finite:,}" if series.not_finite else ""
            unit = f" {series.unit}" if series.unit else ""
            newest = Piece(padded(f"{format_value(series.kind, series.latest)}{unit}", 16), "text")
            lines.append((Piece(padded(series.name, 28), "dim"), newest, Piece(best, "dim"), Piece(broken, "bad")))
    return lines

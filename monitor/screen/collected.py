"""Lines of the screen for a group or sweep: key figures, the table of its runs, and the text of a small screen.

Standard library only. Pure: a model and a size in, lines out.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.charts import Line, Piece, fit, flow, padded
from monitor.data.snapshot import Member
from monitor.screen.labels import STATES
from monitor.screen.model import Model
from operant.text import count, number


def figures(model: Model, width: int) -> list[Line]:
    """Draw the key figures of a group or sweep in one line."""
    slots = [[Piece(f"{label} ", "dim"), Piece(text, "bright", bold=True)] for label, text in _texts(model)]
    return [fit((Piece(" "), *line), width) for line in flow(slots, width - 2)[:1]]


def _texts(model: Model) -> Sequence[tuple[str, str]]:
    """Return the key figures as (label, text)."""
    collected = model.snapshot.collected
    return () if collected is None else collected.figures


def title(model: Model) -> str:
    """Return the title of the table: the number of runs, and the keys that work on it."""
    kind = "" if model.snapshot.collected is None else model.snapshot.collected.kind
    runs = "Trials" if kind == "sweep" else "Runs"
    return f"{runs} · ↑ ↓ select · enter opens · esc returns" if model.size[0] >= 60 else runs


def table(model: Model, width: int, height: int) -> list[Line]:
    """Draw the table of the runs: titles, then as many rows as fit, with the selected one among them."""
    members = model.members
    if not members:
        return [(Piece("no run has begun yet", "dim"),)]
    heads = _cells(None, model)
    rows = [_cells(member, model) for member in members]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [fit([Piece("  " + _joined(heads, widths), "dim")], width)]
    picked, shown = model.picked, height - 1
    at = 0 if picked is None else members.index(picked)
    first = max(0, min(at - shown // 2, len(members) - shown))
    for member, cells in zip(members[first : first + shown], rows[first : first + shown], strict=True):
        lines.append(_row(member, _joined(cells, widths), member is picked, width))
    return lines


def _row(member: Member, text: str, current: bool, width: int) -> Line:
    """Draw one row of the table: the state's glyph and the cells, on a bar if it is the selected one."""
    glyph, style = STATES.get(member.state, ("·", "dim"))
    back = "cursor" if current else ""
    fore = "bright" if current else "text" if member.path and member.counts else "dim"
    return fit(
        [Piece(f"{glyph} ", style, back=back), Piece(padded(text, width - 2), fore, bold=current, back=back)], width
    )


def _cells(member: Member | None, model: Model) -> list[str]:
    """Return the cells of a run's row, most important first; None: the titles."""
    sweep = model.snapshot.collected is not None and model.snapshot.collected.kind == "sweep"
    scored = sweep and model.snapshot.collected is not None and model.snapshot.collected.objective == "score"
    if member is None:
        if scored:
            return ["trial", "state", "eval", "done", "settings", "cause"]
        own = ["objective", "settings"] if sweep else ["return", "SPS"]
        return ["trial" if sweep else "seed", "state", "eval", own[0], "done", own[1], "cause" if sweep else "id"]
    share = "-" if member.share is None else f"{100 * member.share:.0f} %"
    last = member.cause if sweep or member.cause else member.id
    head = [member.name.partition(" ")[2] or member.name, member.state, number(member.score)]
    if scored:
        return [*head, share, member.settings, last]
    if sweep:
        return [*head, number(member.value), share, member.settings, last]
    speed = "-" if member.sps is None else count(member.sps)
    return [*head, number(member.training_return), share, speed, last]


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join the cells of a row, each padded to the width of its column; a column of seven cells at least, so that
    nothing moves while numbers change.
    """
    return "  ".join(padded(text, max(7, cells)) for text, cells in zip(cells, widths, strict=True))


def compact_lines(model: Model, width: int, height: int) -> list[Line]:
    """Draw a group or sweep for a terminal too small for charts: its key figures, then a line for each run."""
    figures = [
        fit([Piece(f" {label} ", "dim"), Piece(text, "bright", bold=True)], width) for label, text in _texts(model)
    ]
    head = figures[: max(1, height // 3)]
    members = model.members
    shown, picked = height - len(head), model.picked
    at = 0 if picked is None else members.index(picked)
    first = max(0, min(at - shown // 2, len(members) - shown))
    for member in members[first : first + shown]:
        share = "" if member.share is None else f"{100 * member.share:3.0f} %"
        text = f"{padded(member.name, 9)} {padded(member.state, 9)} {number(member.score):>8} {share}"
        head.append(_row(member, text, member is picked, width))
    return head

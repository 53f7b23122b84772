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

_LEAST_CAUSE = 10  # cells: a narrower column would say nothing


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
    columns = _columns(model, width - 2)
    widths = [max(least, *map(len, cells)) for least, cells in columns]
    heads, *rows = zip(*(cells for _, cells in columns), strict=True)
    lines = [fit([Piece("  " + _joined(heads, widths), "dim")], width)]
    picked, shown = model.picked, height - 1
    at = 0 if picked is None else members.index(picked)
    first = max(0, min(at - shown // 2, len(members) - shown))
    for member, cells in zip(members[first : first + shown], rows[first : first + shown], strict=True):
        lines.append(_row(member, _joined(cells, widths).rstrip(), member is picked, width))
    return lines


def _row(member: Member, text: str, current: bool, width: int) -> Line:
    """Draw one row of the table: the state's glyph and the cells, on a bar if it is the selected one."""
    glyph, style = STATES.get(member.state, ("·", "dim"))
    back = "cursor" if current else ""
    fore = "bright" if current else "text" if member.path and member.counts else "dim"
    return fit(
        [Piece(f"{glyph} ", style, back=back), Piece(padded(text, width - 2), fore, bold=current, back=back)], width
    )


def _columns(model: Model, width: int) -> list[tuple[int, list[str]]]:
    """Return the columns of the table as (least width, title and cells), most important first. Numbers have a least
    width, so that nothing moves while they change. Searched keys that do not fit in `width` cells are left out.
    """
    collected, members = model.snapshot.collected, model.members
    sweep = collected is not None and collected.kind == "sweep"
    columns = [
        (5, ["trial" if sweep else "seed", *(one.name.partition(" ")[2] or one.name for one in members)]),
        (8, ["state", *(one.state for one in members)]),
        (7, ["eval", *(number(one.score) for one in members)]),
    ]
    if collected is not None and collected.objective != "score":
        columns.append((7, [collected.objective.replace("_", " "), *(number(one.value) for one in members)]))
    if not sweep:
        columns.append((7, ["return", *(number(one.training_return) for one in members)]))
    columns.append((5, ["done", *("-" if one.share is None else f"{100 * one.share:.0f} %" for one in members)]))
    if sweep and collected is not None:
        for k, axis in enumerate(collected.axes):
            cells = [axis.name.rpartition(".")[2], *(one.settings[k] if one.settings else "" for one in members)]
            if _cells(columns) + max(map(len, cells)) <= width:
                columns.append((0, cells))
    else:
        columns.append((7, ["SPS", *("-" if one.sps is None else count(one.sps) for one in members)]))
        columns.append((0, ["id", *(one.id for one in members)]))
    if any(one.cause for one in members) and _cells(columns) + _LEAST_CAUSE <= width:
        columns.append((0, ["cause", *(one.cause for one in members)]))
    return columns


def _cells(columns: Sequence[tuple[int, list[str]]]) -> int:
    """Return the width of columns in cells, with the gap after each."""
    return sum(max(least, *map(len, cells)) + 2 for least, cells in columns)


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join the cells of a row, each padded to the width of its column."""
    return "  ".join(padded(text, cells) for text, cells in zip(cells, widths, strict=True))


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

"""Bars as cells: progress, phases. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.charts.cells import justified
from monitor.charts.palette import UNICODE, Cell, Glyphs, Row, Rows, Style
from monitor.data.snapshot import PhaseShare
from operant.text import number, safe

_LEVELS = {"ok": "good", "warn": "warn", "bad": "bad"}


def percent(share: float | None) -> str:
    """Format a fraction as a percentage: 0.68 as "68 %", 0.004 as "0.4 %"; "100 %" only for 1; "-" for None or NaN."""
    if share is None or share != share:
        return "-"
    value = 100 * share
    if 0 < value < 0.95:
        return f"{max(value, 0.1):.1f} %"
    return f"{min(value, 99.4) if value < 100 else value:.0f} %"


def progress_bar(share: float | None, width: int, glyphs: Glyphs = UNICODE, style: Style = Style("focus")) -> Row:  # noqa: B008 (a constant)
    """Progress bar of `width` cells, drawn to half a cell. Full only at 1.0; empty for an unknown share (None, NaN)."""
    halves = int(2 * width * min(max(share, 0.0), 1.0)) if share is not None and share == share else 0
    full, half = divmod(halves, 2)
    done = (Cell(glyphs.bar_full, style),) * full + (Cell(glyphs.bar_half, style),) * half
    return done + (Cell(glyphs.bar_rest, Style("border")),) * (width - len(done))


def portions(shares: Sequence[float], width: int) -> list[int]:
    """Divide `width` cells among fractions by the largest-remainder method; return the cells of each. Their sum is
    `width` times the total fraction (at most 1), rounded.
    """
    sizes = [max(share, 0.0) if share == share else 0.0 for share in shares]
    total = sum(sizes)
    scale = width / max(total, 1.0)
    exact = [size * scale for size in sizes]
    whole = [int(size) for size in exact]
    left = round(sum(exact)) - sum(whole)
    for index in sorted(range(len(exact)), key=lambda k: whole[k] - exact[k])[:left]:
        whole[index] += 1
    return whole


def phase_style(index: int) -> Style:
    """Return the colour of phase number `index`, used in the phase bar and its legend."""
    return Style(f"series.{index % 8}")


def phase_bar(phases: Sequence[PhaseShare], width: int, glyphs: Glyphs = UNICODE) -> Row:
    """Draw an iteration's phases as a stacked bar of `width` cells, in the order of the legend; time outside all phases
    stays empty.
    """
    cells: list[Cell] = []
    for index, size in enumerate(portions([phase.share for phase in phases], width)):
        cells += [Cell(glyphs.shades[index % len(glyphs.shades)], phase_style(index))] * size
    return tuple(cells) + (Cell(glyphs.bar_rest, Style("border")),) * (width - len(cells))


def phase_legend(phases: Sequence[PhaseShare], width: int, glyphs: Glyphs = UNICODE) -> Rows:
    """Draw the legend of an iteration's phases, one row of `width` cells each: `█ collect 61 % 75 ms`."""
    rows: Rows = []
    for index, phase in enumerate(phases):
        name = safe(phase.name, max(1, width - 20))
        figures = f"{percent(phase.share):>6}  {milliseconds(phase.milliseconds):>8}"
        rows.append(
            justified(
                [(f"{glyphs.shades[index % len(glyphs.shades)]} ", phase_style(index)), (name, Style("text"))],
                [(figures, Style("dim"))],
                width,
            )
        )
    return rows


def milliseconds(value: float) -> str:
    """Format a duration in milliseconds: 0.42 ms, 75 ms, 1.3 s."""
    if value >= 999.5:
        return f"{number(value / 1000)} s"
    return f"{value:.0f} ms" if value >= 99.5 else f"{value:.1f} ms" if value >= 9.95 else f"{value:.2f} ms"

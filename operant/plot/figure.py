"""Publication figures of groups of runs by matplotlib: colour-blind safe, vector formats with text as text, smoothing
and intervals stated in a note.

Colours are those of Okabe & Ito 2008; groups also differ in their line pattern.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from operant.plot.curves import Axis, Band, Floats

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 4)))
STYLE: Final[Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a $ in a name is a dollar
    "savefig.dpi": 200,
    "figure.dpi": 200,
    "svg.hashsalt": "operant",
}
WIDTH, HEIGHT = 3.6, 2.6  # size of a panel in inches
_LEGEND_CHARACTERS: Final = 64  # characters of a legend that fit above a panel
_TITLE_CHARACTERS, _LABEL_CHARACTERS = 44, 20  # of a line of the title, and of the label of the y axis


def learning_curves(
    panels: Mapping[str, Sequence[tuple[str, Band]]],
    *,
    metrics: Mapping[str, str],
    axis: Axis,
    target: Mapping[str, float],
    note: str,
) -> Figure:
    """Draw a figure of learning curves with a panel for each environment: a line and band for each group, markers if
    values are few, and the target if all runs share it. `metrics` are the labels of the y axes, `note` is the text
    below.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _create_panels(len(panels))
        names = list(dict.fromkeys(label for lines in panels.values() for label, _ in lines))
        for ax, (environment, lines) in zip(axes, panels.items(), strict=False):
            for label, band in lines:
                style = _line_style(names.index(label))
                line = (
                    {"marker": "o", "markersize": 2.5, "markevery": list(np.searchsorted(band.x, band.marked))}
                    if band.marked is not None
                    else {}
                )
                ax.plot(band.x, band.mean, label=label, **style, **line)
                if band.low is not None and band.high is not None:
                    ax.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.2, linewidth=0)
                for x, values in band.tails:
                    ax.plot(x, values, color=style["color"], linewidth=0.6, alpha=0.7)
            if environment in target:
                ax.axhline(target[environment], color="#7F7F7F", linewidth=0.8, linestyle=(0, (1, 3)))
            ax.set_title(_wrap(environment, _TITLE_CHARACTERS))
            ax.set_xlabel("environment steps" if axis == "steps" else "seconds of training")
            ax.xaxis.set_major_formatter(EngFormatter(sep="") if axis == "steps" else EngFormatter(unit="s", sep=" "))
            ax.xaxis.set_major_locator(MaxNLocator(5))
            if len(panels) == 1 or len(set(metrics.values())) > 1:
                ax.set_ylabel(_wrap(metrics[environment], _LABEL_CHARACTERS))
        if len(panels) > 1 and len(set(metrics.values())) == 1:
            figure.supylabel(_wrap(next(iter(metrics.values())), _LABEL_CHARACTERS), fontsize=9)
        _add_legend_and_note(figure, axes, note)
    return figure


def profiles(
    panels: Mapping[str, tuple[Floats, Sequence[tuple[str, tuple[Floats, Floats | None, Floats | None]]]]], *, note: str
) -> Figure:
    """Draw a figure of performance profiles with a panel for each environment: the share of runs that score above each
    threshold. A panel is its thresholds and (label, (value, low, high)) lines; `note` is the text below.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _create_panels(len(panels))
        names = list(dict.fromkeys(label for _, lines in panels.values() for label, _ in lines))
        for ax, (environment, (thresholds, lines)) in zip(axes, panels.items(), strict=False):
            for label, (value, low, high) in lines:
                style = _line_style(names.index(label))
                ax.step(thresholds, value, where="post", label=label, **style)
                if low is not None and high is not None:
                    ax.fill_between(thresholds, low, high, step="post", color=style["color"], alpha=0.2, linewidth=0)
            if len(panels) > 1:
                ax.set_title(_wrap(environment, _TITLE_CHARACTERS))
            ax.set_xlabel("threshold of the score")
            ax.set_ylabel("share of runs above it")
            ax.set_ylim(-0.02, 1.02)
        _add_legend_and_note(figure, axes, note)
    return figure


def intervals(panels: Mapping[str, Mapping[str, Sequence[tuple[str, Any]]]], *, note: str) -> Figure:
    """Draw a figure of statistics with intervals: a row of panels for each environment, a panel for each statistic, a
    bar for each group. `note` is the text below.
    """
    with mpl.rc_context(STYLE):
        bars = max(len(estimates) for columns in panels.values() for estimates in columns.values())
        across = max(map(len, panels.values()))
        figure, axes = _create_panels(across * len(panels), height=0.9 + 0.32 * bars, across=across)
        names = list(
            dict.fromkeys(label for columns in panels.values() for row in columns.values() for label, _ in row)
        )
        for (row, (environment, columns)), column in itertools.product(enumerate(panels.items()), range(across)):
            ax, (title, estimates) = axes[row * across + column], list(columns.items())[column]
            ax.use_sticky_edges = False
            for k, (label, estimate) in enumerate(estimates):
                colour = COLOURS[names.index(label) % len(COLOURS)]
                if estimate.low is not None:
                    ax.barh(
                        k,
                        estimate.high - estimate.low,
                        left=estimate.low,
                        height=0.5,
                        color=colour,
                        alpha=0.35,
                        linewidth=0,
                    )
                ax.plot([estimate.value] * 2, [k - 0.25, k + 0.25], color=colour, linewidth=2)
            ax.set_yticks(*((range(len(estimates)), [label for label, _ in estimates]) if column == 0 else ([],)))
            ax.set_ylim(len(estimates) - 0.4, -0.6)
            ax.grid(visible=False, axis="y")
            of = f"{environment}: {title}" if len(panels) > 1 else f"{title} of the score"
            ax.set_title(_wrap(of, _TITLE_CHARACTERS))
            ax.xaxis.set_major_locator(MaxNLocator(4))
        _add_legend_and_note(figure, axes, note, legend=False)
    return figure


def save(figure: Figure, path: Path | BinaryIO) -> None:
    """Write a figure to a file, a stream as PNG. Equal figures give equal bytes. Raises OSError."""
    suffix = path.suffix[1:] if isinstance(path, Path) else "png"
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(suffix, {})
    with mpl.rc_context(STYLE):
        figure.savefig(path, metadata=metadata, bbox_inches="tight", pad_inches=0.05)


def _wrap(text: str, characters: int) -> str:
    """Wrap a text to at most two lines of `characters`, with ` ...` if it is cut."""
    return "\n".join(textwrap.wrap(text, characters, max_lines=2, placeholder=" ...")) or text


def _line_style(k: int) -> dict[str, Any]:
    """Colour and line pattern of group number `k`."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)]}


def _create_panels(count: int, *, height: float = HEIGHT, across: int = 3) -> tuple[Figure, list[Any]]:
    """Create a figure with `count` panels, at most `across` in a row; returns it and its axes."""
    columns = min(count, across)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH * columns, height * rows), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(rows, columns)).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes


def _add_legend_and_note(figure: Figure, axes: Sequence[Any], note: str, *, legend: bool = True) -> None:
    """Write the note below the panels of a figure and, with `legend` and several lines, a legend above them."""
    handles: dict[str, Any] = {}
    for ax in axes:
        handles |= {
            label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True) if label not in handles
        }
    columns = len({ax.get_subplotspec().colspan.start for ax in axes})
    if legend and len(handles) > 1:
        fitting = _LEGEND_CHARACTERS * columns // (max(map(len, handles)) + 6)
        figure.legend(
            handles.values(), handles.keys(), loc="outside upper center", ncols=max(1, min(4, len(handles), fitting))
        )
    figure.supxlabel(textwrap.fill(note, 72 * columns), fontsize=6.5, color="#555555")

"""The view of a run: page, axis, window, smoothing, chosen chart. Standard library only.

Immutable values and pure functions: a key makes a new `View` of the old one. Knows neither widgets nor runs.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from monitor.charts import scale
from monitor.data.snapshot import Axis, Series

Page = Literal["overview", "charts", "agent", "time", "log", "config"]
PAGES: Final[tuple[Page, ...]] = ("overview", "charts", "agent", "time", "log", "config")
AXES: Final[tuple[Axis, ...]] = ("step", "wall", "iteration")
SMOOTHING: Final = (0.0, 0.6, 0.9, 0.99)
_ZOOM_MOST: Final = 10  # halvings of the window
_GRAINS: Final = 8  # a zoomed window that follows moves on by this part of its length: columns stay in between


class Held(NamedTuple):
    """What a chart's title says of a metric: its newest value, or the one at the moment of a frozen picture."""

    latest: float | None
    trend_per_min: float | None = None
    best: float | None = None


class View(NamedTuple):
    """What the person chose. It concerns the screen only and never reaches a trainer."""

    page: Page = "overview"
    axis: Axis = "step"
    flipped: bool = False  # every chart's y axis the other way than the schema says: log for linear, linear for log
    flipped_one: frozenset[str] = frozenset()  # and these once more
    smoothing: int = 0  # index into SMOOTHING
    zoom: int = 0  # halvings of the whole
    end: float | None = None  # where a zoomed window ends; None: it follows the newest record
    filter: str = ""
    first_chart: int = 0  # of the charts page, by paging
    chosen: str | None = None  # the metric whose chart keys apply to
    maximised: str | None = None  # a metric
    inspected: str | None = None  # a metric
    cursor: float | None = None  # the inspected x; None: the newest record's
    at: float | None = None  # the step of an ended run that is looked at; None: its end
    scroll: int = 0  # lines of the log up from its end, or of the configuration down from its beginning
    agent: bool = True
    sampled: bool = False
    log: bool = True
    sidebar: bool = True
    bottom: bool = True

    @property
    def smooth(self) -> float:
        """The weight of the exponential mean."""
        return SMOOTHING[self.smoothing]

    def log_axis(self, name: str, hint: bool) -> bool:
        """Whether a metric's y axis is logarithmic."""
        return hint ^ self.flipped ^ (name in self.flipped_one)


def turned(view: View, page: Page) -> View:
    """Another page, from its beginning."""
    return view._replace(page=page, maximised=None, inspected=None, scroll=0, first_chart=0)


def next_axis(view: View) -> View:
    """Steps, wall time, iterations, steps ...; the window starts again, as its range belongs to one axis."""
    return view._replace(axis=AXES[(AXES.index(view.axis) + 1) % len(AXES)], zoom=0, end=None, inspected=None)


def zoomed(view: View, by: int, whole: tuple[float, float] | None) -> View:
    """`by` halvings more (or fewer) of the window. One that follows goes on following; any other keeps its middle."""
    zoom = min(max(view.zoom + by, 0), _ZOOM_MOST)
    if view.end is None or whole is None or zoom == 0:
        return view._replace(zoom=zoom, end=None if zoom == 0 else view.end)
    begin, end = whole
    middle = view.end - (end - begin) / 2 ** (view.zoom + 1)
    length = (end - begin) / 2**zoom
    return view._replace(zoom=zoom, end=min(max(middle + length / 2, begin + length), end))


def to_start(view: View, whole: tuple[float, float] | None) -> View:
    """The window at the run's beginning: the first half of the run where all of it was shown."""
    if whole is None:
        return view
    zoom = view.zoom or 1
    return view._replace(zoom=zoom, end=whole[0] + (whole[1] - whole[0]) / 2**zoom)


def following(view: View) -> View:
    """All of the run, or a window that follows the newest record."""
    return view._replace(zoom=0 if view.end is None else view.zoom, end=None)


def whole_window(
    series: Iterable[Series], axis: Axis, previous: tuple[float, float] | None
) -> tuple[float, float] | None:
    """The range of x that holds all of some series, growing in jumps; None while they are empty."""
    extents = [extent for one in series if (extent := one.extent(axis)) is not None]
    if not extents:
        return None
    return scale.window(min(first for first, _ in extents), max(last for _, last in extents), previous)


def window(view: View, whole: tuple[float, float], newest: float) -> tuple[float, float]:
    """The range of x that is shown, with the newest record at `newest`."""
    if view.zoom == 0:
        return whole
    length = (whole[1] - whole[0]) / 2**view.zoom
    if view.end is not None:
        return view.end - length, view.end
    grain = length / _GRAINS
    end = min(whole[0] + (int((newest - whole[0]) / grain) + 1) * grain, whole[1])
    return max(whole[0], end - length), max(whole[0] + length, end)


def chosen(series: Iterable[str], pattern: str = "") -> list[str]:
    """The metrics that fit a pattern (see `matches`), in their order."""
    return [name for name in series if matches(name, pattern)]


def matches(name: str, pattern: str) -> bool:
    """Whether a name contains one of the words of the pattern, in any case; `*`, `?` and `[...]` as in a shell."""
    words = pattern.lower().split()
    return not words or any(word in name.lower() or fnmatch.fnmatchcase(name.lower(), f"*{word}*") for word in words)


def moved(names: Sequence[str], current: str | None, across: int, down: int, columns: int) -> str | None:
    """The neighbour of a chart in a grid of `columns`, the chart itself where there is none."""
    if not names:
        return None
    if current not in names:
        return names[0]
    index = names.index(current) + across + down * columns
    return names[index] if 0 <= index < len(names) else current

"""View of a run: page, axis, window, smoothing, selected chart. Standard library only.

Immutable values and pure functions: a key makes a new `View` from the old one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from monitor.charts import scale
from monitor.data.snapshot import Axis, Series

Page = Literal["overview", "charts", "agent", "time", "log", "config", "runs", "search"]
PAGES: Final[tuple[Page, ...]] = ("overview", "charts", "agent", "time", "log", "config")
"""Pages of a run, in the order of the keys 1 to 6."""
COLLECTED_PAGES: Final[dict[str, tuple[Page, ...]]] = {
    "group": ("overview", "charts", "runs"),
    "sweep": ("overview", "charts", "runs", "search"),
}
"""Pages of a group and of a sweep, in the order of the same keys."""
AXES: Final[tuple[Axis, ...]] = ("step", "wall", "iteration")
SMOOTHING: Final = (0.0, 0.6, 0.9, 0.99)
_ZOOM_MOST: Final = 10  # maximum number of halvings
_GRAINS: Final = 8  # a window that follows moves by 1/8 of its length, so that columns stay in between


class TitleValues(NamedTuple):
    """Values in a chart's title: the newest ones, or those of the frozen screen."""

    latest: float | None
    trend_per_min: float | None = None
    best: float | None = None


class View(NamedTuple):
    """Settings of the screen that the user can change: page, axis, window, selected chart, visible parts. None of them
    reaches a trainer, except by a request for frames.
    """

    page: Page = "overview"
    axis: Axis = "step"
    flipped: bool = False  # toggle every chart's y axis between linear and logarithmic
    flipped_one: frozenset[str] = frozenset()  # metrics toggled once more
    smoothing: int = 0  # index into SMOOTHING
    zoom: int = 0  # number of halvings of the whole range
    end: float | None = None  # end of a zoomed window; None: follow the newest record
    filter: str = ""
    first_chart: int = 0  # first chart of the charts page
    chosen: str | None = None  # metric of the selected chart
    maximised: str | None = None  # a metric
    inspected: str | None = None  # a metric
    cursor: float | None = None  # inspected x; None: the newest record
    at: float | None = None  # shown step of an ended run; None: its end
    member: int = 0  # selected row of a group's or sweep's table
    scroll: int = 0  # lines up from the end of the log, or down from the start of the configuration
    agent: bool = True
    sampled: bool = False
    log: bool = True
    sidebar: bool = True
    bottom: bool = True

    @property
    def smooth(self) -> float:
        """Weight of the exponential moving average in charts, 0 to 0.99."""
        return SMOOTHING[self.smoothing]

    def log_axis(self, name: str, hint: bool) -> bool:
        """Whether the y axis of metric `name` is logarithmic. `hint`: the metric's default."""
        return hint ^ self.flipped ^ (name in self.flipped_one)


def with_page(view: View, page: Page) -> View:
    """Return the view switched to a page, at its start."""
    return view._replace(page=page, maximised=None, inspected=None, scroll=0, first_chart=0)


def next_axis(view: View) -> View:
    """Return the view with the next x axis (steps, wall time, iterations) and the whole range, since a window belongs
    to one axis.
    """
    return view._replace(axis=AXES[(AXES.index(view.axis) + 1) % len(AXES)], zoom=0, end=None, inspected=None)


def zoomed(view: View, by: int, whole: tuple[float, float] | None) -> View:
    """Return the view with the range of x halved `by` times, doubled if negative; `whole`: range of the run. A window
    that follows new records keeps following; any other keeps its center.
    """
    zoom = min(max(view.zoom + by, 0), _ZOOM_MOST)
    if view.end is None or whole is None or zoom == 0:
        return view._replace(zoom=zoom, end=None if zoom == 0 else view.end)
    begin, end = whole
    middle = view.end - (end - begin) / 2 ** (view.zoom + 1)
    length = (end - begin) / 2**zoom
    return view._replace(zoom=zoom, end=min(max(middle + length / 2, begin + length), end))


def to_start(view: View, whole: tuple[float, float] | None) -> View:
    """Return the view with the range of x at the start of the run, without zoom its first half. `whole`: range of the
    run; None: unchanged.
    """
    if whole is None:
        return view
    zoom = view.zoom or 1
    return view._replace(zoom=zoom, end=whole[0] + (whole[1] - whole[0]) / 2**zoom)


def following(view: View) -> View:
    """Return the view whose range of x follows the newest record; if it did already, the whole run."""
    return view._replace(zoom=0 if view.end is None else view.zoom, end=None)


def whole_window(
    series: Iterable[Series], axis: Axis, previous: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Return the range of x of all series on `axis`, which grows in jumps from `previous`; None without values."""
    extents = [extent for one in series if (extent := one.extent(axis)) is not None]
    if not extents:
        return None
    return scale.window(min(first for first, _ in extents), max(last for _, last in extents), previous)


def window(view: View, whole: tuple[float, float], newest: float) -> tuple[float, float]:
    """Return the range of x that the charts show. `whole`: range of the run; `newest`: x of its newest record."""
    if view.zoom == 0:
        return whole
    length = (whole[1] - whole[0]) / 2**view.zoom
    if view.end is not None:
        return view.end - length, view.end
    grain = length / _GRAINS
    end = min(whole[0] + (int((newest - whole[0]) / grain) + 1) * grain, whole[1])
    return max(whole[0], end - length), max(whole[0] + length, end)


def matching(series: Iterable[str], pattern: str = "") -> list[str]:
    """Return the names in `series` that match the filter `pattern` (see `matches`), in order."""
    return [name for name in series if matches(name, pattern)]


def matches(name: str, pattern: str) -> bool:
    """Whether a metric's name contains one of the words in `pattern`, ignoring case. Words may hold the wildcards `*`,
    `?` and `[...]`; an empty pattern matches all.
    """
    words = pattern.lower().split()
    return not words or any(word in name.lower() or fnmatch.fnmatchcase(name.lower(), f"*{word}*") for word in words)


def neighbour(names: Sequence[str], current: str | None, across: int, down: int, columns: int) -> str | None:
    """Return the chart `across` columns to the right and `down` rows below `current` in a grid of `columns`; `current`
    itself at the edge, the first chart if it is not in `names`, None without charts.
    """
    if not names:
        return None
    if current not in names:
        return names[0]
    index = names.index(current) + across + down * columns
    return names[index] if 0 <= index < len(names) else current

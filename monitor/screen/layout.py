"""The layout of the screen. Standard library only. Pure: a size and a view in, a plan out. Knows no widget."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from monitor.screen.view import View

NUMBERS_BELOW: Final = (60, 16)
"""Below so many columns or lines the overview is a list of numbers."""
REST: Final = -1
"""A size: all that remains."""
_CHART_CELLS, _CHART_LINES = 27, 8  # the minimum size of a chart in a grid
_CHART_LINES_WANTED = 11
_FEW_WORDS = 5  # lines
_BOTTOM_FROM = 24  # lines of body from which agent and log have a row of their own
_BESIDE_FROM = 80  # columns from which health stands beside time and machine on their page
SIDEBAR_FROM: Final = 100
"""From so many columns there is a sidebar, and a log beside the agent."""


class Plan(NamedTuple):
    """Sizes in cells: 0 for what is not shown, REST for what takes the rest."""

    figure_lines: int = 0  # of the header
    body: int = 1  # lines between the header and the footer
    columns: int = 0  # of the grid of charts
    rows: int = 0
    sidebar: int = 0
    bottom: int = 0  # the row of agent, last words and log
    agent: bool = False
    words: bool = False
    log: bool = False
    time_lines: int = 0  # within the sidebar
    machine_lines: int = 0
    health: bool = True
    health_line: bool = False  # in the place of a sidebar
    explained: bool = False
    config: bool = False
    numbers: bool = False
    tabs: bool = True  # with names

    @property
    def charts(self) -> int:
        """How many charts there is room for."""
        return self.columns * self.rows


def is_small(width: int, height: int) -> bool:
    """Whether there is no room for the progress line, and for more than numbers on the overview."""
    return width < NUMBERS_BELOW[0] or height < NUMBERS_BELOW[1]


def inside(width: int, height: int) -> tuple[int, int]:
    """Cells and lines left within a panel's frame, which it has where there is room for one."""
    return (width - 4, height - 2) if width > 8 and height > 2 else (width, height)


@functools.lru_cache(64)
def plan(width: int, height: int, view: View, *, words: int = 0) -> Plan:
    """The plan for a screen. `words`: lines to be said of how the run ended, in the place of the agent."""
    small = is_small(width, height)
    if small and view.page == "overview" and view.maximised is None:
        return Plan(numbers=True, tabs=False)
    base = Plan(figure_lines=0 if small else 1 if width >= SIDEBAR_FROM else 2, tabs=width >= 110)
    body = max(1, height - (3 if small else 4) - base.figure_lines)
    base = base._replace(body=body)
    if view.maximised is not None:
        return base._replace(columns=1, rows=1)
    if view.page == "overview":
        return _overview(base, width, body, view, words)
    if view.page == "charts":
        columns = max(1, min(4 if width >= 150 else 3, width // _CHART_CELLS))
        return base._replace(columns=columns, rows=max(1, min(4, body // _CHART_LINES)))
    if view.page == "time":
        if width < _BESIDE_FROM:
            return base._replace(sidebar=REST, time_lines=8 if body >= 13 else 0, machine_lines=8 if body >= 22 else 0)
        return base._replace(
            explained=True,
            sidebar=width // 2,
            time_lines=8,
            machine_lines=min(8, body - 8) if body >= 13 else 0,
            health=False,
        )
    if view.page == "config":
        return base._replace(config=True)
    agent = view.page == "agent"
    return base._replace(bottom=REST, agent=agent, log=not agent)


def _overview(base: Plan, width: int, body: int, view: View, words: int) -> Plan:
    sidebar = (34 if width < 150 else 40) if view.sidebar and width >= SIDEBAR_FROM else 0
    health_line = width < SIDEBAR_FROM
    body -= health_line
    # Last words beyond a few have a traceback in them, which wants all the width.
    agent, log = view.agent and not words, view.log and width >= SIDEBAR_FROM and words <= _FEW_WORDS
    bottom = 0
    if words:
        bottom = min(words + 4, body * 9 // 20) if body >= _BOTTOM_FROM else min(words + 4, body - _CHART_LINES)
    elif view.bottom and (agent or log) and body >= _BOTTOM_FROM:
        bottom = min(14, max(8, body * 3 // 10))
    columns = (
        1
        if width < 80
        else 2
        if width < SIDEBAR_FROM
        else max(2, min(4 if width >= 200 else 3, (width - sidebar) // _CHART_CELLS))
    )
    left = body - bottom
    rows = max(1, min(left // _CHART_LINES, max(2, left // _CHART_LINES_WANTED)))
    return base._replace(
        columns=columns,
        rows=rows,
        sidebar=sidebar,
        bottom=bottom,
        agent=bottom > 0 and agent,
        words=words > 0,
        log=bottom > 0 and log,
        health_line=health_line,
        time_lines=8 if body >= 18 else 0,
        machine_lines=8 if body >= 26 else 0,
    )

"""Layout of the screen. Standard library only. Pure: a size and a view in, a plan out."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from monitor.screen.view import View

COMPACT_BELOW: Final = (60, 16)
"""Minimum columns and lines; on a smaller screen the overview is a list of numbers."""
REST: Final = -1
"""Size of a part that takes the remaining space."""
_CHART_CELLS, _CHART_LINES = 27, 8  # the minimum size of a chart in a grid
_CHART_LINES_WANTED = 11
_SHORT_ENDING = 5  # lines
_BOTTOM_FROM = 24  # minimum lines of body for a bottom row
_TWO_COLUMNS_FROM = 80  # minimum columns for health next to time and machine on the time page
SIDEBAR_FROM: Final = 100
"""Minimum columns for a sidebar and for a log next to the agent."""


class Plan(NamedTuple):
    """Layout of the screen: size of each part in cells or lines, 0 for a hidden one, REST for one that takes the
    remaining space.
    """

    figure_lines: int = 0  # lines of key figures
    body: int = 1  # lines between header and footer
    columns: int = 0  # columns of the chart grid
    rows: int = 0
    sidebar: int = 0
    bottom: int = 0  # height of the row of agent, ending and log
    agent: bool = False
    ending: bool = False
    log: bool = False
    time_lines: int = 0  # within the sidebar
    machine_lines: int = 0
    health: bool = True
    health_line: bool = False  # health in one line instead of the sidebar
    explained: bool = False
    config: bool = False
    compact: bool = False
    tabs: bool = True  # page names in the message line
    members: bool = False  # table of the runs of a group or sweep
    search: bool = False  # parallel coordinates and best so far of a sweep
    table_rows: int = 0  # runs that the table shows

    @property
    def charts(self) -> int:
        """Number of charts on the screen, columns x rows."""
        return self.columns * self.rows


def is_small(width: int, height: int) -> bool:
    """Whether a terminal of this size is too small for the progress line and for charts on the overview."""
    return width < COMPACT_BELOW[0] or height < COMPACT_BELOW[1]


def inside(width: int, height: int) -> tuple[int, int]:
    """Return width and height in cells within a panel's box; a panel that is too small is drawn without a box."""
    return (width - 4, height - 2) if width > 8 and height > 2 else (width, height)


@functools.lru_cache(64)
def plan(width: int, height: int, view: View, *, ending_lines: int = 0) -> Plan:
    """Choose the screen's layout for a terminal of `width` x `height` cells and a view. `ending_lines`: number of lines
    about how the run ended, shown in place of the agent.
    """
    small = is_small(width, height)
    if small and view.page == "overview" and view.maximised is None:
        return Plan(compact=True, tabs=False)
    base = Plan(figure_lines=0 if small else 1 if width >= SIDEBAR_FROM else 2, tabs=width >= 110)
    body = max(1, height - (3 if small else 4) - base.figure_lines)
    base = base._replace(body=body)
    if view.maximised is not None:
        return base._replace(columns=1, rows=1)
    if view.page == "overview":
        return _overview(base, width, body, view, ending_lines)
    if view.page == "charts":
        columns = max(1, min(4 if width >= 150 else 3, width // _CHART_CELLS))
        return base._replace(columns=columns, rows=max(1, min(4, body // _CHART_LINES)))
    if view.page == "time":
        if width < _TWO_COLUMNS_FROM:
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


@functools.lru_cache(64)
def collected_plan(width: int, height: int, view: View, *, members: int, searched: bool) -> Plan:
    """Choose the layout for a group or sweep of `members` runs: charts above the table of its runs. `searched`: it has
    searched keys to draw as parallel coordinates.
    """
    small = is_small(width, height)
    if small and view.page == "overview" and view.maximised is None:
        return Plan(compact=True, tabs=False, table_rows=max(1, height - 4))
    base = Plan(figure_lines=0 if small else 1, tabs=width >= 80, health=False)
    body = max(1, height - (3 if small else 4) - base.figure_lines)
    base = base._replace(body=body)
    if view.maximised is not None:
        return base._replace(columns=1, rows=1)
    if view.page == "charts":
        columns = max(1, min(4 if width >= 150 else 3, width // _CHART_CELLS))
        return base._replace(columns=columns, rows=max(1, min(4, body // _CHART_LINES)))
    if view.page == "runs":
        return base._replace(bottom=REST, members=True, table_rows=max(1, body - 3))
    if view.page == "search":
        return base._replace(bottom=REST, search=True)
    bottom = min(max(members, 1) + 3, max(6, body * 2 // 5)) if view.bottom else 0
    columns = 1 if width < 60 else 2 if width < SIDEBAR_FROM else 3
    left = body - bottom
    return base._replace(
        columns=columns,
        rows=max(1, min(left // _CHART_LINES, max(1, left // _CHART_LINES_WANTED))),
        bottom=bottom,
        members=bottom > 0,
        search=bottom > 0 and searched and width >= 120,
        table_rows=max(1, bottom - 3),
    )


def _overview(base: Plan, width: int, body: int, view: View, ending_lines: int) -> Plan:
    """Choose the layout of the overview page, with `body` lines between header and footer. `base`: parts that are the
    same on all pages; `ending_lines`: lines about how the run ended.
    """
    sidebar = (34 if width < 150 else 40) if view.sidebar and width >= SIDEBAR_FROM else 0
    health_line = width < SIDEBAR_FROM
    body -= health_line
    # A long ending contains a traceback, which needs the full width.
    agent, log = view.agent and not ending_lines, view.log and width >= SIDEBAR_FROM and ending_lines <= _SHORT_ENDING
    bottom = 0
    if ending_lines:
        bottom = (
            min(ending_lines + 4, body * 9 // 20)
            if body >= _BOTTOM_FROM
            else min(ending_lines + 4, body - _CHART_LINES)
        )
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
        ending=ending_lines > 0,
        log=bottom > 0 and log,
        health_line=health_line,
        time_lines=8 if body >= 18 else 0,
        machine_lines=8 if body >= 26 else 0,
    )

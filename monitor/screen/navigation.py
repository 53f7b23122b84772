"""What the keys that change the view do: each a function from what is on the screen to the next view. Standard library
only. Pure; reaches no trainer.
"""

from __future__ import annotations

from monitor.charts import gutter
from monitor.screen import layout, view
from monitor.screen.log import log_length
from monitor.screen.model import Model
from monitor.screen.view import Page, View

_SCRUBS = 50  # presses of a key from one end of a run to the other
_WHEEL_LINES = 3
_ALL = 10**9  # lines: as far as there are any
_TEXTS = ("log", "config")  # pages that scroll


def page(now: Model, page: Page) -> View:
    """One of the pages."""
    return view.turned(now.view, page)


def axis(now: Model) -> View:
    """The next x axis."""
    return view.next_axis(now.view)


def smooth(now: Model) -> View:
    """The next smoothing."""
    return now.view._replace(smoothing=(now.view.smoothing + 1) % len(view.SMOOTHING))


def logarithm(now: Model) -> View:
    """The other kind of y axis, for the chosen chart or for all."""
    chosen = now.view.maximised or now.chosen
    if chosen is None:
        return now.view._replace(flipped=not now.view.flipped, flipped_one=frozenset())
    return now.view._replace(flipped_one=now.view.flipped_one ^ {chosen})


def zoom(now: Model, by: int) -> View:
    """Half or twice the window."""
    return view.zoomed(now.view, by, now.whole)._replace(inspected=None)


def start(now: Model) -> View:
    """To the beginning."""
    if now.view.page in _TEXTS:
        return _scrolled(now, _ALL if now.view.page == "log" else 0)
    return view.to_start(now.view, now.whole)


def end(now: Model) -> View:
    """To the end, and on with it."""
    if now.view.at is not None:
        return now.view._replace(at=None)
    if now.view.page in _TEXTS:
        return _scrolled(now, 0 if now.view.page == "log" else _ALL)
    return view.following(now.view)


def agent(now: Model) -> View:
    """Show or hide the agent."""
    return now.view._replace(agent=not now.view.agent)


def greedy(now: Model) -> View:
    """Greedy or sampled actions of the agent."""
    return now.view._replace(sampled=not now.view.sampled)


def log(now: Model) -> View:
    """Show or hide the log; where there is no room for it beside the charts, its page."""
    if now.view.page != "overview" or not (now.plan.bottom and now.size[0] >= layout.SIDEBAR_FROM):
        return page(now, "overview" if now.view.page == "log" else "log")
    return now.view._replace(log=not now.view.log)


def bottom(now: Model) -> View:
    """Show or hide the row with agent and log."""
    return now.view._replace(bottom=not now.view.bottom)


def sidebar(now: Model) -> View:
    """Show or hide the sidebar."""
    return now.view._replace(sidebar=not now.view.sidebar)


def maximise(now: Model) -> View:
    """One chart alone, or all again."""
    if now.view.maximised is not None:
        return now.view._replace(maximised=None, inspected=None)
    return now.view._replace(maximised=now.chosen or now.names[0]) if now.names else now.view


def inspect(now: Model) -> View:
    """Read single values of a chart, or no longer."""
    if now.view.inspected is not None or not now.names:
        return now.view._replace(inspected=None)
    chosen = now.chosen or now.names[0]
    return now.view._replace(inspected=chosen, chosen=chosen, cursor=None)


def move(now: Model, across: int, down: int) -> View:
    """An arrow: the inspected value, the moment of an ended run, the line of a text, or the next chart."""
    if now.view.inspected is not None and across:
        return _cursor_moved(now, across)
    if now.view.page in _TEXTS and down:
        return _scrolled(now, now.view.scroll + (down if now.view.page == "config" else -down))
    if across and now.newest.ended:
        return _scrubbed(now, across)
    return choose(now, view.moved(now.names, now.chosen, across, down, now.plan.columns))


def wheel(now: Model, down: int) -> View:
    """The wheel: some lines of a text page."""
    return move(now, 0, down * _WHEEL_LINES) if now.view.page in _TEXTS else now.view


def _cursor_moved(now: Model, across: int) -> View:
    """The inspection cursor one cell of its chart farther."""
    if now.window is None:
        return now.view
    first, last = now.window
    inner = (now.size[0] - max(0, now.plan.sidebar)) // max(1, now.plan.columns) - 2
    cell = (last - first) / max(1, inner - gutter(inner))
    x = (now.newest_x if now.view.cursor is None else now.view.cursor) + across * cell
    return now.view._replace(cursor=None if x >= now.newest_x else max(x, first))


def _scrubbed(now: Model, across: int) -> View:
    """Another moment of a run that has ended; its last one is the run as it is."""
    extents = [extent for one in now.newest.series.values() if (extent := one.extent("step")) is not None]
    if not extents:
        return now.view
    first, last = min(one for one, _ in extents), max(one for _, one in extents)
    step = (last if now.view.at is None else now.view.at) + across * (last - first) / _SCRUBS
    return now.view._replace(at=None if step >= last else max(step, first))


def choose(now: Model, name: str | None) -> View:
    """Another chart; while values are read, of that one."""
    if name is None:
        return now.view
    return now.view._replace(chosen=name, inspected=now.view.inspected and name)


def next_chart(now: Model, by: int) -> View:
    """The next chart or the one before, round."""
    names, chosen = now.names, now.chosen
    if not names:
        return now.view
    return choose(
        now, names[(names.index(chosen) + by) % len(names)] if chosen in names else names[0 if by > 0 else -1]
    )


def turn(now: Model, by: int) -> View:
    """A page up or down."""
    looked = now.view
    if looked.page == "charts" and looked.maximised is None:
        first = looked.first_chart + by * now.plan.charts
        there = 0 <= first < len(view.chosen(now.snapshot.series, looked.filter))
        return looked._replace(first_chart=first if there else looked.first_chart, inspected=None)
    if looked.page in _TEXTS:
        return _scrolled(now, looked.scroll + max(1, now.plan.body - 3) * (by if looked.page == "config" else -by))
    return page(now, "charts") if looked.page == "overview" and by > 0 else looked


def _scrolled(now: Model, lines: int) -> View:
    """A text page so many lines from its resting place, no farther than there are lines."""
    width, height = layout.inside(now.size[0], now.plan.body)
    many = now.snapshot.config.count("\n") + 1 if now.view.page == "config" else log_length(now, width)
    return now.view._replace(scroll=min(max(0, lines), max(0, many - height)))


def narrow(now: Model, words: str) -> View:
    """Only metrics, or lines of the log, that fit some words."""
    return now.view._replace(filter=words.strip()[:80], first_chart=0, scroll=0, maximised=None, inspected=None)


def back(now: Model) -> View:
    """Out of what is open, the innermost first. While the picture is frozen, what lies outside of that stays."""
    looked = now.view
    if looked.at is not None:
        return looked._replace(at=None)
    if looked.inspected is not None:
        return looked._replace(inspected=None)
    if looked.maximised is not None:
        return looked._replace(maximised=None)
    if looked.filter:
        return looked._replace(filter="", first_chart=0)
    if now.frozen is not None:
        return looked
    return page(now, "overview") if looked.page != "overview" else looked._replace(chosen=None)


CHANGES = {
    change.__name__: change
    for change in (
        page,
        axis,
        smooth,
        logarithm,
        zoom,
        start,
        end,
        agent,
        greedy,
        log,
        bottom,
        sidebar,
        maximise,
        inspect,
        move,
        wheel,
        choose,
        next_chart,
        turn,
        narrow,
        back,
    )
}
"""The functions above, by the names that keys and clicks use: `look('zoom', 1)`."""

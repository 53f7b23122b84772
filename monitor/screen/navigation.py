"""Actions that change the view: functions from the model to the next view. Standard library only. Pure; send no
requests.
"""

from __future__ import annotations

from monitor.charts import gutter
from monitor.screen import layout, view
from monitor.screen.log import log_length
from monitor.screen.model import Model
from monitor.screen.view import Page, View

_SCRUBS = 50  # key presses from one end of a run to the other
_WHEEL_LINES = 3
_ALL = 10**9  # lines: to the end
_TEXTS = ("log", "config")  # pages that scroll


def page(model: Model, page: Page) -> View:
    """Return the view switched to a page of the screen, at its start. The keys of a run's pages switch to those of a
    group or sweep by their position; unchanged if there is none.
    """
    if page not in model.pages:
        position = view.PAGES.index(page) if page in view.PAGES else len(model.pages)
        if position >= len(model.pages):
            return model.view
        page = model.pages[position]
    return view.with_page(model.view, page)


def axis(model: Model) -> View:
    """Return the view with all charts switched to the next x axis: steps, wall time, iterations."""
    return view.next_axis(model.view)


def smooth(model: Model) -> View:
    """Return the view with all charts switched to the next smoothing: none, 0.6, 0.9, 0.99."""
    return model.view._replace(smoothing=(model.view.smoothing + 1) % len(view.SMOOTHING))


def logarithm(model: Model) -> View:
    """Return the view with the y axis of the selected chart, or of all charts, toggled between linear and
    logarithmic.
    """
    chosen = model.view.maximised or model.chosen
    if chosen is None:
        return model.view._replace(flipped=not model.view.flipped, flipped_one=frozenset())
    return model.view._replace(flipped_one=model.view.flipped_one ^ {chosen})


def zoom(model: Model, by: int) -> View:
    """Return the view with the charts' range of x halved (`by` = 1) or doubled (-1)."""
    return view.zoomed(model.view, by, model.whole)._replace(inspected=None)


def start(model: Model) -> View:
    """Return the view moved to the start of the run in charts, or of the text on the log and configuration pages."""
    if model.view.page in _TEXTS:
        return _scrolled(model, _ALL if model.view.page == "log" else 0)
    return view.to_start(model.view, model.whole)


def end(model: Model) -> View:
    """Return the view moved to the end of the run or text, where it follows new records or lines."""
    if model.view.at is not None:
        return model.view._replace(at=None)
    if model.view.page in _TEXTS:
        return _scrolled(model, 0 if model.view.page == "log" else _ALL)
    return view.following(model.view)


def agent(model: Model) -> View:
    """Return the view with the agent's picture on the overview shown or hidden."""
    return model.view._replace(agent=not model.view.agent)


def greedy(model: Model) -> View:
    """Return the view with the shown agent switched between greedy and sampled actions."""
    return model.view._replace(sampled=not model.view.sampled)


def log(model: Model) -> View:
    """Return the view with the log below the charts shown or hidden; where it does not fit, switched to the log page or
    back.
    """
    if model.members:
        return model.view
    if model.view.page != "overview" or not (model.plan.bottom and model.size[0] >= layout.SIDEBAR_FROM):
        return page(model, "overview" if model.view.page == "log" else "log")
    return model.view._replace(log=not model.view.log)


def bottom(model: Model) -> View:
    """Return the view with the row of agent's picture and log shown or hidden."""
    return model.view._replace(bottom=not model.view.bottom)


def sidebar(model: Model) -> View:
    """Return the view with the sidebar (health, time, machine) shown or hidden."""
    return model.view._replace(sidebar=not model.view.sidebar)


def maximise(model: Model) -> View:
    """Return the view with the selected chart (without one the first) alone, or with all charts again."""
    if model.view.maximised is not None:
        return model.view._replace(maximised=None, inspected=None)
    return model.view._replace(maximised=model.chosen or model.names[0]) if model.names else model.view


def inspect(model: Model) -> View:
    """Return the view in which a cursor reads values of the selected chart (without one the first), or ends it."""
    if model.view.inspected is not None or not model.names:
        return model.view._replace(inspected=None)
    chosen = model.chosen or model.names[0]
    return model.view._replace(inspected=chosen, chosen=chosen, cursor=None)


def move(model: Model, across: int, down: int) -> View:
    """Return the view after an arrow key: moved inspection cursor, shown step of an ended run, text, or selected chart.
    `across` (right) and `down` are -1, 0 or 1.
    """
    if model.view.inspected is not None and across:
        return _cursor_moved(model, across)
    if model.view.page in _TEXTS and down:
        return _scrolled(model, model.view.scroll + (down if model.view.page == "config" else -down))
    if down and model.members and model.view.page != "charts":
        last = len(model.members) - 1
        return model.view._replace(member=min(max(min(model.view.member, last) + down, 0), last))
    if across and model.newest.ended and not model.members:
        return _scrubbed(model, across)
    return choose(model, view.neighbour(model.names, model.chosen, across, down, model.plan.columns))


def wheel(model: Model, down: int) -> View:
    """Return the view with the log or configuration page scrolled by `down` notches of the mouse wheel, 3 lines each,
    negative upwards. Other pages do not scroll.
    """
    return move(model, 0, down * _WHEEL_LINES) if model.view.page in _TEXTS or model.members else model.view


def _cursor_moved(model: Model, across: int) -> View:
    """Return the view with the inspection cursor moved by `across` cells to the right."""
    if model.window is None:
        return model.view
    first, last = model.window
    inner = (model.size[0] - max(0, model.plan.sidebar)) // max(1, model.plan.columns) - 2
    cell = (last - first) / max(1, inner - gutter(inner))
    x = (model.newest_x if model.view.cursor is None else model.view.cursor) + across * cell
    return model.view._replace(cursor=None if x >= model.newest_x else max(x, first))


def _scrubbed(model: Model, across: int) -> View:
    """Return the view of an ended run with the shown step moved by `across` fiftieths of the run; at its last step it
    shows the end.
    """
    extents = [extent for one in model.newest.series.values() if (extent := one.extent("step")) is not None]
    if not extents:
        return model.view
    first, last = min(one for one, _ in extents), max(one for _, one in extents)
    step = (last if model.view.at is None else model.view.at) + across * (last - first) / _SCRUBS
    return model.view._replace(at=None if step >= last else max(step, first))


def choose(model: Model, name: str | None) -> View:
    """Return the view with the chart of metric `name` selected (None: unchanged); an active inspection moves to it."""
    if name is None:
        return model.view
    return model.view._replace(chosen=name, inspected=model.view.inspected and name)


def next_chart(model: Model, by: int) -> View:
    """Return the view with the next (`by` = 1) or previous (-1) chart selected, cyclically."""
    names, chosen = model.names, model.chosen
    if not names:
        return model.view
    return choose(
        model, names[(names.index(chosen) + by) % len(names)] if chosen in names else names[0 if by > 0 else -1]
    )


def turn_page(model: Model, by: int) -> View:
    """Return the view one page further down (`by` = 1) or up (-1) in charts, log or configuration."""
    current = model.view
    if model.members and current.page != "charts":
        return move(model, 0, by * max(1, model.plan.table_rows - 1))
    if current.page == "charts" and current.maximised is None:
        first = current.first_chart + by * model.plan.charts
        exists = 0 <= first < len(view.matching(model.snapshot.series, current.filter))
        return current._replace(first_chart=first if exists else current.first_chart, inspected=None)
    if current.page in _TEXTS:
        return _scrolled(
            model, current.scroll + max(1, model.plan.body - 3) * (by if current.page == "config" else -by)
        )
    return page(model, "charts") if current.page == "overview" and by > 0 else current


def _scrolled(model: Model, lines: int) -> View:
    """Return the view with the text page scrolled by `lines` from the end of the log or the start of the configuration,
    within its length.
    """
    width, height = layout.inside(model.size[0], model.plan.body)
    length = model.snapshot.config.count("\n") + 1 if model.view.page == "config" else log_length(model, width)
    return model.view._replace(scroll=min(max(0, lines), max(0, length - height)))


def narrow(model: Model, words: str) -> View:
    """Return the view with only metrics, or on the log page lines, that match the filter `words`."""
    return model.view._replace(filter=words.strip()[:80], first_chart=0, scroll=0, maximised=None, inspected=None)


def back(model: Model) -> View:
    """Return the view with the first of these undone that is active: shown step, inspection, maximised chart, filter,
    page, selection. While the screen is frozen, the page stays.
    """
    current = model.view
    if current.at is not None:
        return current._replace(at=None)
    if current.inspected is not None:
        return current._replace(inspected=None)
    if current.maximised is not None:
        return current._replace(maximised=None)
    if current.filter:
        return current._replace(filter="", first_chart=0)
    if model.frozen is not None:
        return current
    return page(model, "overview") if current.page != "overview" else current._replace(chosen=None)


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
        turn_page,
        narrow,
        back,
    )
}
"""The functions above by the names that keys and clicks use: `navigate('zoom', 1)`."""

"""The keys that change how a run is looked at, and its longer texts. Nothing here reaches a trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from monitor.charts.line import Line, Piece
from monitor.charts.plots import Held
from monitor.screen import layout, logwords, view
from monitor.screen.showing import Showing
from operant.runs.states import ENDED

_WHEEL_LINES = 3
_SCRUBS = 50  # presses of a key from one end of a run to the other


class Looking(Showing):
    """The screen, and what a person may do to see it otherwise."""

    def action_page(self, page: view.Page) -> None:
        """Show one of the pages."""
        self.look(view.turned(self.view, page))

    def action_axis(self) -> None:
        """The next x axis."""
        self._whole = None
        self.look(view.next_axis(self.view))

    def action_smooth(self) -> None:
        """The next smoothing."""
        self.look(self.view._replace(smoothing=(self.view.smoothing + 1) % len(view.SMOOTHING)))

    def action_logarithm(self) -> None:
        """The other kind of y axis, for the chosen chart or for all."""
        chosen = self.view.maximised or self._chosen
        if chosen is None:
            self.look(self.view._replace(flipped=not self.view.flipped, flipped_one=frozenset()))
        else:
            self.look(self.view._replace(flipped_one=self.view.flipped_one ^ {chosen}))

    def action_zoom(self, by: int) -> None:
        """Half or twice the window."""
        self.look(view.zoomed(self.view, by, self._whole)._replace(inspected=None))

    def action_start(self) -> None:
        """To the beginning."""
        if self.view.page in ("log", "config"):
            self.look(self.view._replace(scroll=10**9 if self.view.page == "log" else 0))
            self._clamp_scroll()
        else:
            self.look(view.to_start(self.view, self._whole))

    def action_end(self) -> None:
        """To the end, and on with it."""
        if self._at is not None:
            self._scrub(None)
        elif self.view.page in ("log", "config"):
            self.look(self.view._replace(scroll=0 if self.view.page == "log" else 10**9))
            self._clamp_scroll()
        else:
            self.look(view.following(self.view))

    def action_freeze(self) -> None:
        """Hold the picture, or go on."""
        if self._frozen is not None:
            self._frozen = None
            self._lay_out()
        elif self.snapshot is not None:
            held = {name: Held(one.latest, one.trend_per_min, one.best) for name, one in self.snapshot.series.items()}
            self._frozen = (self.snapshot, time.strftime("%H:%M:%S"), held)
            self.paint()

    def action_agent(self) -> None:
        """Show or hide the agent."""
        self.look(self.view._replace(agent=not self.view.agent))

    def action_greedy(self) -> None:
        """Greedy or sampled."""
        self.look(self.view._replace(sampled=not self.view.sampled))
        self.say("the agent samples its actions" if self.view.sampled else "the agent takes its likeliest actions")

    def action_log(self) -> None:
        """Show or hide the log; where there is no room for it beside the charts, its page."""
        if self.view.page != "overview" or not (self.plan.bottom and self._columns >= layout.SIDEBAR_FROM):
            self.action_page("overview" if self.view.page == "log" else "log")
        else:
            self.look(self.view._replace(log=not self.view.log))

    def action_bottom(self) -> None:
        """Show or hide the row with agent and log."""
        self.look(self.view._replace(bottom=not self.view.bottom))

    def action_sidebar(self) -> None:
        """Show or hide the sidebar."""
        self.look(self.view._replace(sidebar=not self.view.sidebar))

    @property
    def _chosen(self) -> str | None:
        chart = self.charts.chosen
        return chart.metric if chart is not None and chart.metric in self.shown_metrics() else None

    def action_maximise(self) -> None:
        """One chart alone, or the whole traceback of a run that failed."""
        snapshot = self._shown
        chosen = self._chosen
        if self.view.maximised is not None:
            self.look(self.view._replace(maximised=None, inspected=None))
        elif chosen is None and snapshot is not None and snapshot.ending is not None and snapshot.ending.traceback:
            self.read("Last words", [(Piece(text, "text"),) for text in snapshot.ending.traceback], at_end=True)
        elif self.plan.charts and self.shown_metrics():
            self.look(self.view._replace(maximised=chosen or self.shown_metrics()[0]))

    def action_inspect(self) -> None:
        """Read single values of a chart."""
        names = self.shown_metrics() if self.plan.charts else []
        if self.view.inspected is not None or not names:
            self.look(self.view._replace(inspected=None))
        else:
            chosen = self._chosen or names[0]
            self.charts.choose(chosen)
            self.look(self.view._replace(inspected=chosen, cursor=None))

    def action_move(self, across: int, down: int) -> None:
        """An arrow: the inspected value, the moment of an ended run, the line of a text, or the next chart."""
        if self.view.inspected is not None and across:
            self._move_cursor(across)
        elif self.view.page in ("log", "config") and down:
            self.look(self.view._replace(scroll=max(0, self.view.scroll + (down if self.view.page == "config" else -down))))
            self._clamp_scroll()
        elif across and self.snapshot is not None and self.snapshot.state in ENDED:
            self._step_through(across)
        elif self.plan.charts:
            names = self.shown_metrics()
            self._choose(view.moved(names, self._chosen, across, down, self.plan.columns))

    def _move_cursor(self, across: int) -> None:
        chart = next((one for one in self.charts.charts if one.display and one.metric == self.view.inspected), None)
        if chart is None or self.window is None:
            return
        first, last = self.window
        cell = (last - first) / max(1, chart.plot_columns // 2)
        x = (self.newest if self.view.cursor is None else self.view.cursor) + across * cell
        self.look(self.view._replace(cursor=None if x >= self.newest else max(x, first)))

    def _step_through(self, across: int) -> None:
        snapshot = self.snapshot
        extents = [extent for one in (snapshot.series.values() if snapshot is not None else ()) if (extent := one.extent("step")) is not None]
        if not extents:
            return
        first, last = min(one for one, _ in extents), max(one for _, one in extents)
        step = (last if self._at is None else self._at) + across * (last - first) / _SCRUBS
        self._scrub(None if step >= last else max(step, first))

    def _scrub(self, step: float | None) -> None:
        if self.source is not None:
            self._at = step
            self.source.at(step)
            self.snapshot = self.source.snapshot()
            self.paint()

    def _choose(self, name: str | None) -> None:
        if name is not None:
            self.charts.choose(name)
            if self.view.inspected is not None:
                self.look(self.view._replace(inspected=name))

    def action_next_chart(self, by: int) -> None:
        """The next chart or the one before, round."""
        names = self.shown_metrics() if self.plan.charts else []
        if names:
            chosen = self._chosen
            self._choose(names[(names.index(chosen) + by) % len(names)] if chosen in names else names[0 if by > 0 else -1])

    def action_focus_next(self) -> None:
        """Tab, which Textual's screens take for themselves."""
        self.action_next_chart(1)

    def action_focus_previous(self) -> None:
        """Shift and tab."""
        self.action_next_chart(-1)

    def action_turn(self, by: int) -> None:
        """A page up or down."""
        if self.view.page == "charts" and self.view.maximised is None and self._shown is not None:
            many = len(view.chosen(self._shown.series, self.view.filter))
            first = self.view.first_chart + by * self.plan.charts
            self.look(self.view._replace(first_chart=first if 0 <= first < many else self.view.first_chart, inspected=None))
        elif self.view.page in ("log", "config"):
            lines = max(1, self.panels[self.view.page].size.height - 3) * (by if self.view.page == "config" else -by)
            self.look(self.view._replace(scroll=max(0, self.view.scroll + lines)))
            self._clamp_scroll()
        elif self.view.page == "overview" and by > 0:
            self.action_page("charts")

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        if self.view.page in ("log", "config"):
            self.action_move(0, -_WHEEL_LINES)

    def on_mouse_scroll_down(self) -> None:
        """The wheel."""
        if self.view.page in ("log", "config"):
            self.action_move(0, _WHEEL_LINES)

    def _clamp_scroll(self) -> None:
        """No farther than there are lines."""
        snapshot = self._shown
        if snapshot is not None:
            width, height = (max(1, size) for size in self.panels[self.view.page].inside)
            many = snapshot.config.count("\n") + 1 if self.view.page == "config" else logwords.log_length(self._model(snapshot), width)
            most = max(0, many - height)
            if self.view.scroll > most:
                self.look(self.view._replace(scroll=most))

    def action_step_back(self) -> None:
        """Out of what is open, the innermost first."""
        if self._at is not None:
            self._scrub(None)
        elif self.view.inspected is not None:
            self.look(self.view._replace(inspected=None))
        elif self.view.maximised is not None:
            self.look(self.view._replace(maximised=None))
        elif self.view.filter:
            self.look(self.view._replace(filter="", first_chart=0))
        elif self._frozen is not None:
            self.action_freeze()
        elif self.view.page != "overview":
            self.action_page("overview")
        else:
            self.screen.set_focus(None)

    def action_filter(self) -> None:
        """Words to choose metrics by, or lines of the log."""
        from monitor.screen.screens import FilterBar

        def narrowed(text: str) -> None:
            self.look(self.view._replace(filter=text.strip()[:80], first_chart=0, scroll=0, maximised=None, inspected=None))

        if not self.query(FilterBar):
            self.mount(FilterBar(self.view.filter, narrowed))

    def action_help(self) -> None:
        """All keys."""
        from monitor.screen.about import help_lines

        self.read("Keys", help_lines(self._own_keys, readonly=self.readonly, width=min(92, max(30, self._columns - 6))), width=96)

    def action_describe(self) -> None:
        """What is known about the run."""
        from monitor.screen.about import description

        if self._shown is not None:
            self.read(self._shown.run.id, description(self._shown))

    def read(self, title: str, lines: Sequence[Line], *, width: int = 100, at_end: bool = False) -> None:
        """Open a text over the screen."""
        from monitor.screen.screens import TextScreen

        self.push_screen(TextScreen(title, lines, width=width, at_end=at_end))

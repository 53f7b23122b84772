"""The screen without its keys: panels and charts, laid out for the terminal's size and drawn from a source's snapshots.

Knows no file and no dialog. Drawing is the panels' and charts' own; a tick without news draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.driver import Driver
from textual.filter import ANSIToTruecolor, LineFilter
from textual.theme import Theme
from textual.timer import Timer
from textual.widget import Widget

from monitor.charts.grid import ChartGrid
from monitor.charts.line import clean
from monitor.charts.palette import ASCII, UNICODE
from monitor.charts.picture import AgentPicture
from monitor.charts.plots import Held, Stage
from monitor.data.snapshot import Series, Snapshot, Source
from monitor.screen import keys, layout, logwords, view, words
from monitor.screen.diff_renderer import DiffRenderer
from monitor.screen.keys import KEYS
from monitor.screen.layout import REST, Plan
from monitor.screen.panel import Panel
from monitor.screen.view import View
from monitor.screen.words import Model
from operant.runs.states import LIVE
from operant.text import count

THEMES: Final = (
    Theme("dark", primary="#56B4E9", background="#101216", surface="#181B20", panel="#181B20", foreground="#D8DADF", dark=True),
    Theme("light", primary="#0072B2", background="#FBFBF8", surface="#F0F0EA", panel="#F0F0EA", foreground="#202226", dark=False),
)
_MESSAGE_S = 4.0
_BLURRED_S = 1.0
_LANES = 4  # that a trainer plays for its watchers


class Replay(Source, Protocol):
    """A source that can also tell how things were at an earlier step."""

    def at(self, step: float | None) -> None:
        """Show everything but the curves as it was at a step; None: as it is."""


class Showing(App[None]):
    """One run on the screen, and a second one over it."""

    CSS_PATH = "monitor.tcss"
    TITLE = "operant monitor"
    AUTO_FOCUS = None
    ALLOW_SELECT = False
    ESCAPE_TO_MINIMIZE = False
    BINDINGS: ClassVar = [
        Binding("ctrl+c,ctrl+q", "detach", show=False, priority=True),
        *(Binding(key.keys, key.action, key.words, id=key.id, show=False, priority=key.id in ("redraw", "suspend")) for key in KEYS),
    ]

    def __init__(
        self,
        source: Replay | None,
        *,
        fps: int = 4,
        ascii_only: bool = False,
        theme: str | None = None,
        own_keys: tuple[dict[str, str], str] = ({}, ""),
        readonly: bool = False,
        driver_class: type[Driver] | None = None,
    ) -> None:
        super().__init__(driver_class=driver_class)
        self.animation_level = "none"
        for one in THEMES:
            self.register_theme(one)
        self.theme = theme or "dark"
        self.ascii_only = ascii_only
        self.source = source
        self.readonly = readonly or (source is not None and source.readonly)
        self.view = View()
        self.snapshot: Snapshot | None = source.snapshot() if source is not None else None
        self.plan = Plan()
        self._columns, self._lines = 80, 24
        self.panels: dict[str, Panel] = {}
        self._fps = fps
        self._own_keys, self._keys_notice = own_keys
        self._overlay: Replay | None = None
        self._overlaid: Snapshot | None = None
        self._frozen: tuple[Snapshot, str, dict[str, Held]] | None = None
        self._at: float | None = None
        self._whole: tuple[float, float] | None = None
        self.window: tuple[float, float] | None = None  # of x, as drawn last
        self.newest = 0.0  # x of the newest record, as drawn last
        self._message: tuple[str, float, bool] = ("", 0.0, False)
        self._watched: tuple[object, ...] = (None,)
        self._timer: Timer | None = None
        self.renderer = DiffRenderer()  # which the driver writes through

    # ------------------------------------------------------------------------------------------------------------------------------ making it

    def compose(self) -> ComposeResult:
        """All panels once; `arrange` says which of them are seen."""
        self.charts = ChartGrid(id="charts")
        self.panels = {
            "header": Panel(words.header, id="header", classes="row"),
            "progress": Panel(words.progress, id="progress", classes="row"),
            "figures": Panel(words.figures, id="figures"),
            "message": Panel(words.message, id="message", classes="row"),
            "numbers": Panel(words.numbers, id="numbers"),
            "empty": Panel(words.empty, id="empty"),
            "explained": Panel(words.explained, title="Health", sees=_health, id="explained"),
            "config": Panel(words.config, title="config.toml", sees=_config, id="config"),
            "words": Panel(words.last_words, title="How it ended", sees=_ending, id="words"),
            "log": Panel(logwords.log, title="Log", sees=_log, id="log"),
            "health": Panel(words.health, title="Health", sees=_health, id="health"),
            "time": Panel(words.time, title=words.time_title, sees=_phases, id="time"),
            "machine": Panel(words.machine, title="GPU and process", sees=_machine, id="machine"),
            "footer": Panel(words.footer, sees=_footer, id="footer", classes="row"),
        }
        panel = self.panels
        yield from (panel[name] for name in ("header", "progress", "figures", "message"))
        self.agent = AgentPicture(id="agent")
        self._bottom = Container(self.agent, panel["words"], panel["log"], id="bottom")
        self._main = Container(self.charts, panel["empty"], panel["numbers"], panel["explained"], panel["config"], self._bottom, id="main")
        self._sidebar = Container(panel["health"], panel["time"], panel["machine"], id="sidebar")
        self._body = Container(self._main, self._sidebar, id="body")
        yield self._body
        yield panel["footer"]

    def on_mount(self) -> None:
        """Everything is laid out and drawn before the first picture."""
        self.set_keymap(self._own_keys)
        self._columns, self._lines = self.size
        self._lay_out()
        self._timer = self.set_interval(1 / self._fps, self.tick)
        if self.source is not None:
            self.source.hurry(1 / self._fps)
        if self._keys_notice:
            self.say(self._keys_notice, alarm=True)

    def on_resize(self, event: events.Resize) -> None:
        """The terminal has another size, and may show anything."""
        self.renderer.forget()
        self._columns, self._lines = event.size
        self._lay_out()

    def on_metric_chart_resized(self) -> None:
        """A chart has room for other points."""
        self.paint()

    def on_agent_picture_resized(self) -> None:
        """The agent's picture may be larger, or has to be smaller."""
        self._watch()

    def watch_app_focus(self, focused: bool) -> None:
        """Nobody looks: once a second is enough."""
        if self._timer is not None:
            self._timer.stop()
            interval_s = 1 / self._fps if focused else _BLURRED_S
            self._timer = self.set_interval(interval_s, self.tick)
            if self.source is not None:
                self.source.hurry(interval_s)

    def watch_theme(self) -> None:
        """All colours are others."""
        self.call_after_refresh(self.paint)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Without the one for colours by number: there are none here, and it goes over every line that is drawn."""
        return [one for one in super().get_line_filters() if not isinstance(one, ANSIToTruecolor)]

    def action_redraw(self) -> None:
        """Write every cell again, whatever the terminal shows."""
        self.renderer.forget()
        self.refresh()

    # ----------------------------------------------------------------------------------------------------------------------------- what is new

    def tick(self) -> None:
        """Look for news; without any, draw nothing."""
        if self.source is None:
            return
        newest = self.source.snapshot()
        overlaid = self._overlay.snapshot() if self._overlay is not None else None
        over = bool(self._message[0]) and time.monotonic() > self._message[1]
        if newest is self.snapshot and overlaid is self._overlaid and not over:
            return
        news = bool(newest.notice) and (self.snapshot is None or newest.notice != self.snapshot.notice)
        if over or news:  # what a key did is followed by what came of it
            self._message = ("", 0.0, False)
        words_before = self._last_words()
        self.snapshot, self._overlaid = newest, overlaid
        if self._last_words() != words_before:
            self._lay_out()
        else:
            self.paint()

    def say(self, message: str, *, alarm: bool = False) -> None:
        """A line of words for a few seconds."""
        self._message = (message, time.monotonic() + _MESSAGE_S, alarm)
        self.paint()

    def look(self, new: View) -> None:
        """Look at the run in another way."""
        before, self.view = self.view, new
        if self._planned() != self.plan:
            self._lay_out()
        elif new != before:
            self.paint()

    # ------------------------------------------------------------------------------------------------------------------------------- laying out

    def _last_words(self) -> int:
        """How many lines a run that has ended has to say; 0 for one that goes on."""
        ending = self._shown.ending if self._shown is not None else None
        return 0 if ending is None else 4 + len(ending.traceback)

    @property
    def _shown(self) -> Snapshot | None:
        return self._frozen[0] if self._frozen is not None else self.snapshot

    def _planned(self) -> Plan:
        return layout.plan(self._columns, self._lines, self.view, words=self._last_words())

    def _lay_out(self) -> None:
        if not self.panels:
            return
        _seen(self._body, self._shown is not None)
        plan = self.plan = self._planned()
        panel = self.panels
        _sized(panel["figures"], height=plan.figure_lines)
        small = self._columns < layout.NUMBERS_BELOW[0] or self._lines < layout.NUMBERS_BELOW[1]
        _seen(panel["progress"], not small)
        self.charts.make_room(plan.columns, plan.rows)
        _seen(self.agent, plan.agent)
        for name in ("words", "log", "health", "explained", "config", "numbers"):
            _seen(panel[name], getattr(plan, name))
        _sized(self._bottom, height=plan.bottom)
        _sized(self._sidebar, width=plan.sidebar)
        _sized(panel["time"], height=plan.time_lines)
        _sized(panel["machine"], height=plan.machine_lines)
        _seen(self._main, plan.sidebar != REST)
        self.paint()  # texts are made for their size when they are drawn
        self.call_after_refresh(self.paint)  # charts have to know theirs

    # --------------------------------------------------------------------------------------------------------------------------------- drawing

    def paint(self) -> None:
        """Hand everything that is seen what it shows; each repaints only what changed."""
        snapshot = self._shown
        if snapshot is None or not self.panels:
            return
        names = self.shown_metrics() if self.plan.charts else []
        _seen(self.charts, bool(names))
        _seen(self.panels["empty"], self.plan.charts > 0 and not names)
        model = self._model(snapshot)
        for panel in self.panels.values():
            panel.show(model)
        if names:
            self._paint_charts(snapshot, names)
        if self.plan.agent:
            title = [(clean(text, ascii_only=self.ascii_only), style) for text, style in words.agent_title(snapshot)]
            self.agent.show(snapshot.frame, absent=clean(snapshot.agent_absent, ascii_only=self.ascii_only), title=title)
        self._watch()

    def _model(self, snapshot: Snapshot) -> Model:
        footer = [(keys.shown_keys(key, self._own_keys), key.footer, key.action) for key in KEYS if key.footer and (key.group == "Monitor" or self.plan.charts)]
        asks = [(keys.shown_keys(key, self._own_keys), key.id.title(), key.action) for key in KEYS if key.trains]
        if snapshot.state == "paused":
            asks = [(key, "Go on" if word == "Pause" else word, do) for key, word, do in asks]
        if not self.readonly and snapshot.state in LIVE:
            footer[2:2] = asks  # where few keys have room, these must have it
        told = "words" if self.plan.words else "numbers" if self.plan.numbers else ""
        overlaid = self._overlaid.run.short if self._overlaid is not None and self.plan.charts else ""
        message, _, alarm = self._message
        return Model(snapshot, self.view, message, alarm, self.readonly, self._standing(), self.plan.tabs, told, tuple(footer), overlaid)

    def _standing(self) -> str:
        """What is said for as long as the picture is no live one."""
        if self._frozen is not None:
            then, clock, _ = self._frozen
            now = self.snapshot or then
            more = (now.progress.step or 0) - (then.progress.step or 0)
            goes_on = f"training continues (+{count(more)} steps)" if now.state in LIVE else f"the run is {now.state}"
            return f"FROZEN at {clock} · {goes_on} · space goes on"
        if self._at is not None:
            return f"as it was at {count(self._at)} steps · ← → · end returns"
        if self.view.inspected is not None:
            return "← → reads single values · esc returns"
        return ""

    def shown_metrics(self) -> list[str]:
        """The metrics that have a place on the screen, in their order."""
        snapshot = self._shown
        if snapshot is None:
            return []
        if self.view.maximised is not None and self.view.maximised in snapshot.series:
            return [self.view.maximised]
        names = view.chosen(snapshot.series, self.view.filter)
        first = self.view.first_chart if self.view.page == "charts" else 0
        return names[first : first + self.plan.charts]

    def _paint_charts(self, snapshot: Snapshot, names: list[str]) -> None:
        axis, held = self.view.axis, self._frozen[2] if self._frozen is not None else None
        second = self._overlaid.series if self._overlaid is not None else None
        both: list[Series] = [*snapshot.series.values(), *(second[name] for name in names if second is not None and name in second)]
        if self._frozen is None:
            self._whole = view.whole_window(both, axis, self._whole)
        own = [extent[1] for one in snapshot.series.values() if (extent := one.extent(axis)) is not None]
        self.newest = max(own, default=self._whole[1] if self._whole is not None else 0.0)
        self.window = view.window(self.view, self._whole, self.newest) if self._whole is not None else None
        stage = Stage(
            self.view,
            self.window,
            snapshot.marks,
            snapshot.run.target,
            newest=self.newest,
            until=None if self._frozen is None else _x_of(snapshot, axis),
            at=self._at if axis == "step" else None,
            held=held,
            figures={figure.metric: figure.value for figure in snapshot.figures},
            overlay=second,
            overlay_name=self._overlaid.run.short if self._overlaid is not None else "",
            empty="no record yet" if snapshot.state in LIVE else "the run has no records",
            glyphs=ASCII if self.ascii_only else UNICODE,
        )
        self.charts.show(names, snapshot.series, stage)

    def _watch(self) -> None:
        """Ask for pictures of the agent while there is a place for them, and no longer."""
        if self.source is None or self.snapshot is None:
            return
        place = self.plan.agent and self.view.agent and self.snapshot.state in LIVE
        if place and not self.agent.size.area:
            return  # not laid out yet: how large a picture it wants is not known
        size = self.agent.wanted_size(_LANES) if place else 0
        wanted = (place, self.view.sampled, id(self.source), size)
        if wanted != self._watched:
            if place or self._watched[0]:
                self.source.watch(bool(place), mode="sampled" if self.view.sampled else "greedy", size=size)
            self._watched = wanted


# What panels are made of: while it is equal, nothing is made again.


def _health(model: Model) -> object:
    return model.snapshot.health


def _phases(model: Model) -> object:
    return model.snapshot.phases


def _machine(model: Model) -> object:
    return model.snapshot.system, model.snapshot.state


def _log(model: Model) -> object:
    return model.snapshot.log, model.view.scroll, model.view.filter, model.view.page


def _config(model: Model) -> object:
    return model.snapshot.config, model.view.scroll


def _ending(model: Model) -> object:
    return model.snapshot.ending, model.snapshot.state


def _footer(model: Model) -> object:
    return model.footer


def _x_of(snapshot: Snapshot, axis: str) -> float | None:
    """Where on an axis a snapshot was made."""
    extents = {"step": snapshot.progress.step, "iteration": snapshot.progress.iterations, "wall": snapshot.progress.up_s}
    return extents.get(axis)


def _seen(widget: Widget, seen: bool) -> None:
    if widget.display != seen:
        widget.display = seen


def _sized(widget: Widget, *, width: int | None = None, height: int | None = None) -> None:
    """Give a widget cells, the rest (REST), or no place at all (0)."""
    cells = height if height is not None else width or 0
    _seen(widget, cells != 0)
    wanted: int | str = "1fr" if cells == REST else max(1, cells)
    if height is not None:
        widget.styles.height = wanted
    else:
        widget.styles.width = wanted

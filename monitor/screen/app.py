"""The monitor's app: it reads a source, keeps the model, and does what keys ask for. Panels are in
monitor/screen/run_view.py, what the keys that change the view do in monitor/screen/navigation.py.

A timer looks at the source; news are one message; the message makes the next model; panels redraw the cells that
changed. Knows no file: runs come from a `Library`, requests go through the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.driver import Driver
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen
from textual.theme import Theme
from textual.timer import Timer

from monitor.charts.grid import MetricChart
from monitor.data.snapshot import Library, RunRow, Snapshot, Source
from monitor.screen import about, keys, navigation
from monitor.screen.diff_renderer import DiffRenderer
from monitor.screen.model import Frozen, Model
from monitor.screen.run_view import RunView
from monitor.screen.view import Held, View
from operant.errors import OperantError
from operant.text import safe

THEMES: Final = (
    Theme(
        "dark",
        primary="#56B4E9",
        background="#101216",
        surface="#181B20",
        panel="#181B20",
        foreground="#D8DADF",
        dark=True,
    ),
    Theme(
        "light",
        primary="#0072B2",
        background="#FBFBF8",
        surface="#F0F0EA",
        panel="#F0F0EA",
        foreground="#202226",
        dark=False,
    ),
)
_NO_COLOR: Final = NoColor()
_QUESTIONS: Final = {
    "checkpoint": ("Save a checkpoint of {run} now?", "Training goes on after it.", "asked for a checkpoint"),
    "pause": ("Pause {run}?", "It waits, with everything in memory, until P is pressed again.", "asked to pause"),
    "unpause": ("Let {run} go on?", "It is paused.", "asked to go on"),
    "stop": ("Stop {run}?", "It finishes its update, saves a checkpoint and ends. Type y.", "asked to save and stop"),
}
"""Question, consequence, and what is said once the trainer was asked."""
_PASTED_CELLS: Final = 200
_MESSAGE_S: Final = 4.0
_BLURRED_S: Final = 1.0
_LANES: Final = 4  # that a trainer plays for its viewers


class News(Message):
    """A source has another snapshot, of the run or of the one that is laid over it."""

    def __init__(self, source: Source, newest: Snapshot, overlay: Snapshot | None) -> None:
        super().__init__()
        self.source, self.newest, self.overlay = source, newest, overlay


class MonitorApp(App[None]):
    """One run on the screen, a second one over it, and the way to others."""

    CSS_PATH = "monitor.tcss"
    TITLE = "operant monitor"
    AUTO_FOCUS = None
    ALLOW_SELECT = False
    ESCAPE_TO_MINIMIZE = False
    BINDINGS: ClassVar = [
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        *(
            Binding(key.keys, key.action, key.words, id=key.id, show=False, priority=key.id in ("redraw", "suspend"))
            for key in keys.KEYS
        ),
    ]

    model: reactive[Model | None] = reactive(None, repaint=False)

    def __init__(
        self,
        source: Source | None,
        library: Library | None = None,
        *,
        overlay: Source | None = None,
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
        self.source, self.library = source, library
        self.overlay = overlay
        self.renderer = DiffRenderer()  # the driver writes through it
        self._readonly = readonly
        self._own_keys, self._keys_notice = own_keys
        self._fps = fps
        self._timer: Timer | None = None
        self._message_timer: Timer | None = None
        self._pictures_of: tuple[object, ...] = (None,)  # the agent's pictures that were asked for last

    def compose(self) -> ComposeResult:
        """One widget, which shows the model."""
        self.run_view = RunView()
        yield self.run_view.data_bind(MonitorApp.model)

    def on_mount(self) -> None:
        """The first picture has everything in it. Without a run, the choice of one."""
        self.set_keymap(self._own_keys)
        # after ctrl+z the terminal shows anything
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        if self.source is None:
            self.call_later(self.action_runs)
        else:
            self._show(self.source)
        self.watch_app_focus(True)
        if self._keys_notice:
            self.say(self._keys_notice, alarm=True)

    def on_unmount(self) -> None:
        """Nothing is read any more."""
        for source in (self.source, self.overlay):
            if source is not None:
                source.close()

    async def on_event(self, event: events.Event) -> None:
        """What is pasted is text of a stranger: where it can be typed into, Textual would draw it as it is."""
        await super().on_event(
            events.Paste(safe(event.text, _PASTED_CELLS)) if isinstance(event, events.Paste) else event
        )

    def on_resize(self, event: events.Resize) -> None:
        """The terminal has another size, and may show anything."""
        self.renderer.forget()
        self._change(size=(event.size.width, event.size.height))

    def on_run_view_resized(self) -> None:
        """Everything is laid out for the new size; what was drawn for the old one until now may have landed on any
        line.
        """
        self.action_redraw()

    def watch_app_focus(self, focused: bool) -> None:
        """Without the focus, once a second is enough."""
        interval_s = 1 / self._fps if focused else _BLURRED_S
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(interval_s, self.tick)
        if self.source is not None:
            self.source.hurry(interval_s)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Without the one for colours by number, of which there are none here; and under NO_COLOR without colours,
        greys included.
        """
        filters = [one for one in super().get_line_filters() if not isinstance(one, ANSIToTruecolor)]
        return [_NO_COLOR if isinstance(one, Monochrome) else one for one in filters]

    # ------------------------------------------------------------------------------------------------------------------
    # the model

    def tick(self) -> None:
        """Look for news; without any, nothing is drawn."""
        if self.source is not None and self.model is not None:
            newest, overlay = self.source.snapshot(), None if self.overlay is None else self.overlay.snapshot()
            if newest is not self.model.newest or overlay is not self.model.overlay:
                self.post_message(News(self.source, newest, overlay))

    def on_news(self, news: News) -> None:
        """What a key did is followed by what came of it."""
        if news.source is self.source and self.model is not None:
            told = news.newest.notice and news.newest.notice != self.model.newest.notice
            self._change(newest=news.newest, overlay=news.overlay, message="" if told else self.model.message)

    def say(self, message: str, *, alarm: bool = False) -> None:
        """A line of words for a few seconds."""
        self._change(message=message, alarm=alarm)
        if self._message_timer is not None:
            self._message_timer.stop()
        self._message_timer = self.set_timer(_MESSAGE_S, lambda: self._change(message=""))

    def action_look(self, change: str, first: Any = None, second: Any = None) -> None:
        """Look at the run in another way: one of `navigation.CHANGES`, with its arguments (Textual hands none to a
        parameter `*arguments`).
        """
        if self.model is not None and self.source is not None:
            view = navigation.CHANGES[change](self.model, *(one for one in (first, second) if one is not None))
            newest = self.model.newest
            if view.at != self.model.view.at:
                self.source.at(view.at)
                newest = self.source.snapshot()
            self._change(view=view, newest=newest)

    def _change(self, **changes: Any) -> None:
        if self.model is not None:
            self.model = self.model.with_(**changes)

    def _show(self, source: Source) -> None:
        """A source's run, from the beginning; what parts of the screen there are stays as it was."""
        kept = View() if self.model is None else self.model.view
        view = View(smoothing=kept.smoothing, sidebar=kept.sidebar, bottom=kept.bottom, log=kept.log, agent=kept.agent)
        overlay = None if self.overlay is None else self.overlay.snapshot()
        first = Model(
            source.snapshot(), view, overlay, readonly=self._readonly or source.readonly, own_keys=self._own_keys
        )
        self.source, self.model = source, first.with_(size=(self.size.width, self.size.height))

    def watch_model(self) -> None:
        """Ask for pictures of the agent while there is a place for them, and no longer."""
        self.on_agent_picture_resized()

    def on_agent_picture_resized(self) -> None:
        """The agent's picture may be larger, or has to be smaller."""
        if self.source is None or self.model is None:
            return
        agent, sampled = self.run_view.agent, self.model.view.sampled
        place = self.model.plan.agent and self.model.view.agent and self.model.newest.live
        if place and not agent.size.area:
            return  # not laid out yet: how large a picture it wants is not known
        size = agent.wanted_size(_LANES) if place else 0
        before, self._pictures_of = self._pictures_of, (place, sampled, id(self.source), size)
        if self._pictures_of != before and (place or before[0]):
            self.source.watch(bool(place), mode="sampled" if sampled else "greedy", size=size)

    # ------------------------------------------------------------------------------------------------------------------
    # keys: how to look

    def action_freeze(self) -> None:
        """Hold the picture, or go on."""
        if self.model is not None and self.model.frozen is not None:
            self._change(frozen=None)
        elif self.model is not None:
            held = {
                name: Held(one.latest, one.trend_per_min, one.best) for name, one in self.model.newest.series.items()
            }
            self._change(frozen=Frozen(self.model.newest, time.strftime("%H:%M:%S"), held))

    def action_greedy(self) -> None:
        """Greedy or sampled actions of the agent."""
        self.action_look("greedy")
        if self.model is not None:
            self.say(
                "the agent samples its actions" if self.model.view.sampled else "the agent takes its likeliest actions"
            )

    def action_maximise(self) -> None:
        """One chart alone, or all that a run that failed said last."""
        ending = None if self.model is None else self.model.snapshot.ending
        if (
            self.model is not None
            and ending is not None
            and ending.traceback
            and self.model.chosen is None
            and self.model.view.maximised is None
        ):
            self._read(
                "Traceback" if ending.has_traceback else "Log", about.traceback(self.model.snapshot), at_end=True
            )
        else:
            self.action_look("maximise")

    def action_step_back(self) -> None:
        """Out of what is open, the innermost first."""
        before = self.model and self.model.view
        self.action_look("back")
        if self.model is not None and self.model.frozen is not None and self.model.view == before:
            self.action_freeze()

    def action_focus_next(self) -> None:
        """Tab, which Textual's screens take for themselves."""
        self.action_look("next_chart", 1)

    def action_focus_previous(self) -> None:
        """Shift and tab."""
        self.action_look("next_chart", -1)

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        self.action_look("wheel", -1)

    def on_mouse_scroll_down(self) -> None:
        """The wheel."""
        self.action_look("wheel", 1)

    def on_metric_chart_chosen(self, message: MetricChart.Chosen) -> None:
        """A chart was clicked."""
        self.action_look("choose", message.metric)

    def action_filter(self) -> None:
        """Words to choose metrics by, or lines of the log."""
        from monitor.screen.screens import FilterBar

        if self.model is not None and not self.query(FilterBar):
            self.run_view.mount(FilterBar(self.model.view.filter))

    def on_filter_bar_narrowed(self, message: Any) -> None:
        """Words were typed."""
        self.action_look("narrow", message.words)

    def action_help(self) -> None:
        """All keys."""
        lines = about.help_lines(
            self._own_keys,
            readonly=self.model is not None and self.model.readonly,
            width=min(92, max(30, self.size.width - 6)),
        )
        self._read("Keys", lines, width=96)

    def action_describe(self) -> None:
        """What is known about the run."""
        if self.model is not None:
            self._read(self.model.snapshot.run.id, about.description(self.model.snapshot))

    def _read(self, title: str, lines: Sequence[Any], *, width: int = 100, at_end: bool = False) -> None:
        from monitor.screen.screens import TextScreen

        self.push_screen(TextScreen(title, lines, width=width, at_end=at_end))

    # ------------------------------------------------------------------------------------------------------------------
    # keys: the monitor

    def action_redraw(self) -> None:
        """Write every cell again, whatever the terminal shows."""
        self.renderer.forget()
        self.refresh()

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = "light" if self.theme == "dark" else "dark"

    def action_copy(self) -> None:
        """The run's id into the terminal's clipboard."""
        if self.model is not None:
            self.copy_to_clipboard(self.model.newest.run.id)
            self.say(f"copied {self.model.newest.run.id}, if this terminal allows it")

    def action_runs(self) -> None:
        """Another run."""

        def opened(source: Source) -> None:
            if self.source is not None:
                self.source.close()
            source.hurry(1 / self._fps)
            self._show(source)

        self._pick("Runs", opened)

    def action_overlay(self) -> None:
        """A second run or a group in the charts, or none."""

        def opened(source: Source) -> None:
            self.overlay = source
            self._change(overlay=source.snapshot())

        if self.overlay is not None:
            self.overlay.close()
            self.overlay = None
            self._change(overlay=None)
        else:
            self._pick("Overlay", opened, overlays=True)

    def _pick(self, title: str, opened: Callable[[Source], None], *, overlays: bool = False) -> None:
        """Let the person choose a run, and open it."""
        from monitor.screen.screens import ListScreen

        def chosen(row: RunRow | None) -> None:
            assert self.library is not None
            if row is None:
                if self.source is None:
                    self.exit()
                return
            try:
                opened(self.library.open(row.path))
            except OperantError as error:
                self.say(str(error), alarm=True)

        if self.library is None:
            self.say("there are no other runs here")
        else:
            self.push_screen(ListScreen(title, self.library.overlays() if overlays else self.library.rows()), chosen)

    # ------------------------------------------------------------------------------------------------------------------
    # keys: the trainer

    def action_ask(self, what: str) -> None:
        """Ask the trainer for something, after the person has been asked."""
        from monitor.screen.screens import ConfirmScreen, Question

        if self.model is None or self.model.readonly:
            self.say("this monitor is read-only", alarm=True)
        elif not self.model.newest.live:
            self.say(f"the run is {self.model.newest.state}: there is no trainer to ask", alarm=True)
        else:
            verb = "unpause" if what == "pause" and self.model.newest.state == "paused" else what
            sentence, consequence, _ = _QUESTIONS[verb]
            question = Question(sentence.format(run=self.model.newest.run.id), consequence, strict=verb == "stop")
            self.push_screen(ConfirmScreen(question), partial(self._answered, verb))

    def _answered(self, verb: Any, yes: bool | None) -> None:
        if yes and self.source is not None:
            self.source.request(verb)
            self.say(_QUESTIONS[verb][2])

    def action_command_palette(self) -> None:
        """Commands by name; where Textual's palette cannot be drawn, all keys."""
        if self.ascii_only:
            self.action_help()
        else:
            super().action_command_palette()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette has our commands and no others."""
        readonly = self.model is not None and self.model.readonly
        for key in keys.KEYS:
            if not (key.trains and readonly) and key.id not in ("palette", "left", "right", "up", "down"):
                title = key.id.replace("_", " ").capitalize()
                yield SystemCommand(
                    title, f"{key.words} ({keys.shown_keys(key, self._own_keys)})", partial(self.run_action, key.action)
                )

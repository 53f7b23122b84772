"""The monitor's app: polls a source, holds the model, and runs the actions of keys. The panels are in
monitor/screen/run_view.py, the actions that only change the view in monitor/screen/navigation.py.

A timer polls the source; a new snapshot is posted as a message; the message updates the model; panels redraw the cells
that changed. Runs come from a `RunCatalog`. Requests go through the source.
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
from monitor.data.snapshot import RunCatalog, RunRow, Snapshot, Source
from monitor.screen import dialog_text, keys, navigation
from monitor.screen.diff_renderer import DiffRenderer
from monitor.screen.model import Frozen, Model
from monitor.screen.run_view import RunView
from monitor.screen.view import TitleValues, View
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
    "checkpoint": ("Save a checkpoint of {run} now?", "Training continues afterwards.", "requested a checkpoint"),
    "pause": ("Pause {run}?", "It keeps its memory and waits until P is pressed again.", "requested a pause"),
    "unpause": ("Resume {run}?", "It is paused.", "requested to resume"),
    "stop": (
        "Stop {run}?",
        "It finishes its update, saves a checkpoint and ends. Type y.",
        "requested to save and stop",
    ),
}
"""Question, consequence, and message after the request was sent."""
_PASTED_CELLS: Final = 200
_MESSAGE_S: Final = 4.0
_BLURRED_S: Final = 1.0
_LANES: Final = 4  # lanes in a frame


class SnapshotChanged(Message):
    """Posted with the newest snapshots when the shown run or its overlay has a new one."""

    def __init__(self, source: Source, newest: Snapshot, overlay: Snapshot | None) -> None:
        super().__init__()
        self.source, self.newest, self.overlay = source, newest, overlay


class MonitorApp(App[None]):
    """Textual app that shows one run, optionally with a second run or a group overlaid, and lets the user choose
    another. Only the app changes `model`.
    """

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
        library: RunCatalog | None = None,
        *,
        overlay: Source | None = None,
        fps: int = 4,
        ascii_only: bool = False,
        theme: str | None = None,
        keep_theme: Callable[[str], None] | None = None,
        own_keys: tuple[dict[str, str], str] = ({}, ""),
        readonly: bool = False,
        driver_class: type[Driver] | None = None,
    ) -> None:
        super().__init__(driver_class=driver_class)
        self.animation_level = "none"
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme or "dark"
        self._keep_theme = keep_theme
        self.ascii_only = ascii_only
        self.source, self.library = source, library
        self.overlay = overlay
        self.renderer = DiffRenderer()  # used by the driver
        self._readonly = readonly
        self._own_keys, self._keys_notice = own_keys
        self._fps = fps
        self._timer: Timer | None = None
        self._message_timer: Timer | None = None
        self._watch_request: tuple[object, ...] = (None,)  # arguments of the last `Source.watch`
        self._outer: tuple[Source, View] | None = None  # group or sweep from which the shown run was opened

    def compose(self) -> ComposeResult:
        """Create the app's only widget, a `RunView`, which follows `MonitorApp.model`."""
        self.run_view = RunView()
        yield self.run_view.data_bind(MonitorApp.model)

    def on_mount(self) -> None:
        """Show the run's first snapshot completely, or without a run the list of runs."""
        self.set_keymap(self._own_keys)
        # after ctrl+z the terminal's contents are unknown
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        if self.source is None:
            self.call_later(self.action_runs)
        else:
            self._show_run(self.source)
        self.watch_app_focus(True)
        if self._keys_notice:
            self.say(self._keys_notice, alarm=True)

    def on_unmount(self) -> None:
        """Stop reading the shown run, its overlay and its group when the app ends."""
        for source in (self.source, self.overlay, self._outer and self._outer[0]):
            if source is not None:
                source.close()

    async def on_event(self, event: events.Event) -> None:
        """Sanitize pasted text before Textual handles it, since Textual would draw it unchanged."""
        await super().on_event(
            events.Paste(safe(event.text, _PASTED_CELLS)) if isinstance(event, events.Paste) else event
        )

    def on_resize(self, event: events.Resize) -> None:
        """Lay out the run view for the terminal's new size, and treat what the terminal shows as unknown."""
        self.renderer.forget()
        self._update_model(size=(event.size.width, event.size.height))

    def on_run_view_resized(self) -> None:
        """Redraw the whole terminal after a new layout: lines drawn for the old size may be anywhere."""
        self.action_redraw()

    def watch_app_focus(self, focused: bool) -> None:
        """Poll the source once a second while the terminal has no focus, else at the frame rate."""
        interval_s = 1 / self._fps if focused else _BLURRED_S
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(interval_s, self.poll_source)
        if self.source is not None:
            self.source.set_poll_interval(interval_s)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's line filters without the conversion of ANSI colours, which are not used here. Under NO_COLOR
        all colours are removed, including greys.
        """
        filters = [one for one in super().get_line_filters() if not isinstance(one, ANSIToTruecolor)]
        return [_NO_COLOR if isinstance(one, Monochrome) else one for one in filters]

    # ------------------------------------------------------------------------------------------------------------------
    # the model

    def poll_source(self) -> None:
        """Fetch the newest snapshots of the run and its overlay, and post `SnapshotChanged` if either is new."""
        if self.source is not None and self.model is not None:
            newest, overlay = self.source.snapshot(), None if self.overlay is None else self.overlay.snapshot()
            if newest is not self.model.newest or overlay is not self.model.overlay:
                self.post_message(SnapshotChanged(self.source, newest, overlay))

    def on_snapshot_changed(self, message: SnapshotChanged) -> None:
        """Update the model with new snapshots. A new notice, such as a request's result, replaces the message about the
        pressed key.
        """
        if message.source is self.source and self.model is not None:
            changed = message.newest.notice and message.newest.notice != self.model.newest.notice
            self._update_model(
                newest=message.newest, overlay=message.overlay, message="" if changed else self.model.message
            )

    def say(self, message: str, *, alarm: bool = False) -> None:
        """Show a message below the header for a few seconds; `alarm` in a warning colour."""
        self._update_model(message=message, alarm=alarm)
        if self._message_timer is not None:
            self._message_timer.stop()
        self._message_timer = self.set_timer(_MESSAGE_S, lambda: self._update_model(message=""))

    def action_navigate(self, change: str, first: Any = None, second: Any = None) -> None:
        """Change the view by the navigation function named `change` (`navigation.CHANGES`) with up to two arguments,
        which are explicit because Textual passes none to `*arguments`.
        """
        if self.model is not None and self.source is not None:
            view = navigation.CHANGES[change](self.model, *(one for one in (first, second) if one is not None))
            newest = self.model.newest
            if view.at != self.model.view.at:
                self.source.seek(view.at)
                newest = self.source.snapshot()
            self._update_model(view=view, newest=newest)

    def _update_model(self, **changes: Any) -> None:
        """Replace fields of the model, which redraws the screen. Nothing without a run."""
        if self.model is not None:
            self.model = self.model.with_(**changes)

    def _show_run(self, source: Source, view: View | None = None) -> None:
        """Show the run of `source` with the given `view`, by default a new one that keeps only the visible parts and
        the smoothing.
        """
        previous = View() if self.model is None else self.model.view
        view = view or View(
            smoothing=previous.smoothing,
            sidebar=previous.sidebar,
            bottom=previous.bottom,
            log=previous.log,
            agent=previous.agent,
        )
        overlay = None if self.overlay is None else self.overlay.snapshot()
        first = Model(
            source.snapshot(),
            view,
            overlay,
            readonly=self._readonly or source.readonly,
            own_keys=self._own_keys,
            outer="" if self._outer is None else self._outer[0].snapshot().run.id,
        )
        self.source, self.model = source, first.with_(size=(self.size.width, self.size.height))

    def watch_model(self) -> None:
        """Request frames of the agent if its picture is visible. Called by Textual when the model changes."""
        self.on_agent_picture_resized()

    def on_agent_picture_resized(self) -> None:
        """Request frames of the agent in the size of its picture, or none while it is hidden."""
        if self.source is None or self.model is None:
            return
        agent, sampled = self.run_view.agent, self.model.view.sampled
        visible = self.model.plan.agent and self.model.view.agent and self.model.newest.live
        if visible and not agent.size.area:
            return  # not laid out yet: the size is unknown
        size = agent.wanted_size(_LANES) if visible else 0
        before, self._watch_request = self._watch_request, (visible, sampled, id(self.source), size)
        if self._watch_request != before and (visible or before[0]):
            self.source.watch(bool(visible), mode="sampled" if sampled else "greedy", size=size)

    # ------------------------------------------------------------------------------------------------------------------
    # keys: view

    def action_freeze(self) -> None:
        """Freeze the screen at the current snapshot, or show new ones again."""
        if self.model is not None and self.model.frozen is not None:
            self._update_model(frozen=None)
        elif self.model is not None:
            held = {
                name: TitleValues(one.latest, one.trend_per_min, one.best)
                for name, one in self.model.newest.series.items()
            }
            self._update_model(frozen=Frozen(self.model.newest, time.strftime("%H:%M:%S"), held))

    def action_greedy(self) -> None:
        """Switch the shown agent between greedy and sampled actions."""
        self.action_navigate("greedy")
        if self.model is not None:
            self.say("the agent samples its actions" if self.model.view.sampled else "the agent acts greedily")

    def action_maximise(self) -> None:
        """Show the selected chart alone, or all charts again. Without a selected chart: for a group or sweep open the
        selected run, for a failed run show its traceback or log.
        """
        model = self.model
        if model is not None and model.picked is not None and model.picks_run:
            self._open_member(model.picked.path, model.picked.name)
            return
        ending = None if self.model is None else self.model.snapshot.ending
        if (
            self.model is not None
            and ending is not None
            and ending.traceback
            and self.model.chosen is None
            and self.model.view.maximised is None
        ):
            self._open_text(
                "Traceback" if ending.has_traceback else "Log", dialog_text.traceback(self.model.snapshot), at_end=True
            )
        else:
            self.action_navigate("maximise")

    def action_step_back(self) -> None:
        """Undo the first of these that is active: shown step, inspection, maximised chart, filter, freeze, page,
        selection.
        """
        before = self.model and self.model.view
        self.action_navigate("back")
        if self.model is None or self.model.view != before:
            return
        if self.model.frozen is not None:
            self.action_freeze()
        elif self._outer is not None:
            self._close_member()

    def _open_member(self, path: str, name: str) -> None:
        """Open the ordinary view of a run of the shown group or sweep, from its folder `path` ("": not begun)."""
        if not path or self.library is None or self.source is None or self.model is None:
            self.say(f"{name} has not begun" if not path else "no other runs available")
            return
        try:
            source = self.library.open(path)
        except OperantError as error:
            self.say(str(error), alarm=True)
            return
        self._outer = self.source, self.model.view
        source.set_poll_interval(1 / self._fps)
        self._show_run(source)

    def _close_member(self) -> None:
        """Return from a run to the group or sweep from which it was opened."""
        if self._outer is None:
            return
        (outer, view), member = self._outer, self.source
        self._outer = None
        self._show_run(outer, view)
        if member is not None:
            member.close()

    def action_focus_next(self) -> None:
        """Select the next chart. Bound to Tab, which Textual's screens would handle themselves."""
        self.action_navigate("next_chart", 1)

    def action_focus_previous(self) -> None:
        """Select the previous chart. Bound to Shift+Tab."""
        self.action_navigate("next_chart", -1)

    def on_mouse_scroll_up(self) -> None:
        """Scroll the log or configuration page up by one notch of the mouse wheel."""
        self.action_navigate("wheel", -1)

    def on_mouse_scroll_down(self) -> None:
        """Scroll the log or configuration page down by one notch of the mouse wheel."""
        self.action_navigate("wheel", 1)

    def on_metric_chart_chosen(self, message: MetricChart.Chosen) -> None:
        """Select the chart that was clicked."""
        self.action_navigate("choose", message.metric)

    def action_filter(self) -> None:
        """Open the filter bar, which filters metrics, or lines on the log page."""
        from monitor.screen.screens import FilterBar

        if self.model is not None and not self.query(FilterBar):
            self.run_view.mount(FilterBar(self.model.view.filter))

    def on_filter_bar_narrowed(self, message: Any) -> None:
        """Apply the filter that is typed in the filter bar."""
        self.action_navigate("narrow", message.words)

    def action_help(self) -> None:
        """Open the dialog that lists all keys."""
        lines = dialog_text.help_lines(
            self._own_keys,
            readonly=self.model is not None and self.model.readonly,
            width=min(92, max(30, self.size.width - 6)),
        )
        self._open_text("Keys", lines, width=96)

    def action_describe(self) -> None:
        """Open the dialog with the run's description."""
        if self.model is not None:
            self._open_text(self.model.snapshot.run.id, dialog_text.description(self.model.snapshot))

    def _open_text(self, title: str, lines: Sequence[Any], *, width: int = 100, at_end: bool = False) -> None:
        """Open a dialog that shows lines of text, at most `width` cells wide; `at_end`: scrolled to the end."""
        from monitor.screen.screens import TextScreen

        self.push_screen(TextScreen(title, lines, width=width, at_end=at_end))

    # ------------------------------------------------------------------------------------------------------------------
    # keys: monitor

    def action_redraw(self) -> None:
        """Write every cell of the screen to the terminal again, whatever the terminal shows."""
        self.renderer.forget()
        self.refresh()

    def action_theme(self) -> None:
        """Switch between the dark and the light theme, and keep the choice (`keep_theme`) for the next start."""
        if self.no_color:
            self.say("NO_COLOR is set: themes have no effect")
            return
        self.theme = "light" if self.theme == "dark" else "dark"
        if self._keep_theme is not None:
            self._keep_theme(self.theme)

    def action_copy(self) -> None:
        """Copy the run's id to the clipboard through the terminal."""
        if self.model is not None:
            self.copy_to_clipboard(self.model.newest.run.id)
            self.say(f"copied {self.model.newest.run.id}, if this terminal allows it")

    def action_runs(self) -> None:
        """Open the list of runs, and show the run that the user chooses."""

        def opened(source: Source) -> None:
            for old in (self.source, self._outer and self._outer[0]):
                if old is not None:
                    old.close()
            self._outer = None
            source.set_poll_interval(1 / self._fps)
            self._show_run(source)

        self._choose_run("Runs", opened)

    def action_overlay(self) -> None:
        """Choose a run or group to draw over the shown run's curves, or remove the present overlay."""

        def opened(source: Source) -> None:
            self.overlay = source
            self._update_model(overlay=source.snapshot())

        if self.overlay is not None:
            self.overlay.close()
            self.overlay = None
            self._update_model(overlay=None)
        else:
            self._choose_run("Overlay", opened, overlays=True)

    def _choose_run(self, title: str, opened: Callable[[Source], None], *, overlays: bool = False) -> None:
        """Open the list of runs, groups and (unless `overlays`) sweeps, and call `opened` with the source of the chosen
        one.
        """
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
            self.say("no other runs available")
        else:
            self.push_screen(ListScreen(title, self.library.overlays() if overlays else self.library.rows()), chosen)

    # ------------------------------------------------------------------------------------------------------------------
    # keys: trainer

    def action_ask(self, what: str) -> None:
        """Send the request `what` (stop, pause, checkpoint) to the trainer after the user confirms it."""
        from monitor.screen.screens import ConfirmScreen, Question

        if self.model is not None and self.model.newest.collected is not None:
            self.say("requests go to a single run: enter opens one", alarm=True)
        elif self.model is None or self.model.readonly:
            self.say("this monitor is read-only", alarm=True)
        elif not self.model.newest.live:
            self.say(f"no trainer to send the request to (state: {self.model.newest.state})", alarm=True)
        else:
            verb = "unpause" if what == "pause" and self.model.newest.state == "paused" else what
            sentence, consequence, _ = _QUESTIONS[verb]
            question = Question(sentence.format(run=self.model.newest.run.id), consequence, strict=verb == "stop")
            self.push_screen(ConfirmScreen(question), partial(self._answered, verb))

    def _answered(self, verb: Any, yes: bool | None) -> None:
        """Send the request `verb` to the trainer if the user confirmed it (`yes`)."""
        if yes and self.source is not None:
            self.source.request(verb)
            self.say(_QUESTIONS[verb][2])

    def action_command_palette(self) -> None:
        """Open Textual's command palette; in ASCII mode, in which it cannot be drawn, the help dialog."""
        if self.ascii_only:
            self.action_help()
        else:
            super().action_command_palette()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield the monitor's commands for the command palette, without Textual's own."""
        readonly = self.model is not None and self.model.readonly
        for key in keys.KEYS:
            if not (key.trains and readonly) and key.id not in ("palette", "left", "right", "up", "down"):
                title = key.id.replace("_", " ").capitalize()
                yield SystemCommand(
                    title, f"{key.words} ({keys.shown_keys(key, self._own_keys)})", partial(self.run_action, key.action)
                )

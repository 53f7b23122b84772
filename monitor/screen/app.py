"""The monitor's app: keys that open something, go to other runs, or ask the trainer. The screen is monitor/screen/showing.py,
looking at it monitor/screen/actions.py.

Knows no file: runs come from a `Library`, requests go through the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from textual import events
from textual.app import SystemCommand
from textual.screen import Screen

from monitor.data.snapshot import RunRow
from monitor.screen import keys
from monitor.screen.actions import Looking
from monitor.screen.keys import KEYS, Key
from monitor.screen.showing import Replay
from monitor.screen.view import View
from operant.errors import OperantError
from operant.runs.states import LIVE
from operant.text import safe


class Library(Protocol):
    """The runs there are."""

    def rows(self) -> Sequence[RunRow]:
        """A line for each, the newest first."""

    def open(self, path: str) -> Replay:
        """A source for one. Raises OperantError."""


_QUESTIONS: Final = {
    "checkpoint": ("Save a checkpoint of {run} now?", "Training goes on after it."),
    "pause": ("Pause {run}?", "It waits, with everything in memory, until P is pressed again."),
    "unpause": ("Let {run} go on?", "It is paused."),
    "stop": ("Stop {run}?", "It finishes its update, saves a checkpoint and ends. Type y."),
}
_PASTED_CELLS: Final = 200
_ASKED: Final = {
    "checkpoint": "asked for a checkpoint",
    "pause": "asked to pause",
    "unpause": "asked to go on",
    "stop": "asked to save and stop",
}


class MonitorApp(Looking):
    """One run on the screen, a second one over it, and the way to others."""

    def __init__(self, source: Replay | None, library: Library | None = None, **how: Any) -> None:
        super().__init__(source, **how)
        self.library = library

    def on_mount(self) -> None:
        """Without a run, the choice of one."""
        if self.source is None:
            self.call_later(self.action_runs)

    def on_unmount(self) -> None:
        """Nothing is read any more."""
        for source in (self.source, self._overlay):
            if source is not None:
                source.close()

    async def on_event(self, event: events.Event) -> None:
        """What is pasted is text of a stranger: where it can be typed into, Textual would draw it as it is."""
        await super().on_event(events.Paste(safe(event.text, _PASTED_CELLS)) if isinstance(event, events.Paste) else event)

    def action_detach(self) -> None:
        """Leave; the run goes on."""
        self.exit()

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = "light" if self.theme == "dark" else "dark"

    def action_copy(self) -> None:
        """The run's id into the terminal's clipboard."""
        if self.snapshot is not None:
            self.copy_to_clipboard(self.snapshot.run.id)
            self.say(f"copied {self.snapshot.run.id}, if this terminal allows it")

    def action_runs(self) -> None:
        """Another run."""
        self._pick("Runs", self._open)

    def action_overlay(self) -> None:
        """A second run in the charts, or none."""
        if self._overlay is not None:
            self._overlay.close()
            self._overlay = self._overlaid = None
            self._whole = None
            self.paint()
        else:
            self._pick("Overlay a run", self._lay_over)

    def _pick(self, title: str, then: Any) -> None:
        from monitor.screen.screens import ListScreen

        if self.library is None:
            self.say("there are no other runs here")
            return
        self.push_screen(ListScreen(title, self.library.rows()), then)

    def _open(self, row: RunRow | None) -> None:
        if row is None:
            if self.source is None:
                self.exit()
            return
        opened = self._opened(row)
        if opened is None:
            return
        if self.source is not None:
            self.source.close()
        self.source, self.snapshot = opened, opened.snapshot()
        self._frozen, self._at, self._whole = None, None, None
        self.view = View(smoothing=self.view.smoothing, sidebar=self.view.sidebar, bottom=self.view.bottom, log=self.view.log, agent=self.view.agent)
        opened.hurry(1 / self._fps)
        self._lay_out()

    def _lay_over(self, row: RunRow | None) -> None:
        opened = self._opened(row) if row is not None else None
        if opened is not None:
            self._overlay, self._overlaid = opened, opened.snapshot()
            self._whole = None
            self.paint()

    def _opened(self, row: RunRow) -> Replay | None:
        assert self.library is not None
        try:
            return self.library.open(row.path)
        except OperantError as error:
            self.say(str(error), alarm=True)
            return None

    # ------------------------------------------------------------------------------------------------------------------------ keys: the trainer

    def action_ask(self, what: str) -> None:
        """Ask the trainer for something, after the person has been asked."""
        from monitor.screen.screens import ConfirmScreen, Question

        snapshot = self.snapshot
        if self.readonly or snapshot is None or self.source is None:
            self.say("this monitor is read-only" if self.readonly else "no run is open", alarm=True)
        elif snapshot.state not in LIVE:
            self.say(f"the run is {snapshot.state}: there is no trainer to ask", alarm=True)
        else:
            verb = "unpause" if what == "pause" and snapshot.state == "paused" else what
            sentence, consequence = _QUESTIONS[verb]
            question = Question(sentence.format(run=snapshot.run.id), consequence, strict=verb == "stop")
            self.push_screen(ConfirmScreen(question), partial(self._answered, verb))

    def _answered(self, verb: Any, yes: bool | None) -> None:
        if yes and self.source is not None:
            self.source.request(verb)
            self.say(_ASKED[verb])

    def action_command_palette(self) -> None:
        """Commands by name; where Textual's palette cannot be drawn, all keys."""
        if self.ascii_only:
            self.action_help()
        else:
            super().action_command_palette()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette has our commands and no others."""
        for key in KEYS:
            if not (key.trains and self.readonly) and key.id not in ("palette", "left", "right", "up", "down"):
                yield SystemCommand(_title(key), f"{key.words} ({keys.shown_keys(key, self._own_keys)})", partial(self.run_action, key.action))


def _title(key: Key) -> str:
    return key.id.replace("_", " ").capitalize()

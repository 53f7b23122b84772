"""What the screen is drawn from: one immutable value, made by the app and handed down to every panel. Standard library
only. Pure; knows no widget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from monitor.data.snapshot import Series, Snapshot
from monitor.screen import keys, layout, view
from monitor.screen.view import Held, View
from operant.text import count


class Frozen(NamedTuple):
    """The picture that is held while training goes on."""

    snapshot: Snapshot
    clock: str  # when, "14:03:11"
    held: Mapping[str, Held]  # what the titles of charts said


class Model(NamedTuple):
    """The run, how the person looks at it, and the screen it is shown on. `with_` makes the next one."""

    newest: Snapshot
    view: View = View()
    overlay: Snapshot | None = None  # the run whose curves lie over this one's
    frozen: Frozen | None = None
    message: str = ""  # one line that takes the place of the state's sentence for a while: what a key did
    alarm: bool = False  # the message is about something that went wrong
    readonly: bool = False
    size: tuple[int, int] = (80, 24)  # of the terminal
    own_keys: Mapping[str, str] = {}  # the person's, by command
    whole: tuple[float, float] | None = None  # the range of x that holds all of the run; it grows in jumps
    newest_x: float = 0.0  # where on the x axis the newest record lies

    def with_(self, **changes: Any) -> Model:
        """The model with some changes, and the range of x that belongs to it; while the picture is frozen, the range
        stays.
        """
        new = self._replace(**changes)
        same = (
            new.view.axis == self.view.axis
            and new.snapshot.run.path == self.snapshot.run.path
            and (new.overlay is None) == (self.overlay is None)
        )
        if new.frozen is not None and same:
            return new
        axis = new.view.axis
        whole = view.whole_window(new._curves(), axis, self.whole if same else None)
        ends = [extent[1] for one in new.snapshot.series.values() if (extent := one.extent(axis)) is not None]
        return new._replace(whole=whole, newest_x=max(ends, default=0.0 if whole is None else whole[1]))

    def _curves(self) -> Iterable[Series]:
        """The run's own curves, and the other run's for the metrics that are on the screen."""
        yield from self.snapshot.series.values()
        if self.overlay is not None:
            yield from (self.overlay.series[name] for name in self.names if name in self.overlay.series)

    @property
    def snapshot(self) -> Snapshot:
        """What is shown: the newest one, or the one that is held."""
        return self.newest if self.frozen is None else self.frozen.snapshot

    @property
    def plan(self) -> layout.Plan:
        """Where things lie."""
        ending = self.snapshot.ending
        return layout.plan(*self.size, self.view, words=0 if ending is None else 4 + len(ending.traceback))

    @property
    def names(self) -> list[str]:
        """The metrics that have a place on the screen, in their order."""
        series, looked = self.snapshot.series, self.view
        if looked.maximised is not None and looked.maximised in series:
            return [looked.maximised]
        first = looked.first_chart if looked.page == "charts" else 0
        return view.chosen(series, looked.filter)[first : first + self.plan.charts]

    @property
    def chosen(self) -> str | None:
        """The metric whose chart is chosen, if that chart is on the screen."""
        return self.view.chosen if self.view.chosen in self.names else None

    @property
    def window(self) -> tuple[float, float] | None:
        """The range of x that the charts show; None while there is no record."""
        return None if self.whole is None else view.window(self.view, self.whole, self.newest_x)

    @property
    def overlaid(self) -> str:
        """The name of the run whose curves lie over this one's, where there are charts."""
        return self.overlay.run.short if self.overlay is not None and self.plan.charts else ""

    @property
    def moment(self) -> float | None:
        """The step of an ended run that is looked at: that of the record whose values are shown."""
        step = self.snapshot.progress.step
        return None if self.view.at is None else self.view.at if step is None or self.snapshot.at_step is None else step

    @property
    def standing(self) -> str:
        """The sentence for as long as the picture is not the live one."""
        if self.frozen is not None:
            more = (self.newest.progress.step or 0) - (self.frozen.snapshot.progress.step or 0)
            goes_on = (
                f"training continues (+{count(more)} steps)" if self.newest.live else f"the run is {self.newest.state}"
            )
            return f"FROZEN at {self.frozen.clock} · {goes_on} · space goes on"
        if (moment := self.moment) is not None:
            return f"as it was at {count(moment)} steps · ← → · end returns"
        return "← → read single values · esc returns" if self.view.inspected is not None else ""

    @property
    def footer(self) -> list[tuple[str, str, str]]:
        """Key, word and action of what the footer offers, the most wanted first."""

        def shown(key: keys.Key, word: str) -> tuple[str, str, str]:
            return keys.shown_keys(key, self.own_keys), word, key.action

        charts = self.plan.charts
        footer = [shown(key, key.footer) for key in keys.KEYS if key.footer and (key.group == "Monitor" or charts)]
        if not self.readonly and self.snapshot.live:
            paused = self.snapshot.state == "paused"
            asks = [
                shown(key, "Go on" if paused and key.id == "pause" else key.id.title())
                for key in keys.KEYS
                if key.trains
            ]
            footer[2:2] = asks  # where few keys have room, these must have it
        return footer

"""Model of the screen: one immutable value that the app updates and passes to every panel. Standard library only. Its
methods are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.data.snapshot import Member, Series, Snapshot
from monitor.screen import keys, layout, view
from monitor.screen.view import Page, TitleValues, View
from operant.runs import LIVE
from operant.text import count

_OF_ONE_RUN = ("agent", "log")  # keys without effect on a group or sweep


class Frozen(NamedTuple):
    """Snapshot at which the user froze the screen, and the time of the freeze."""

    snapshot: Snapshot
    clock: str  # time of the freeze, "14:03:11"
    held: Mapping[str, TitleValues]  # values in the titles of charts


class Model(NamedTuple):
    """Everything that the screen is drawn from: the run's snapshots, the user's view, and the terminal's size.
    Immutable; `with_` makes the next one.
    """

    newest: Snapshot
    view: View = View()
    overlay: Snapshot | None = None  # snapshot of the overlaid run or group
    frozen: Frozen | None = None
    message: str = ""  # message that temporarily replaces the state's sentence
    alarm: bool = False  # the message reports a problem
    readonly: bool = False
    size: tuple[int, int] = (80, 24)  # of the terminal: columns, lines
    own_keys: Mapping[str, str] = {}  # the user's keys by command
    whole: tuple[float, float] | None = None  # range of x of the whole run; grows in jumps
    newest_x: float = 0.0  # x of the newest record
    outer: str = ""  # id of the group or sweep from which the run was opened

    def with_(self, **changes: Any) -> Model:
        """Return a copy of the model with changed fields and the range of x that follows from them. While the screen is
        frozen the range stays.
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
        """Yield the curves of the run, and the overlay's for the visible metrics."""
        yield from self.snapshot.series.values()
        if self.overlay is not None:
            yield from (self.overlay.series[name] for name in self.names if name in self.overlay.series)

    @property
    def snapshot(self) -> Snapshot:
        """Displayed snapshot: the newest, or the one at which the screen was frozen."""
        return self.newest if self.frozen is None else self.frozen.snapshot

    @property
    def plan(self) -> layout.Plan:
        """Layout of the screen for the terminal's size, the view and the run's ending, or the runs of a collection."""
        ending, collected = self.snapshot.ending, self.snapshot.collected
        if collected is not None:
            return layout.collected_plan(
                *self.size, self.view, members=len(collected.members), searched=bool(collected.axes)
            )
        return layout.plan(*self.size, self.view, ending_lines=0 if ending is None else 4 + len(ending.traceback))

    @property
    def pages(self) -> Sequence[Page]:
        """Pages of what is shown: a run, a group or a sweep."""
        collected = self.snapshot.collected
        return view.PAGES if collected is None else view.COLLECTED_PAGES[collected.kind]

    @property
    def members(self) -> Sequence[Member]:
        """Runs of the shown group or sweep in the order of its table: of a sweep the trials with the best objective
        first; () for a single run.
        """
        collected = self.snapshot.collected
        if collected is None or collected.kind == "group":
            return () if collected is None else collected.members
        sign = -1.0 if collected.maximize else 1.0
        return sorted(
            collected.members,
            key=lambda one: (one.value is None, 0.0 if one.value is None else sign * one.value, one.state not in LIVE),
        )

    @property
    def picked(self) -> Member | None:
        """Selected run of the shown group or sweep; None without runs."""
        members = self.members
        return members[min(self.view.member, len(members) - 1)] if members else None

    @property
    def picks_run(self) -> bool:
        """Whether enter opens the selected run of a group or sweep, rather than acting on a chart."""
        return self.chosen is None and self.view.page != "charts" and self.view.maximised is None

    @property
    def names(self) -> list[str]:
        """Names of the metrics whose charts are visible, in display order."""
        series, current = self.snapshot.series, self.view
        if current.maximised is not None and current.maximised in series:
            return [current.maximised]
        first = current.first_chart if current.page == "charts" else 0
        return view.matching(series, current.filter)[first : first + self.plan.charts]

    @property
    def chosen(self) -> str | None:
        """Metric of the selected chart; None if no visible chart is selected."""
        return self.view.chosen if self.view.chosen in self.names else None

    @property
    def window(self) -> tuple[float, float] | None:
        """Range of x that the charts show, (first, last); None without records."""
        return None if self.whole is None else view.window(self.view, self.whole, self.newest_x)

    @property
    def overlay_name(self) -> str:
        """Name of the overlaid run or group if charts are visible; else ""."""
        return self.overlay.run.short if self.overlay is not None and self.plan.charts else ""

    @property
    def shown_step(self) -> float | None:
        """Step at which an ended run is shown, rounded to a record's; None while its end is shown."""
        step = self.snapshot.progress.step
        return None if self.view.at is None else self.view.at if step is None or self.snapshot.at_step is None else step

    @property
    def mode_sentence(self) -> str:
        """Sentence shown while the screen is frozen, shows an earlier step, or inspects a chart; else ""."""
        if self.frozen is not None:
            more = (self.newest.progress.step or 0) - (self.frozen.snapshot.progress.step or 0)
            progress = (
                f"training continues (+{count(more)} steps)" if self.newest.live else f"the run is {self.newest.state}"
            )
            return f"FROZEN at {self.frozen.clock} · {progress} · space unfreezes"
        if (moment := self.shown_step) is not None:
            return f"showing the run at {count(moment)} steps · ← → · end returns"
        return "← → move the cursor · esc returns" if self.view.inspected is not None else ""

    @property
    def footer(self) -> list[tuple[str, str, str]]:
        """Commands of the screen's last line as (key, label, action), most important first."""

        def shown(key: keys.Key, word: str) -> tuple[str, str, str]:
            return keys.shown_keys(key, self.own_keys), word, key.action

        charts = self.plan.charts
        several = self.snapshot.collected is not None
        footer = [
            shown(key, "Open" if several and key.id == "maximise" and self.picks_run else key.footer)
            for key in keys.KEYS
            if key.footer
            and (key.group == "Monitor" or charts or (several and key.id == "maximise"))
            and not (several and key.id in _OF_ONE_RUN)
        ]
        if not self.readonly and self.snapshot.live:
            paused = self.snapshot.state == "paused"
            asks = [
                shown(key, "Resume" if paused and key.id == "pause" else key.id.title())
                for key in keys.KEYS
                if key.trains
            ]
            footer[2:2] = asks  # must fit even in a narrow footer
        return footer

"""One run on the screen: every panel and chart, laid out by the plan and drawn from the model. Knows no source, no key
and no dialog.
"""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from monitor.charts.grid import ChartGrid
from monitor.charts.picture import AgentPicture
from monitor.charts.plots import Stage
from monitor.screen import header, layout, log, panels
from monitor.screen.layout import REST, Plan
from monitor.screen.model import Model
from monitor.screen.panel import Panel

_PLACED: Final = (
    "words",
    "log",
    "health",
    "health_line",
    "explained",
    "config",
    "numbers",
)  # panels that the plan shows or hides by their names


class RunView(Container):
    """The screen below the dialogs. Its model comes from the app; each panel repaints only the cells that change."""

    class Resized(Message):
        """Everything is laid out for another size than before."""

    model: reactive[Model | None] = reactive(None, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._plan: Plan | None = None
        self._sized = False
        self.charts = ChartGrid(id="charts")
        self.agent = AgentPicture(id="agent")
        every = (
            Panel(header.header, id="header", classes="row"),
            Panel(header.progress, id="progress", classes="row"),
            Panel(header.figures, id="figures"),
            Panel(header.message, id="message", classes="row"),
            Panel(panels.health_line, sees=lambda model: model.snapshot.health, id="health_line", classes="row"),
            Panel(header.numbers, id="numbers"),
            Panel(panels.empty, id="empty"),
            Panel(panels.explained, title="Health", sees=lambda model: model.snapshot.health, id="explained"),
            Panel(
                panels.config,
                title="config.toml",
                sees=lambda model: (model.snapshot.config, model.view.scroll),
                id="config",
            ),
            Panel(
                panels.last_words,
                title="How it ended",
                sees=lambda model: (model.snapshot.ending, model.snapshot.state),
                id="words",
            ),
            Panel(
                log.log,
                title="Log",
                sees=lambda model: (model.snapshot.log, model.view.scroll, model.view.filter, model.view.page),
                id="log",
            ),
            Panel(panels.health, title="Health", sees=lambda model: model.snapshot.health, id="health"),
            Panel(panels.time, title=panels.time_title, sees=lambda model: model.snapshot.phases, id="time"),
            Panel(
                panels.machine,
                title="GPU and process",
                sees=lambda model: (model.snapshot.system, model.snapshot.state),
                id="machine",
            ),
            Panel(header.footer, sees=lambda model: model.footer, id="footer", classes="row"),
        )
        self.panels = {panel.id or "": panel for panel in every}

    def compose(self) -> ComposeResult:
        """All panels once; the plan says which of them are shown."""
        panel = self.panels
        yield from (panel[name] for name in ("header", "progress", "figures", "message", "health_line"))
        self._bottom = Container(self.agent, panel["words"], panel["log"], id="bottom")
        self._main = Container(
            self.charts, panel["empty"], panel["numbers"], panel["explained"], panel["config"], self._bottom, id="main"
        )
        self._sidebar = Container(panel["health"], panel["time"], panel["machine"], id="sidebar")
        yield Container(self._main, self._sidebar, id="body")
        yield panel["footer"]

    def on_mount(self) -> None:
        """The first picture has everything in it."""
        self.watch_model(self.model)

    def on_resize(self) -> None:
        """All sizes but the first are news."""
        if self._sized:
            self.post_message(self.Resized())
        self._sized = True

    def watch_model(self, model: Model | None) -> None:
        """Hand everything that is shown what it shows."""
        if not self.is_mounted or model is None:
            return
        plan = model.plan
        if plan != self._plan:
            self._lay_out(plan, model.size)
        names = model.names if plan.charts else []
        _show(self.charts, bool(names))
        _show(self.panels["empty"], plan.charts > 0 and not names)
        for panel in self.panels.values():
            panel.show(model)
        if names:
            self.charts.show(names, model.snapshot.series, self._stage(model))
        if plan.agent:
            self.agent.show(
                model.snapshot.frame, absent=model.snapshot.agent_absent, title=panels.agent_title(model.snapshot)
            )

    def _lay_out(self, plan: Plan, size: tuple[int, int]) -> None:
        self._plan, panel = plan, self.panels
        _size(panel["figures"], height=plan.figure_lines)
        _show(panel["progress"], not layout.is_small(*size))
        self.charts.make_room(plan.columns, plan.rows)
        _show(self.agent, plan.agent)
        for name in _PLACED:
            _show(panel[name], getattr(plan, name))
        _size(self._bottom, height=plan.bottom)
        _size(self._sidebar, width=plan.sidebar)
        _size(panel["time"], height=plan.time_lines)
        _size(panel["machine"], height=plan.machine_lines)
        _show(self._main, plan.sidebar != REST)

    def _stage(self, model: Model) -> Stage:
        snapshot, axis = model.snapshot, model.view.axis
        moments = {
            "step": snapshot.progress.step,
            "iteration": snapshot.progress.iterations,
            "wall": snapshot.progress.up_s,
        }
        return Stage(
            model.view,
            model.window,
            snapshot.marks,
            snapshot.run.target,
            newest=model.newest_x,
            until=None if model.frozen is None else moments[axis],
            at=model.moment if axis == "step" else None,
            held=None if model.frozen is None else model.frozen.held,
            figures={figure.metric: figure.value for figure in snapshot.figures},
            overlay=None if model.overlay is None else model.overlay.series,
            overlay_name=model.overlaid,
            overlay_band=model.overlay is not None and model.overlay.seeds > 1,
            empty="no value yet" if snapshot.live else "the run has no value of it",
        )


def _show(widget: Widget, shown: bool) -> None:
    if widget.display != shown:
        widget.display = shown


def _size(widget: Widget, *, width: int | None = None, height: int | None = None) -> None:
    """Give a widget cells, the rest (REST), or no place at all (0)."""
    cells = height if height is not None else width or 0
    _show(widget, cells != 0)
    wanted: int | str = "1fr" if cells == REST else max(1, cells)
    if height is not None:
        widget.styles.height = wanted
    else:
        widget.styles.width = wanted

"""View of one run: all panels and charts, laid out by the plan and drawn from the model."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from monitor.charts.agent_picture import AgentPicture
from monitor.charts.chart_data import ChartContext
from monitor.charts.grid import ChartGrid
from monitor.charts.search import SearchPicture
from monitor.screen import collected, header, layout, log, panels
from monitor.screen.layout import REST, Plan
from monitor.screen.model import Model
from monitor.screen.panel import Panel

_OPTIONAL: Final = (
    "ending",
    "log",
    "health",
    "health_line",
    "explained",
    "config",
    "compact",
    "members",
)  # panels that the plan's fields of the same name show or hide


class RunView(Container):
    """Widget that shows one run: all panels and charts of the screen. The app binds its `model`; each panel then
    repaints only the cells that changed.
    """

    class Resized(Message):
        """Posted when all panels of the run view are laid out for a new size."""

    model: reactive[Model | None] = reactive(None, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._plan: Plan | None = None
        self._has_size = False
        self.charts = ChartGrid(id="charts")
        self.agent = AgentPicture(id="agent")
        self.search = SearchPicture(id="search")
        every = (
            Panel(header.header, id="header", classes="row"),
            Panel(header.progress, id="progress", classes="row"),
            Panel(header.figures, id="figures"),
            Panel(header.message, id="message", classes="row"),
            Panel(panels.health_line, depends_on=lambda model: model.snapshot.health, id="health_line", classes="row"),
            Panel(header.compact_lines, id="compact"),
            Panel(panels.empty, id="empty"),
            Panel(panels.explained, title="Health", depends_on=lambda model: model.snapshot.health, id="explained"),
            Panel(
                panels.config,
                title="config.toml",
                depends_on=lambda model: (model.snapshot.config, model.view.scroll),
                id="config",
            ),
            Panel(
                panels.ending,
                title="How it ended",
                depends_on=lambda model: (model.snapshot.ending, model.snapshot.state),
                id="ending",
            ),
            Panel(
                log.log,
                title="Log",
                depends_on=lambda model: (model.snapshot.log, model.view.scroll, model.view.filter, model.view.page),
                id="log",
            ),
            Panel(
                collected.table,
                title=collected.title,
                depends_on=lambda model: (model.snapshot.collected, model.view.member),
                id="members",
            ),
            Panel(panels.health, title="Health", depends_on=lambda model: model.snapshot.health, id="health"),
            Panel(panels.time, title=panels.time_title, depends_on=lambda model: model.snapshot.phases, id="time"),
            Panel(
                panels.machine,
                title="GPU and process",
                depends_on=lambda model: (model.snapshot.system, model.snapshot.state),
                id="machine",
            ),
            Panel(header.footer, depends_on=lambda model: model.footer, id="footer", classes="row"),
        )
        self.panels = {panel.id or "": panel for panel in every}

    def compose(self) -> ComposeResult:
        """Create all panels and charts; `watch_model` shows, hides and sizes them by the layout plan
        (`monitor.screen.layout.Plan`).
        """
        panel = self.panels
        yield from (panel[name] for name in ("header", "progress", "figures", "message", "health_line"))
        self._bottom = Container(self.agent, panel["ending"], panel["log"], panel["members"], self.search, id="bottom")
        self._main = Container(
            self.charts, panel["empty"], panel["compact"], panel["explained"], panel["config"], self._bottom, id="main"
        )
        self._sidebar = Container(panel["health"], panel["time"], panel["machine"], id="sidebar")
        yield Container(self._main, self._sidebar, id="body")
        yield panel["footer"]

    def on_mount(self) -> None:
        """Draw the first model in every panel of the run view."""
        self.watch_model(self.model)

    def on_resize(self) -> None:
        """Post `Resized` so that the screen is drawn again, except for the view's first size."""
        if self._has_size:
            self.post_message(self.Resized())
        self._has_size = True

    def watch_model(self, model: Model | None) -> None:
        """Lay out the panels if the layout plan has changed, and draw the model in every visible one."""
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
            self.charts.show(names, model.snapshot.series, self._chart_context(model))
        if plan.search and model.snapshot.collected is not None:
            self.search.show(model.snapshot.collected, model.picked)
        if plan.agent:
            self.agent.show(
                model.snapshot.frame, absent=model.snapshot.agent_absent, title=panels.agent_title(model.snapshot)
            )

    def _lay_out(self, plan: Plan, size: tuple[int, int]) -> None:
        """Show, hide and size all panels as `plan` says, for a terminal of `size` cells."""
        self._plan, panel = plan, self.panels
        _size(panel["figures"], height=plan.figure_lines)
        _show(panel["progress"], not layout.is_small(*size))
        self.charts.set_grid(plan.columns, plan.rows)
        _show(self.agent, plan.agent)
        _show(self.search, plan.search)
        for name in _OPTIONAL:
            _show(panel[name], getattr(plan, name))
        _size(self._bottom, height=plan.bottom)
        _size(self._sidebar, width=plan.sidebar)
        _size(panel["time"], height=plan.time_lines)
        _size(panel["machine"], height=plan.machine_lines)
        _show(self._main, plan.sidebar != REST)

    def _chart_context(self, model: Model) -> ChartContext:
        """Collect the state that all charts share from the model."""
        snapshot, axis = model.snapshot, model.view.axis
        moments = {
            "step": snapshot.progress.step,
            "iteration": snapshot.progress.iterations,
            "wall": snapshot.progress.up_s,
        }
        picked = model.picked
        return ChartContext(
            model.view,
            model.window,
            snapshot.marks,
            snapshot.run.target,
            newest=model.newest_x,
            until=None if model.frozen is None else moments[axis],
            at=model.shown_step if axis == "step" else None,
            held=None if model.frozen is None else model.frozen.held,
            figures={figure.metric: figure.value for figure in snapshot.figures},
            overlay=None if model.overlay is None else model.overlay.series,
            overlay_name=model.overlay_name or ("" if picked is None else picked.name),
            picked="" if picked is None or model.overlay is not None else picked.path,
            overlay_band=model.overlay is not None and model.overlay.seeds > 1,
            empty="no value yet" if snapshot.live else "no values recorded",
        )


def _show(widget: Widget, shown: bool) -> None:
    """Show or hide a widget; nothing if it already is."""
    if widget.display != shown:
        widget.display = shown


def _size(widget: Widget, *, width: int | None = None, height: int | None = None) -> None:
    """Set a widget's width or height to a number of cells or the remaining space (REST), or hide it (0)."""
    cells = height if height is not None else width or 0
    _show(widget, cells != 0)
    wanted: int | str = "1fr" if cells == REST else max(1, cells)
    if height is not None:
        widget.styles.height = wanted
    else:
        widget.styles.width = wanted

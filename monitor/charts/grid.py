"""The grid of charts: which metric stands where. Knows what charts there are and how a person looks at them, nothing of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.message import Message
from textual.widget import Widget

from monitor.charts.chart import Chart
from monitor.charts.plots import Stage, chart_data
from monitor.data.snapshot import Series
from monitor.screen.view import View


class MetricChart(Chart):
    """A chart that knows which metric it shows at the moment."""

    metric: str = ""

    class Resized(Message):
        """A chart has another size, and so wants other points."""

        bubble = True

        def can_replace(self, message: Message) -> bool:
            """One is as good as many."""
            return isinstance(message, MetricChart.Resized)

    def on_resize(self) -> None:
        """Ask for points that fit."""
        self.post_message(self.Resized())


class ChartGrid(Widget):
    """Charts in columns and rows, as many as `make_room` was told. Empty places stay empty."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.charts: list[MetricChart] = []
        self.names: list[str] = []
        self._seen: tuple[object, ...] = ()

    def make_room(self, columns: int, rows: int) -> None:
        """Make room for so many charts; those that are left over are hidden."""
        if (self.styles.grid_size_columns, self.styles.grid_size_rows) != (columns, rows) and columns and rows:
            self.styles.grid_size_columns, self.styles.grid_size_rows = columns, rows
        new = [MetricChart() for _ in range(columns * rows - len(self.charts))]
        if new:
            self.charts += new
            self.mount_all(new)
        for index, chart in enumerate(self.charts):
            shown = index < columns * rows
            if chart.display != shown:
                chart.display = shown

    @property
    def columns(self) -> int:
        """Charts beside each other."""
        return self.styles.grid_size_columns or 1

    @property
    def chosen(self) -> MetricChart | None:
        """The chart that has the focus."""
        return next((chart for chart in self.charts if chart.has_focus and chart.metric), None)

    def show(self, names: Sequence[str], series: Mapping[str, Series], stage: Stage) -> None:
        """Draw these metrics, one a place."""
        self.names = list(names)
        seen = _fitted_for(stage.view, stage)
        refit, self._seen = seen != self._seen, seen
        for index, chart in enumerate(self.charts):
            if not chart.display:
                continue
            metric = names[index] if index < len(names) else ""
            other, chart.metric = metric != chart.metric, metric
            chart.visible = bool(metric)
            if metric:
                chart.show(chart_data(series[metric], stage, chart.plot_columns), refit=refit or other)

    def choose(self, metric: str) -> None:
        """Give the focus to a metric's chart, where it is on the screen."""
        for chart in self.charts:
            if chart.display and chart.metric == metric:
                chart.focus(scroll_visible=False)


def _fitted_for(view: View, stage: Stage) -> tuple[object, ...]:
    """What a y range is chosen for: when it changes, ranges are chosen anew."""
    return view.axis, view.zoom, view.end, view.smoothing, stage.overlay is None

"""The grid of charts: which metric is in which place. Knows charts and the view, no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.message import Message
from textual.widget import Widget

from monitor.charts.chart import Chart, ChartData
from monitor.charts.palette import Palette, Rows
from monitor.charts.plots import Stage, chart_data
from monitor.data.snapshot import Series


class MetricChart(Chart):
    """A chart of the metric that it shows at the moment."""

    class Chosen(Message):
        """A chart was clicked."""

        def __init__(self, metric: str) -> None:
            super().__init__()
            self.metric = metric

    def __init__(self) -> None:
        super().__init__()
        self.series: Series | None = None
        self._stage: Stage | None = None
        self._columns = 0  # that the points are made for

    @property
    def metric(self) -> str:
        """The name of the metric; empty where the place is."""
        return "" if self.series is None else self.series.name

    def show_series(self, series: Series | None, stage: Stage, *, refit: bool) -> None:
        """Draw a metric; only cells that changed are repainted."""
        refit = refit or (series and series.name) != (self.series and self.series.name)
        self.series, self._stage = series, stage
        self.visible = series is not None
        self.show(self._made(), refit=refit)

    def _made(self) -> ChartData:
        self._columns = self.plot_columns
        if self.series is None or self._stage is None:
            return ChartData()
        return chart_data(self.series, self._stage._replace(glyphs=self.palette.glyphs), self._columns)

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """The chart in a size, with as many points as fit."""
        if self._columns != self.plot_columns:
            self.data = self._made()
        return super().draw(width, height, palette)

    def on_click(self) -> None:
        """Keys apply to this chart from now on."""
        if self.metric:
            self.post_message(self.Chosen(self.metric))


class ChartGrid(Widget):
    """Charts in columns and rows, as many as the last `make_room` gave. Places without a metric stay empty."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.charts: list[MetricChart] = []
        self._fitted_for: tuple[object, ...] = ()

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

    def show(self, names: Sequence[str], series: Mapping[str, Series], stage: Stage) -> None:
        """Draw these metrics, one a place."""
        view = stage.view
        # when one of these changes, y ranges are chosen anew
        wanted = view.axis, view.zoom, view.end, view.smoothing, stage.overlay is None
        refit, self._fitted_for = wanted != self._fitted_for, wanted
        shown = [chart for chart in self.charts if chart.display]
        for index, chart in enumerate(shown):
            chart.show_series(series[names[index]] if index < len(names) else None, stage, refit=refit)

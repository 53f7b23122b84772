"""Grid of charts: assigns metrics to charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.message import Message
from textual.widget import Widget

from monitor.charts.chart import Chart, ChartData
from monitor.charts.chart_data import ChartContext, chart_data
from monitor.charts.palette import Palette, Rows
from monitor.data.snapshot import Series


class MetricChart(Chart):
    """Chart of one metric in the grid; it gets another metric when the user scrolls or filters."""

    class Chosen(Message):
        """Posted with the metric's name when its chart is clicked."""

        def __init__(self, metric: str) -> None:
            super().__init__()
            self.metric = metric

    def __init__(self) -> None:
        super().__init__()
        self.series: Series | None = None
        self._chart_context: ChartContext | None = None
        self._columns = 0  # number of points that were drawn

    @property
    def metric(self) -> str:
        """Name of the chart's metric; "" for an unused chart."""
        return "" if self.series is None else self.series.name

    def show_series(self, series: Series | None, context: ChartContext, *, refit: bool) -> None:
        """Draw the chart of the metric `series`, repainting only cells that changed. None hides the chart; `refit` fits
        the y range again.
        """
        refit = refit or (series and series.name) != (self.series and self.series.name)
        self.series, self._chart_context = series, context
        self.visible = series is not None
        self.show(self._chart_data(), refit=refit)

    def _chart_data(self) -> ChartData:
        """Compute the chart's data for the present size of its plot."""
        self._columns = self.plot_columns
        if self.series is None or self._chart_context is None:
            return ChartData()
        return chart_data(self.series, self._chart_context._replace(glyphs=self.palette.glyphs), self._columns)

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """Draw the metric's chart as `height` rows of `width` cells, with points resampled if their number changes."""
        if self._columns != self.plot_columns:
            self.data = self._chart_data()
        return super().draw(width, height, palette)

    def on_click(self) -> None:
        """Post `Chosen`, which selects this chart, if it shows a metric."""
        if self.metric:
            self.post_message(self.Chosen(self.metric))


class ChartGrid(Widget):
    """Grid of metric charts; `set_grid` sets its rows and columns. Charts without a metric stay empty."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.charts: list[MetricChart] = []
        self._fitted_for: tuple[object, ...] = ()

    def set_grid(self, columns: int, rows: int) -> None:
        """Show `columns` x `rows` charts and hide the others."""
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

    def show(self, names: Sequence[str], series: Mapping[str, Series], context: ChartContext) -> None:
        """Draw the metrics `names`, one in each chart of the grid; charts beyond them are hidden."""
        view = context.view
        # y ranges are recomputed when one of these changes
        key = view.axis, view.zoom, view.end, view.smoothing, context.overlay is None
        refit, self._fitted_for = key != self._fitted_for, key
        shown = [chart for chart in self.charts if chart.display]
        for index, chart in enumerate(shown):
            chart.show_series(series[names[index]] if index < len(names) else None, context, refit=refit)

"""Charts: any data at any size is a full grid of plain cells; lines, bands, gaps and marks are at their positions;
ranges are stable; only changes are sent.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App

from monitor.charts import Piece, metric_text, row_of
from monitor.charts.braille import ColumnCache, Plot, bridged, draw_plot
from monitor.charts.canvas import changed_runs
from monitor.charts.cells import justified, line, styled, text_of
from monitor.charts.chart import Chart, ChartData, ChartMark, ChartState, Layout, draw_chart, y_labels
from monitor.charts.palette import (
    ASCII,
    OKABE_ITO,
    UNICODE,
    Cell,
    Palette,
    Style,
    channels,
    contrast,
    luminance,
    mix,
    readable,
)
from monitor.charts.scale import Range, nice_step, tick_text, tick_value, ticks, window, y_range
from monitor.data.snapshot import Point
from monitor.screen import capture
from monitor.screen.diff_renderer import DiffRenderer
from operant.text import cells

DARK, LIGHT, PLAIN = Palette(), Palette(dark=False), Palette(ascii_only=True)


def points_of(means, spread=0.0):
    return [None if mean is None else Point(mean - spread, mean, mean + spread) for mean in means]


def dots_of(rows, tokens=None):
    """Lit braille dots as (dot column, dot row), of all cells or of those whose foreground is among `tokens`."""
    bits = ((0, 0, 1), (0, 1, 2), (0, 2, 4), (1, 0, 8), (1, 1, 16), (1, 2, 32), (0, 3, 64), (1, 3, 128))
    return {
        (2 * x + column, 4 * y + row)
        for y, cells_ in enumerate(rows)
        for x, cell in enumerate(cells_)
        if 0x2800 <= ord(cell.character) < 0x2900 and (tokens is None or cell.style.fore in tokens)
        for column, row, bit in bits
        if ord(cell.character) - 0x2800 & bit
    }


# ANY DATA, ANY SIZE

finite = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, 1.0, -1.0, 1e9, 1e-9, 1.7e308, -1.7e308, 5e-324]
)
some_point = st.builds(
    lambda values, bad: Point(*sorted(values), bad), st.tuples(finite, finite, finite), st.booleans()
)
some_points = st.lists(st.none() | some_point, max_size=60)
some_marks = st.lists(
    st.builds(ChartMark, st.sampled_from(["checkpoint", "eval", "resume", "not_finite"]), st.floats(-0.5, 1.5)),
    max_size=6,
)
some_data = st.builds(
    ChartData,
    title=st.text(max_size=12),
    value=st.text(max_size=8),
    trend=st.sampled_from(["", "▲"]),
    rate=st.text(max_size=9),
    best=st.text(max_size=9),
    trend_level=st.sampled_from([None, "ok", "warn", "bad"]),
    points=some_points,
    overlay=some_points,
    strands=st.lists(some_points, max_size=2),
    marks=some_marks,
    x_left=st.text(max_size=9),
    x_right=st.text(max_size=9),
    log_y=st.booleans(),
    cursor=st.none() | st.integers(-5, 200),
    reading=st.text(max_size=9),
    target=st.none() | finite,
    empty=st.text(max_size=90),
    colour=st.integers(0, 7),
    overlay_colour=st.integers(0, 7),
)


some_charts = (
    st.lists(some_data, min_size=1, max_size=3),
    st.integers(1, 70),
    st.integers(1, 20),
    st.sampled_from([DARK, LIGHT, PLAIN]),
    st.booleans(),
)


def check_that_a_chart_is_a_full_grid_of_plain_cells(datas, width, height, palette, focused):
    memory = ChartState()
    for data in datas:
        rows = draw_chart(data, width, height, palette, memory, focused)
        assert [len(row) for row in rows] == [width] * height
        for cell in {cell for row in rows for cell in row}:
            assert len(cell.character) == 1 and cell.character.isprintable() and cells(cell.character) == 1
            assert re.fullmatch("#[0-9A-F]{6}", palette.hex(cell.style.fore)) and re.fullmatch(
                "#[0-9A-F]{6}", palette.hex(cell.style.back)
            )


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(*some_charts)
def test_any_chart_is_a_full_grid_of_plain_cells(datas, width, height, palette, focused):
    check_that_a_chart_is_a_full_grid_of_plain_cells(datas, width, height, palette, focused)


@pytest.mark.soak
@settings(max_examples=15_000, deadline=None)
@given(*some_charts)
def test_very_many_charts_are_full_grids_of_plain_cells(datas, width, height, palette, focused):
    check_that_a_chart_is_a_full_grid_of_plain_cells(datas, width, height, palette, focused)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(some_points, min_size=2, max_size=4),
    st.integers(1, 30),
    st.integers(1, 8),
    st.sampled_from([UNICODE, ASCII]),
)
def test_columns_that_were_kept_are_those_that_would_be_drawn(pictures, width, height, glyphs):
    memory, shown = ColumnCache(), Range(-10.0, 10.0)
    for points in pictures:
        plot = Plot(points, shown, overlay=points[1:], target=1.0, verticals={3: "┊"})
        assert draw_plot(plot, width, height, glyphs, memory) == draw_plot(plot, width, height, glyphs, ColumnCache())


def test_ascii_charts_are_ascii():
    data = ChartData(
        "return",
        "1",
        "^",
        points=points_of([1, 2, None, None, None, None, 5, 3] * 9, 0.5),
        overlay=points_of([4] * 70),
        target=2.0,
        marks=[ChartMark(kind, 0.5) for kind in ("checkpoint", "eval", "resume", "not_finite")],
        x_left="0",
        x_right="9",
    )
    for focused in (False, True):
        assert "".join(text_of(draw_chart(data, 50, 12, PLAIN, ChartState(), focused))).isascii()


# THE PLOT


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 39), min_size=8, max_size=60))
def test_the_line_passes_every_mean_and_hangs_together(levels):
    width = (len(levels) + 1) // 2
    lit = dots_of(draw_plot(Plot(points_of(map(float, levels)), Range(0.0, 39.0)), width, 10, UNICODE, ColumnCache()))
    columns = {}
    for column, row in lit:
        columns.setdefault(column, set()).add(row)
    assert set(columns) == set(range(len(levels)))
    for index, level in enumerate(levels):
        rows = columns[index]
        assert 39 - level in rows
        assert rows == set(range(min(rows), max(rows) + 1))
        if index:
            before = columns[index - 1]
            assert min(abs(one - other) for one in rows for other in before) <= 1
            # Nothing but the way to the neighbours.
        near = levels[max(0, index - 1) : index + 2]
        assert rows <= set(range(39 - max(near), 39 - min(near) + 1))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1, None, 3, None, 5], [1, 2, 3, 4, 5]),  # every second column has a point: buckets wider than a column
        ([1, 1, 1, None, None, None, None, 9, 9], [1, 1, 1, None, None, None, None, 9, 9]),  # a gap
        (
            [1, 1, None, None, 1, 1],
            [1, 1, 1, 1, 1, 1],
        ),  # narrower than twice the usual distance, or than two dot columns
        (
            [None, 4, None, None, None, None, None, 8, None],
            [None, 4, 5, 5, 6, 7, 7, 8, None],
        ),  # two points: how they hang together
        ([None] * 4, [None] * 4),
        ([None, 2, None], [None, 2, None]),
        ([0, None, None, 0, None, None, 0, None, None, 0, *[None] * 8, 0], [0] * 10 + [None] * 8 + [0]),
    ],
)
def test_gaps_stay_gaps_and_wide_buckets_are_none(rows, expected):
    assert bridged(rows) == expected


def test_the_band_reaches_from_smallest_to_largest_value():
    # 8 rows of cells for values 0 to 31: a dot row each. The band from 8 to 23 is the four middle rows.
    rows = draw_plot(Plot([Point(8.0, 16.0, 23.0)] * 6, Range(0.0, 31.0)), 3, 8, UNICODE, ColumnCache())
    assert [[bool(cell.style.back) for cell in row] for row in rows] == [[False] * 3] * 2 + [[True] * 3] * 4 + [
        [False] * 3
    ] * 2
    assert {cell.style.back for row in rows[2:6] for cell in row} == {"band.0"}


def test_a_log_axis_has_decades_of_one_height_and_no_place_for_zero():
    plot = Plot(points_of([1.0, 10.0, 100.0, 1000.0, 0.0, -5.0]), Range(0.0, 3.0, log=True))
    lit = dots_of(draw_plot(plot, 3, 1, UNICODE, ColumnCache()))
    assert {(0, 3), (1, 2), (2, 1), (3, 0)} <= lit
    assert not {column for column, _ in lit} & {4, 5}


def test_an_overlaid_run_differs_without_colour():
    points = points_of([5.0] * 40)
    rows = draw_plot(Plot(points, Range(0.0, 9.0), overlay=points_of([2.0] * 40)), 20, 5, UNICODE, ColumnCache())
    own, other = dots_of(rows, {"series.0"}), dots_of(rows, {"series.1"})
    assert {column for column, _ in own} == set(range(40))
    assert {column for column, _ in other} == set(range(0, 40, 2))
    assert {row for _, row in own}.isdisjoint(row for _, row in other)


def test_the_mean_of_a_group_is_drawn_over_the_line_of_a_run():
    points = points_of([5.0] * 40)
    for glyphs, expected in ((UNICODE, "series.1"), (ASCII, "series.1")):
        plot = Plot(points, Range(0.0, 9.0), overlay=points, overlay_band=True)
        drawn = draw_plot(plot, 20, 5, glyphs, ColumnCache())
        lit = [cell for row in drawn for cell in row if cell.character not in (" ", ",", "⠀")]
        assert lit and {cell.style.fore for cell in lit} == {expected}
        beneath = draw_plot(plot._replace(overlay_band=False), 20, 5, glyphs, ColumnCache())
        assert "series.1" not in {cell.style.fore for row in beneath for cell in row}
    # The dots of both are drawn where they share a cell.
    both = draw_plot(Plot(points, Range(0.0, 9.0), overlay=points, overlay_band=True), 20, 5, UNICODE, ColumnCache())
    assert dots_of(both) == dots_of(draw_plot(Plot(points, Range(0.0, 9.0)), 20, 5, UNICODE, ColumnCache()))


def test_the_interval_of_a_mean_of_few_runs_does_not_stretch_the_axis():
    """Two runs with 1,000 and 2,000 steps per second: the interval reaches from -4,853 to 7,853."""
    points, mean = points_of([1000.0] * 40), [Point(-4853.0, 1500.0, 7853.0)] * 40
    state = ChartState()
    draw_chart(ChartData(points=points, overlay=mean, overlay_band=True), 40, 10, Palette(), state)
    assert state.shown.low >= 0 and state.shown.high <= 2000


def test_the_band_of_a_group_lies_behind_the_runs_own():
    over = points_of([2.0] * 40, 1.5)
    for glyphs, behind in (
        (UNICODE, lambda cell: cell.style.back == "band.1"),
        (ASCII, lambda cell: cell.character == ","),
    ):
        for points, seen in ((points_of([8.0] * 40), True), (points_of([2.0] * 40, 3.0), False)):
            rows = draw_plot(
                Plot(points, Range(0.0, 9.0), overlay=over, overlay_band=True), 20, 9, glyphs, ColumnCache()
            )
            assert any(behind(cell) for row in rows for cell in row) == seen
        rows = draw_plot(Plot(points_of([8.0] * 40), Range(0.0, 9.0), overlay=over), 20, 9, glyphs, ColumnCache())
        assert not any(behind(cell) for row in rows for cell in row)


def test_target_resume_and_cursor_are_drawn():
    plot = Plot(points_of([0.0] * 20), Range(0.0, 10.0), target=10.0, verticals={4: "┊"}, cursor=7)
    rows = draw_plot(plot, 10, 4, UNICODE, ColumnCache())
    assert all(cell.character == "⠁" and cell.style.fore == "dim" for x, cell in enumerate(rows[0]) if x != 4)
    assert [row[4].character for row in rows[:3]] == ["┊"] * 3
    assert [[cell.style.back == "cursor" for cell in row] for row in rows] == [[x == 7 for x in range(10)]] * 4


@pytest.mark.parametrize(
    ("means", "drawn"), [(range(10), "/"), (range(9, -1, -1), "\\"), ([0] * 5 + [9] * 5, "-|"), ([4] * 8, "-")]
)
def test_ascii_lines_have_a_direction(means, drawn):
    rows = draw_plot(Plot(points_of(map(float, means)), Range(0.0, 9.0)), len(means) // 2, 10, ASCII, ColumnCache())
    assert {cell.character for row in rows for cell in row if cell.style.fore == "series.0"} == set(drawn)


# RANGES AND TICKS


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-1e200, 1e200) | st.floats(-1.0, 1.0), min_size=1, max_size=30), st.floats(0, 1e6), st.booleans()
)
def test_a_range_holds_all_means(means, spread, log):
    points = points_of(means, spread)
    shown = y_range(points, log)
    held = [mean for mean in means if not log or mean > 1e-290]
    assert (shown is None) == (not held)
    if shown is not None:
        assert shown.low < shown.high
        assert all(-1e-6 <= shown.position(mean) <= 1 + 1e-6 for mean in held)


@pytest.mark.parametrize(
    ("means", "spread", "low", "high"),
    [
        ([9.0, 487.0], 0.0, 0.0, 500.0),
        ([-1500.0, -170.0], 0.0, -1500.0, 0.0),
        ([0.31, 0.69], 0.0, 0.3, 0.7),
        ([0.0], 0.0, 0.0, 1.0),
        ([4.7e6], 0.0, 4.6e6, 4.8e6),
        ([12.0] * 5, 0.0, 11.75, 12.25),
        ([1e9, 0.0], 0.0, 0.0, 1e9),
        ([-1e-9, 1e-9], 0.0, -1e-9, 1e-9),
        ([5.0] * 20, 1.0, 4.0, 6.0),
    ],
)
def test_ranges_have_round_ends(means, spread, low, high):
    shown = y_range(points_of(means, spread))
    assert (shown.low, shown.high) == (pytest.approx(low, abs=1e-12 * abs(high)), pytest.approx(high))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(-1e6, 1e6), st.floats(0, 0.05))
def test_a_nearly_constant_metric_is_within_its_range(middle, share):
    means = [middle * (1 - share), middle, middle * (1 + share)]
    shown = y_range(points_of(means))
    assert all(-1e-6 <= shown.position(mean) <= 1 + 1e-6 for mean in means)


def test_one_outlier_of_a_band_does_not_flatten_the_line():
    points = [*points_of([1.0, 2.0, 3.0] * 10, 0.1), Point(1.0, 2.0, 1e6)]
    assert y_range(points).high < 20


def test_a_range_stands_still_under_noise():
    draw = random.Random(1)
    shown, changes = None, 0
    for _ in range(400):
        now = y_range(points_of([100 + draw.gauss(0, 5) for _ in range(60)], 2.0), previous=shown)
        changes, shown = changes + (now != shown), now
    # Four hundred windows that have nothing in common, as no two pictures of a run do.
    assert changes <= 12


def test_a_range_grows_with_room_to_spare_and_shrinks_late():
    first = y_range(points_of([0.0, 100.0]))
    assert first == Range(0.0, 100.0)
    grown = y_range(points_of([0.0, 101.0]), previous=first)
    assert grown.high >= 101 + 0.1 * 100
    assert y_range(points_of([0.0, 80.0]), previous=first) == first
    assert y_range(points_of([0.0, 30.0]), previous=first) == Range(0.0, 40.0)
    # Another kind of axis is another range.
    assert y_range(points_of([1.0, 80.0]), log=True, previous=first).log


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (500, "500"),
        (0.25, "0.25"),
        (0.008, "0.008"),
        (-170, "-170"),
        (1500, "1.5k"),
        (2000, "2k"),
        (1024, "1024"),
        (1.5e6, "1.5M"),
        (-1.2e6, "-1.2M"),
        (999999, "1M"),
        (1e-9, "1e-9"),
        (3e-4, "3e-4"),
        (1e12, "1T"),
        (1e300, "1e300"),
        (-1e300, ""),
        (0.6931, "0.693"),
        (12345, "12.3k"),
    ],
)
def test_tick_text_formats(value, text):
    assert tick_text(value, 5) == text


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.floats(-1e300, 1e300) | st.floats(-10, 10), st.integers(4, 9))
def test_a_tick_text_fits_and_means_what_it_says(value, room):
    text = tick_text(value, room)
    assert len(text) <= room
    if text:
        assert abs(tick_value(text) - value) <= 0.501 * abs(value)
        assert (tick_value(text) == 0) == (value == 0)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(1, 30), st.booleans())
def test_labels_lie_within_a_row_of_what_they_say(middle, span, height, log):
    shown = y_range(points_of([abs(middle) + span, abs(middle) + 2 * span] if log else [middle, middle + span]), log)
    labels = y_labels(shown, height, 5)
    assert len(set(labels.values())) == len(labels)
    for row, text in labels.items():
        assert abs((1 - shown.position(tick_value(text))) * (height - 1) - row) <= 1.6


def test_ticks_are_evenly_apart_and_end_with_the_range():
    for low, high in ((0.0, 500.0), (0.0, 600.0), (-2.0, 2.0), (0.3, 0.7)):
        for most in (2, 4, 5):
            places = ticks(Range(low, high), most)
            assert len(places) <= most and (places[0], places[-1]) == (pytest.approx(low), pytest.approx(high))
            assert len({round(after - before, 9) for before, after in itertools.pairwise(places)}) == 1
    assert ticks(Range(-4.0, 2.0, log=True), 4) == pytest.approx([1e-4, 0.1, 100])


@pytest.mark.parametrize(
    ("least", "step"), [(1, 1), (1.1, 2), (2.1, 2.5), (3, 5), (7, 10), (0.03, 0.05), (1e-9, 1e-9), (4e7, 5e7)]
)
def test_nice_steps_of_known_values(least, step):
    assert nice_step(least) == pytest.approx(step)


def test_a_window_grows_in_jumps_and_holds_its_data():
    shown, changes = None, 0
    for records in range(1, 20000):
        last = 16384.0 * records
        now = window(16384.0, last, shown)
        assert now[0] <= 16384.0 and last <= now[1] <= 1.35 * last
        changes += now != shown
        shown = now
    assert changes < 55


@pytest.mark.parametrize(
    ("first", "last", "previous", "expected"),
    [
        (0.0, 341e6, None, (0.0, 400e6)),
        (0.0, 390e6, (0.0, 400e6), (0.0, 400e6)),
        (0.0, 401e6, (0.0, 400e6), (0.0, 500e6)),
        (5.0, 5.0, None, (5.0, 6.0)),
        (1000.0, 1090.0, None, (1000.0, 1100.0)),
        (0.0, 10.0, (0.0, 400e6), (0.0, 10.0)),
        (0.0, 0.0, None, (0.0, 1.0)),
    ],
)
def test_windows_of_known_ranges(first, last, previous, expected):
    assert window(first, last, previous) == pytest.approx(expected)


# THE FRAME AND WHAT IS IN IT


@pytest.mark.parametrize(
    ("width", "says", "not_says"),
    [
        (60, ["return", "487.3", "▲", "+1.2/min", "best 495"], []),
        (36, ["return 487.3 ▲  best 495"], ["/min"]),
        (24, ["return 487.3 ▲"], ["best"]),
        (20, ["return"], ["best"]),
    ],
)
def test_a_title_says_what_there_is_room_for(width, says, not_says):
    data = ChartData("return", "487.3", "▲", "+1.2/min", "best 495", points=points_of([1.0, 2.0]))
    top = text_of(draw_chart(data, width, 10, DARK, ChartState()))[0]
    assert all(text in top for text in says) and not any(text in top for text in not_says)


def test_the_newest_value_is_bold_and_marks_lie_under_their_place():
    marks = [
        ChartMark("checkpoint", 0.25),
        ChartMark("eval", 0.5),
        ChartMark("checkpoint", 0.5),
        ChartMark("resume", 0.75),
        ChartMark("eval", 2.0),
    ]
    points = [*points_of([1.0] * 20), Point(1.0, 1.0, 1.0, True)]
    rows = draw_chart(
        ChartData("return", "487.3", points=points, marks=marks, x_left="0", x_right="400 M"),
        48,
        9,
        DARK,
        ChartState(),
    )
    assert "".join(cell.character for cell in rows[0] if cell.style.bold).strip() == "487.3"
    layout = Layout.of(48, 9)
    start = 1 + layout.gutter
    bottom = text_of(rows)[-1]
    assert [bottom[start + int(layout.plot_width * place)] for place in (0.25, 0.5, 0.75)] == [
        "!",
        "◆",
        "┊",
    ]  # the broken value outdoes the checkpoint
    assert bottom.startswith("╰ 0 ") and bottom.endswith(" 400 M ╯")
    assert any("┊" in text for text in text_of(rows)[1:-1])


def test_of_a_crowd_of_marks_the_newest_is_shown():
    def bottom(*marks):
        return text_of(
            draw_chart(ChartData("return", points=points_of([1.0] * 60), marks=marks), 48, 9, DARK, ChartState())
        )[-1]

    crowd = [ChartMark("eval", k / 40) for k in range(30)]
    assert bottom(*crowd).count("◆") == 1 and bottom(*crowd) == bottom(crowd[-1])
    assert bottom(*crowd[::8]).count("◆") == 4
    assert bottom(*(ChartMark("not_finite", k / 40) for k in range(30))).count("!") == 30


def test_focus_is_seen_without_colour():
    calm, focused = (text_of(draw_chart(ChartData("x"), 20, 6, DARK, ChartState(), focus)) for focus in (False, True))
    assert all(a[0] != b[0] and a[-1] != b[-1] for a, b in zip(calm, focused, strict=True))


def test_no_data_is_a_sentence_and_so_is_a_log_axis_without_a_place():
    empty = "\n".join(text_of(draw_chart(ChartData("eval", empty="no evaluation yet"), 40, 8, DARK, ChartState())))
    assert "no evaluation yet" in empty
    negative = ChartData("return", points=points_of([-1.0] * 9), log_y=True)
    assert "no positive values" in "\n".join(text_of(draw_chart(negative, 40, 8, DARK, ChartState())))


def test_lines_of_text_are_cut_padded_and_without_wide_characters():
    row = line([("ab", Style()), ("漢\x1b[x", Style()), ("far too long", Style())], 9)
    assert "".join(cell.character for cell in row) == "ab??[x   "
    assert "".join(cell.character for cell in line([("abcdef", Style())], 4)) == "abcd"
    assert "".join(cell.character for cell in justified([("ab", Style())], [("cd", Style())], 8)) == "ab    cd"
    assert "".join(cell.character for cell in justified([("ab", Style())], [("cd", Style())], 4)) == "ab  "


# COLOURS


@pytest.mark.parametrize("palette", [DARK, LIGHT, Palette(ground="#000000"), Palette(dark=False, ground="#FFFFFF")])
def test_text_colours_have_contrast(palette):
    for token in ("text", "bright", "dim", "good", "warn", "bad", "focus"):
        assert contrast(palette.hex(token), palette.ground) >= 4.5, token
    for k in range(8):
        assert contrast(palette.hex(f"series.{k}"), palette.ground) >= 2.9, k
        # The band is seen, and the line is seen on it.
        assert (
            1.1
            < contrast(palette.hex(f"band.{k}"), palette.ground)
            < contrast(palette.hex(f"series.{k}"), palette.ground)
        )
        assert contrast(palette.hex(f"series.{k}"), palette.hex(f"band.{k}")) > 1.8


def test_first_series_colours_differ_with_deuteranopia():
    # Machado, Oliveira & Fernandes 2009, severity 1, on linear light.
    rows = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))

    def seen(colour):
        light = [(c / 255) ** 2.2 for c in channels(colour)]
        return [max(0.0, sum(a * b for a, b in zip(row, light, strict=True))) ** (1 / 2.2) for row in rows]

    some = [seen(colour) for colour in OKABE_ITO[:6]]
    assert min(math.dist(one, other) for index, one in enumerate(some) for other in some[:index]) > 0.12


def test_mix_contrast_and_luminance_match_known_values():
    assert mix("#FF0000", "#0000FF", 0.5) == "#800080"
    assert luminance("#FFFFFF") == pytest.approx(1) and contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert readable("#56B4E9", "#121212") == "#56B4E9"
    assert contrast(readable("#F0E442", "#FFFFFF", 4.5), "#FFFFFF") >= 4.5
    with pytest.raises(KeyError):
        DARK.hex("no such token")


# ONLY WHAT CHANGED


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), min_size=1, max_size=40))
def test_changed_runs_cover_all_changes_and_begin_and_end_with_one(pairs):
    before, after = ([Cell(pair[k], Style()) for pair in pairs] for k in (0, 1))
    covered = list(before)
    end = -9
    for start, length in changed_runs(tuple(before), tuple(after)):
        assert start > end and before[start] != after[start] and before[start + length - 1] != after[start + length - 1]
        end = start + length
        covered[start:end] = after[start:end]
    assert covered == after


class OneChart(App[None]):
    AUTO_FOCUS = None
    CSS = "Chart { width: 44; height: 12; }"

    def compose(self):
        yield Chart()


def test_a_widget_repaints_only_what_changed_and_shows_what_it_should():
    async def main():
        app = OneChart()
        async with app.run_test(size=(50, 14)) as pilot:
            chart = app.query_one(Chart)
            regions = []
            refresh = chart.refresh

            def recorded(*some, **options):
                regions.append(some)
                return refresh(*some, **options)

            means = [float(k % 7) for k in range(50)]
            chart.show(ChartData("return", "1", points=points_of(means, 1.0)))
            await pilot.pause()
            chart.refresh = recorded
            chart.show(ChartData("return", "1", points=points_of(means, 1.0)))
            assert regions == []
            chart.show(ChartData("return", "2", points=points_of([*means, 3.0], 1.0)))
            await pilot.pause()
            assert regions and all(some for some in regions)
            plot = [region for some in regions for region in some if region.y > 0]
            assert all(region.x >= 1 + 6 + 24 and region.right <= 1 + 6 + 27 for region in plot)
            assert sum(region.area for some in regions for region in some) < 40
            # What is composed is what a fresh chart would be.
            fresh = text_of(draw_chart(chart.data, 44, 12, chart.palette, chart.memory))
            assert [line[:44] for line in capture.text_of(app).split("\n")[:12]] == [line.rstrip() for line in fresh]
            assert chart.plot_columns == 2 * (44 - 2 - 6)
            chart.show(chart.data._replace(chosen=True))
            await pilot.pause()
            assert capture.text_of(app).startswith("┏")
            app.theme = "textual-light"
            await pilot.pause()
            assert not chart.palette.dark

    asyncio.run(main())


class Screen:
    """Terminal emulator for the sequences that `DiffRenderer` writes: cursor movements and colours."""

    def __init__(self):
        self.cells = {}

    def feed(self, text):
        x = y = -1
        state = {}
        for match in re.finditer(r"\x1b\[([\d;]*)([A-Za-z])|(.)", text, re.DOTALL):
            codes, command, character = match.groups()
            if command == "H":
                y, x = (int(part) - 1 for part in codes.split(";"))
            elif command == "C":
                x += int(codes)
            elif command == "m":
                parts = [int(part) for part in (codes or "0").split(";")]
                while parts:
                    code = parts.pop(0)
                    if code == 0:
                        state = {}
                    elif code in (38, 48):
                        state[code] = tuple(parts[:4])
                        del parts[:4]
                    elif code in (39, 49):
                        state.pop(code - 1, None)
                    else:
                        state[code] = True
            else:
                assert command is None and character.isprintable() and y >= 0
                self.cells[x, y] = (character, dict(state))
                for half in range(1, cells(character)):
                    self.cells[x + half, y] = ("", dict(state))
                x += cells(character)
        assert state == {}


def written(cells, x, y):
    """Output of Textual for cells of a line: every cell with its complete style and a reset."""
    return f"\x1b[{y + 1};{x + 1}H" + "".join(
        f"\x1b[{sgr}m{character}\x1b[0m" if sgr else character for character, sgr in cells
    )


def test_the_diff_renderer_brings_the_screen_to_what_it_should_be_in_fewer_bytes():
    draw = random.Random(5)
    styles = [
        "",
        *(
            f"{bold}38;2;{a};48;2;{b}"
            for bold in ("", "1;")
            for a in ("17;34;51", "68;85;102")
            for b in ("0;0;0", "255;255;255")
        ),
    ]
    width, height = 40, 6
    renderer, screen = DiffRenderer(), Screen()
    wanted = [[(" ", "")] * width for _ in range(height)]
    sent = plain = 0
    for turn in range(300):
        spans, update = [], ""
        for y in sorted(draw.sample(range(height), draw.randint(1, 3))):
            left = draw.randint(0, width - 1)
            right = draw.randint(left + 1, width)
            for x in range(left, right):
                if draw.random() < 0.3:
                    wanted[y][x] = (draw.choice("ab⠿é"), draw.choice(styles))
            spans.append((y, left, right))
            update += written(wanted[y][left:right], left, y) + "\n"
        if turn == 100:
            assert renderer.shorten("\x1b[?1049h") == "\x1b[?1049h", "another screen: what it shows is not known"
            assert len(renderer.shorten(update)) > len(update) / 3
        text = renderer.shorten(update) if turn != 100 else update
        screen.feed(text.replace("\n", ""))
        sent, plain = sent + len(text), plain + len(update)
        for y, left, right in spans:
            for x in range(left, right):
                character, sgr = wanted[y][x]
                probe = Screen()
                probe.feed(written([(character, sgr)], x, y))
                assert screen.cells[x, y] == probe.cells[x, y]
    assert sent < plain / 3
    assert renderer.shorten(update) == "", "nothing changed"
    renderer.forget()
    assert renderer.shorten(update), "everything is written again"


@pytest.mark.slow
def test_texts_that_change_take_bounded_memory():
    """Numbers change for days: ten minutes of them took 18 MB."""
    renderer = DiffRenderer()

    def draw(first):
        for k in range(first, first + 3000):
            row_of((Piece(f"{k:040d}"),))
            styled(f"{k:040d}", Style("text"))
            renderer.shorten(f"\x1b[1;1H{k:040d}")

    tracemalloc.start()
    try:
        draw(0)
        before, _ = tracemalloc.get_traced_memory()
        draw(3000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before < 2e6 and after - before < 1e5


def test_the_diff_renderer_passes_what_it_does_not_know():
    renderer = DiffRenderer()
    renderer.shorten("\x1b[1;1Hx")
    for sequence in ("\x1b[?2026h", "\x1b[?2026l"):
        assert renderer.shorten(sequence) == sequence and renderer.shorten("\x1b[1;1Hx") == "", (
            "an update's begin and end change no cell"
        )
    for sequence in ("\x1b]52;c;eA==\x07", "\x1b[2J", "\x1b[?25l", "x", "\x1b[1;1Hx\ty", "\x07"):
        assert renderer.shorten(sequence) == sequence
        assert renderer.shorten("\x1b[1;1Hx") == "\x1b[1;1Hx", "what the terminal shows is not known any more"


def test_the_cursor_ends_where_it_was_put():
    renderer = DiffRenderer()
    assert renderer.shorten("\x1b[2;3Hab\x1b[9;5H") == "\x1b[2;3Hab\x1b[9;5H"
    assert renderer.shorten("\x1b[2;3Hac\x1b[9;5H") == "\x1b[2;4Hc\x1b[9;5H"


def test_the_diff_renderer_keeps_wide_and_combining_characters_whole():
    renderer, screen = DiffRenderer(), Screen()
    for text in ("漢字 ok", "x漢字ok", "e\u0301漢 ok", "plain o"):
        screen.feed(renderer.shorten(f"\x1b[1;1H{text}").replace("\u0301", ""))
    assert "".join(screen.cells[x, 0][0] for x in range(7)) == "plain o"


# FIGURES IN WORDS


@pytest.mark.parametrize(
    ("value", "trend", "best", "better", "expected"),
    [
        (487.3, 3.2, 495.0, True, ("487.3", "▲", "+3.2/min", "best 495.0", "ok")),
        (487.3, 0.2, 495.0, True, ("487.3", "", "", "best 495.0", None)),  # nothing to speak of
        (487.3, -100.0, None, True, ("487.3", "▼", "-100.0/min", "", "warn")),
        (487.3, -10.0, None, True, ("487.3", "▼", "-10.0/min", "", None)),
        (0.41, -0.1, None, False, ("0.41", "▼", "-0.1/min", "", "ok")),
        (0.41, 0.1, None, None, ("0.41", "▲", "+0.1/min", "", None)),
        (None, 1.0, None, True, ("-", "", "", "", None)),
        (math.nan, 1.0, math.inf, True, ("-", "", "", "", None)),
    ],
)
def test_metric_text_of_known_values(value, trend, best, better, expected):
    assert metric_text.metric_text(value, "", trend, best, better) == expected


def test_units_and_cursor_texts():
    assert metric_text.with_unit(4.71e6, "step/s") == "4.71 M step/s" and metric_text.with_unit(None, "s") == "-"
    assert (
        metric_text.with_unit(5.12e8, "bytes"),
        metric_text.with_unit(512.0, "bytes"),
        metric_text.with_unit(None, "bytes"),
    ) == ("512 MB", "512.0 bytes", "-")
    assert "\x1b" not in metric_text.with_unit(1.0, "\x1b[31m")
    assert metric_text.cursor_text("step", 212e6, Point(0.41, 0.44, 0.47)) == "at 212 M  0.44 (0.41 to 0.47)"
    assert metric_text.cursor_text("wall", 161.0, Point(1.0, 1.0, 1.0, True)) == "at 0:02:41  1  not finite: !"
    assert metric_text.cursor_text("iteration", 5.0, None) == "at 5  no value"


def test_the_x_axis_has_its_unit_where_there_is_space():
    data = ChartData("return", "1", points=[Point(1.0, 1.0, 1.0)] * 80, x_left="0", x_right="9 M", x_unit="steps")
    last = {width: text_of(draw_chart(data, width, 8, DARK, ChartState()))[-1] for width in (40, 16)}
    assert " 0 steps " in last[40] and " 9 M " in last[40] and "steps" not in last[16] and " 0 " in last[16]

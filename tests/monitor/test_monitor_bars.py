"""Bars: cells add up, a full bar means complete, every bar has an ASCII version."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.charts.bars import milliseconds, percent, phase_bar, phase_legend, portions, progress_bar
from monitor.charts.cells import text_of
from monitor.charts.palette import ASCII, UNICODE
from monitor.data.snapshot import PhaseShare

PHASES = (
    PhaseShare("collect", 0.23, 28.0),
    PhaseShare("update", 0.61, 75.0),
    PhaseShare("evaluate", 0.004, 0.42),
    PhaseShare("other", 0.13, 1300.0),
)

any_share = st.none() | st.floats() | st.floats(0, 1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), max_size=8), st.integers(0, 80))
def test_portions_are_within_a_cell_and_add_up(shares, width):
    found = portions(shares, width)
    total = max(sum(shares), 1.0)
    assert all(abs(cells - share / total * width) < 1 for cells, share in zip(found, shares, strict=True))
    assert sum(found) == round(width * sum(shares) / total) <= width


@pytest.mark.parametrize(
    ("shares", "width", "expected"),
    [
        ([0.5, 0.5], 3, [2, 1]),
        ([0.23, 0.61, 0.0, 0.16], 10, [2, 6, 0, 2]),
        ([2.0, 2.0], 10, [5, 5]),
        ([math.nan, 0.5, -1.0], 10, [0, 5, 0]),
        ([], 10, []),
    ],
)
def test_portions_of_known_shares(shares, width, expected):
    assert portions(shares, width) == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(any_share, st.integers(0, 60), st.sampled_from([UNICODE, ASCII]))
def test_bars_are_as_wide_as_asked(share, width, glyphs):
    rows = [progress_bar(share, width, glyphs), phase_bar(PHASES, width, glyphs)]
    assert [len(row) for row in rows] == [width] * 2
    assert glyphs is UNICODE or "".join(text_of(rows)).isascii()


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0, "──────"),
        (1, "━━━━━━"),
        (0.5, "━━━───"),
        (0.59, "━━━╾──"),
        (0.999, "━━━━━╾"),
        (None, "──────"),
        (7.0, "━━━━━━"),
    ],
)
def test_progress_of_known_values(share, expected):
    assert text_of([progress_bar(share, 6)])[0] == expected


def test_progress_never_goes_back():
    lengths = [len(text_of([progress_bar(k / 500, 40)])[0].rstrip("─").replace("╾", "")) for k in range(501)]
    assert lengths == sorted(lengths) and lengths[-1] == 40 and lengths[-2] < 40


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.682, "68 %"),
        (0.004, "0.4 %"),
        (0.00001, "0.1 %"),
        (0.9999, "99 %"),
        (1.0, "100 %"),
        (0.0, "0 %"),
        (None, "-"),
        (math.nan, "-"),
        (0.0097, "1 %"),
    ],
)
def test_percent_formats(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.42, "0.42 ms"), (0.0189, "0.02 ms"), (75.0, "75.0 ms"), (123.4, "123 ms"), (1300.0, "1.3 s")]
)
def test_milliseconds_formats(value, text):
    assert milliseconds(value) == text


def test_phases_have_a_legend_in_the_order_of_the_bar():
    bar, legend = phase_bar(PHASES, 40), phase_legend(PHASES, 34)
    assert [text.split()[1] for text in text_of(legend)] == ["collect", "update", "evaluate", "other"]
    assert [text.split()[2:] for text in text_of(legend)][1] == ["61", "%", "75.0", "ms"]
    assert all(len(row) == 34 for row in legend)
    # A swatch is drawn as its part of the bar is.
    parts = [cell for index, cell in enumerate(bar) if index == 0 or cell != bar[index - 1]]
    assert parts[0] == legend[0][0] and parts[1] == legend[1][0]
    assert "\x1b" not in "".join(text_of(phase_legend([PhaseShare("\x1b[31m" * 20, 0.5, 1.0)], 30)))

"""Curves in bounded memory, compared with plain lists of all their values."""

import math
import random
import statistics
import threading

import pytest
from fake_snapshots import RECORDS, table

from monitor.data.collection import MeanCurve
from monitor.data.curve_table import BUCKETS, Column, CurveTable
from monitor.data.snapshot import Series

NAN, INF = math.nan, math.inf


def fill(table, values, *, start=0, blocks=(1000,), step=10, wall=0.5):
    """Append records from `start` on with the given values per column, cycling through the given block sizes."""
    count, at, turn = len(values[0]), 0, 0
    while at < count:
        end = min(count, at + blocks[turn % len(blocks)])
        numbers = range(start + at, start + end)
        table.extend(
            [step * n for n in numbers],
            [wall * n for n in numbers],
            [float(n) for n in numbers],
            [column[at:end] for column in values],
        )
        at, turn = end, turn + 1
    return table


def one(values, *, must_be_finite=False, higher_better=True, **how):
    table = fill(
        CurveTable([Column("m", "m", higher_better=higher_better, must_be_finite=must_be_finite)]), [values], **how
    )
    return table, table.curves["m"]


def noise(count, seed=1):
    draw = random.Random(seed)
    return [draw.gauss(0.0, 1.0) + n / count for n in range(count)]


# EXACT NEAR THE END


@pytest.mark.parametrize("count", [1, 2, 5, 300])
@pytest.mark.parametrize("axis,scale", [("step", 10.0), ("wall", 0.5), ("iteration", 1.0)])
def test_a_column_for_each_record_shows_each_record(count, axis, scale):
    values = noise(count)
    _, curve = one(values)
    points = curve.view(axis, -0.5 * scale, (count - 0.5) * scale, count)
    assert [point.mean for point in points] == values
    assert all(point.low == point.mean == point.high and not point.not_finite for point in points)


@pytest.mark.parametrize("count", [900, 5_000, 70_000])
def test_a_window_at_the_end_of_a_long_run_is_exact(count):
    values = noise(count)
    _, curve = one(values)
    points = curve.view("iteration", count - 100 - 0.5, count - 0.5, 100)
    assert [point.mean for point in points] == values[-100:]


@pytest.mark.parametrize("count,columns", [(100, 7), (1024, 80), (20_000, 80), (20_000, 333)])
def test_columns_are_the_records_in_them(count, columns):
    """Minimum, maximum and mean of each column of the whole run, for column edges between buckets."""
    values = noise(count)
    _, curve = one(values)
    points = curve.view("iteration", 0.0, float(count - 1), columns)
    assert min(point.low for point in points) == min(values) and max(point.high for point in points) == max(values)
    size = max(1, len(values) // 256)  # no bucket is larger
    for column, point in enumerate(points):
        left, right = (count - 1) * column / columns, (count - 1) * (column + 1) / columns
        inner = values[math.floor(left + size) : max(0, math.ceil(right - size))]
        outer = values[max(0, math.floor(left - size)) : math.ceil(right + size) + 1]
        assert min(outer) <= point.low <= point.mean <= point.high <= max(outer)
        if inner:
            assert point.low <= min(inner) and point.high >= max(inner)


def test_the_mean_of_a_column_weighs_all_its_records_alike():
    values = [0.0] * 3000 + [1.0] * 1000
    _, curve = one(values)
    assert curve.view("iteration", -1.0, 4000.0, 1)[0] == (0.0, 0.25, 1.0, False)


# ANY SPLIT, ANY LENGTH


@pytest.mark.parametrize("blocks", [(1,), (7, 1, 300), (100_000,), (5000, 3)])
def test_batching_of_records_changes_nothing(blocks):
    values = [value if n % 13 else NAN for n, value in enumerate(noise(11_000))]
    _, whole = one(values, blocks=(1024,))
    _, split = one(values, blocks=blocks)
    for first, last in ((0.0, 10_999.0), (9_000.0, 10_999.0), (10_900.0, 10_999.0)):
        # Levels begin at different records; what is drawn may only differ where a bucket reaches across a column's
        # edge.
        for a, b in zip(
            whole.view("iteration", first, last, 50), split.view("iteration", first, last, 50), strict=True
        ):
            assert a.mean == pytest.approx(b.mean, abs=0.5)
    assert (whole.latest, whole.best, whole.not_finite) == (split.latest, split.best, split.not_finite)
    assert whole.extent("iteration") == split.extent("iteration") == (0.0, 10_999.0)
    exact = split.view("iteration", 10_899.5, 10_999.5, 100)
    assert [None if point is None else point.mean for point in exact] == [
        None if math.isnan(value) else value for value in values[-100:]
    ]


@pytest.mark.parametrize(
    ("count", "metrics"),
    [(300_000, 1), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((40_000, 70), (3_000, 400)))],
)
def test_memory_is_bounded(count, metrics):
    table = CurveTable([Column(f"m{k}", "m") for k in range(metrics)])
    column = noise(count)
    fill(table, [column] * metrics, blocks=(9_000, 25))
    cells = 0
    for curve in table.curves.values():
        for level, part in zip(table.levels.all, curve.parts, strict=True):
            assert (
                len(part.low)
                == len(part.high)
                == len(part.total)
                == len(part.count)
                == len(part.bad)
                == len(level.filled)
            )
            cells += len(part.low)
    assert sum(table.levels.all[-1].filled) == table.records == count
    assert len(table.levels.all) == max(1, 1 + math.ceil(math.log(count / table.buckets, 4)))
    assert cells <= metrics * len(table.levels.all) * 1.25 * BUCKETS * min(1.0, 64 / metrics)


@pytest.mark.slow
def test_the_whole_run_is_never_shown_by_few_buckets():
    table, curve = CurveTable([Column("m", "m")]), None
    for n in range(0, 40_000, 97):
        fill(table, [[float(k) for k in range(n, n + 97)]], start=n, blocks=(97,))
        curve = table.curves["m"]
        if n > 2000:
            means = {point.mean for point in curve.view("iteration", 0.0, n + 96.0, 2000)}
            assert len(means) >= BUCKETS // 4
    assert curve.view("iteration", 0.0, 1.0, 1)[0].low == 0.0


# WHAT IS NO NUMBER


@pytest.mark.parametrize("must_be_finite", [False, True])
@pytest.mark.parametrize("count", [8, 4_000])
def test_nan_is_a_gap_or_a_fault_and_infinity_always_a_fault(must_be_finite, count):
    values = [1.0] * count
    values[2], values[3], values[-2] = NAN, INF, -INF
    _, curve = one(values, must_be_finite=must_be_finite)
    assert curve.not_finite == (3 if must_be_finite else 2)
    points = curve.view("iteration", -0.5, count - 0.5, count)
    assert points[-2].not_finite and points[-2].mean == 1.0
    if count == 8:
        assert not points[-1].not_finite  # in a long run the last few records share a bucket
        assert (points[2] is None) != must_be_finite
        assert points[3] == (1.0, 1.0, 1.0, True)
    whole = curve.view("iteration", -0.5, count - 0.5, 1)[0]
    assert whole == (1.0, 1.0, 1.0, True) and curve.latest == 1.0 and curve.best == 1.0


def test_a_metric_without_any_value():
    _, curve = one([NAN] * 3000)
    assert curve.extent("step") is None and curve.latest is None and curve.best is None and curve.trend_per_min is None
    assert curve.nearest("step", 5.0) is None and set(curve.view("step", 0.0, 100.0, 10)) == {None}
    _, broken = one([INF] * 10)
    assert broken.extent("step") == (0.0, 90.0) and all(
        point.not_finite and math.isfinite(point.mean) for point in broken.view("step", 0.0, 90.0, 5)
    )


@pytest.mark.parametrize(
    "first,last,columns",
    [
        (0, 0, 10),
        (5, 1, 10),
        (NAN, 1, 10),
        (0, INF, 10),
        (0, 10, 0),
        (-1e308, 1e308, 10),
        (1e6, 2e6, 10),
        (-50, -20, 5),
    ],
)
def test_a_window_without_records_is_empty(first, last, columns):
    _, curve = one([1.0, 2.0])
    points = curve.view("step", first, last, columns, 0.9)
    assert len(points) == columns
    assert all(point is None for point in points) or (first < 0 < last)


def test_huge_values_do_not_become_infinite():
    _, curve = one([1.7e308, 1.7e308, -1.7e308] * 700)
    for point in curve.view("iteration", 0.0, 2099.0, 20):
        assert point.low <= point.mean <= point.high and math.isfinite(point.mean)


def test_an_x_that_goes_back_stands_still():
    table = CurveTable([Column("m", "m")])
    table.extend([10, 5, 20], [1.0, 2.0, 0.5], [1.0, 2.0, 3.0], [[1.0, 2.0, 3.0]])
    table.extend([7], [0.0], [1.0], [[4.0]])
    assert table.curves["m"].extent("step") == (10.0, 20.0) and table.last == (20.0, 2.0, 3.0)


# REWINDS


@pytest.mark.parametrize(
    "count,back", [(50, 20), (5_000, 4_990), (5_000, 3_000), (30_000, 11_111), (30_000, 0), (30_000, -1)]
)
def test_after_a_rewind_nothing_later_is_left(count, back):
    values = noise(count)
    table, curve = one(values, step=1)
    table.rewind(float(back))
    assert table.records <= back + 1
    shown = curve.view("iteration", 0.0, float(count), 300)
    limit = 0 if back < 0 else back + 1
    lost = count // 256 + 1  # at most one bucket of the coarsest level that no finer one still had
    if limit == 0:
        assert set(shown) == {None} and curve.latest is None
    else:
        assert limit - lost <= table.records <= limit
        assert all(point is None or point.high <= max(values[:limit]) for point in shown)
        assert curve.extent("iteration") is None or curve.extent("iteration")[1] <= back
    again = [100.0 + n for n in range(2_000)]
    fill(table, [again], start=max(back, 0) + 1, step=1)
    assert curve.latest == 2_099.0 and curve.best == 2_099.0
    assert [
        point.mean
        for point in curve.view("iteration", back + 1901 - 0.5 + (back < 0), back + 2000 + 0.5 + (back < 0), 100)
    ] == again[-100:]
    assert sum(table.levels.all[-1].filled) == table.records


def test_a_rewind_among_recent_records_loses_none_of_them():
    values = noise(900)
    table, curve = one(values, step=1)
    table.rewind(600.0)
    assert table.records == 601 and curve.latest == values[600] and curve.best == max(values[:601])
    assert [point.mean for point in curve.view("iteration", -0.5, 600.5, 601)] == values[:601]


def test_faults_are_forgotten_with_the_records_that_had_them():
    table, curve = one([1.0] * 20 + [INF] * 5, step=1)
    table.rewind(19.0)
    assert curve.not_finite == 0 and not any(point.not_finite for point in curve.view("step", 0.0, 19.0, 5))


# SMOOTHING, TRENDS, INSPECTION


def test_smoothing_is_an_exponential_mean_of_the_columns():
    values = noise(60)
    _, curve = one(values)
    plain, smooth = curve.view("iteration", -0.5, 59.5, 60), curve.view("iteration", -0.5, 59.5, 60, 0.8)
    for k, point in enumerate(smooth):
        weights = [0.8 ** (k - j) for j in range(k + 1)]
        assert point.mean == pytest.approx(sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights))
        assert (point.low, point.high) == (plain[k].low, plain[k].high)


def test_a_smoothed_line_does_not_move_when_the_window_does():
    _, curve = one(noise(900))
    whole = curve.view("iteration", -0.5, 899.5, 900, 0.9)
    part = curve.view("iteration", 799.5, 899.5, 100, 0.9)
    assert [point.mean for point in part] == pytest.approx([point.mean for point in whole[800:]], abs=0.15)


@pytest.mark.parametrize("count,wall", [(200, 0.1), (3_000, 0.02), (40_000, 0.01), (12, 5.0)])
def test_the_trend_is_the_slope_of_the_last_minute(count, wall):
    draw = random.Random(3)
    values = [7.0 * wall * n / 60.0 + draw.gauss(0, 0.01) for n in range(count)]
    for n in range(0, count, 37):
        values[n] += 1000.0  # outliers
    _, curve = one(values, wall=wall)
    assert curve.trend_per_min == pytest.approx(7.0, abs=0.3 if count > 100 else 1.0)


def test_a_trend_needs_time_and_values():
    assert one([1.0, 2.0])[1].trend_per_min is None
    assert one([1.0] * 100, wall=0.01)[1].trend_per_min is None
    assert one([1.0] * 100, wall=0.2)[1].trend_per_min == 0.0


def test_best_is_for_what_is_better_high():
    assert one([1.0, 3.0, 2.0])[1].best == 3.0
    assert one([1.0, 3.0, 2.0], higher_better=False)[1].best is None


def test_inspection_finds_the_nearest_record():
    values = noise(3000)
    values[2500] = NAN
    _, curve = one(values)
    assert curve.nearest("step", 29_987.0) == (29_990.0, (values[2999], values[2999], values[2999], False))
    x, point = curve.nearest("iteration", 2500.4)
    assert x == 2501.0 and point.mean == values[2501]
    x, point = curve.nearest("wall", 1e9)
    assert x == 1499.5 and point.mean == values[2999]
    x, point = curve.nearest("iteration", -10.0)
    assert x < 4 and point.low <= values[0] <= point.high


def test_a_window_of_the_newest_records_or_of_long_ago():
    table, _ = one([float(n) for n in range(10_000)], wall=0.01)
    newest = table.window(1.0, 20, ["m", "absent"])
    assert (
        newest.steps[-1] == 99_990.0
        and sum(newest.records) >= 100
        and 20 <= len(newest.steps) < 80
        and list(newest.values) == ["m"]
    )
    assert newest.values["m"][-1] > 9_990 and newest.begin[0] < newest.steps[0]
    then = table.window(1.0, 20, ["m"], step=20_000.0)
    assert then.steps[-1] <= 20_000.0 and abs(then.values["m"][-1] - 2_000) < 100 and len(then.steps) >= 20
    few = one([1.0, NAN])[0].window(10.0, 20, ["m"])
    assert few.values["m"][0] == 1.0 and math.isnan(few.values["m"][1]) and few.records == [1, 1]
    assert CurveTable([Column("m", "m")]).window(1.0, 20, ["m"]).values == {"m": []}


def test_curves_implement_the_series_protocol():
    curve: Series = one([1.0])[1]
    assert (curve.name, curve.label, curve.unit, curve.log_axis) == ("m", "m", "", False)


# THREADS


def test_readers_never_see_half_of_a_change():
    """One thread extends and rewinds, two read: a view is always ordered and contains only written values."""
    table = CurveTable([Column("m", "m", higher_better=True)])
    curve, wrong, over = table.curves["m"], [], threading.Event()

    def look():
        while not over.is_set():
            extent = curve.extent("iteration")
            if extent is None:
                continue
            points = curve.view("iteration", *extent, 64, 0.5)
            means = [point.mean for point in points if point is not None]
            if means != sorted(means):
                wrong.append(means)
            table.window(5.0, 20, ["m"])
            curve.nearest("step", extent[1])
            _ = curve.best, curve.trend_per_min

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    at = 0
    for turn in range(150):
        size = 25 if turn % 3 else 700
        fill(table, [[float(n) for n in range(at, at + size)]], start=at, step=1)
        at += size
        if turn % 40 == 39:
            at -= 300
            table.rewind(float(at - 1))
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong and table.last[0] == at - 1


def test_a_groups_curve_is_the_mean_over_its_runs_with_its_interval():
    """Three runs, the last of which has reached half: t is 4.303 for three values and 12.706 for two."""
    scales = (1.0, 1.1, 1.2)
    tables = [table(records, scale) for records, scale in zip((RECORDS, RECORDS, RECORDS // 2), scales, strict=True)]
    mean = MeanCurve([one.curves["return"] for one in tables])
    rows = [one.curves["return"].view("step", 0.0, tables[0].last[0], 64) for one in tables]
    points = mean.view("step", 0.0, tables[0].last[0], 64)
    assert mean.extent("step") == tables[0].curves["return"].extent("step")
    for column, quantile, count in ((10, 4.303, 3), (60, 12.706, 2)):
        values = [row[column].mean for row in rows if row[column] is not None]
        assert len(values) == count
        half = quantile * statistics.stdev(values) / count**0.5
        centre = statistics.fmean(values)
        assert points[column][:3] == pytest.approx((centre - half, centre, centre + half))
    alone = MeanCurve([tables[0].curves["return"]])
    assert all(
        point is None or point.low == point.mean == point.high
        for point in alone.view("step", 0.0, tables[0].last[0], 64)
    )


def test_seeds_whose_evaluations_fall_into_other_columns_are_joined_by_straight_lines():
    def curve(first):
        made = CurveTable([Column("eval/return", "eval return")])
        steps = [float(k) for k in range(1, 101)]
        made.extend(steps, steps, steps, [[k if (k - first) % 20 == 0 else math.nan for k in steps]])
        return made.curves["eval/return"]

    points = MeanCurve([curve(5), curve(15)]).view("step", 0.0, 100.0, 100)
    both = [point for point in points[15:85] if point is not None]
    assert len(both) == 70 and all(point.low == pytest.approx(point.mean) == point.high for point in both)

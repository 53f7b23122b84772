"""Commands `compare` and `plot`: scores of several runs in the terminal and as a figure. Statistics: operant/plot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from operant.cli.common import TYPER, JsonOption, RootOption, RunNames, check_free, out, print_json, print_table, within
from operant.errors import MachineError, UsageError
from operant.text import count, number, safe

if TYPE_CHECKING:
    from operant.plot import Axis, Entry, Group

app = typer.Typer(**TYPER)

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK, _MOST_DIFFERENCES = 24, 40
_FORMATS, _KINDS, _AXES = ("png", "svg", "pdf"), ("curves", "profile", "intervals"), ("steps", "seconds")
MetricOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="the metric of the curves  [default: eval/return if every run has enough, else return]"
    ),
]
AxisOption = Annotated[str, typer.Option("--x", metavar="steps|seconds", help="x axis of the curves")]
SmoothOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="window of the moving mean, as a share of the x axis  [default: 0.02; evaluations: 0]"
    ),
]
_HIGHEST_SMOOTH = 0.5


@app.command()
def compare(
    names: RunNames = None,
    metric: MetricOption = None,
    axis: AxisOption = "steps",
    smooth: SmoothOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Compare runs: scores with intervals, and different keys.

    Runs that differ only in run.seed form a group. A run's score is the mean return of its last evaluation. Intervals
    are 95 % intervals of a stratified bootstrap (Agarwal et al. 2021); a single run has none.
    """
    _require("scipy")
    from operant import plot

    entries = _entries(names, root, axis, smooth)
    for entry in entries:
        if metric is not None and metric not in entry.columns.metrics:
            raise UsageError(
                f"{safe(entry.run.id)} has no metric {safe(metric, 80)!r}; it has "
                f"{safe(', '.join(entry.columns.metrics), 400)}"
            )
    groups = plot.groups(entries)
    document = plot.compare(groups)
    if as_json:
        print_json(document)
        return
    _print_comparison(document, groups, metric or _metric(entries), _axis(axis), smooth)


@app.command()
def plot(
    names: RunNames = None,
    path: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE.png|svg|pdf", help="the file to write")
    ] = "curves.png",
    kind: Annotated[str, typer.Option("--kind", metavar="curves|profile|intervals", help="what to draw")] = "curves",
    metric: MetricOption = None,
    axis: AxisOption = "steps",
    smooth: SmoothOption = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    root: RootOption = None,
) -> None:
    """Draw learning curves of runs, with bands over seeds.

    Runs that differ only in run.seed form a group, drawn as one line. A note below the figure describes smoothing and
    bands.
    """
    target = Path(path).expanduser()
    if target.suffix[1:] not in _FORMATS:
        raise UsageError(f"--out is {safe(path, 200)!r}; its name must end in .{', .'.join(_FORMATS)}")
    if kind not in _KINDS:
        raise UsageError(f"--kind is {safe(kind, 40)!r}; it must be one of {', '.join(_KINDS)}")
    check_free(target, force)
    _require("matplotlib", "scipy")
    entries = _entries(names, root, axis, smooth)

    from operant import plot as plots
    from operant.plot import figure

    groups = plots.groups(entries)
    made = _curves(entries, groups, metric, _axis(axis), smooth) if kind == "curves" else _summary(groups, kind)
    temporary = target.with_name(f".{target.stem}-{os.getpid()}{target.suffix}")
    try:
        figure.save(made, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise MachineError(
            f"{safe(target, 400)} cannot be written ({error.strerror or error}): choose another file with --out"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    out(
        f"{safe(target, 400)}  {len(entries)} run{'s' * (len(entries) > 1)} in {len(groups)} "
        f"group{'s' * (len(groups) > 1)}"
    )


def _entries(names: Sequence[str] | None, root: str | None, axis: str, smooth: float | None) -> list[Entry]:
    """Named runs and the runs of named groups, with their records."""
    from operant import plot, runs
    from operant.runs import groups

    if not names:
        raise UsageError(
            "name the runs to compare or plot, such as cartpole-ppo-4f2a cartpole-sac-77b0; `operant runs` lists them"
        )
    if axis not in _AXES:
        raise UsageError(f"--x is {safe(axis, 40)!r}; it must be steps or seconds")
    within("--smooth", smooth, 0.0, _HIGHEST_SMOOTH)
    scope = runs.scope(root)
    found = [(name, groups.find(name, *scope)) for name in names]
    return plot.load_entries(
        [
            run
            for name, group in found
            for run in (group.runs.values() if group is not None else [runs.resolve(name, *scope)])
        ]
    )


def _axis(word: str) -> Axis:
    return "steps" if word == "steps" else "seconds"


def _require(*packages: str) -> None:
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MachineError(f"this command needs {' and '.join(missing)}: pip install 'operant[plot]'")


def _metric(entries: Sequence[Entry]) -> str:
    """Default metric: evaluations if every run has enough of them, else training returns."""
    from operant.runs import EVALUATION, RETURN

    return EVALUATION if all(len(entry.values(EVALUATION)[2]) >= 4 for entry in entries) else RETURN


def _smoothing(metric: str, smooth: float | None) -> float:
    return (0.0 if metric.startswith("eval/") else 0.02) if smooth is None else smooth


def _curves(
    entries: Sequence[Entry], groups: Sequence[Group], metric: str | None, axis: Axis, smooth: float | None
) -> Any:
    """Figure of learning curves."""
    from operant import plot, runs
    from operant.plot import figure

    chosen = metric or _metric(entries)
    smooth = _smoothing(chosen, smooth)
    notes = [f"mean of a window of {100 * smooth:g} % of the x axis" if smooth else "not smoothed"]
    if any(len(group.entries) > 1 for group in groups):
        notes.append("line: mean over seeds until the first of them ended; band: 95 % bootstrap interval")
    targets: dict[str, set[float | None]] = {}
    for entry in entries:
        targets.setdefault(entry.environment, set()).add(runs.number_of(entry.run.document, "target"))
    common = {
        name: next(iter(values))
        for name, values in targets.items()
        if len(values) == 1 and chosen in (runs.EVALUATION, runs.RETURN)
    }
    marked = {name: value for name, value in common.items() if value is not None}
    if marked:
        notes.append("dotted line: target")
    bands = plot.bands(groups, chosen, axis, smooth)
    if any(band.marked is not None for lines in bands.values() for _, band in lines):
        notes.append("points: evaluations")
    return figure.learning_curves(bands, metric=_label(chosen), axis=axis, target=marked, note="; ".join(notes))


def _label(metric: str) -> str:
    return {"eval/return": "mean return of evaluations", "return": "mean return of training episodes"}.get(
        metric, metric
    )


def _summary(groups: Sequence[Group], kind: str) -> Any:
    """Figure of scores: performance profiles, or statistics with intervals; per method over several environments."""
    from operant import plot
    from operant.plot import figure

    found = plot.summary(groups)
    if kind == "profile":
        return figure.profiles(
            found.profiles,
            found.thresholds,
            score=found.unit,
            note=f"performance profiles (Agarwal et al. 2021); bands: {found.note}",
        )
    return figure.intervals(found.estimates, note=f"bars: {found.note}")


def _print_comparison(
    document: dict[str, Any], groups: Sequence[Group], metric: str, axis: Axis, smooth: float | None
) -> None:
    """Print a comparison: a row with a small curve per group, probabilities of improvement, and differing keys."""
    sparks = _sparks(groups, metric, axis, _smoothing(metric, smooth))
    heads = ("group", "env", "runs", "IQM", "95 %", "mean", "steps", "seconds", f"{metric} over {axis}")
    rows = [
        (
            row["group"],
            row["env"],
            str(len(row["runs"])),
            number(row["iqm"]["value"]),
            _interval(row["iqm"]),
            number(row["mean"]["value"]),
            count(row["steps"]),
            f"{row['seconds']:.1f}",
            spark,
        )
        for row, spark in zip(document["groups"], sparks, strict=True)
    ]
    print_table(heads, rows, right=(2, 3, 5, 6, 7))
    out("score: mean return of the last evaluation; IQM: interquartile mean; 95 %: stratified bootstrap")
    _print_improvement(document["improvement"])
    if "overall" in document:
        out("", "over environments, scores of each scaled to 0 (lowest) .. 1 (highest)")
        cells = [
            (
                row["method"],
                ", ".join(row["envs"]),
                str(row["runs"]),
                number(row["iqm"]["value"]),
                _interval(row["iqm"]),
                number(row["mean"]["value"]),
            )
            for row in document["overall"]
        ]
        print_table(("method", "envs", "runs", "IQM", "95 %", "mean"), cells, right=(2, 3, 5))
        _print_improvement(document["overall_improvement"])
    if document["differences"]:
        out("", "configuration differences")
        shown = list(document["differences"].items())
        print_table(
            ("key", *(row["group"] for row in document["groups"])),
            [(key, *map(_value, values)) for key, values in shown[:_MOST_DIFFERENCES]],
        )
        if len(shown) > _MOST_DIFFERENCES:
            out(f"... and {len(shown) - _MOST_DIFFERENCES} more: --json has them all")


def _print_improvement(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        out("", "probability that a run scores higher")
        pairs = [(f"{row['group']} than {row['over']}", f"{row['value']:.2f}", _interval(row)) for row in rows]
        print_table(("", "p", "95 %"), pairs, right=(1,))


def _interval(estimate: dict[str, Any]) -> str:
    return "-" if estimate["low"] is None else f"{number(estimate['low'])} to {number(estimate['high'])}"


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def _sparks(groups: Sequence[Group], metric: str, axis: Axis, smooth: float) -> list[str]:
    """Curve of each group as text, on one scale per environment; empty if a run has too few values."""
    import numpy as np

    from operant import plot

    if any(len(entry.values(metric)[2]) < 2 for group in groups for entry in group.entries):
        return [""] * len(groups)
    found = []
    bands = {environment: dict(lines) for environment, lines in plot.bands(groups, metric, axis, smooth).items()}
    for group in groups:
        lines = bands[group.entries[0].environment]
        low, high = min(band.mean.min() for band in lines.values()), max(band.mean.max() for band in lines.values())
        mine = lines.get(group.method) or lines[plot.legend_label(group)]
        levels = np.interp(np.linspace(mine.x[0], mine.x[-1], _SPARK), mine.x, mine.mean)
        found.append(
            "".join(_BARS[int((value - low) / max(high - low, 1e-12) * (len(_BARS) - 1) + 0.5)] for value in levels)
        )
    return found

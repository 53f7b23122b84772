"""Commands `compare`, `plot` and `report`: scores of several runs in the terminal, as a figure and as a page.

Statistics: operant/plot.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from operant import similar
from operant.cli import completion
from operant.cli.common import (
    TYPER,
    JsonOption,
    RootOption,
    TrustOption,
    check_free,
    consented,
    out,
    print_json,
    print_table,
    say,
)
from operant.errors import MachineError, NotFoundError, OperantError, UsageError
from operant.limits import AXES, SMOOTH, one_of, within
from operant.text import count, number, safe

if TYPE_CHECKING:
    from operant.plot import Axis, Entry, Group
    from operant.plot.report import Film
    from operant.runs import Run
    from operant.runs.sweeps import Sweep

app = typer.Typer(**TYPER)

_MOST_TRIALS: Final = 10
_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK, _MOST_DIFFERENCES = 24, 40
_FORMATS, _KINDS = ("png", "svg", "pdf"), ("curves", "profile", "intervals")
MetricOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="the metric of the curves  [default: eval/return if there are enough evaluations, else return]",
    ),
]
AxisOption = Annotated[str, typer.Option("--x", metavar="steps|seconds", help="x axis of the curves")]
SmoothOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="window of the moving mean, as a share of the x axis  [default: 0.02; evaluations: 0]"
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=TEXT", help="label of a named run or group; may be repeated"),
]
ComparedNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|GROUP|SWEEP...",
        help="runs as in other commands, groups of seeds, and sweeps (their ten best trials)",
        autocompletion=completion.run_ids,
    ),
]
_FILM_SIDES: Final = (192, 128, 96, 64)  # pixels, tried until the film is small enough
_FILM_SECONDS, _FILM_FPS, _FILM_BYTES = 5.0, 15.0, 750_000


@app.command()
def compare(
    names: ComparedNames = None,
    metric: MetricOption = None,
    axis: AxisOption = "steps",
    smooth: SmoothOption = None,
    label: LabelOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Compare runs: scores with intervals, and different keys.

    Runs that differ only in run.seed form a group, in which each seed counts once. A run's score is the mean return of
    its last evaluation. Intervals are 95 % intervals of a stratified bootstrap (Agarwal et al. 2021); a single run has
    none. Scores of different environments have different scales: no mean is taken over them.
    """
    _require("scipy")
    from operant import plot

    entries, labels = _entries(names, root, axis, smooth, label)
    for entry in entries:
        if metric is not None and metric not in entry.columns.metrics:
            known = entry.columns.metrics
            near = (
                similar.did_you_mean(*similar.suggestions(metric, known)) or f"; it has {safe(', '.join(known), 400)}"
            )
            raise UsageError(f"{safe(entry.run.id)} has no metric {safe(metric, 80)!r}{near}")
    entries, left_out = plot.distinct(entries)
    groups = plot.groups(entries, labels)
    document = plot.compare(groups)
    _say_left_out(left_out)
    if as_json:
        print_json(document | {"left_out": [{"run": one.run.id, "same_as": other.run.id} for one, other in left_out]})
        return
    _print_comparison(document, groups, _metrics(groups, metric), _axis(axis), smooth)


@app.command()
def plot(
    names: ComparedNames = None,
    path: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE.png|svg|pdf", help="the file to write")
    ] = "curves.png",
    kind: Annotated[str, typer.Option("--kind", metavar="curves|profile|intervals", help="what to draw")] = "curves",
    metric: MetricOption = None,
    axis: AxisOption = "steps",
    smooth: SmoothOption = None,
    label: LabelOption = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    root: RootOption = None,
) -> None:
    """Draw learning curves of runs, with bands over seeds.

    Runs that differ only in run.seed form a group, drawn as one line, in which each seed counts once. A note below the
    figure describes smoothing and bands.
    """
    target = Path(path).expanduser()
    if target.suffix[1:] not in _FORMATS:
        raise UsageError(f"--out is {safe(path, 200)!r}; its name must end in .png, .svg or .pdf")
    if kind not in _KINDS:
        raise UsageError(f"--kind is {safe(kind, 40)!r}; it must be one of {', '.join(_KINDS)}")
    check_free(target, force)
    _require("matplotlib", "scipy")
    entries, labels = _entries(names, root, axis, smooth, label)

    from operant import plot as plots
    from operant.plot import drawing, figure

    entries, left_out = plots.distinct(entries)
    groups = plots.groups(entries, labels)
    _say_left_out(left_out)
    made = (
        drawing.learning_curves(groups, _metrics(groups, metric), _axis(axis), smooth)
        if kind == "curves"
        else _summary(groups, kind)
    )
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


@app.command()
def report(
    names: ComparedNames = None,
    path: Annotated[str, typer.Option("--out", "-o", metavar="FILE.html", help="the file to write")] = "report.html",
    metric: MetricOption = None,
    axis: AxisOption = "steps",
    smooth: SmoothOption = None,
    label: LabelOption = None,
    films: Annotated[bool, typer.Option("--films", help="embed a film of each group's best run")] = False,
    trust: TrustOption = False,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    root: RootOption = None,
) -> None:
    """Write a comparison of runs as one HTML file.

    Scores with intervals, learning curves, settings that differ, machines, versions, and the commands that repeat it.
    The file opens anywhere without a network. Runs that differ only in run.seed form a group.

    A film (--films) shows the first five seconds of an evaluation, in real time where that is known; it is a GIF of at
    most 750 kB.
    """
    target = Path(path).expanduser()
    if target.suffix != ".html":
        raise UsageError(f"--out is {safe(path, 200)!r}; its name must end in .html")
    check_free(target, force)
    _require("scipy", *(["PIL"] if films else []))
    entries, labels = _entries(names, root, axis, smooth, label)

    from operant import plot as plots
    from operant.plot import report as reports

    entries, left_out = plots.distinct(entries)
    groups = plots.groups(entries, labels)
    _say_left_out(left_out)
    metrics = _metrics(groups, metric)
    words = ["operant", "report", *(names or ()), *(f"--label={text}" for text in label or ())]
    options = {"--metric": metric, "--x": None if axis == "steps" else axis, "--smooth": smooth, "--runs": root}
    words += [f"{option}={value}" for option, value in options.items() if value is not None]
    words += [*(["--films"] if films else []), "--out", target.name]
    text = reports.page(
        groups,
        plots.compare(groups),
        plots.bands(groups, metrics, _axis(axis), smooth),
        metrics=metrics,
        axis=axis,
        command=shlex.join(words),
        films=[made for group in groups if (made := _film(group, trust)) is not None] if films else (),
    )
    temporary = target.with_name(f".{target.stem}-{os.getpid()}{target.suffix}")
    try:
        temporary.write_text(text, encoding="utf-8")
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


def _film(group: Group, trust: bool) -> Film | None:
    """Film the best run of a group as a GIF: the beginning of an evaluation, as large as its limit in bytes allows.
    Returns None, with a message, if it cannot be filmed. `trust`: run code in its folder.
    """
    from operant import runs
    from operant.play import load_policy, video
    from operant.plot.report import Film

    best = max(group.entries, key=lambda entry: (entry.score == entry.score, entry.score)).run
    try:
        loaded = consented(
            trust,
            lambda trusted: load_policy.load(
                str(best.path), runs.scope(None), which=None, device="cpu", report=say, trusted=trusted
            ),
        )
        from operant.play import film  # torch

        with tempfile.TemporaryDirectory() as folder:
            gif = Path(folder, "film.gif")
            for side in _FILM_SIDES:
                stage, player = film.staged(loaded, lanes=1, seed=loaded.config.run.seed, greedy=True)
                pace = video.pace(stage.step_s, None, None, usual_fps=_FILM_FPS, most_fps=_FILM_FPS)
                limits = film.limits_of(pace, _FILM_SECONDS, None, 1)
                film.write(gif, "gif", stage, player, pace=pace, limits=limits, side=side)
                if gif.stat().st_size <= _FILM_BYTES:
                    return Film(f"{group.label}: {best.id}, step {loaded.step:,}", gif.read_bytes())
    except OperantError as error:
        say(f"no film of {safe(group.label)}: {error}")
        return None
    say(f"no film of {safe(group.label)}: a GIF of {_FILM_SIDES[-1]} pixels takes more than {_FILM_BYTES:,} bytes")
    return None


def _entries(
    names: Sequence[str] | None, root: str | None, axis: str, smooth: float | None, labels: Sequence[str] | None
) -> tuple[list[Entry], dict[Path, str]]:
    """Load the runs to compare with their records; return them and the labels by path of a run. `names`: runs and
    groups, searched in `root` (--runs). `labels`: NAME=TEXT, by default the name of the run's group. `axis` and
    `smooth` are only checked. Raises UsageError, NotFoundError.
    """
    from operant import plot, runs
    from operant.runs import groups, sweeps

    if not names:
        raise UsageError(
            "name the runs to compare or plot, such as cartpole-ppo-4f2a cartpole-sac-77b0; `operant runs` lists them"
        )
    one_of("--x", axis, AXES)
    within("--smooth", smooth, *SMOOTH)
    given = {name: text for name, equals, text in (word.partition("=") for word in labels or ()) if equals and text}
    if len(given) < len(labels or ()) or not given.keys() <= set(names):
        raise UsageError(
            f"--label must be NAME=TEXT, with a NAME of the command line ({safe(', '.join(names), 200)}): "
            f"{safe(' '.join(labels or ()), 200)}"
        )
    scope = runs.scope(root)
    found: list[runs.Run] = []
    own: dict[Path, str] = {}
    for name in names:
        if (sweep := sweeps.load(name, *scope)) is not None:
            trials = _best_trials(sweep)
            found += trials
            own |= {run.path: f"{given.get(name, sweep.id)}.{_trial(run)}" for run in trials}
            continue
        group = groups.find(name, *scope)
        members = [runs.resolve(name, *scope)] if group is None else list(group.unchanged.values())
        if group is not None and not members:
            raise NotFoundError(f"no run of group {safe(group.id)} has started yet: operant show {safe(group.id)}")
        found += members
        label = given.get(name, None if group is None else group.id)
        if label is not None:
            own |= {run.path: label for run in members if name in given or run.path not in own}
    return plot.load_entries(found), own


def _trial(run: Run) -> str:
    """Return the number of a run's trial as text; the run's id if it is not recorded."""
    from operant.runs import membership

    own = run.document.get(membership.KEY)
    return str(own["trial"]) if isinstance(own, dict) and "trial" in own else run.id


def _best_trials(sweep: Sweep) -> list[Run]:
    """Return the finished runs of a sweep with the highest scores, at most ten; before one has finished the others.
    Raises NotFoundError if none has records.
    """
    from operant import plot, runs

    entries = plot.load_entries([run for run in sweep.runs.values() if len(runs.columns(run).n)])
    if not entries:
        raise NotFoundError(f"no run of sweep {safe(sweep.id)} has records yet: operant show {safe(sweep.id)}")
    scored = sorted((entry for entry in entries if entry.score == entry.score), key=lambda entry: -entry.score)
    finished = [entry for entry in scored if runs.state(entry.run).word == "finished"]
    return [entry.run for entry in (finished or scored or entries)[:_MOST_TRIALS]]


def _say_left_out(pairs: Sequence[tuple[Entry, Entry]]) -> None:
    """Print for each pair (left out, counted) that the first run has the configuration and seed of the second and is
    left out.
    """
    say(
        *(
            f"{safe(one.run.id)} has the configuration and seed of {safe(other.run.id)}: counted once"
            for one, other in pairs
        )
    )


def _axis(word: str) -> Axis:
    """Return the x axis named by the option --x, which is "steps" or "seconds"."""
    return "steps" if word == "steps" else "seconds"


def _require(*packages: str) -> None:
    """Raise MachineError if one of the Python packages is not installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MachineError(f"this command needs {' and '.join(missing)}: pip install 'operant[plot]'")


def _metrics(groups: Sequence[Group], metric: str | None) -> dict[str, str]:
    """Return the metric to draw by environment: `metric`, or (None) the environment's default. Prints which runs have
    too few values for a curve.
    """
    from operant import plot

    default = plot.default_metrics(groups)
    metrics = default if metric is None else dict.fromkeys(default, metric)
    for group in groups:
        chosen = metrics[group.entries[0].environment]
        for entry in plot.too_short(group, chosen):
            say(f"{safe(entry.run.id)} has too few values of {safe(chosen, 80)} for a curve: not in that of its group")
    return metrics


def _summary(groups: Sequence[Group], kind: str) -> Any:
    """Draw final scores as a Matplotlib figure, a panel for each environment: performance profiles (`kind` "profile"),
    or statistics with intervals.
    """
    from operant import plot
    from operant.plot import figure

    found = plot.summary(groups)
    note = "95 % stratified bootstrap intervals, 2,000 resamples"
    if kind == "profile":
        panels = {name: (one.thresholds, one.profiles) for name, one in found.items()}
        return figure.profiles(panels, note=f"performance profiles (Agarwal et al. 2021); bands: {note}")
    return figure.intervals({name: one.estimates for name, one in found.items()}, note=f"bars: {note}")


def _print_comparison(
    document: dict[str, Any], groups: Sequence[Group], metrics: dict[str, str], axis: Axis, smooth: float | None
) -> None:
    """Print a comparison (`document`, from `plot.compare`): a row with a small curve for each group, probabilities of
    improvement, and keys that differ. The other arguments are those of `_sparks`.
    """
    from operant.plot.comparison import settings_table

    sparks = _sparks(groups, metrics, axis, smooth)
    curve = f"{' or '.join(dict.fromkeys(metrics.values()))} over {axis}"
    heads = ("group", "env", "runs", "IQM", "95 %", "mean", "steps", "seconds", curve)
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
    if "overall_improvement" in document:
        out("", "over environments: no mean, because their scores have different scales (no reference scores)")
        _print_improvement(document["overall_improvement"])
    if document["differences"]:
        out("", "configuration differences")
        print_table(*settings_table(document, _MOST_DIFFERENCES))
        if (more := len(document["differences"]) - _MOST_DIFFERENCES) > 0:
            out(f"... and {more} more: --json has them all")


def _print_improvement(rows: Sequence[dict[str, Any]]) -> None:
    """Print the probabilities that a run of one group scores higher than one of another, for groups of several runs."""
    from operant.plot.comparison import IMPROVEMENT_HEADS, improvement_notes, improvement_rows

    if pairs := improvement_rows(rows):
        out("", "probability that a run scores higher")
        print_table(IMPROVEMENT_HEADS, pairs, right=(1, 3))
        out(*improvement_notes(rows))


def _interval(estimate: dict[str, Any]) -> str:
    """Format the 95 % interval of an estimate; "-" without one."""
    return "-" if estimate["low"] is None else f"{number(estimate['low'])} to {number(estimate['high'])}"


def _sparks(groups: Sequence[Group], metrics: dict[str, str], axis: Axis, smooth: float | None) -> list[str]:
    """Draw the curve of each group as a sparkline, on one scale per environment; "" for a group with too few values.
    `metrics`: metric by environment; `smooth`: share of the x axis over which to average (None: default).
    """
    import numpy as np

    from operant import plot

    lines: dict[str, Any] = {}
    for group in groups:
        if any(len(entry.values(metrics[entry.environment])[2]) >= 2 for entry in group.entries):
            ((_, lines[group.label]),) = plot.bands([group], metrics, axis, smooth)[group.entries[0].environment]
    found = []
    for group in groups:
        same = [lines[one.label] for one in groups if one.label in lines and _is_same_env(one, group)]
        if group.label not in lines:
            found.append("")
            continue
        low, high = min(band.mean.min() for band in same), max(band.mean.max() for band in same)
        own = lines[group.label]
        levels = (np.interp(np.linspace(own.x[0], own.x[-1], _SPARK), own.x, own.mean) - low) / max(high - low, 1e-12)
        found.append("".join(_BARS[int(level * (len(_BARS) - 1) + 0.5)] for level in levels))
    return found


def _is_same_env(group: Group, other: Group) -> bool:
    """Whether two groups train on the same environment."""
    return group.entries[0].environment == other.entries[0].environment
